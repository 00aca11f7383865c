// SPDX-License-Identifier: Apache-2.0
//
// PairWire: a cable that is used both ways, put together from one that frames come from and one
// that they go to. Header only; threads as every wire.
#ifndef DMAKIT_TESTS_NIC_CMD_PAIR_WIRE_H_
#define DMAKIT_TESTS_NIC_CMD_PAIR_WIRE_H_

#include "nic/wire/wire.h"

namespace dmakit::nic::testing {

class PairWire final : public Wire {
 public:
  PairWire(Wire& source, Wire& sink) : source_(source), sink_(sink) {}

  std::optional<std::span<const std::byte>> Peek() override { return source_.Peek(); }
  void Pop() override { source_.Pop(); }
  bool exhausted() const override { return source_.exhausted(); }
  void Accept(std::span<const std::byte> frame) override { sink_.Accept(frame); }
  absl::Status Close() override {
    const absl::Status s = source_.Close();
    return s.ok() ? sink_.Close() : s;
  }
  WireStats stats() const override {
    WireStats stats = source_.stats();
    const WireStats sink = sink_.stats();
    stats.frames_from_nic = sink.frames_from_nic;
    stats.bytes_from_nic = sink.bytes_from_nic;
    stats.lost = sink.lost;
    stats.lost_bytes = sink.lost_bytes;
    return stats;
  }

 private:
  Wire& source_;
  Wire& sink_;
};

}  // namespace dmakit::nic::testing

#endif  // DMAKIT_TESTS_NIC_CMD_PAIR_WIRE_H_
