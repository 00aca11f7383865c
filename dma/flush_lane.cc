// SPDX-License-Identifier: Apache-2.0
//
// LaneState and the handles that refer to it.
#include "dma/flush_lane.h"

#include <algorithm>
#include <bit>

namespace dmakit::dma {

FlushTicket::State FlushTicket::state() const {
  if (lane_ == nullptr) return number_ == 0 ? State::kDone : State::kQuarantined;
  return lane_->StateOf(number_);
}

FlushLane& FlushLane::operator=(FlushLane&& other) noexcept {
  if (this != &other) {
    if (state_ != nullptr) state_->ended.store(true, std::memory_order_release);
    state_ = std::move(other.state_);
  }
  return *this;
}

FlushLane::~FlushLane() {
  if (state_ != nullptr) state_->ended.store(true, std::memory_order_release);
}

namespace internal {

LaneState::LaneState(const void* queue_in, const DeferredLimits& limits)
    : queue(queue_in),
      max_ranges(limits.max_ranges),
      max_bytes(limits.max_bytes.value()),
      mask(std::bit_ceil(uint64_t{limits.max_ranges}) - 1),
      slots(mask + 1) {}

std::unique_lock<std::mutex> LaneState::Lock(std::mutex& mutex) const {
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    waits.fetch_add(1, std::memory_order_relaxed);
    lock.lock();
  }
  return lock;
}

bool LaneState::HasRoomFor(Bytes size) const {
  const uint64_t end = pushed.load(std::memory_order_relaxed);
  if (end - released.load(std::memory_order_acquire) >= max_ranges) return false;
  if (end == Flushed()) return true;
  return pushed_bytes.Get() - flushed_bytes.Get() + size.value() <= max_bytes;
}

bool LaneState::Full() const {
  const uint64_t done = Flushed();
  const uint64_t pending = pushed.load(std::memory_order_relaxed) - done;
  return pending >= max_ranges ||
         (pending != 0 && pushed_bytes.Get() - flushed_bytes.Get() >= max_bytes);
}

uint64_t LaneState::Push(Retired&& retired) {
  const uint64_t number = pushed.load(std::memory_order_relaxed);
  Slot& slot = at(number);
  slot.domains.assign(retired.domains.begin(), retired.domains.end());
  slot.retired = std::move(retired);
  slot.retired.domains = slot.domains;
  pushed_bytes.Add(slot.retired.range.size.value());
  peak.RaiseTo(number + 1 - Flushed());
  // Sequentially consistent, as the age thread's looks at it are: it may be about to sleep.
  pushed.store(number + 1, std::memory_order_seq_cst);
  return number;
}

bool LaneState::Harvest(iova::Cache* cache) {
  if (released.load(std::memory_order_relaxed) == Flushed() || ReleasingHere()) return false;
  const std::unique_lock<std::mutex> lock = Lock(release_mutex);
  const uint64_t from = released.load(std::memory_order_relaxed);
  const uint64_t to = Flushed();
  Release(from, to, absl::OkStatus(), cache);
  released.store(to, std::memory_order_release);
  return from != to;
}

void LaneState::Release(uint64_t from, uint64_t to, const absl::Status& status,
                        iova::Cache* cache) {
  if (from == to) return;
  releasing.store(std::this_thread::get_id(), std::memory_order_relaxed);
  for (uint64_t n = from; n != to; ++n) {
    Retired& retired = at(n).retired;
    if (retired.releaser != nullptr) retired.releaser->Release(retired, status, cache);
    retired.keep.reset();
  }
  releasing.store({}, std::memory_order_relaxed);
  releases.Add();
}

void LaneState::Settle(const absl::Status& status) {
  const uint64_t from = flushed.load(std::memory_order_relaxed);
  if (from == closed) return;
  uint64_t bytes = 0;
  for (uint64_t n = from; n != closed; ++n) bytes += at(n).retired.range.size.value();
  if (!status.ok()) {
    std::lock_guard<std::mutex> lock(failed_mutex);
    if (!failed.empty() && failed.back().second == from) {
      failed.back().second = closed;
    } else {
      failed.emplace_back(from, closed);
    }
    any_failed.store(true, std::memory_order_relaxed);
  }
  flushed_bytes.Add(bytes);
  flushed.store(closed, std::memory_order_release);
}

void LaneState::SettleAndRelease(const absl::Status& status, iova::Cache* cache) {
  const std::unique_lock<std::mutex> lock = Lock(release_mutex);
  const uint64_t settled = flushed.load(std::memory_order_relaxed);
  Release(released.load(std::memory_order_relaxed), settled, absl::OkStatus(), cache);
  Release(settled, closed, status, cache);
  Settle(status);
  released.store(closed, std::memory_order_release);
}

FlushTicket::State LaneState::StateOf(uint64_t number) const {
  if (number >= Flushed()) return FlushTicket::State::kPending;
  if (!any_failed.load(std::memory_order_relaxed)) return FlushTicket::State::kDone;
  std::lock_guard<std::mutex> lock(failed_mutex);
  const bool in_failed = std::any_of(failed.begin(), failed.end(), [number](const auto& numbers) {
    return numbers.first <= number && number < numbers.second;
  });
  return in_failed ? FlushTicket::State::kQuarantined : FlushTicket::State::kDone;
}

}  // namespace internal
}  // namespace dmakit::dma
