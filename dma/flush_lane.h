// SPDX-License-Identifier: Apache-2.0
//
// Internal: what stands behind a FlushLane. A bounded ring of unmapped ranges, allocated up front:
//
//   released <= flushed <= pushed <= released + max_ranges
//   |          |          |
//   |          |          `-- the owner writes here, alone, without a lock
//   |          `------------- tickets below are done; moved by a flush, one at a time per queue
//   `------------------------ given back to their releasers, under release_mutex; slots are free
//
// Each count is the number of ranges since the lane began, so a ticket is a number in its lane.
#ifndef DMAKIT_DMA_FLUSH_LANE_H_
#define DMAKIT_DMA_FLUSH_LANE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "dma/flush_queue.h"
#include "iova/cache.h"
#include "iova/counter.h"

namespace dmakit::dma::internal {

struct LaneState {
  LaneState(const void* queue_in, const DeferredLimits& limits);

  struct Slot {
    Retired retired;
    absl::InlinedVector<Domain*, 2> domains;  // what retired.domains is
  };

  const void* const queue;  // whose lane this is
  const size_t max_ranges;
  const uint64_t max_bytes;
  const uint64_t mask;
  std::vector<Slot> slots;

  // The owner's; of the common lane, under push_mutex.
  alignas(64) std::atomic<uint64_t> pushed{0};
  Counter pushed_bytes, peak;
  std::mutex push_mutex;  // common lane only

  // A flush's.
  alignas(64) std::atomic<uint64_t> flushed{0};
  Counter flushed_bytes;
  std::atomic<int64_t> oldest{0};  // not later than when the first pending range came
  uint64_t closed = 0;             // the running flush serves what is below

  alignas(64) std::mutex release_mutex;
  std::atomic<uint64_t> released{0};
  std::atomic<std::thread::id> releasing{};
  Counter releases;                        // times something was released
  mutable std::atomic<uint64_t> waits{0};  // a lock was taken already
  std::atomic<bool> ended{false};          // the owner has gone: nothing is pushed any more

  // Numbers whose flush failed, as [first, second); rare.
  std::atomic<bool> any_failed{false};
  mutable std::mutex failed_mutex;
  std::vector<std::pair<uint64_t, uint64_t>> failed;

  Slot& at(uint64_t number) { return slots[number & mask]; }
  std::unique_lock<std::mutex> Lock(std::mutex& mutex) const;
  bool ReleasingHere() const {
    return releasing.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  // --- The owner ---
  bool Idle() const { return pushed.load(std::memory_order_relaxed) == Flushed(); }
  bool HasRoomFor(Bytes size) const;
  bool Full() const;  // at a bound: to be flushed now
  uint64_t Push(Retired&& retired);
  // Releases what was flushed meanwhile. False: there was nothing.
  bool Harvest(iova::Cache* cache);

  // --- A flush, with the queue's flush mutex ---
  uint64_t Flushed() const { return flushed.load(std::memory_order_acquire); }
  void Close() { closed = pushed.load(std::memory_order_seq_cst); }
  // Tickets below `closed` end.
  void Settle(const absl::Status& status);
  // The same with everything released first; `cache` is the calling thread's.
  void SettleAndRelease(const absl::Status& status, iova::Cache* cache);

  FlushTicket::State StateOf(uint64_t number) const;

 private:
  void Release(uint64_t from, uint64_t to, const absl::Status& status, iova::Cache* cache);
};

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_FLUSH_LANE_H_
