// SPDX-License-Identifier: Apache-2.0
//
// FlushQueue. A flush closes what every lane holds, invalidates once per domain, and only then
// settles the tickets; what is deferred meanwhile waits for the next flush, which begins later. One
// flush at a time.
//
// Locks, outermost first: flush_mutex; a lane's release_mutex, with which releasers are called; the
// leaves: lanes_mutex, a lane's push_mutex and failed_mutex, wake_mutex.
#include "dma/flush_queue.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "dma/flush_lane.h"
#include "dma/text.h"

namespace dmakit::dma {

using internal::LaneState;

namespace {

constexpr size_t kMaxRanges = size_t{1} << 20;
constexpr Nanos kShortestSleep{100'000};
constexpr Nanos kLongestSleep{1'000'000'000};

enum class Cause { kCall, kBound, kAge, kExhaustion };

struct Owed {
  Domain* domain;
  Range range;
  size_t ranges;
};

absl::Status Failed(const Domain& domain, const absl::Status& why) {
  return absl::Status(why.code(),
                      absl::StrCat("deferred flush of domain '", internal::View(domain.name()),
                                   "' failed: ", why.message()));
}

// One invalidation per domain: of the range, if it is only one, else of everything.
absl::Status InvalidateClosed(const std::vector<std::shared_ptr<LaneState>>& lanes) {
  absl::InlinedVector<Owed, 4> owed;
  for (const auto& lane : lanes) {
    for (uint64_t n = lane->Flushed(); n != lane->closed; ++n) {
      const LaneState::Slot& slot = lane->at(n);
      for (Domain* domain : slot.domains) {
        auto it = std::find_if(owed.begin(), owed.end(),
                               [domain](const Owed& o) { return o.domain == domain; });
        if (it == owed.end()) {
          owed.push_back({domain, slot.retired.range, 1});
        } else {
          ++it->ranges;
        }
      }
    }
  }
  absl::Status first;
  for (const Owed& o : owed) {
    if (o.domain->facts().unmap_invalidates) continue;
    absl::Status s = o.ranges == 1 ? o.domain->Invalidate(o.range) : o.domain->InvalidateAll();
    if (!s.ok()) first.Update(Failed(*o.domain, s));
  }
  return first;
}

}  // namespace

struct FlushQueue::Impl {
  explicit Impl(Options options_in)
      : options(options_in), common(std::make_shared<LaneState>(this, options_in.limits)) {
    lanes.push_back(common);
  }

  const Options options;
  const std::shared_ptr<LaneState> common;

  std::mutex flush_mutex;                           // one flush at a time, releases included
  std::vector<std::shared_ptr<LaneState>> serving;  // by the running flush
  Counter flushes, forced_by_bound, forced_by_age, forced_by_exhaustion, failed;
  std::atomic<uint64_t> flush_waits{0};

  mutable std::mutex lanes_mutex;
  std::vector<std::shared_ptr<LaneState>> lanes;  // the common one first
  Stats gone;                                     // counts of lanes that are no more

  // The age thread sleeps only while `awake` is false, which it sets before a last look at the
  // lanes; who defers looks at it after putting a range in.
  std::atomic<bool> awake{false};
  std::mutex wake_mutex;
  std::condition_variable wake;
  bool ending = false;
  std::jthread thread;

  bool InRelease() const;
  LaneState& LaneOf(const Local& local) const;
  std::optional<Nanos> Oldest() const;
  // When time has gone back nobody knows how old it is: old enough.
  bool Old(Nanos first) const {
    const Nanos age = options.clock->Now() - first;
    return age < Nanos{0} || age >= options.limits.max_age;
  }

  absl::Status Flush(Cause cause, LaneState* own = nullptr, iova::Cache* cache = nullptr);
  bool CloseAll(Cause cause);
  void Count(Cause cause, const absl::Status& status);
  FlushTicket Immediately(Retired retired);
  void Wake();
  void Run();
  void Prune();  // with lanes_mutex
};

// A releaser must not flush: its own flush would wait for it.
bool FlushQueue::Impl::InRelease() const {
  std::lock_guard<std::mutex> lock(lanes_mutex);
  return std::any_of(lanes.begin(), lanes.end(),
                     [](const auto& lane) { return lane->ReleasingHere(); });
}

LaneState& FlushQueue::Impl::LaneOf(const Local& local) const {
  if (local.lane == nullptr || local.lane->state_ == nullptr) return *common;
  LaneState& lane = *local.lane->state_;
  const bool ours = lane.queue == this && !lane.ended.load(std::memory_order_relaxed);
  return ours ? lane : *common;
}

// Of what is pending anywhere. For a thread about to sleep: sees whatever was pushed before `awake`
// was found false.
std::optional<Nanos> FlushQueue::Impl::Oldest() const {
  std::lock_guard<std::mutex> lock(lanes_mutex);
  std::optional<Nanos> oldest;
  for (const auto& lane : lanes) {
    const uint64_t done = lane->Flushed();
    if (lane->pushed.load(std::memory_order_seq_cst) == done) continue;
    const Nanos first{lane->oldest.load(std::memory_order_relaxed)};
    oldest = oldest ? std::min(*oldest, first) : first;
  }
  return oldest;
}

void FlushQueue::Impl::Count(Cause cause, const absl::Status& status) {
  flushes.Add();
  if (cause == Cause::kBound) forced_by_bound.Add();
  if (cause == Cause::kAge) forced_by_age.Add();
  if (cause == Cause::kExhaustion) forced_by_exhaustion.Add();
  if (!status.ok()) failed.Add();
}

// The batch of every lane ends here. False: nothing waits for an invalidation. A flush at a bound
// leaves lanes with nothing pending alone, the others also release what is only parked.
bool FlushQueue::Impl::CloseAll(Cause cause) {
  bool pending = false;
  std::lock_guard<std::mutex> lock(lanes_mutex);
  Prune();
  for (const auto& lane : lanes) {
    lane->Close();
    const bool waiting = lane->closed != lane->Flushed();
    const bool parked = lane->closed != lane->released.load(std::memory_order_relaxed);
    pending |= waiting;
    if (waiting || (parked && cause != Cause::kBound)) serving.push_back(lane);
  }
  return pending;
}

absl::Status FlushQueue::Impl::Flush(Cause cause, LaneState* own, iova::Cache* cache) {
  if (InRelease()) {
    return absl::FailedPreconditionError("flush queue: a releaser must not flush");
  }
  const uint64_t before = own != nullptr ? own->Flushed() : 0;
  std::unique_lock<std::mutex> lock(flush_mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    if (own != nullptr) flush_waits.fetch_add(1, std::memory_order_relaxed);
    lock.lock();
    // Someone else's flush has made room.
    if (cause == Cause::kBound && own->Flushed() != before) return absl::OkStatus();
  }
  const bool pending = CloseAll(cause);
  absl::Status status;
  if (pending) {
    const int64_t began = options.clock->Now().count();
    status = InvalidateClosed(serving);
    Count(cause, status);
    for (const auto& lane : serving) lane->oldest.store(began, std::memory_order_relaxed);
  }
  for (const auto& lane : serving) {
    // What is in another owner's lane can wait for the owner, who has a cache to put it in.
    const bool leave = cause == Cause::kBound && status.ok() && lane.get() != own &&
                       lane != common && !lane->ended.load(std::memory_order_relaxed);
    leave ? lane->Settle(status)
          : lane->SettleAndRelease(status, lane.get() == own ? cache : nullptr);
  }
  serving.clear();
  return status;
}

// For a releaser that defers while its lane is full. Not deferred then, but correct.
FlushTicket FlushQueue::Impl::Immediately(Retired retired) {
  absl::Status status;
  for (Domain* domain : retired.domains) {
    if (domain->facts().unmap_invalidates) continue;
    if (absl::Status s = domain->Invalidate(retired.range); !s.ok()) {
      status.Update(Failed(*domain, s));
    }
  }
  if (retired.releaser != nullptr) retired.releaser->Release(retired, status, nullptr);
  return FlushTicket(nullptr, status.ok() ? 0 : 1);
}

void FlushQueue::Impl::Prune() {
  std::erase_if(lanes, [this](const std::shared_ptr<LaneState>& lane) {
    if (!lane->ended.load(std::memory_order_acquire)) return false;
    const uint64_t pushed = lane->pushed.load(std::memory_order_relaxed);
    if (lane->released.load(std::memory_order_acquire) != pushed) return false;
    gone.deferred += pushed;
    gone.peak_pending_ranges += lane->peak.Get();
    gone.lock_waits += lane->waits.load(std::memory_order_relaxed);
    gone.releases += lane->releases.Get();
    return true;
  });
}

void FlushQueue::Impl::Wake() {
  {
    std::lock_guard<std::mutex> lock(wake_mutex);
    awake.store(true, std::memory_order_seq_cst);
  }
  wake.notify_one();
}

// Sleeps on real time and decides by the queue's clock, which may be a test's.
void FlushQueue::Impl::Run() {
  std::unique_lock<std::mutex> lock(wake_mutex);
  while (!ending) {
    std::optional<Nanos> oldest = Oldest();
    if (!oldest) {
      awake.store(false, std::memory_order_seq_cst);
      oldest = Oldest();
      if (!oldest) {
        wake.wait(lock, [this] { return ending || awake.load(std::memory_order_relaxed); });
        continue;
      }
      awake.store(true, std::memory_order_relaxed);
    }
    if (Old(*oldest)) {
      lock.unlock();
      (void)Flush(Cause::kAge);  // a failure is in the tickets
      lock.lock();
    } else {
      // Bounded: max_age may be Nanos::max(), which no point in time can be added to.
      const Nanos age = options.clock->Now() - *oldest;
      const Nanos left = options.limits.max_age - std::clamp(age, Nanos{0}, options.limits.max_age);
      wake.wait_for(lock, std::clamp(left, kShortestSleep, kLongestSleep),
                    [this] { return ending; });
    }
  }
}

absl::StatusOr<std::unique_ptr<FlushQueue>> FlushQueue::Create(Options options) {
  const DeferredLimits& limits = options.limits;
  if (options.clock == nullptr) {
    return absl::InvalidArgumentError("flush queue: clock is null; pass one");
  }
  if (limits.max_ranges == 0 || limits.max_ranges > kMaxRanges || limits.max_bytes.value() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("flush queue: max_ranges ", limits.max_ranges, ", max_bytes ",
                     limits.max_bytes.value(), ": both must be at least 1, max_ranges at most ",
                     kMaxRanges, "; for no deferral use Policy::kStrict"));
  }
  if (limits.max_age < Nanos{0}) {
    return absl::InvalidArgumentError(
        absl::StrCat("flush queue: max_age ", limits.max_age.count(), " ns: must not be negative"));
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
    std::lock_guard<std::mutex> lock(impl_->wake_mutex);
    impl_->ending = true;
  }
  impl_->wake.notify_all();
  if (impl_->thread.joinable()) impl_->thread.join();
  (void)impl_->Flush(Cause::kCall);
  // Handles may outlive it, and another queue may come to lie where it was.
  std::lock_guard<std::mutex> lock(impl_->lanes_mutex);
  for (const auto& lane : impl_->lanes) lane->ended.store(true, std::memory_order_release);
}

absl::StatusOr<FlushLane> FlushQueue::NewLane(std::string_view owner) {
  Impl& impl = *impl_;
  auto lane = std::make_shared<LaneState>(impl_.get(), impl.options.limits);
  for (const bool again : {true, false}) {
    {
      std::lock_guard<std::mutex> lock(impl.lanes_mutex);
      impl.Prune();
      if (impl.lanes.size() <= impl.options.limits.max_lanes) {
        impl.lanes.push_back(lane);
        return FlushLane(std::move(lane));
      }
    }
    if (again) (void)impl.Flush(Cause::kCall);  // lanes that ended may still hold something
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "flush lane for '", internal::View(owner), "': all ", impl.options.limits.max_lanes,
      " lanes are in use; end one, raise max_lanes, or go without: the common lane "
      "serves all who have none"));
}

FlushTicket FlushQueue::Defer(Retired retired, const Local& local) {
  Impl& impl = *impl_;
  LaneState& lane = impl.LaneOf(local);
  iova::Cache* const cache = &lane == impl.common.get() ? nullptr : local.cache;
  std::unique_lock<std::mutex> lock;
  if (&lane == impl.common.get()) lock = lane.Lock(lane.push_mutex);
  lane.Harvest(cache);
  while (!lane.HasRoomFor(retired.range.size)) {
    if (lock) lock.unlock();
    if (impl.InRelease()) return impl.Immediately(std::move(retired));
    (void)impl.Flush(Cause::kBound, &lane, cache);
    lane.Harvest(cache);
    if (&lane == impl.common.get()) lock = lane.Lock(lane.push_mutex);
  }
  if (lane.Idle()) lane.oldest.store(impl.options.clock->Now().count(), std::memory_order_relaxed);
  FlushTicket ticket(
      local.lane != nullptr && &lane != impl.common.get() ? local.lane->state_ : impl.common,
      lane.Push(std::move(retired)));
  const bool full = lane.Full();
  if (lock) lock.unlock();

  const bool threaded = impl.thread.joinable();
  if (threaded && !impl.awake.load(std::memory_order_seq_cst)) impl.Wake();
  if (full) {
    (void)impl.Flush(Cause::kBound, &lane, cache);
  } else if (!threaded && impl.Old(Nanos{lane.oldest.load(std::memory_order_relaxed)})) {
    (void)impl.Flush(Cause::kAge);
  }
  return ticket;
}

absl::Status FlushQueue::Flush() { return impl_->Flush(Cause::kCall); }

absl::Status FlushQueue::FlushIfOld() {
  const std::optional<Nanos> oldest = impl_->Oldest();
  return oldest && impl_->Old(*oldest) ? impl_->Flush(Cause::kAge) : absl::OkStatus();
}

void FlushQueue::Reclaim() { (void)impl_->Flush(Cause::kExhaustion); }

FlushQueue::Stats FlushQueue::stats() const {
  std::lock_guard<std::mutex> lock(impl_->lanes_mutex);
  Stats stats = impl_->gone;
  stats.flushes = impl_->flushes.Get();
  stats.forced_by_bound = impl_->forced_by_bound.Get();
  stats.forced_by_age = impl_->forced_by_age.Get();
  stats.forced_by_exhaustion = impl_->forced_by_exhaustion.Get();
  stats.failed = impl_->failed.Get();
  stats.flush_waits = impl_->flush_waits.load(std::memory_order_relaxed);
  stats.lanes = impl_->lanes.size() - 1;
  for (const auto& lane : impl_->lanes) {
    // From the first count to the last: one that is looked at late has moved on, so that a
    // difference is at most too small, whatever comes between two looks.
    const uint64_t pushed_bytes = lane->pushed_bytes.Get();
    const uint64_t pushed = lane->pushed.load(std::memory_order_acquire);
    const uint64_t flushed = lane->Flushed();
    const uint64_t flushed_bytes = lane->flushed_bytes.Get();
    const uint64_t released = lane->released.load(std::memory_order_acquire);
    const auto between = [](uint64_t from, uint64_t to) { return to > from ? to - from : 0; };
    stats.deferred += pushed;
    stats.pending_ranges += between(flushed, pushed);
    stats.pending_bytes += between(flushed_bytes, pushed_bytes);
    stats.parked_ranges += between(released, std::min(flushed, pushed));
    stats.peak_pending_ranges += lane->peak.Get();
    stats.lock_waits += lane->waits.load(std::memory_order_relaxed);
    stats.releases += lane->releases.Get();
  }
  stats.common = impl_->common->pushed.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace dmakit::dma
