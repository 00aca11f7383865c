// SPDX-License-Identifier: Apache-2.0
//
// Depot is the level that the caches of one ceiling share: per size class a bounded stack of full
// magazines. It carries ranges from threads that free to threads that allocate. Magazines are
// copied in and out, so each side keeps its own memory. Internal to iova/.
//
// `Get`, `Put` and `TakeOne` need `mutex`; the hints do not.

#ifndef DMAKIT_IOVA_DEPOT_H_
#define DMAKIT_IOVA_DEPOT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>

#include "iova/cache.h"

namespace dmakit::iova::internal {

class Depot {
 public:
  // `slots` holds `classes` x `bound` magazines and outlives the depot.
  Depot(uint64_t highest, Magazine* slots, size_t classes, size_t bound)
      : highest_(highest), slots_(slots), classes_(classes), bound_(bound) {}

  static size_t SlotCount(size_t classes, size_t bound) { return classes * bound; }

  bool may_get(size_t index) const { return full_[index].load(std::memory_order_relaxed) != 0; }
  bool may_put(size_t index) const { return full_[index].load(std::memory_order_relaxed) < bound_; }

  // Fills an empty magazine; false when there is nothing of this class.
  bool Get(size_t index, Magazine* to) {
    const uint32_t full = full_[index].load(std::memory_order_relaxed);
    if (full == 0) return false;
    Move(Slot(index, full - 1), to);
    full_[index].store(full - 1, std::memory_order_relaxed);
    return true;
  }

  // Takes the contents of a full magazine; false at the bound.
  bool Put(size_t index, Magazine* from) {
    const uint32_t full = full_[index].load(std::memory_order_relaxed);
    if (full == bound_) return false;
    Move(from, Slot(index, full));
    full_[index].store(full + 1, std::memory_order_relaxed);
    return true;
  }

  // One range at a time, for emptying.
  std::optional<uint64_t> TakeOne(size_t index) {
    const uint32_t full = full_[index].load(std::memory_order_relaxed);
    if (full == 0) return std::nullopt;
    Magazine* top = Slot(index, full - 1);
    const uint64_t base = top->Pop();
    if (top->size() == 0) full_[index].store(full - 1, std::memory_order_relaxed);
    return base;
  }

  uint64_t highest() const { return highest_; }
  Magazine* slots() const { return slots_; }
  size_t classes() const { return classes_; }

  std::mutex mutex;
  // Under Space::reclaim_mutex_.
  size_t users = 0;
  Depot* next = nullptr;

 private:
  Magazine* Slot(size_t index, uint32_t i) { return slots_ + index * bound_ + i; }
  static void Move(Magazine* from, Magazine* to) {
    const size_t count = from->size();
    std::memcpy(to->base, from->base, count * sizeof(from->base[0]));
    to->count.store(count, std::memory_order_relaxed);
    from->count.store(0, std::memory_order_relaxed);
  }

  const uint64_t highest_;
  Magazine* const slots_;
  const size_t classes_;
  const size_t bound_;
  std::array<std::atomic<uint32_t>, kMaxClasses> full_{};
};

}  // namespace dmakit::iova::internal

#endif  // DMAKIT_IOVA_DEPOT_H_
