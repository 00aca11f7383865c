// SPDX-License-Identifier: Apache-2.0
//
// NullWire: nothing comes from it, and it takes everything. "null" on a command line.
#ifndef DMAKIT_NIC_WIRE_NULL_WIRE_H_
#define DMAKIT_NIC_WIRE_NULL_WIRE_H_

#include "nic/wire/counters.h"
#include "nic/wire/wire.h"

namespace dmakit::nic {

class NullWire final : public Wire {
 public:
  std::optional<std::span<const std::byte>> Peek() override { return std::nullopt; }
  void Pop() override {}
  bool exhausted() const override { return true; }
  void Accept(std::span<const std::byte> frame) override { counters_.FromNic(frame.size()); }
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return counters_.Get(); }

 private:
  internal::WireCounters counters_;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_WIRE_NULL_WIRE_H_
