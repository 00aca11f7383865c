// SPDX-License-Identifier: Apache-2.0
//
// Deferred invalidation. An unmap removes the translation from the tables at once, but a device may
// go on using what its translation cache holds until a flush. A FlushQueue collects unmapped ranges
// and lets one flush serve many, bounded in count, bytes and age. Nothing that waits here is reused
// before a flush that *began* after its unmap has completed.
//
//   owner  -> its FlushLane  |
//   owner  -> its FlushLane  | -> one flush, one invalidation per domain, serves all of them
//   others -> common lane    |
//
// A lane is one owner's (a ring's, a thread's): a bounded array into which an unmap is put without
// lock or allocation. Who has none uses the common lane, behind a lock that all share.
//
// Owned by an AddressSpace, registered with its iova::Space, so that exhaustion forces a flush. The
// domains outlive it. Any thread, except that a lane has one owner.
#ifndef DMAKIT_DMA_FLUSH_QUEUE_H_
#define DMAKIT_DMA_FLUSH_QUEUE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/domain.h"
#include "dma/host/clock.h"
#include "dma/types.h"
#include "iova/cache.h"
#include "iova/space.h"

namespace dmakit::dma {

// All that waits is within (max_lanes + 1) times the bounds in count and bytes.
struct DeferredLimits {
  size_t max_ranges = 256;              // in one lane, the common one included; at most 2^20
  Bytes max_bytes{uint64_t{32} << 20};  // in one lane
  Nanos max_age{10'000'000};  // enforced by the queue's thread, or, without one, by the next call
                              // into the queue
  size_t max_lanes = 64;      // beside the common one; an ended lane counts until it is empty
};

namespace internal {
struct LaneState;
}

// Tells whether the flush an unmap waits for has completed. Cheap to copy and to ask, valid longer
// than the queue.
class FlushTicket {
 public:
  enum class State : uint8_t {
    kPending,
    kDone,  // no access through the old translation is running or can start: memory may be reused
    kQuarantined,  // the flush failed: the memory must stay as it is until the device was reset
  };

  FlushTicket() = default;  // already done: what a strict unmap returns
  State state() const;
  bool done() const { return state() == State::kDone; }

 private:
  friend class FlushQueue;
  FlushTicket(std::shared_ptr<const internal::LaneState> lane, uint64_t number)
      : lane_(std::move(lane)), number_(number) {}

  std::shared_ptr<const internal::LaneState> lane_;
  uint64_t number_ = 0;  // in the lane; without one, 0: done, 1: quarantined
};

// One owner's part of a FlushQueue. Used by one thread at a time. Destroying it waits for nothing
// and loses nothing: what is in it is served by the next flush. May outlive its queue. The empty
// one stands for the common lane.
class FlushLane {
 public:
  FlushLane() = default;
  FlushLane(FlushLane&& other) noexcept = default;
  FlushLane& operator=(FlushLane&& other) noexcept;
  ~FlushLane();

  bool empty() const { return state_ == nullptr; }

 private:
  friend class FlushQueue;
  explicit FlushLane(std::shared_ptr<internal::LaneState> state) : state_(std::move(state)) {}
  std::shared_ptr<internal::LaneState> state_;
};

// What the calling thread has of its own, for the length of a call. Both may be null.
struct Local {
  Local() = default;
  Local(iova::Cache* cache_in, FlushLane* lane_in = nullptr)  // NOLINT: a cache alone is one
      : cache(cache_in), lane(lane_in) {}

  iova::Cache* cache = nullptr;
  FlushLane* lane = nullptr;
};

class Releaser;

// One unmapped range. Domains were told to unmap it already and still have to be invalidated.
struct Retired {
  Range range{};
  std::span<Domain* const> domains{};  // copied by the queue
  // Outlives the range's stay in the queue; Flush() ends that. Null: only the ticket tells.
  Releaser* releaser = nullptr;
  // The rest is the releaser's own.
  Range iova{};
  std::string owner{};
  uintptr_t tag = 0;
  std::shared_ptr<void> keep{};  // let go after the release
};

class Releaser {
 public:
  virtual ~Releaser() = default;
  // Once per range after its flush, with the flush's result: gives the IOVA back (OK) or
  // quarantines it. `cache` is the calling thread's own, or null.
  //
  // Before the ticket is done, on the flushing thread; but what is in a lane with an owner may be
  // released later after a flush that went well: by the owner's next unmap (into its cache), by any
  // Flush(), by age or exhaustion. So the IOVA may come back late, the memory does not.
  //
  // It must not flush nor make lanes, nor allocate from the iova::Space, and may ask for stats().
  virtual void Release(const Retired& retired, const absl::Status& flushed, iova::Cache* cache) = 0;
};

class FlushQueue final : public iova::Reclaimer {
 public:
  using Retired = dma::Retired;

  struct Options {
    DeferredLimits limits{};
    host::Clock* clock = nullptr;  // required
    host::ThreadStarter* threads =
        nullptr;  // nullptr: no thread; age is then enforced by calls only
  };

  struct Stats {
    uint64_t deferred = 0;  // ranges that went through the queue
    uint64_t flushes = 0;
    uint64_t forced_by_bound = 0;
    uint64_t forced_by_age = 0;
    uint64_t forced_by_exhaustion = 0;
    uint64_t failed = 0;  // flushes whose ranges were quarantined
    uint64_t pending_ranges = 0;
    uint64_t pending_bytes = 0;
    uint64_t peak_pending_ranges = 0;  // the lanes' own peaks, added up
    uint64_t parked_ranges = 0;  // flushed, but their IOVAs wait for the lane's owner; in the bound
    uint64_t lanes = 0;          // the common one not counted
    // How much owners got in each other's way. All 0 in the steady state of owners with lanes.
    uint64_t common = 0;       // of `deferred`: put into the common lane, whose lock all share
    uint64_t lock_waits = 0;   // a lane's lock was held by someone else
    uint64_t flush_waits = 0;  // someone else's flush was running when a lane was full
    uint64_t releases = 0;     // times a lane's lock was taken to release what was flushed
  };

  // Fails when the thread cannot be started; the caller then uses strict invalidation and says so.
  static absl::StatusOr<std::unique_ptr<FlushQueue>> Create(Options options);
  // Waits for a running flush, flushes what is pending, ends the thread.
  ~FlushQueue() override;

  // For one owner; `owner` names it in errors. ResourceExhausted at max_lanes.
  absl::StatusOr<FlushLane> NewLane(std::string_view owner);

  // Queues `retired`, in local.lane if it is one of this queue's; at a bound it flushes before it
  // returns, so the bounds hold for every caller.
  FlushTicket Defer(Retired retired, const Local& local = {});
  // Completes everything deferred before the call, in all lanes, releases included. The status is
  // that of the flush this call runs; of one that another thread was running already, the tickets
  // tell.
  absl::Status Flush();
  // Flushes if the oldest range is older than max_age; for programs that poll instead of having a
  // thread.
  absl::Status FlushIfOld();
  void Reclaim() override;

  Stats stats() const;

 private:
  struct Impl;
  explicit FlushQueue(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_FLUSH_QUEUE_H_
