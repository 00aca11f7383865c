// SPDX-License-Identifier: Apache-2.0
//
// The slow paths of a pool: folding, making, mapping, unmapping and giving up pages, and the end of
// the pool. Owner thread only, except GiveBack and the snapshots.
#include "frag/pool_core.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/audit_code.h"

namespace dmakit::frag::internal {

namespace {
// While pages of the wanted size are short, how many small ones come back between two tries.
constexpr uint32_t kRetryInterval = 64;
}  // namespace

unsigned OrderFor(uint32_t bytes) {
  if (bytes <= kBasePageSize) return 0;
  return static_cast<unsigned>(std::bit_width(bytes - 1)) - 12;
}

// The memory of a quarantined page. It keeps the metadata alive for as long as the quarantine keeps
// the memory, so a thread that gives a reference back late finds both.
class PoolCore::HeldMemory final : public dma::host::MemorySource {
 public:
  static dma::host::Memory Hold(dma::host::Memory memory, std::shared_ptr<PoolCore> core,
                                uint32_t bytes) {
    const dma::MemoryView view = memory.view();
    // Deletes itself when the block comes back.
    auto* held = new HeldMemory(std::move(memory), std::move(core), bytes);
    return dma::host::Memory(held, view);
  }

  absl::StatusOr<dma::host::Memory> Allocate(const dma::host::MemoryRequest&) override {
    return absl::UnimplementedError("a quarantined page is not a source of memory");
  }
  Bytes page_size() const override { return Bytes{kBasePageSize}; }
  Bytes bytes_in_use() const override { return Bytes{memory_.size()}; }

 protected:
  void Free(const dma::MemoryView&) override {
    core_->quarantined_bytes_.fetch_sub(bytes_, std::memory_order_relaxed);
    delete this;
  }

 private:
  HeldMemory(dma::host::Memory memory, std::shared_ptr<PoolCore> core, uint32_t bytes)
      : memory_(std::move(memory)), core_(std::move(core)), bytes_(bytes) {
    core_->quarantined_bytes_.fetch_add(bytes_, std::memory_order_relaxed);
  }

  dma::host::Memory memory_;
  std::shared_ptr<PoolCore> core_;
  const uint32_t bytes_;
};

PoolCore::PoolCore(dma::AddressSpace& space, PagePool::Options options,
                   std::unique_ptr<iova::Cache> iovas, dma::FlushLane lane)
    : order_(options.order),
      min_order_(options.min_order),
      max_bytes_(options.max_bytes.value()),
      policy_(options.policy == dma::Policy::kDeferred && space.flush_queue() == nullptr
                  ? dma::Policy::kStrict
                  : options.policy),
      applied_order_(options.order),
      space_(space),
      options_(std::move(options)),
      iovas_(std::move(iovas)),
      lane_(std::move(lane)) {}

// --- Returned pages --------------------------------------------------------------------------

unsigned PoolCore::GiveBack(Page* page, uint32_t count) {
  PoolCore* const core = page->pool;
  // Release: what this thread did with the fragments is before their reuse. Acquire: the owner's
  // reading of the link is before the writing of it below.
  if (page->returned.fetch_add(count, std::memory_order_acq_rel) != 0) return 1;
  unsigned operations = 1;
  Page* head = core->returned_head_.load(std::memory_order_relaxed);
  do {
    page->next_returned = head;
    ++operations;
  } while (!core->returned_head_.compare_exchange_weak(head, page, std::memory_order_release,
                                                       std::memory_order_relaxed));
  return operations;
}

size_t PoolCore::Fold() {
  if (returned_head_.load(std::memory_order_relaxed) == nullptr) return 0;
  size_t freed = 0;
  Page* page = returned_head_.exchange(nullptr, std::memory_order_acquire);
  while (page != nullptr) {
    Page* const next = page->next_returned;
    const uint32_t count = page->returned.exchange(0, std::memory_order_acq_rel);
    if (count > page->outstanding - page->cutting) {
      RefuseRelease(*page, count);
    } else if ((page->outstanding -= count) == 0) {
      recycle_ring_.Add();
      ++freed;
      Recycle(static_cast<PageRecord&>(*page));
    }
    page = next;
  }
  return freed;
}

// --- Take ------------------------------------------------------------------------------------

Page* PoolCore::TakeSlow(unsigned least) {
  alloc_empty_.Add();
  if (least > kMaxOrder) {
    failure_status_ = absl::InvalidArgumentError(
        absl::StrCat("page pool ", options_.label, ": a page has at most ", PageSize(kMaxOrder),
                     " bytes; ask for less"));
    return Fail(Failure::kMemory);
  }
  ApplyOrder();
  if (Fold() > 0) alloc_refill_.Add();
  for (bool flushed = false;; flushed = true) {
    if (PageRecord* record = PopBest(free_, least)) {
      --free_pages_;
      alloc_fast_.Add();
      return HandOut(*record);
    }
    ReapFlushed();
    Failure failure = Failure::kNone;
    if (PageRecord* record = MapUnmapped(least, failure)) {
      alloc_fast_.Add();
      return HandOut(*record);
    }
    if (failure != Failure::kNone) return Fail(failure);
    PageRecord* record = Make(least, failure);
    if (record == nullptr && failure == Failure::kCap && EvictSmaller(least)) {
      record = Make(least, failure);
    }
    if (record != nullptr) return HandOut(*record);
    if (flushed || flushing_.front() == nullptr) return Fail(failure);
    // Everything else is used up: do not wait until the queue reaches its own bounds.
    Flush();
  }
}

// Pages of the wanted order first, then larger ones, then smaller ones; never below `least`.
PageRecord* PoolCore::PopBest(Stacks& stacks, unsigned least) {
  const unsigned best = std::max(applied_order_, least);
  for (unsigned order = best; order <= kMaxOrder; ++order) {
    if (PageRecord* record = stacks[order].Pop()) return record;
  }
  for (unsigned order = best; order-- > least;) {
    if (PageRecord* record = stacks[order].Pop()) return record;
  }
  return nullptr;
}

absl::Status PoolCore::Map(dma::SharedRange& range, const dma::host::Memory& memory) {
  return range.Map(memory.view().Sub(0, range.size().value()));
}

PageRecord* PoolCore::MapUnmapped(unsigned least, Failure& failure) {
  PageRecord* record = PopBest(unmapped_, least);
  if (record == nullptr) return nullptr;
  absl::Status mapped = Map(record->range, record->memory);
  if (!mapped.ok()) {
    if (record->range.quarantined()) {
      --unmapped_pages_;
      Quarantine(*record, mapped.ToString());
    } else {
      unmapped_[record->order].Push(*record);
    }
    failure_status_ = std::move(mapped);
    failure = Failure::kMap;
    return nullptr;
  }
  --unmapped_pages_;
  maps_.Add();
  return record;
}

PageRecord* PoolCore::Make(unsigned least, Failure& failure) {
  const unsigned wanted = std::max(applied_order_, least);
  const unsigned floor = std::max(min_order(), least);
  unsigned order = wanted;
  // In a shortage the rest of the cap is for the small pages.
  while (short_ && order > floor && !Fits(order)) --order;
  if (!Fits(order)) {
    failure = Failure::kCap;
    return nullptr;
  }
  PageRecord* made = nullptr;
  while ((failure = MakeAt(order, made)) != Failure::kNone) {
    // More mappings of smaller pages do not help a domain that cannot map one.
    if (order == floor || failure == Failure::kMap) return nullptr;
    --order;
  }
  short_ = order < wanted;
  if (short_) {
    order_fallbacks_.Add();
    retry_in_ = kRetryInterval;
  }
  made->made_for = static_cast<uint8_t>(applied_order_);
  (made->order == 0 ? alloc_slow_ : alloc_slow_high_order_).Add();
  maps_.Add();
  pages_.Add();
  pages_peak_.RaiseTo(pages_.Get());
  bytes_.Add(made->size);
  bytes_peak_.RaiseTo(bytes_.Get());
  return made;
}

PoolCore::Failure PoolCore::MakeAt(unsigned order, PageRecord*& made) {
  const Bytes size{PageSize(order)};
  absl::StatusOr<dma::host::Memory> memory = space_.memory().Allocate(
      {.size = size, .alignment = size, .numa = options_.numa, .label = options_.label});
  if (!memory.ok()) {
    failure_status_ = memory.status();
    return Failure::kMemory;
  }
  absl::StatusOr<dma::SharedRange> range = space_.Reserve(size, size, options_.label, iovas_.get());
  if (!range.ok()) {
    failure_status_ = range.status();
    return Failure::kIova;
  }
  absl::Status mapped = Map(*range, *memory);
  if (!mapped.ok()) {
    if (range->quarantined()) Hold(*std::move(range), *std::move(memory), mapped.ToString());
    failure_status_ = std::move(mapped);
    return Failure::kMap;
  }
  made = spare_.Pop();
  if (made == nullptr) made = &records_.emplace_back();
  made->base = memory->data();
  made->iova = range->iova();
  made->size = static_cast<uint32_t>(size.value());
  made->order = static_cast<uint8_t>(order);
  made->pool = this;
  made->memory = *std::move(memory);
  made->range = *std::move(range);
  return Failure::kNone;
}

Page* PoolCore::Fail(Failure failure) {
  failure_ = failure;
  (failure == Failure::kCap      ? alloc_failed_cap_
   : failure == Failure::kMemory ? alloc_failed_memory_
                                 : alloc_failed_map_)
      .Add();
  return nullptr;
}

bool PoolCore::Fits(unsigned order) const {
  return bytes_.Get() + PageSize(order) <= max_bytes().value() &&
         quarantined_bytes_.load(std::memory_order_relaxed) < max_bytes().value();
}

// Any free page of an order, mapped or not, or nullptr. It is free no longer.
PageRecord* PoolCore::PopFree(unsigned order) {
  PageRecord* record = free_[order].Pop();
  if (record != nullptr) {
    --free_pages_;
  } else if ((record = unmapped_[order].Pop()) != nullptr) {
    --unmapped_pages_;
  }
  return record;
}

// At the cap, free pages that are too small for the caller only take up room.
bool PoolCore::EvictSmaller(unsigned least) {
  const unsigned wanted = std::max(applied_order_, least);
  for (unsigned order = 0; order < least; ++order) {
    while (!Fits(wanted)) {
      PageRecord* record = PopFree(order);
      if (record == nullptr) break;
      GiveUp(*record);
    }
  }
  return Fits(wanted);
}

size_t PoolCore::Trim(size_t keep) {
  ApplyOrder();
  Fold();
  ReapFlushed();
  size_t gone = 0;
  for (unsigned order = 0; order <= kMaxOrder; ++order) {
    while (free_pages_ + unmapped_pages_ > keep) {
      PageRecord* record = PopFree(order);
      if (record == nullptr) break;
      Drop(*record);
      ++gone;
    }
  }
  return gone;
}

size_t PoolCore::Prepare(size_t count) {
  ApplyOrder();
  Fold();
  while (free_pages_ < count) {
    Failure failure = Failure::kNone;
    PageRecord* record = MapUnmapped(0, failure);
    if (record == nullptr && failure == Failure::kNone) record = Make(0, failure);
    if (record == nullptr) {
      Fail(failure);
      break;
    }
    PushFree(*record);
  }
  return free_pages_;
}

// --- Orders ----------------------------------------------------------------------------------

// The owner notices a new order: what is free and of another size goes.
void PoolCore::ApplyOrder() {
  const unsigned wanted = order();
  if (wanted == applied_order_) return;
  applied_order_ = wanted;
  short_ = false;
  for (unsigned order = 0; order <= kMaxOrder; ++order) {
    if (order == wanted) continue;
    while (PageRecord* record = PopFree(order)) GiveUp(*record);
  }
}

// Whether a page that became free is worth keeping.
bool PoolCore::Keep(const PageRecord& record) {
  const unsigned wanted = order();
  if (record.order == wanted) return true;
  if (record.made_for != wanted) return false;  // of an earlier setting
  if (record.order > wanted) return true;       // made for a caller of TakeAtLeast
  if (!short_) return false;
  if (--retry_in_ > 0) return true;
  retry_in_ = kRetryInterval;
  short_ = !WantedOrderIsBack();
  return short_;
}

// Tried with memory only, and before anything is given up for it.
bool PoolCore::WantedOrderIsBack() {
  const Bytes size{PageSize(order())};
  return space_.memory()
      .Allocate({.size = size, .alignment = size, .numa = options_.numa, .label = options_.label})
      .ok();
}

// --- Recycling -------------------------------------------------------------------------------

// Nothing changes; who watches is told which mistake it was.
void PoolCore::RefuseRelease(const Page& page, uint32_t count) {
  bad_releases_.Add();
  if (!space_.watched()) return;
  const uint32_t out = page.outstanding - page.cutting;
  dma::AuditCode code = dma::AuditCode::kBadRelease;
  std::string what =
      absl::StrCat("page pool ", options_.label, ": ", count, " references released to a page of ");
  if (page.pool != this) {
    absl::StrAppend(&what, "pool ", page.pool == nullptr ? "nobody" : page.pool->options_.label,
                    "; release it there");
  } else if (count > page.size) {
    code = dma::AuditCode::kReferenceCount;
    absl::StrAppend(&what, page.size, " bytes, which cannot have more than that");
  } else if (out != 0) {
    code = dma::AuditCode::kReferenceCount;
    absl::StrAppend(&what, "which ", out, " are out: the count would go below zero");
  } else {
    absl::StrAppend(&what, "which none is out: released before");
  }
  space_.TellMisuse({.code = code,
                     .owner = page.pool == nullptr ? "" : page.pool->options_.label,
                     .range = {page.iova, Bytes{page.size}},
                     .what = what});
}

void PoolCore::RecycleSlow(PageRecord& record) {
  if (space_.watched()) space_.TellRecycled({record.iova, Bytes{record.size}}, options_.label);
  if (policy_ == dma::Policy::kPersistent) {
    if (Keep(record)) {
      PushFree(record);
    } else {
      GiveUp(record);
    }
    return;
  }
  absl::StatusOr<dma::FlushTicket> ticket = record.range.Unmap(policy_, {iovas_.get(), &lane_});
  if (!ticket.ok()) return Quarantine(record, ticket.status().ToString());
  unmaps_.Add();
  record.ticket = *std::move(ticket);
  record.state = PageRecord::State::kFlushing;
  pages_flushing_.Add();
  flushing_.Push(record);
  if (policy_ == dma::Policy::kStrict) ReapFlushed();
}

// Oldest first; a page behind one that waits waits too.
void PoolCore::ReapFlushed() {
  while (PageRecord* record = flushing_.front()) {
    const dma::FlushTicket::State state = record->ticket.state();
    if (state == dma::FlushTicket::State::kPending) return;
    flushing_.PopFront();
    pages_flushing_.Sub();
    record->ticket = {};
    if (state == dma::FlushTicket::State::kQuarantined) {
      Quarantine(*record, "its flush failed");
    } else {
      Settle(*record);
    }
  }
}

void PoolCore::Flush() {
  // The result is in the tickets.
  if (dma::FlushQueue* queue = space_.flush_queue()) queue->Flush().IgnoreError();
}

// No device can reach the page any more.
void PoolCore::Settle(PageRecord& record) {
  if (!Keep(record)) {
    alloc_waive_.Add();
    return Drop(record);
  }
  record.state = PageRecord::State::kUnmapped;
  unmapped_[record.order].Push(record);
  ++unmapped_pages_;
}

// A free page, mapped or not, is no longer wanted.
void PoolCore::GiveUp(PageRecord& record) {
  alloc_waive_.Add();
  Drop(record);
}

void PoolCore::Drop(PageRecord& record) {
  if (record.range.mapped()) {
    absl::StatusOr<dma::FlushTicket> ticket = record.range.Unmap(dma::Policy::kStrict);
    if (!ticket.ok()) return Quarantine(record, ticket.status().ToString());
    unmaps_.Add();
  }
  LeaveService(record);
  record.range = {};
  record.memory = {};
  spare_.Push(record);
}

// A device may still write to the page. Its record is not used again either: a reference may come
// back late.
void PoolCore::Quarantine(PageRecord& record, std::string_view reason) {
  LeaveService(record);
  Hold(std::move(record.range), std::move(record.memory), reason);
}

void PoolCore::Hold(dma::SharedRange range, dma::host::Memory memory, std::string_view reason) {
  pages_quarantined_.Add();
  const auto bytes = static_cast<uint32_t>(range.size().value());
  std::move(range).Quarantine(HeldMemory::Hold(std::move(memory), shared_from_this(), bytes),
                              reason);
}

void PoolCore::LeaveService(PageRecord& record) {
  record.state = PageRecord::State::kSpare;
  pages_.Sub();
  bytes_.Sub(record.size);
}

// --- The end, and snapshots ------------------------------------------------------------------

void PoolCore::Close() {
  dma::Waiter& waiter = options_.waiter != nullptr ? *options_.waiter : dma::SystemWaiter();
  const auto out = [this] { return pages_in_use() - pages_flushing_.Get(); };
  // What is not back in time is found below.
  static_cast<void>(dma::PollUntil(waiter, options_.teardown_deadline, [&] {
    Fold();
    return out() == 0;
  }));
  if (flushing_.front() != nullptr) {
    Flush();
    ReapFlushed();
  }
  for (PageRecord& record : records_) {
    switch (record.state) {
      case PageRecord::State::kSpare:
        break;
      case PageRecord::State::kFree:
      case PageRecord::State::kUnmapped:
        Drop(record);
        break;
      case PageRecord::State::kOut:
        Quarantine(record, "fragments were still out when their pool ended");
        break;
      case PageRecord::State::kFlushing:
        Quarantine(record, "its flush had not completed when its pool ended");
        break;
    }
  }
  lane_ = {};
  iovas_.reset();
}

PagePoolStats PoolCore::stats() const {
  return {.alloc_fast = alloc_fast_.Get(),
          .alloc_slow = alloc_slow_.Get(),
          .alloc_slow_high_order = alloc_slow_high_order_.Get(),
          .alloc_empty = alloc_empty_.Get(),
          .alloc_refill = alloc_refill_.Get(),
          .alloc_waive = alloc_waive_.Get(),
          .recycle_cached = recycle_cached_.Get(),
          .recycle_ring = recycle_ring_.Get(),
          .alloc_failed_cap = alloc_failed_cap_.Get(),
          .alloc_failed_memory = alloc_failed_memory_.Get(),
          .alloc_failed_map = alloc_failed_map_.Get(),
          .order_fallbacks = order_fallbacks_.Get(),
          .bad_releases = bad_releases_.Get(),
          .maps = maps_.Get(),
          .unmaps = unmaps_.Get(),
          .pages = pages_.Get(),
          .pages_peak = pages_peak_.Get(),
          .bytes = bytes_.Get(),
          .bytes_peak = bytes_peak_.Get(),
          .pages_waiting_flush = pages_flushing_.Get(),
          .pages_quarantined = pages_quarantined_.Get()};
}

absl::Status PoolCore::LastFailure() const {
  switch (failure_) {
    case Failure::kNone:
      return absl::OkStatus();
    case Failure::kCap:
      return absl::ResourceExhaustedError(
          absl::StrCat("page pool ", options_.label, ": ", bytes_.Get(), " bytes of pages and ",
                       quarantined_bytes_.load(std::memory_order_relaxed),
                       " in quarantine, the cap is ", max_bytes().value(),
                       " bytes of each: give pages back, raise max_bytes, or reset the device and "
                       "release the quarantine"));
    case Failure::kMemory:
    case Failure::kIova:
    case Failure::kMap:
      return failure_status_;
  }
  return absl::OkStatus();
}

}  // namespace dmakit::frag::internal
