// SPDX-License-Identifier: Apache-2.0
//
// PoolCore is the inside of a PagePool: page metadata at stable addresses, the free lists, the list
// of returned pages and the counters. Not part of the public interface.
//
// A page is always in one of these states; only the owner thread moves it:
//
//     spare --Make--> free <--Take / last release (persistent)--> out
//       ^              |                                           | last release, unmap
//       |<--- Drop ----+----------- unmapped <---- flushing <------+ (deferred; strict goes past
//       |                               \__Map__> out                 "flushing")
//
// Returned pages. A thread that is not the owner adds to Page::returned. Whoever raises it from 0
// pushes the page on `returned_head_` with a compare-and-swap, its last access to page and pool.
// The owner takes the whole list with one exchange, reads a page's link, and only then exchanges
// its count with 0. So:
//   - a page is on the list, or about to be pushed, exactly while its count is not 0, and its link
//     is written only by the one who found 0 there: no page is queued twice, no link changes under
//     the reader (the exchange of the count releases the link, the addition acquires it);
//   - the list is only pushed to and taken whole, so a head that changed away and back is a head
//     all the same;
//   - references are folded only from pages that were on the list. Once all are folded, every
//     pushing thread has done its last access, and the pool may go.
#ifndef DMAKIT_FRAG_POOL_CORE_H_
#define DMAKIT_FRAG_POOL_CORE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/address_space.h"
#include "dma/host/memory.h"
#include "frag/page.h"
#include "frag/page_pool.h"
#include "iova/counter.h"

namespace dmakit::frag::internal {

struct PageRecord : Page {
  enum class State : uint8_t { kSpare, kFree, kOut, kUnmapped, kFlushing };
  State state = State::kSpare;
  uint8_t made_for = 0;  // the order that was wanted when it was made
  dma::host::Memory memory;
  dma::SharedRange range;
  dma::FlushTicket ticket;
};

// Last in, first out.
class PageStack {
 public:
  void Push(PageRecord& record) {
    record.next_free = head_;
    head_ = &record;
  }
  PageRecord* Pop() {
    Page* page = head_;
    if (page != nullptr) head_ = page->next_free;
    return static_cast<PageRecord*>(page);
  }

 private:
  Page* head_ = nullptr;
};

// First in, first out.
class PageQueue {
 public:
  void Push(PageRecord& record) {
    record.next_free = nullptr;
    (head_ == nullptr ? head_ : tail_->next_free) = &record;
    tail_ = &record;
  }
  PageRecord* front() const { return static_cast<PageRecord*>(head_); }
  void PopFront() { head_ = head_->next_free; }

 private:
  Page* head_ = nullptr;
  Page* tail_ = nullptr;
};

constexpr uint32_t PageSize(unsigned order) { return kBasePageSize << order; }
// The smallest order whose pages hold `bytes` (kMaxOrder + 1 if none does).
unsigned OrderFor(uint32_t bytes);

class PoolCore : public std::enable_shared_from_this<PoolCore> {
 public:
  PoolCore(dma::AddressSpace& space, PagePool::Options options, std::unique_ptr<iova::Cache> iovas,
           dma::FlushLane lane);

  // Any thread. The last access to `page` and its pool, unless the caller holds more of it.
  // Returns the read-modify-writes it took.
  static unsigned GiveBack(Page* page, uint32_t count);

  // A page of at least `bytes`.
  Page* Take(uint32_t bytes) {
    const unsigned wanted = order();
    if (bytes <= PageSize(wanted)) [[likely]] {
      if (PageRecord* record = free_[wanted].Pop()) [[likely]] {
        --free_pages_;
        alloc_fast_.Add();
        return HandOut(*record);
      }
    }
    return TakeSlow(OrderFor(bytes));
  }

  // `count` references come back to the owner.
  void ReleaseSlow(Page* page, uint32_t count) {
    if (page->pool != this || count > page->outstanding - page->cutting) {
      RefuseRelease(*page, count);
      return;
    }
    page->outstanding -= count;
    if (page->outstanding != 0 || count == 0) return;
    recycle_cached_.Add();
    Recycle(static_cast<PageRecord&>(*page));
  }

  size_t Fold();
  size_t Prepare(size_t count);
  size_t Trim(size_t keep);
  // What ~PagePool does.
  void Close();

  void set_order(unsigned order) { order_.store(order, std::memory_order_relaxed); }
  unsigned order() const { return order_.load(std::memory_order_relaxed); }
  void set_limits(unsigned order, unsigned min_order, Bytes max_bytes) {
    min_order_.store(min_order, std::memory_order_relaxed);
    max_bytes_.store(max_bytes.value(), std::memory_order_relaxed);
    set_order(order);
  }
  unsigned min_order() const { return min_order_.load(std::memory_order_relaxed); }
  Bytes max_bytes() const { return Bytes{max_bytes_.load(std::memory_order_relaxed)}; }
  size_t pages_in_use() const { return pages_.Get() - free_pages_ - unmapped_pages_; }
  const PagePool::Options& options() const { return options_; }
  dma::Policy policy() const { return policy_; }
  dma::AddressSpace& space() const { return space_; }
  PagePoolStats stats() const;
  absl::Status LastFailure() const;

 private:
  enum class Failure : uint8_t { kNone, kCap, kMemory, kIova, kMap };
  class HeldMemory;
  using Stacks = std::array<PageStack, kMaxOrder + 1>;

  static Page* HandOut(PageRecord& record) {
    record.state = PageRecord::State::kOut;
    record.outstanding = 1;
    return &record;
  }
  void Recycle(PageRecord& record) {
    if (policy_ == dma::Policy::kPersistent && record.order == order() && !space_.watched())
        [[likely]] {
      PushFree(record);
      return;
    }
    RecycleSlow(record);
  }
  void PushFree(PageRecord& record) {
    record.state = PageRecord::State::kFree;
    free_[record.order].Push(record);
    ++free_pages_;
  }

  // Slow paths, pool_core.cc.
  Page* TakeSlow(unsigned least);
  PageRecord* PopBest(Stacks& stacks, unsigned least);
  absl::Status Map(dma::SharedRange& range, const dma::host::Memory& memory);
  PageRecord* MapUnmapped(unsigned least, Failure& failure);
  PageRecord* Make(unsigned least, Failure& failure);
  Failure MakeAt(unsigned order, PageRecord*& made);
  Page* Fail(Failure failure);
  PageRecord* PopFree(unsigned order);
  bool EvictSmaller(unsigned least);
  void ApplyOrder();
  bool Keep(const PageRecord& record);
  bool WantedOrderIsBack();
  void RecycleSlow(PageRecord& record);
  void RefuseRelease(const Page& page, uint32_t count);
  void Settle(PageRecord& record);
  void ReapFlushed();
  void Flush();
  void GiveUp(PageRecord& record);
  void Drop(PageRecord& record);
  void Quarantine(PageRecord& record, std::string_view reason);
  void Hold(dma::SharedRange range, dma::host::Memory memory, std::string_view reason);
  void LeaveService(PageRecord& record);
  bool Fits(unsigned order) const;

  // Owner only, except where atomic.
  Stacks free_;  // mapped, by order
  std::atomic<unsigned> order_;
  std::atomic<unsigned> min_order_;
  std::atomic<uint64_t> max_bytes_;
  uint32_t retry_in_ = 0;  // small pages to come back until the wanted order is tried again
  size_t free_pages_ = 0;
  size_t unmapped_pages_ = 0;
  dma::Policy policy_;
  bool short_ = false;  // the last page made was smaller than wanted
  unsigned applied_order_;
  Stacks unmapped_;     // strict, deferred: memory and IOVA, but no translation
  PageQueue flushing_;  // deferred: unmapped, oldest first
  PageStack spare_;
  std::deque<PageRecord> records_;
  dma::AddressSpace& space_;
  PagePool::Options options_;
  std::unique_ptr<iova::Cache> iovas_;
  dma::FlushLane lane_;  // deferred only
  Failure failure_ = Failure::kNone;
  absl::Status failure_status_;
  std::atomic<uint64_t> quarantined_bytes_{0};  // held now; given back by any thread

  Counter alloc_fast_, alloc_slow_, alloc_slow_high_order_, alloc_empty_, alloc_refill_;
  Counter alloc_waive_, recycle_cached_, recycle_ring_;
  Counter alloc_failed_cap_, alloc_failed_memory_, alloc_failed_map_, order_fallbacks_;
  Counter bad_releases_, maps_, unmaps_, pages_, pages_peak_, bytes_, bytes_peak_;
  Counter pages_flushing_, pages_quarantined_;

  // Written by other threads.
  alignas(64) std::atomic<Page*> returned_head_{nullptr};
};

}  // namespace dmakit::frag::internal

#endif  // DMAKIT_FRAG_POOL_CORE_H_
