// SPDX-License-Identifier: Apache-2.0
//
// Cable stands for the cable of a real NIC among the wires of a run: it moves no frame, and knows
// of them what the NIC's driver counts. So a run is limited, watched and reported the same way
// whatever it goes through.
//
// A real NIC goes on receiving when a run has ended; Freeze says from when on what it drops is no
// loss of the run. Used by the thread that runs the loop; stats() from any thread while nobody else
// is called.
#ifndef DMAKIT_NIC_CMD_CABLE_H_
#define DMAKIT_NIC_CMD_CABLE_H_

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "nic/port.h"
#include "nic/stats.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::cmd {

class Cable final : public Wire {
 public:
  // The port is there until Disconnect.
  void Connect(const Port& port) { port_ = &port; }
  void Freeze();
  // `last`: what the port counted in all.
  void Disconnect(const PortStats& last);

  std::optional<std::span<const std::byte>> Peek() override { return std::nullopt; }
  void Pop() override {}
  bool exhausted() const override { return false; }
  void Accept(std::span<const std::byte>) override {}
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override;

 private:
  const Port* port_ = nullptr;
  PortStats last_{};
  std::optional<uint64_t> dropped_{};  // frozen
};

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_CABLE_H_
