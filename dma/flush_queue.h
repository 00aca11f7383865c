// SPDX-License-Identifier: Apache-2.0
//
// Deferred invalidation. An unmap removes the translation from the tables at once, but a device may
// go on using what its translation cache holds until a flush. A FlushQueue collects unmapped ranges
// and lets one flush serve many, bounded in count, bytes and age. Nothing that waits here is reused
// before a flush that *began* after its unmap has completed.
//
// Owned by an AddressSpace, registered with its iova::Space, so that exhaustion forces a flush. The
// domains outlive it. Any thread.
#ifndef DMAKIT_DMA_FLUSH_QUEUE_H_
#define DMAKIT_DMA_FLUSH_QUEUE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "dma/domain.h"
#include "dma/host/clock.h"
#include "dma/types.h"
#include "iova/space.h"

namespace dmakit::dma {

struct DeferredLimits {
  size_t max_ranges = 256;
  Bytes max_bytes{uint64_t{32} << 20};
  Nanos max_age{10'000'000};  // enforced by the queue's thread, or, without one, by the next call
                              // into the queue
};

namespace internal {
struct FlushState;
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
  explicit FlushTicket(std::shared_ptr<const internal::FlushState> batch)
      : batch_(std::move(batch)) {}

  std::shared_ptr<const internal::FlushState> batch_;  // all that one flush will serve
};

class FlushQueue final : public iova::Reclaimer {
 public:
  struct Options {
    DeferredLimits limits{};
    host::Clock* clock = nullptr;  // required
    host::ThreadStarter* threads =
        nullptr;  // nullptr: no thread; age is then enforced by calls only
  };

  // One unmapped range. Domains were told to unmap it already and still have to be invalidated.
  struct Retired {
    Range range{};
    std::span<Domain* const> domains{};
    // Runs once after the flush and before its tickets are done, with the flush's result, on the
    // flushing thread, no queue lock held: gives the IOVA back (OK) or quarantines it. It must not
    // flush, nor allocate from the iova::Space. May be empty.
    std::function<void(const absl::Status&)> release{};
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
    uint64_t peak_pending_ranges = 0;
  };

  // Fails when the thread cannot be started; the caller then uses strict invalidation and says so.
  static absl::StatusOr<std::unique_ptr<FlushQueue>> Create(Options options);
  // Waits for a running flush, flushes what is pending, ends the thread.
  ~FlushQueue() override;

  // Queues `retired`; at a bound it flushes before it returns, so the bounds hold for every caller.
  FlushTicket Defer(Retired retired);
  // Completes everything deferred before the call. The status is that of the flush this call runs;
  // of one that another thread was running already, the tickets tell.
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
