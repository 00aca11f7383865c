// SPDX-License-Identifier: Apache-2.0
//
// FlushQueue. Ranges collect in the open batch. A flush closes the batch, invalidates, runs the
// releases and only then settles the batch's tickets; what is deferred meanwhile is in the next
// batch, whose flush begins later. One flush at a time, none of its work with a lock held.
#include "dma/flush_queue.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "dma/text.h"

namespace dmakit::dma {

namespace internal {
// One batch, shared by its tickets.
struct FlushState {
  std::atomic<FlushTicket::State> state{FlushTicket::State::kPending};
};
}  // namespace internal

FlushTicket::State FlushTicket::state() const {
  return batch_ == nullptr ? State::kDone : batch_->state.load(std::memory_order_acquire);
}

namespace {

constexpr Nanos kShortestSleep{100'000};
constexpr Nanos kLongestSleep{1'000'000'000};

enum class Cause { kCall, kBound, kAge, kExhaustion };

struct Entry {
  Range range;
  absl::InlinedVector<Domain*, 2> domains;
  std::function<void(const absl::Status&)> release;
};

struct Owed {
  Domain* domain;
  Range range;
  size_t ranges;
};

// One invalidation per domain: of the range, if it is only one, else of everything.
absl::Status InvalidateAll(const std::vector<Entry>& entries) {
  absl::InlinedVector<Owed, 4> owed;
  for (const Entry& entry : entries) {
    for (Domain* domain : entry.domains) {
      auto it = std::find_if(owed.begin(), owed.end(),
                             [domain](const Owed& o) { return o.domain == domain; });
      if (it == owed.end()) {
        owed.push_back({domain, entry.range, 1});
      } else {
        ++it->ranges;
      }
    }
  }
  absl::Status first;
  for (const Owed& o : owed) {
    if (o.domain->facts().unmap_invalidates) continue;
    absl::Status s = o.ranges == 1 ? o.domain->Invalidate(o.range) : o.domain->InvalidateAll();
    if (!s.ok()) {
      first.Update(absl::Status(
          s.code(), absl::StrCat("deferred flush of domain '", internal::View(o.domain->name()),
                                 "' failed: ", s.message())));
    }
  }
  return first;
}

}  // namespace

struct FlushQueue::Impl {
  explicit Impl(Options options_in) : options(options_in) {}

  const Options options;
  std::mutex mutex;
  std::condition_variable idle;  // a flush has ended
  std::condition_variable wake;  // for the thread: something to wait for, or the end
  std::vector<Entry> open;       // the open batch
  std::shared_ptr<internal::FlushState> batch = std::make_shared<internal::FlushState>();
  Nanos oldest{0};  // when the first range of the open batch came
  bool flushing = false;
  std::thread::id flusher;
  bool ending = false;
  Stats stats;
  std::jthread thread;

  using Lock = std::unique_lock<std::mutex>;

  bool InRelease() const { return flushing && flusher == std::this_thread::get_id(); }
  bool Full() const {
    return stats.pending_ranges >= options.limits.max_ranges ||
           stats.pending_bytes >= options.limits.max_bytes.value();
  }
  bool HasRoomFor(const Range& range) const {
    return stats.pending_ranges == 0 ||
           (stats.pending_ranges < options.limits.max_ranges &&
            stats.pending_bytes + range.size.value() <= options.limits.max_bytes.value());
  }
  // Of the open batch. Negative if the clock went back.
  Nanos Age() const { return options.clock->Now() - oldest; }
  // When time has gone back nobody knows how old it is: old enough.
  bool Old() const {
    if (open.empty()) return false;
    const Nanos age = Age();
    return age < Nanos{0} || age >= options.limits.max_age;
  }
  absl::Status Flush(Lock& lock, Cause cause);
  void Count(Cause cause);
  void Run();
};

void FlushQueue::Impl::Count(Cause cause) {
  ++stats.flushes;
  if (cause == Cause::kBound) ++stats.forced_by_bound;
  if (cause == Cause::kAge) ++stats.forced_by_age;
  if (cause == Cause::kExhaustion) ++stats.forced_by_exhaustion;
}

absl::Status FlushQueue::Impl::Flush(Lock& lock, Cause cause) {
  if (InRelease()) {
    return absl::FailedPreconditionError("flush queue: a release callback must not flush");
  }
  idle.wait(lock, [this] { return !flushing; });
  if (open.empty()) return absl::OkStatus();

  std::vector<Entry> entries = std::exchange(open, {});
  std::shared_ptr<internal::FlushState> tickets =
      std::exchange(batch, std::make_shared<internal::FlushState>());
  uint64_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.range.size.value();
  flushing = true;
  flusher = std::this_thread::get_id();
  Count(cause);

  lock.unlock();
  const absl::Status status = InvalidateAll(entries);
  for (Entry& entry : entries) {
    if (entry.release) std::exchange(entry.release, nullptr)(status);
  }
  tickets->state.store(status.ok() ? FlushTicket::State::kDone : FlushTicket::State::kQuarantined,
                       std::memory_order_release);
  lock.lock();

  if (!status.ok()) ++stats.failed;
  stats.pending_ranges -= entries.size();
  stats.pending_bytes -= bytes;
  flushing = false;
  idle.notify_all();
  return status;
}

// Sleeps on real time and decides by the queue's clock, which may be a test's.
void FlushQueue::Impl::Run() {
  Lock lock(mutex);
  while (!ending) {
    if (open.empty()) {
      wake.wait(lock, [this] { return ending || !open.empty(); });
    } else if (Old()) {
      (void)Flush(lock, Cause::kAge);  // a failure is in the tickets
    } else {
      // Bounded: max_age may be Nanos::max(), which no point in time can be added to.
      const Nanos left =
          options.limits.max_age - std::clamp(Age(), Nanos{0}, options.limits.max_age);
      wake.wait_for(lock, std::clamp(left, kShortestSleep, kLongestSleep),
                    [this] { return ending; });
    }
  }
}

absl::StatusOr<std::unique_ptr<FlushQueue>> FlushQueue::Create(Options options) {
  if (options.clock == nullptr) {
    return absl::InvalidArgumentError("flush queue: clock is null; pass one");
  }
  if (options.limits.max_ranges == 0 || options.limits.max_bytes.value() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("flush queue: max_ranges ", options.limits.max_ranges, ", max_bytes ",
                     options.limits.max_bytes.value(),
                     ": both must be at least 1; for no deferral use Policy::kStrict"));
  }
  if (options.limits.max_age < Nanos{0}) {
    return absl::InvalidArgumentError(absl::StrCat(
        "flush queue: max_age ", options.limits.max_age.count(), " ns: must not be negative"));
  }
  auto impl = std::make_unique<Impl>(options);
  if (options.threads != nullptr) {
    absl::StatusOr<std::jthread> thread = options.threads->Start(
        "dma-flush", [state = impl.get()](std::stop_token) { state->Run(); });
    if (!thread.ok()) {
      return absl::Status(thread.status().code(),
                          absl::StrCat("flush queue: its thread could not be started: ",
                                       thread.status().message()));
    }
    impl->thread = *std::move(thread);
  }
  return std::unique_ptr<FlushQueue>(new FlushQueue(std::move(impl)));
}

FlushQueue::FlushQueue(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

FlushQueue::~FlushQueue() {
  {
    Impl::Lock lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->wake.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
  Impl::Lock lock(impl_->mutex);
  (void)impl_->Flush(lock, Cause::kCall);
}

FlushTicket FlushQueue::Defer(Retired retired) {
  Impl& impl = *impl_;
  Impl::Lock lock(impl.mutex);
  const bool nested = impl.InRelease();
  while (!nested && !impl.HasRoomFor(retired.range)) (void)impl.Flush(lock, Cause::kBound);

  const bool first = impl.open.empty();
  if (first) impl.oldest = impl.options.clock->Now();
  impl.open.push_back({retired.range,
                       {retired.domains.begin(), retired.domains.end()},
                       std::move(retired.release)});
  ++impl.stats.deferred;
  ++impl.stats.pending_ranges;
  impl.stats.pending_bytes += retired.range.size.value();
  impl.stats.peak_pending_ranges =
      std::max(impl.stats.peak_pending_ranges, impl.stats.pending_ranges);
  FlushTicket ticket(impl.batch);

  if (!nested && impl.Full()) {
    (void)impl.Flush(lock, Cause::kBound);
  } else if (!nested && !impl.thread.joinable() && impl.Old()) {
    (void)impl.Flush(lock, Cause::kAge);
  } else if (first && impl.thread.joinable()) {
    impl.wake.notify_one();
  }
  return ticket;
}

absl::Status FlushQueue::Flush() {
  Impl::Lock lock(impl_->mutex);
  return impl_->Flush(lock, Cause::kCall);
}

absl::Status FlushQueue::FlushIfOld() {
  Impl::Lock lock(impl_->mutex);
  return impl_->Old() ? impl_->Flush(lock, Cause::kAge) : absl::OkStatus();
}

void FlushQueue::Reclaim() {
  Impl::Lock lock(impl_->mutex);
  (void)impl_->Flush(lock, Cause::kExhaustion);
}

FlushQueue::Stats FlushQueue::stats() const {
  Impl::Lock lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace dmakit::dma
