// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/limited_wire.h"

namespace dmakit::nic {

bool FrameBudget::Take() {
  uint64_t left = left_.load(std::memory_order_relaxed);
  while (left != 0) {
    if (left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void FrameBudget::TakeUpTo(uint64_t frames) {
  uint64_t left = left_.load(std::memory_order_relaxed);
  while (!left_.compare_exchange_weak(left, left - std::min(left, frames),
                                      std::memory_order_acq_rel)) {
  }
}

std::optional<std::span<const std::byte>> LimitedWire::Peek() {
  looking_.store(true);
  // What lies behind the limit is not looked at. The budget is asked once there is a frame: a wire
  // without any must not hold another one's.
  std::optional<std::span<const std::byte>> frame;
  if (!stopped_.load() && (reserved_ || !budget_.empty())) frame = inner_.Peek();
  if (frame && !reserved_) reserved_ = budget_.Take();
  if (!reserved_) frame.reset();
  waiting_.store(frame.has_value(), std::memory_order_relaxed);
  if (!frame) looking_.store(false);
  return frame;
}

void LimitedWire::Pop() {
  if (!frame_waiting()) return;
  inner_.Pop();
  reserved_ = false;
  waiting_.store(false, std::memory_order_relaxed);
  looking_.store(false);
}

bool LimitedWire::exhausted() const {
  return (stopped_.load() || budget_.empty() || inner_.exhausted()) && !looking_.load();
}

}  // namespace dmakit::nic
