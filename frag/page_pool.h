// SPDX-License-Identifier: Apache-2.0
//
// PagePool: a bounded pool of pages, each mapped once for all devices of an address space and
// recycled. One per ring or thread: its owner takes and releases with no atomic read-modify-write;
// other threads give back through a Returner.
//
// When a page is mapped and unmapped is its Policy (dma/types.h): persistent pages keep their
// mapping until the pool ends; strict and deferred ones are unmapped when the *last* fragment has
// come back, once per page, before any reuse, and mapped again, at the same IOVA, by a later Take.
//
// Which page sizes. New pages have the wanted order. If memory or IOVAs of that size are short,
// smaller ones are made (not below min_order), and recycled for as long as the shortage lasts:
// every 64th one that comes back tries the wanted order, and once that works they are given up as
// they come back. After SetOrder, pages of another order are given up likewise. The cap alone never
// makes pages smaller: at the cap, Take waits for pages.
//
// Owner thread only, except where a method says "any thread". At the cap, and when memory or
// mapping fails, Take returns nullptr and a counter says why; the caller tries again later (nothing
// is lost, nothing blocks).
#ifndef DMAKIT_FRAG_PAGE_POOL_H_
#define DMAKIT_FRAG_PAGE_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/address_space.h"
#include "dma/poll.h"
#include "dma/types.h"
#include "frag/page.h"

namespace dmakit::frag {

// Names of Linux's page-pool statistics where the event is the same; the rest is ours. Monotonic
// unless "now". A new page is one of alloc_slow and alloc_slow_high_order; every page that Take
// returns is a new one, or one of alloc_fast.
struct PagePoolStats {
  uint64_t alloc_fast = 0;  // Take served a free page (strict and deferred: by mapping it again)
  uint64_t alloc_slow = 0;  // new page of 4 KiB (Take or Prepare)
  uint64_t alloc_slow_high_order = 0;  // new page of order > 0
  uint64_t alloc_empty = 0;            // no free page ready in Take: slow path entered
  uint64_t alloc_refill = 0;           // Take found pages in what other threads had returned
  uint64_t alloc_waive = 0;            // a free page was given up: its order is not the wanted one
  uint64_t recycle_cached = 0;         // pages that became free on the owner thread
  uint64_t recycle_ring = 0;           // pages that became free by folding what others returned
  uint64_t alloc_failed_cap = 0;       // Take failed: the pool is at its cap
  uint64_t alloc_failed_memory = 0;    // Take failed: no memory at any usable order
  uint64_t alloc_failed_map = 0;       // Take failed: IOVA or mapping
  uint64_t order_fallbacks = 0;        // pages smaller than wanted
  uint64_t bad_releases =
      0;              // refused, nothing changed: a foreign pool's page, or more than is out
  uint64_t maps = 0;  // page mappings (each counts once, however many domains)
  uint64_t unmaps = 0;
  uint64_t pages = 0;  // now; quarantined ones are not among them
  uint64_t pages_peak = 0;
  uint64_t bytes = 0;  // now; never above max_bytes
  uint64_t bytes_peak = 0;
  uint64_t pages_waiting_flush = 0;  // now: deferred policy
  uint64_t pages_quarantined = 0;
};

class PagePool {
 public:
  struct Options {
    std::string label{};     // the ring or thread, in errors and reports
    unsigned order = 3;      // wanted page size, 4096 << order, 0 to kMaxOrder
    unsigned min_order = 0;  // never smaller than this on fallback
    // Cap on page memory; at least one page of the wanted order. Pages that were quarantined are
    // out of service and not part of it; they have a second budget of the same size, and a pool
    // that has used it up makes no page until Quarantine::ReleaseAfterReset. For a receive ring:
    // the ring's pages plus two, see FragAllocator. Under the deferred policy what goes beyond the
    // ring's need is what can wait for a common flush: without it each flush serves few pages.
    Bytes max_bytes{uint64_t{64} << 20};
    dma::Policy policy = dma::Policy::kPersistent;
    dma::host::NumaPolicy numa{};
    // How long the destructor waits for fragments still out, before their pages are quarantined,
    // and on whose time. nullptr: dma::SystemWaiter().
    dma::Nanos teardown_deadline{1'000'000'000};
    dma::Waiter* waiter = nullptr;
  };

  // InvalidArgument names the value and the rule; FailedPrecondition: no device is attached to the
  // space yet. Takes no memory yet. The space outlives the pool.
  static absl::StatusOr<std::unique_ptr<PagePool>> Create(dma::AddressSpace& space,
                                                          Options options);

  // Folds, waits for what is out up to the deadline, unmaps everything, invalidates; quarantines
  // the pages that did not come back. Returners may still be giving back while this runs, and
  // after it too: memory and metadata of quarantined pages live until
  // Quarantine::ReleaseAfterReset, after which nobody may touch them.
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // A free, mapped page with one reference for the caller (`outstanding` is 1), or nullptr (see
  // above). Last in, first out, as long as the order stays the same. The bytes are not cleared.
  Page* Take();
  // The same, for a caller who needs `bytes` in one page: takes and makes pages of at least that
  // size, also above the wanted order.
  Page* TakeAtLeast(uint32_t bytes);

  // Gives `count` references back. The last one recycles the page. What is not out is refused and
  // counted.
  void Release(Page* page, uint32_t count = 1) {
    if (page->pool == core_.get() && page->outstanding > count) [[likely]] {
      page->outstanding -= count;
      return;
    }
    ReleaseSlow(page, count);
  }
  void Release(const Fragment& fragment) { Release(fragment.page); }

  // Folds what other threads have returned; done by Take when it needs pages. Returns the number of
  // pages that became free.
  size_t Fold();

  // Makes and maps pages ahead of traffic until `count` are free, so that a ring's first fill pays
  // for them; stops at the cap and at the first failure. Returns how many are free now.
  size_t Prepare(size_t count);

  // Unmaps and frees free pages until at most `keep` are left, for an owner that pauses. Pages that
  // wait for a flush stay. Returns how many went.
  size_t Trim(size_t keep = 0);

  // Any thread; takes effect at the next page made. Pages of another order are given up as they
  // come back.
  absl::Status SetOrder(unsigned order);
  unsigned order() const;  // any thread
  // Order, smallest order and cap at once, for a ring whose buffers change. What is out of the old
  // pages counts for the new cap: add stats().bytes for as long as both are there. Any thread, one
  // at a time.
  absl::Status SetLimits(unsigned order, unsigned min_order, Bytes max_bytes);
  unsigned min_order() const;
  Bytes max_bytes() const;

  // Pages not free: some reference is out (or waits to be folded, or for a flush).
  size_t pages_in_use() const;
  const Options& options() const;  // as made; order, min_order and max_bytes may have changed
  // The policy in force: strict instead of deferred if the space has no flush queue.
  dma::Policy policy() const;
  dma::AddressSpace& address_space() const;
  PagePoolStats stats() const;  // any thread; a snapshot
  // Why the last Take that returned nullptr did; OK if none has. For messages at set-up.
  absl::Status LastFailure() const;

 private:
  friend class Returner;
  explicit PagePool(std::shared_ptr<internal::PoolCore> core);
  void ReleaseSlow(Page* page, uint32_t count);

  // Shared with the quarantine, which keeps the metadata of pages that never came back.
  std::shared_ptr<internal::PoolCore> core_;
};

}  // namespace dmakit::frag

#endif  // DMAKIT_FRAG_PAGE_POOL_H_
