// SPDX-License-Identifier: Apache-2.0
//
// Cache is one owner's front to a Space: a ring's or a thread's. It parks freed ranges by size
// class (powers of two in granules, each naturally aligned) and hands them out again without a
// lock, an atomic read-modify-write or a fence. Two magazines per class; behind them a bounded
// level shared by all caches of the same ceiling, so that ranges allocated on one thread and freed
// on another come back; behind that the Space's tree, of which one call does at most one operation
// of each kind (a miss of the naturally aligned block tries the exact request once more).
//
//   owner:  Allocate/Free -> loaded magazine <-> previous magazine <-> shared level <-> tree
//   thief:  an allocation about to fail anywhere in the Space empties every cache, also one whose
//           owner sleeps or has ended. The owner never waits for it: meanwhile it uses the tree.
//
// What does not fit a class (over `max_cached_size()`, not a power of two, alignment above the
// size, above this cache's ceiling) goes to the Space directly. A free is checked for size,
// alignment and bounds at once, and against the range parked last; whether the range was live at
// all is known at the latest when it is drained (`Space::Stats::rejected_drains`).
//
// Thread model: `Allocate`, `Free` and the `Try` forms are for the owner, one thread at a time (the
// owner may change with a happens-before edge). `stats()` and the getters: any thread. The
// destructor gives everything back to the Space; the owner must be done.

#ifndef DMAKIT_IOVA_CACHE_H_
#define DMAKIT_IOVA_CACHE_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "iova/counter.h"
#include "iova/space.h"
#include "iova/types.h"

namespace dmakit::iova {

namespace internal {

inline constexpr size_t kMaxClasses = 11;  // 1 to 1024 granules

// A bounded stack of parked ranges of one size class. One thread at a time; `count` may be read by
// any.
struct Magazine {
  static constexpr size_t kMaxRanges = 64;
  std::atomic<uint64_t> count{0};
  uint64_t base[kMaxRanges];

  size_t size() const { return count.load(std::memory_order_relaxed); }
  void Push(uint64_t range_base) {
    const size_t n = size();
    base[n] = range_base;
    count.store(n + 1, std::memory_order_relaxed);
  }
  // Needs one that is not empty.
  uint64_t Pop() {
    const size_t n = size() - 1;
    count.store(n, std::memory_order_relaxed);
    return base[n];
  }
};

}  // namespace internal

class alignas(64) Cache {
 public:
  enum class Mode {
    kAsymmetric,  // no atomic read-modify-write by the owner; needs the Space's fence
    kLocked,      // a mutex around each operation
  };

  struct Options {
    // No byte of any range lies above this.
    Iova highest = Iova::Max();
    // Rounds sizes that are no power of two up to the next class (3 granules take 4), trading
    // addresses for cache hits. The returned range says its true size; `Free` takes that one.
    bool round_up = false;
    // Where new ranges come from first, as in Space::Request; parked ones are handed out wherever
    // they lie.
    std::optional<Iova> prefer_below = std::nullopt;
  };

  // ResourceExhausted when the Space's memory fails; InvalidArgument for a ceiling below the Space.
  static absl::StatusOr<std::unique_ptr<Cache>> Create(Space* space, Options options);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // At least `size` bytes, rounded up to granules (see `round_up`), with the alignment of
  // `Space::Request`. Fails only if no suitable free range exists anywhere in the Space.
  absl::StatusOr<Range> Allocate(Bytes size, Bytes alignment = Bytes(0));

  // Takes back one whole range of the same Space, from whichever cache or call it came.
  absl::Status Free(const Range& range);

  // The fast paths alone: a parked range of exactly this power-of-two size in granules or nothing;
  // and whether the range could be parked (if not, it is still the caller's).
  [[nodiscard]] std::optional<Range> TryAllocate(Bytes size, Bytes alignment = Bytes(0));
  [[nodiscard]] bool TryFree(const Range& range);

  struct Stats {
    uint64_t hits = 0;             // allocations served from a magazine
    uint64_t misses = 0;           // cacheable, but from the shared level or the tree
    uint64_t bypasses = 0;         // allocations and frees that fit no class
    uint64_t parks = 0;            // frees into a magazine
    uint64_t overflows = 0;        // cacheable frees that went to the tree
    uint64_t depot_gets = 0;       // trips to the shared level for a full magazine
    uint64_t depot_puts = 0;       // trips with one
    uint64_t tree_calls = 0;       // calls into the Space
    uint64_t exact_fallbacks = 0;  // no naturally aligned block; the exact request was tried
    uint64_t stolen = 0;           // ranges taken by reclaims
    uint64_t parked = 0;           // now
    uint64_t parked_bound = 0;     // never more than this
  };
  Stats stats() const;

  Mode mode() const { return mode_; }
  // Larger requests bypass. 0: nothing is cached.
  Bytes max_cached_size() const {
    return class_count_ == 0 ? Bytes(0) : ParkedRange(class_count_ - 1, 0).size;
  }
  Iova highest() const { return Iova(highest_); }

 private:
  friend class Space;

  static constexpr size_t kNoClass = internal::kMaxClasses;

  struct Class {
    internal::Magazine* loaded = nullptr;
    internal::Magazine* previous = nullptr;
  };

  Cache(Space* space, const Options& options);

  // The size class of a request or of a freed range, or kNoClass.
  size_t RequestClass(uint64_t size, uint64_t alignment) const;
  size_t RangeClass(const Range& range) const;
  Range ParkedRange(size_t index, uint64_t base) const;

  // The owner's side. Nothing between a successful `Enter` and `Leave` blocks. The fast paths do
  // the same inline and leave what is not plain to the contended forms.
  bool Enter();
  void Leave();
  std::optional<Range> TryAllocateContended(size_t index);
  bool TryFreeContended(size_t index, uint64_t base);
  static bool TopIs(const Class& c, uint64_t base);
  bool Pop(Class* c, uint64_t* base);
  bool Push(Class* c, uint64_t base);
  absl::StatusOr<Range> AllocateSlow(Bytes size, Bytes alignment);
  absl::Status FreeSlow(const Range& range);
  bool GetFromDepot(size_t index, uint64_t* base);
  bool PutToDepot(size_t index, uint64_t base);

  // The thief's side, under Space::reclaim_mutex_; `Drain` once the owner is known to be outside.
  void Claim();
  void AwaitOwner() const;
  uint64_t Drain();
  void Unclaim();

  // The handshake: the owner sets busy_, then reads claimed_; the thief sets claimed_, runs the
  // heavy barrier, then waits until busy_ reads 0. Whichever comes second sees the other.
  // In a locked cache claimed_ is never 0, so that the fast paths need not ask for the mode.
  static constexpr uint32_t kClaimed = 1;
  static constexpr uint32_t kAlwaysLocked = 2;
  std::atomic<uint32_t> busy_{0};
  std::atomic<uint32_t> claimed_;
  const Mode mode_;
  const bool round_up_;
  const unsigned shift_;
  const uint64_t magazine_size_;
  const uint64_t lowest_;
  const uint64_t highest_;
  size_t class_count_ = 0;
  Counter hits_, parks_;
  std::array<Class, internal::kMaxClasses> classes_;

  Counter misses_, bypasses_, overflows_, depot_gets_, depot_puts_, tree_calls_, exact_fallbacks_;
  Counter stolen_;
  const std::optional<Iova> prefer_below_;
  Space* const space_;
  internal::Magazine* magazines_ = nullptr;  // two per class
  internal::Depot* depot_ = nullptr;
  std::mutex lock_;  // kLocked only
  Cache* next_ = nullptr;
};

inline size_t Cache::RequestClass(uint64_t size, uint64_t alignment) const {
  const uint64_t rest = (size - 1) >> shift_;  // granules but one; huge for size 0
  const auto index = static_cast<size_t>(std::bit_width(2 * rest | 1)) - 1;
  if (index >= class_count_) return kNoClass;
  if (rest + 1 != uint64_t{1} << index && !round_up_) return kNoClass;
  if ((alignment & (alignment - 1)) != 0 || alignment > uint64_t{1} << (shift_ + index)) {
    return kNoClass;
  }
  return index;
}

inline size_t Cache::RangeClass(const Range& range) const {
  const uint64_t size = range.size.value();
  const uint64_t base = range.base.value();
  const size_t index = static_cast<size_t>(std::countr_zero(size)) - shift_;  // wraps if too small
  if (index >= class_count_ || ((size | base) & (size - 1)) != 0) return kNoClass;
  // Naturally aligned, so the last address is base | (size - 1) and nothing wraps.
  if (base < lowest_ || (base | (size - 1)) > highest_) return kNoClass;
  return index;
}

inline Range Cache::ParkedRange(size_t index, uint64_t base) const {
  return Range{Iova(base), Bytes(uint64_t{1} << (shift_ + index))};
}

inline bool Cache::TopIs(const Class& c, uint64_t base) {
  const size_t n = c.loaded->size();
  return n != 0 && c.loaded->base[n - 1] == base;
}

inline bool Cache::Pop(Class* c, uint64_t* base) {
  if (c->loaded->size() == 0) [[unlikely]] {
    if (c->previous->size() == 0) return false;
    std::swap(c->loaded, c->previous);
  }
  *base = c->loaded->Pop();
  return true;
}

inline bool Cache::Push(Class* c, uint64_t base) {
  if (TopIs(*c, base)) [[unlikely]]
    return false;  // freed twice in a row
  if (c->loaded->size() == magazine_size_) [[unlikely]] {
    if (c->previous->size() != 0) return false;
    std::swap(c->loaded, c->previous);
  }
  c->loaded->Push(base);
  return true;
}

[[gnu::always_inline]] inline std::optional<Range> Cache::TryAllocate(Bytes size, Bytes alignment) {
  const size_t index = RequestClass(size.value(), alignment.value());
  if (index == kNoClass) [[unlikely]]
    return std::nullopt;
  busy_.store(1, std::memory_order_relaxed);
  std::atomic_signal_fence(
      std::memory_order_seq_cst);  // compiler only; the thief pays for the rest
  if (claimed_.load(std::memory_order_acquire) != 0) [[unlikely]] {
    return TryAllocateContended(index);
  }
  uint64_t base = 0;
  const bool hit = Pop(&classes_[index], &base);
  busy_.store(0, std::memory_order_release);
  if (!hit) [[unlikely]]
    return std::nullopt;
  hits_.Add(1);
  return ParkedRange(index, base);
}

[[gnu::always_inline]] inline bool Cache::TryFree(const Range& range) {
  const size_t index = RangeClass(range);
  if (index == kNoClass) [[unlikely]]
    return false;
  busy_.store(1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (claimed_.load(std::memory_order_acquire) != 0) [[unlikely]] {
    return TryFreeContended(index, range.base.value());
  }
  const bool parked = Push(&classes_[index], range.base.value());
  busy_.store(0, std::memory_order_release);
  if (parked) [[likely]]
    parks_.Add(1);
  return parked;
}

inline absl::StatusOr<Range> Cache::Allocate(Bytes size, Bytes alignment) {
  if (const std::optional<Range> range = TryAllocate(size, alignment)) return *range;
  return AllocateSlow(size, alignment);
}

inline absl::Status Cache::Free(const Range& range) {
  if (TryFree(range)) return absl::OkStatus();
  return FreeSlow(range);
}

}  // namespace dmakit::iova

#endif  // DMAKIT_IOVA_CACHE_H_
