// SPDX-License-Identifier: Apache-2.0
//
// LimitedWire stands before another wire and ends its supply of frames, after a number of them or
// when told to. That is how a run stops without losing anything: the NIC sees the wire run dry and
// everything behind it drains. It also tells whether a frame is waiting that the NIC does not take.
//
// A real NIC takes its frames from a cable that nobody can hold back. There the limit is kept by
// who receives from it: see Admit.
//
// Stop(), exhausted(), frame_waiting(), Admit() and Admitted() from any thread; the rest as every
// wire.
#ifndef DMAKIT_NIC_WIRE_LIMITED_WIRE_H_
#define DMAKIT_NIC_WIRE_LIMITED_WIRE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "nic/wire/wire.h"

namespace dmakit::nic {

// How many frames may still be taken, by one wire or by several together. Any thread.
class FrameBudget {
 public:
  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

  explicit FrameBudget(uint64_t frames) : left_(frames) {}
  // False: none is left.
  bool Take();
  // At most what is left.
  void TakeUpTo(uint64_t frames);
  uint64_t left() const { return left_.load(std::memory_order_acquire); }
  bool empty() const { return left_.load(std::memory_order_acquire) == 0; }

 private:
  std::atomic<uint64_t> left_;
};

class LimitedWire final : public Wire {
 public:
  static constexpr uint64_t kNoLimit = FrameBudget::kNoLimit;

  // `inner` must outlive this wire. `max_frames` counts frames taken, not those refused.
  explicit LimitedWire(Wire& inner, uint64_t max_frames = kNoLimit)
      : inner_(inner), own_(max_frames), budget_(own_) {}
  // The same with a limit for several wires in sum. `budget` must outlive this wire.
  LimitedWire(Wire& inner, FrameBudget& budget) : inner_(inner), own_(0), budget_(budget) {}

  // No frame is shown any more; one that has been shown may still be taken.
  void Stop() { stopped_.store(true); }
  // The last Peek showed a frame which has not been taken since.
  bool frame_waiting() const { return waiting_.load(std::memory_order_relaxed); }

  // How many frames may be received now, of `most`; 0 once it is stopped or the budget is empty.
  // What was received is then said to Admitted: with several threads, each may be over the limit by
  // what it asked for.
  size_t Admit(size_t most) const {
    return stopped_.load() ? 0 : static_cast<size_t>(std::min<uint64_t>(most, budget_.left()));
  }
  void Admitted(size_t frames) { budget_.TakeUpTo(frames); }

  std::optional<std::span<const std::byte>> Peek() override;
  void Pop() override;
  bool exhausted() const override;
  void Accept(std::span<const std::byte> frame) override { inner_.Accept(frame); }
  absl::Status Close() override { return inner_.Close(); }
  WireStats stats() const override { return inner_.stats(); }

 private:
  Wire& inner_;
  FrameBudget own_;
  FrameBudget& budget_;
  std::atomic<bool> stopped_{false};
  // From the begin of a Peek until its frame is taken, or there was none. Written before Peek reads
  // stopped_, and read after Stop wrote it: a frame that Peek still shows is never overlooked.
  std::atomic<bool> looking_{false};
  std::atomic<bool> waiting_{false};
  bool reserved_ = false;  // one frame of the budget is this wire's, for the next Pop
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_WIRE_LIMITED_WIRE_H_
