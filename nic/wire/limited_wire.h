// SPDX-License-Identifier: Apache-2.0
//
// LimitedWire stands before another wire and ends its supply of frames, after a number of them or
// when told to. That is how a run stops without losing anything: the NIC sees the wire run dry and
// everything behind it drains. It also tells whether a frame is waiting that the NIC does not take.
//
// Stop() from any thread; the rest as every wire.
#ifndef DMAKIT_NIC_WIRE_LIMITED_WIRE_H_
#define DMAKIT_NIC_WIRE_LIMITED_WIRE_H_

#include <atomic>
#include <cstdint>
#include <limits>

#include "nic/wire/wire.h"

namespace dmakit::nic {

class LimitedWire final : public Wire {
 public:
  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

  // `inner` must outlive this wire. `max_frames` counts frames taken, not those refused.
  explicit LimitedWire(Wire& inner, uint64_t max_frames = kNoLimit)
      : inner_(inner), left_(max_frames) {}

  void Stop() { stopped_.store(true, std::memory_order_relaxed); }
  // The last Peek showed a frame which has not been taken since.
  bool frame_waiting() const { return waiting_; }

  std::optional<std::span<const std::byte>> Peek() override;
  void Pop() override;
  bool exhausted() const override;
  void Accept(std::span<const std::byte> frame) override { inner_.Accept(frame); }
  absl::Status Close() override { return inner_.Close(); }
  WireStats stats() const override { return inner_.stats(); }

 private:
  Wire& inner_;
  std::atomic<uint64_t> left_;
  std::atomic<bool> stopped_{false};
  bool waiting_ = false;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_WIRE_LIMITED_WIRE_H_
