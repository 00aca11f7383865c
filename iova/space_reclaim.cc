// SPDX-License-Identifier: Apache-2.0
//
// The levels above the tree that park ranges: registered reclaimers, caches, their depots. Who
// joins and leaves, and how an allocation that is about to fail empties all of them.

#include <bit>
#include <cstddef>
#include <memory>
#include <new>

#include "absl/strings/str_cat.h"
#include "iova/cache.h"
#include "iova/depot.h"
#include "iova/space.h"

namespace dmakit::iova {

using internal::Depot;
using internal::Magazine;

// The claims are held until `retry` is done. So at that moment every free range is in the tree, or
// was live when `retry` ran: an owner that frees meanwhile finds its cache claimed and frees into
// the tree. One heavy barrier serves all caches.
void Space::ReclaimThen(const std::function<void()>& retry) {
  const std::lock_guard<std::mutex> guard(reclaim_mutex_);
  for (Reclaimer* r = reclaimers_; r != nullptr; r = r->next_) r->Reclaim();
  for (Cache* c = caches_; c != nullptr; c = c->next_) c->Claim();
  if (fence_ != nullptr && caches_ != nullptr) fence_->HeavyBarrier();
  for (Cache* c = caches_; c != nullptr; c = c->next_) {
    c->AwaitOwner();
    c->stolen_.Add(c->Drain());
  }
  for (Depot* d = depots_; d != nullptr; d = d->next) DrainDepot(d);
  {
    const std::lock_guard<std::mutex> tree_guard(mutex_);
    ++counts_.reclaims;
  }
  retry();
  for (Cache* c = caches_; c != nullptr; c = c->next_) c->Unclaim();
}

void Space::ReclaimAll() {
  ReclaimThen([] {});
}

void Space::Register(Reclaimer* reclaimer) {
  const std::lock_guard<std::mutex> guard(reclaim_mutex_);
  reclaimer->next_ = reclaimers_;
  reclaimers_ = reclaimer;
}

void Space::Unregister(Reclaimer* reclaimer) {
  const std::lock_guard<std::mutex> guard(reclaim_mutex_);
  Reclaimer** link = &reclaimers_;
  while (*link != nullptr && *link != reclaimer) link = &(*link)->next_;
  if (*link != nullptr) *link = reclaimer->next_;
}

// --- Memory for magazines and depots ---

void* Space::AllocateMemory(size_t size) {
  const std::lock_guard<std::mutex> guard(mutex_);
  try {
    if (void* memory = memory_->allocate(size, alignof(std::max_align_t))) return memory;
  } catch (const std::bad_alloc&) {
  }
  ++counts_.memory_failures;
  return nullptr;
}

void Space::DeallocateMemory(void* memory, size_t size) {
  if (memory == nullptr) return;
  const std::lock_guard<std::mutex> guard(mutex_);
  memory_->deallocate(memory, size, alignof(std::max_align_t));
}

// --- Caches and depots ---

namespace {

size_t MagazineBytes(size_t count) { return count * sizeof(Magazine); }

}  // namespace

// The depot of a ceiling, made by the first cache that has it. Null when memory fails.
Depot* Space::FindDepot(uint64_t highest, size_t classes) {
  for (Depot* d = depots_; d != nullptr; d = d->next) {
    if (d->highest() == highest) return d;
  }
  void* memory = AllocateMemory(sizeof(Depot));
  if (memory == nullptr) return nullptr;
  const size_t slots = classes * depot_magazines_;
  void* magazines = slots == 0 ? nullptr : AllocateMemory(MagazineBytes(slots));
  if (slots != 0 && magazines == nullptr) {
    DeallocateMemory(memory, sizeof(Depot));
    return nullptr;
  }
  std::uninitialized_default_construct_n(static_cast<Magazine*>(magazines), slots);
  auto* depot =
      new (memory) Depot(highest, static_cast<Magazine*>(magazines), classes, depot_magazines_);
  depot->next = depots_;
  depots_ = depot;
  return depot;
}

void Space::DeleteDepot(Depot* depot) {
  Depot** link = &depots_;
  while (*link != depot) link = &(*link)->next;
  *link = depot->next;
  DrainDepot(depot);
  DeallocateMemory(depot->slots(), MagazineBytes(depot->classes() * depot_magazines_));
  depot->~Depot();
  DeallocateMemory(depot, sizeof(Depot));
}

uint64_t Space::DrainDepot(Depot* depot) {
  const std::lock_guard<std::mutex> guard(depot->mutex);
  uint64_t drained = 0;
  for (size_t index = 0; index < depot->classes(); ++index) {
    while (const std::optional<uint64_t> base = depot->TakeOne(index)) {
      FreeParked(Range{Iova(*base), Bytes(uint64_t{1} << (shift_ + index))});
      depot_parked_.fetch_sub(1, std::memory_order_relaxed);
      ++drained;
    }
  }
  return drained;
}

absl::Status Space::Attach(Cache* cache) {
  const std::lock_guard<std::mutex> guard(reclaim_mutex_);
  const auto classes = static_cast<size_t>(std::bit_width(max_cached_));
  Depot* depot = FindDepot(cache->highest_, classes);
  void* memory = nullptr;
  if (depot != nullptr && classes != 0) {
    memory = AllocateMemory(MagazineBytes(2 * classes));
    if (memory == nullptr && depot->users == 0) DeleteDepot(depot);
  }
  if (depot == nullptr || (classes != 0 && memory == nullptr)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cache of iova space '", name_, "': the memory resource failed while making ", classes,
        " size classes of magazines; nothing has changed, free memory or cache fewer sizes"));
  }
  cache->magazines_ = static_cast<Magazine*>(memory);
  std::uninitialized_default_construct_n(cache->magazines_, 2 * classes);
  for (size_t index = 0; index < classes; ++index) {
    cache->classes_[index] = {cache->magazines_ + 2 * index, cache->magazines_ + 2 * index + 1};
  }
  cache->class_count_ = classes;
  cache->depot_ = depot;
  ++depot->users;
  cache->next_ = caches_;
  caches_ = cache;
  cache_count_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

// Under the lock throughout, so that a failing allocation elsewhere finds the ranges before or
// after.
void Space::Detach(Cache* cache) {
  const std::lock_guard<std::mutex> guard(reclaim_mutex_);
  Cache** link = &caches_;
  while (*link != cache) link = &(*link)->next_;
  *link = cache->next_;
  cache_count_.fetch_sub(1, std::memory_order_relaxed);
  cache->Drain();
  DeallocateMemory(cache->magazines_, MagazineBytes(2 * cache->class_count_));
  if (--cache->depot_->users == 0) DeleteDepot(cache->depot_);
}

}  // namespace dmakit::iova
