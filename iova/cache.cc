// SPDX-License-Identifier: Apache-2.0
//
// The caches' slow paths and the thief's side. The fast paths are in the header.

#include "iova/cache.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "iova/depot.h"

namespace dmakit::iova {

using internal::Magazine;

absl::StatusOr<std::unique_ptr<Cache>> Cache::Create(Space* space, Options options) {
  const Interval bounds = space->bounds();
  if (options.highest < bounds.first + (space->granule() - Bytes(1))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cache of iova space '", space->name(), "': ceiling ", ToString(options.highest),
        ": must leave at least one granule of the usable addresses ", ToString(bounds),
        "; raise the ceiling or add lower usable addresses"));
  }
  std::unique_ptr<Cache> cache(new Cache(space, options));
  if (absl::Status status = space->Attach(cache.get()); !status.ok()) return status;
  return cache;
}

// All ceilings at or above the Space's highest address are one, so that such caches share a depot.
Cache::Cache(Space* space, const Options& options)
    : claimed_(space->fence_ != nullptr ? 0 : kAlwaysLocked),
      mode_(space->fence_ != nullptr ? Mode::kAsymmetric : Mode::kLocked),
      round_up_(options.round_up),
      shift_(space->shift_),
      magazine_size_(space->magazine_size_),
      lowest_(space->bounds_.first.value()),
      highest_(std::min(options.highest, space->bounds_.last).value()),
      prefer_below_(options.prefer_below),
      space_(space) {}

Cache::~Cache() {
  if (depot_ != nullptr) space_->Detach(this);
}

Cache::Stats Cache::stats() const {
  Stats stats;
  stats.hits = hits_.Get();
  stats.misses = misses_.Get();
  stats.bypasses = bypasses_.Get();
  stats.parks = parks_.Get();
  stats.overflows = overflows_.Get();
  stats.depot_gets = depot_gets_.Get();
  stats.depot_puts = depot_puts_.Get();
  stats.tree_calls = tree_calls_.Get();
  stats.exact_fallbacks = exact_fallbacks_.Get();
  stats.stolen = stolen_.Get();
  for (size_t i = 0; i < 2 * class_count_; ++i) stats.parked += magazines_[i].size();
  stats.parked_bound = 2 * magazine_size_ * class_count_;
  return stats;
}

// --- The owner ---

bool Cache::Enter() {
  if (mode_ == Mode::kLocked) {
    lock_.lock();
    if ((claimed_.load(std::memory_order_relaxed) & kClaimed) == 0) return true;
    lock_.unlock();
    return false;
  }
  busy_.store(1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (claimed_.load(std::memory_order_acquire) == 0) return true;
  busy_.store(0, std::memory_order_release);
  return false;
}

void Cache::Leave() {
  if (mode_ == Mode::kLocked) {
    lock_.unlock();
  } else {
    busy_.store(0, std::memory_order_release);
  }
}

std::optional<Range> Cache::TryAllocateContended(size_t index) {
  busy_.store(0, std::memory_order_release);
  uint64_t base;
  if (!Enter()) return std::nullopt;
  const bool hit = Pop(&classes_[index], &base);
  Leave();
  if (!hit) return std::nullopt;
  hits_.Add(1);
  return ParkedRange(index, base);
}

bool Cache::TryFreeContended(size_t index, uint64_t base) {
  busy_.store(0, std::memory_order_release);
  if (!Enter()) return false;
  const bool parked = Push(&classes_[index], base);
  Leave();
  if (parked) parks_.Add(1);
  return parked;
}

absl::StatusOr<Range> Cache::AllocateSlow(Bytes size, Bytes alignment) {
  const Space::Request exact{.size = size,
                             .alignment = alignment,
                             .highest = Iova(highest_),
                             .prefer_below = prefer_below_};
  const size_t index = RequestClass(size.value(), alignment.value());
  if (index == kNoClass) {
    bypasses_.Add(1);
    tree_calls_.Add(1);
    return space_->Allocate(exact);
  }
  misses_.Add(1);
  uint64_t base;
  if (GetFromDepot(index, &base)) return ParkedRange(index, base);
  tree_calls_.Add(1);
  const Bytes block = ParkedRange(index, 0).size;
  // The whole naturally aligned block first, as only that can be parked later. It is more than was
  // asked for, so its absence is no reason to empty anything: then what was asked for, exactly.
  const Bytes granule = space_->granule();
  if (size + granule <= block || std::max(alignment, granule) != block) {
    Space::Request natural = exact;
    natural.size = block;
    natural.alignment = block;
    if (const auto range = space_->AllocateWithoutReclaim(natural)) return *range;
    exact_fallbacks_.Add(1);
    tree_calls_.Add(1);
  }
  return space_->Allocate(exact);
}

absl::Status Cache::FreeSlow(const Range& range) {
  const size_t index = RangeClass(range);
  if (index == kNoClass) {
    bypasses_.Add(1);
  } else {
    const uint64_t base = range.base.value();
    if (Enter()) {
      const bool twice = TopIs(classes_[index], base);
      Leave();
      if (twice) {
        return absl::NotFoundError(absl::StrCat(
            "cache of iova space '", space_->name(), "': free of ", ToString(range),
            ": it was freed just before; free a range once, when its last user is done"));
      }
    }
    if (PutToDepot(index, base)) return absl::OkStatus();
    overflows_.Add(1);
  }
  tree_calls_.Add(1);
  return space_->Free(range);
}

// --- The shared level. Its lock is taken outside the magazines, so that the owner never waits for
// it while a thief waits for the owner. ---

bool Cache::GetFromDepot(size_t index, uint64_t* base) {
  if (!depot_->may_get(index)) return false;
  const std::lock_guard<std::mutex> guard(depot_->mutex);
  if (!Enter()) return false;
  Class& c = classes_[index];
  bool found = Pop(&c, base);
  if (!found && depot_->Get(index, c.loaded)) {
    depot_gets_.Add(1);
    space_->depot_gets_.fetch_add(1, std::memory_order_relaxed);
    space_->depot_parked_.fetch_sub(c.loaded->size(), std::memory_order_relaxed);
    found = Pop(&c, base);
  }
  Leave();
  return found;
}

bool Cache::PutToDepot(size_t index, uint64_t base) {
  if (!depot_->may_put(index)) return false;
  const std::lock_guard<std::mutex> guard(depot_->mutex);
  if (!Enter()) return false;
  Class& c = classes_[index];
  bool parked = Push(&c, base);
  if (!parked && depot_->Put(index, c.previous)) {
    depot_puts_.Add(1);
    space_->depot_puts_.fetch_add(1, std::memory_order_relaxed);
    space_->depot_parked_.fetch_add(magazine_size_, std::memory_order_relaxed);
    parked = Push(&c, base);
  }
  if (parked) parks_.Add(1);
  Leave();
  return parked;
}

// --- The thief ---

void Cache::Claim() {
  if (mode_ == Mode::kLocked) {
    const std::lock_guard<std::mutex> guard(lock_);
    claimed_.store(kAlwaysLocked | kClaimed, std::memory_order_relaxed);
  } else {
    claimed_.store(kClaimed, std::memory_order_release);
  }
}

// After the heavy barrier: an owner that did not see the claim is seen here, and is in for a few
// instructions unless it was descheduled.
void Cache::AwaitOwner() const {
  for (unsigned spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins >= 100) std::this_thread::yield();
  }
}

uint64_t Cache::Drain() {
  uint64_t drained = 0;
  for (size_t index = 0; index < class_count_; ++index) {
    for (Magazine* magazine : {classes_[index].loaded, classes_[index].previous}) {
      for (; magazine->size() != 0; ++drained) {
        space_->FreeParked(ParkedRange(index, magazine->Pop()));
      }
    }
  }
  return drained;
}

void Cache::Unclaim() {
  if (mode_ == Mode::kLocked) {
    const std::lock_guard<std::mutex> guard(lock_);
    claimed_.store(kAlwaysLocked, std::memory_order_relaxed);
  } else {
    claimed_.store(0, std::memory_order_release);
  }
}

}  // namespace dmakit::iova
