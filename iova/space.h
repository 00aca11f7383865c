// SPDX-License-Identifier: Apache-2.0
//
// Space hands out ranges of one device address space and takes them back. It knows addresses only:
// it maps nothing and owns no memory. `Cache` (cache.h) is the fast front to it for one owner.
//
// One tree partitions the usable addresses into used and free ranges and keeps, per subtree, the
// largest free fit for every alignment. A search is therefore one descent to the ceiling and at
// most one more that cannot fail: O(log n) nodes at any fragmentation. Ranges come from the top, so
// low addresses stay for narrow devices.
//
// An allocation fails only if no suitable free range exists anywhere: before failing, `Allocate`
// runs every registered Reclaimer, empties the shared level and every cache (whatever their owners
// do), and looks again. IOVA 0 is never handed out; failure is a Status, never a special address.
//
// Any thread; locks inside. The Space outlives its caches and reclaimers.

#ifndef DMAKIT_IOVA_SPACE_H_
#define DMAKIT_IOVA_SPACE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "iova/fence.h"
#include "iova/types.h"

namespace dmakit::iova {

class Cache;
namespace internal {
class Depot;
class RangeTree;
enum class Outcome : uint8_t;
struct Search;
}  // namespace internal

// Something that holds ranges back for a while (a deferred-flush queue) and can be made to free
// them.
class Reclaimer {
 public:
  virtual ~Reclaimer() = default;

  // Frees what can be freed now, with `Space::Free` or `Cache::Free`, and returns. Runs on the
  // thread whose allocation is about to fail, one at a time per Space. It must not allocate from
  // the Space, register with it or create or destroy a Cache of it; and no lock it takes may be
  // held by anyone across a call that allocates.
  virtual void Reclaim() = 0;

 private:
  friend class Space;
  Reclaimer* next_ = nullptr;
};

class Space {
 public:
  static constexpr Bytes kMaxAlignment = GiB(1);

  struct Options {
    // What the domains translate. May overlap, in any order; rounded inwards to granules.
    std::vector<Interval> usable = {};
    // Holes never handed out (say the interrupt window). Rounded outwards to granules.
    std::vector<Interval> reserved = {};
    // The unit of every size and base: a power of two, 4 KiB to 1 GiB.
    Bytes granule{4096};
    // Names the space in messages.
    std::string name = "iova";
    // Where tree nodes and magazines come from; outlives the Space and is only used under its lock.
    // Null: the default resource.
    std::pmr::memory_resource* memory = nullptr;

    // Caches: the largest size they keep, in granules (a power of two, 1 to 1024; 0 = none).
    PageCount max_cached{64};
    // Ranges per magazine, 1 to 64. A cache parks at most two magazines per size class.
    size_t magazine_size = 64;
    // Full magazines per size class that the shared level keeps for all caches of one ceiling.
    size_t depot_magazines = 16;
    // Lets the owners of caches work without locks. Null or unavailable: locked caches.
    AsymmetricFence* fence = nullptr;
  };

  // InvalidArgument names the option that breaks a rule; ResourceExhausted: `memory` failed.
  static absl::StatusOr<std::unique_ptr<Space>> Create(Options options);
  // Every Cache must be gone. Ranges still live are dropped: list them first (`ForEachLive`).
  ~Space();
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  struct Request {
    Bytes size{0};
    // A power of two up to 1 GiB; 0 and anything below the granule mean the granule.
    Bytes alignment{0};
    // No byte of the range lies above this.
    Iova highest = Iova::Max();
    // A lower ceiling to try first, meant like `highest`. Costs one more bounded search; that it
    // finds nothing starts no reclaim.
    std::optional<Iova> prefer_below = std::nullopt;
  };

  // The highest aligned range that fits; its size is `size` rounded up to granules, and that range,
  // whole, is what `Free` takes back. ResourceExhausted: nothing fits anywhere, or `memory` failed
  // (nothing has changed then). InvalidArgument: a bad size or alignment. A miss costs a reclaim,
  // so a low ceiling that is only a wish belongs in `prefer_below`.
  absl::StatusOr<Range> Allocate(const Request& request);

  // Takes exactly `range`, a multiple of the granule in base and size (memory whose address is
  // given). AlreadyExists: part of it is in use; OutOfRange: part of it is not usable.
  absl::Status AllocateFixed(const Range& range);

  // Takes back one whole range that was handed out. Anything else (freed already, a part, several,
  // never handed out) is NotFound and changes nothing. Needs no memory.
  absl::Status Free(const Range& range);

  // Frees all that is parked: reclaimers, caches, shared level. For tear-down checks and listings.
  void ReclaimAll();

  // Calls `visit` for every range that is not free, in address order, under the lock: it must not
  // call this Space. Ranges parked in caches count as live here; `ReclaimAll` first to leave them
  // out.
  void ForEachLive(const std::function<void(const Range&)>& visit) const;

  // The live range around `address` (parked ones included), or nothing.
  std::optional<Range> FindLive(Iova address) const;

  // Whether all of `range` is usable, free or not.
  bool Contains(const Range& range) const;

  // Free in the tree; what is parked is not in it.
  Bytes free_bytes() const;
  // The largest size an `Allocate` of this alignment gets right now, without a ceiling or reclaim;
  // 0 for an alignment that is not allowed.
  Bytes largest_free(Bytes alignment = Bytes(0)) const;

  struct Stats {
    // Now.
    uint64_t live_ranges = 0;  // parked ones included
    uint64_t free_ranges = 0;
    uint64_t tree_nodes = 0;
    uint64_t tree_height = 0;
    uint64_t depot_parked = 0;  // ranges in the shared level
    uint64_t caches = 0;
    // Distinct nodes read or written by one operation on the tree.
    uint64_t visits_last = 0;
    uint64_t visits_max = 0;
    uint64_t visits_total = 0;
    // Since creation.
    uint64_t operations = 0;  // on the tree
    uint64_t allocations = 0;
    uint64_t frees = 0;
    uint64_t rejected_frees = 0;    // not a live range, reported to the caller
    uint64_t rejected_drains = 0;   // the same, found when a cache or the shared level was emptied
    uint64_t preferred_misses = 0;  // nothing fitted below `prefer_below`
    uint64_t reclaims = 0;
    uint64_t reclaimed_ranges = 0;  // given back by caches and shared level when they were emptied
    uint64_t exhaustions = 0;       // failed even after a reclaim
    uint64_t memory_failures = 0;
    uint64_t depot_gets = 0;  // full magazines handed to caches
    uint64_t depot_puts = 0;  // full magazines taken from caches
  };
  Stats stats() const;

  // Both wait for a reclaim in progress; after `Unregister` it is not called any more.
  void Register(Reclaimer* reclaimer);
  void Unregister(Reclaimer* reclaimer);

  Bytes granule() const { return Bytes(uint64_t{1} << shift_); }
  const std::string& name() const { return name_; }
  // The lowest and highest address ever handed out.
  Interval bounds() const { return bounds_; }
  // The most ranges the shared level keeps per size class and ceiling.
  size_t depot_bound() const { return depot_magazines_ * magazine_size_; }

  // For tests: empty, or the first broken invariant of the tree. Walks all of it.
  std::string Validate() const;

 private:
  friend class Cache;

  explicit Space(const Options& options);
  absl::Status Populate(const Options& options);

  absl::StatusOr<internal::Search> ToSearch(const Request& request) const;
  // One operation on the tree, no reclaim.
  internal::Outcome TakeFit(const internal::Search& search, Range* range);
  internal::Outcome TakeFixed(const Range& range);
  internal::Outcome PutBack(const Range& range);
  absl::Status MissError(const Request& request, internal::Outcome outcome);
  // Empties everything that parks ranges and calls `retry` before anything can be parked again.
  void ReclaimThen(const std::function<void()>& retry);

  // For Cache. Its ranges come back through `FreeParked`: a bad one is counted, there is no one to
  // tell.
  std::optional<Range> AllocateWithoutReclaim(const Request& request);
  void FreeParked(const Range& range);
  absl::Status Attach(Cache* cache);
  void Detach(Cache* cache);
  internal::Depot* FindDepot(uint64_t highest, size_t classes);
  void DeleteDepot(internal::Depot* depot);
  uint64_t DrainDepot(internal::Depot* depot);
  void* AllocateMemory(size_t size);  // null on failure
  void DeallocateMemory(void* memory, size_t size);

  const std::string name_;
  const unsigned shift_;  // log2 of the granule
  std::pmr::memory_resource* const memory_;
  const uint64_t max_cached_;  // granules
  const size_t magazine_size_;
  const size_t depot_magazines_;
  AsymmetricFence* const fence_;  // null: locked caches
  std::vector<Interval> usable_;  // sorted, apart, without the reserved parts
  Interval bounds_;
  uint64_t largest_usable_ = 0;  // granules in the largest of them

  // Lock order: reclaim_mutex_, a depot's, a locked cache's, mutex_.
  std::mutex reclaim_mutex_;  // registrations, and one reclaim at a time
  Reclaimer* reclaimers_ = nullptr;
  Cache* caches_ = nullptr;
  internal::Depot* depots_ = nullptr;
  std::atomic<uint64_t> cache_count_{0};
  std::atomic<uint64_t> depot_parked_{0};
  std::atomic<uint64_t> depot_gets_{0};
  std::atomic<uint64_t> depot_puts_{0};

  mutable std::mutex mutex_;  // the tree, the memory resource and the counts
  std::unique_ptr<internal::RangeTree> tree_;
  Stats counts_;
};

}  // namespace dmakit::iova

#endif  // DMAKIT_IOVA_SPACE_H_
