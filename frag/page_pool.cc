// SPDX-License-Identifier: Apache-2.0
//
// PagePool checks what it is asked for and passes it on to its PoolCore.
#include "frag/page_pool.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frag/pool_core.h"

namespace dmakit::frag {

using internal::PageSize;
using internal::PoolCore;

namespace {

absl::Status CheckOrder(const std::string& label, unsigned order, unsigned min_order,
                        Bytes max_bytes) {
  if (min_order > kMaxOrder) {
    return absl::InvalidArgumentError(absl::StrCat("page pool ", label, ": min_order ", min_order,
                                                   ": must be at most ", kMaxOrder));
  }
  if (order > kMaxOrder || order < min_order) {
    return absl::InvalidArgumentError(
        absl::StrCat("page pool ", label, ": order ", order, " (pages of 4096 << order): ",
                     "must be between min_order ", min_order, " and ", kMaxOrder));
  }
  if (PageSize(order) > max_bytes.value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("page pool ", label, ": max_bytes ", max_bytes.value(),
                     ": must hold at least one page of order ", order, " (", PageSize(order),
                     " bytes); raise it or choose a smaller order"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const PagePool::Options& options) {
  absl::Status s = CheckOrder(options.label, options.order, options.min_order, options.max_bytes);
  if (!s.ok()) return s;
  if (options.teardown_deadline < dma::Nanos{0}) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page pool ", options.label, ": teardown_deadline ", options.teardown_deadline.count(),
        " ns: must not be negative; 0 waits for nothing"));
  }
  return absl::OkStatus();
}

absl::Status CheckGranule(dma::AddressSpace& space, const std::string& label, unsigned min_order) {
  const uint64_t granule = space.granule().value();
  if (PageSize(min_order) >= granule) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "page pool ", label, ": min_order ", min_order, ": pages of ", PageSize(min_order),
      " bytes are below the granule of ", granule, "; raise min_order"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PagePool>> PagePool::Create(dma::AddressSpace& space,
                                                           Options options) {
  if (absl::Status s = CheckOptions(options); !s.ok()) return s;
  if (absl::Status s = CheckGranule(space, options.label, options.min_order); !s.ok()) return s;
  absl::StatusOr<std::unique_ptr<iova::Cache>> iovas = space.NewCache(options.label);
  if (!iovas.ok()) return iovas.status();
  dma::FlushLane lane;
  if (options.policy == dma::Policy::kDeferred) {
    // Without one, too many being in use, the pool's pages go through the common lane.
    if (auto made = space.NewFlushLane(options.label); made.ok()) lane = *std::move(made);
  }
  return std::unique_ptr<PagePool>(new PagePool(
      std::make_shared<PoolCore>(space, std::move(options), *std::move(iovas), std::move(lane))));
}

PagePool::PagePool(std::shared_ptr<PoolCore> core) : core_(std::move(core)) {}

PagePool::~PagePool() { core_->Close(); }

Page* PagePool::Take() { return core_->Take(1); }
Page* PagePool::TakeAtLeast(uint32_t bytes) { return core_->Take(bytes); }
void PagePool::ReleaseSlow(Page* page, uint32_t count) { core_->ReleaseSlow(page, count); }
size_t PagePool::Fold() { return core_->Fold(); }
size_t PagePool::Prepare(size_t count) { return core_->Prepare(count); }
size_t PagePool::Trim(size_t keep) { return core_->Trim(keep); }

absl::Status PagePool::SetOrder(unsigned order) {
  absl::Status s = CheckOrder(core_->options().label, order, min_order(), max_bytes());
  if (!s.ok()) return s;
  core_->set_order(order);
  return absl::OkStatus();
}

absl::Status PagePool::SetLimits(unsigned order, unsigned min_order, Bytes max_bytes) {
  const std::string& label = core_->options().label;
  if (absl::Status s = CheckOrder(label, order, min_order, max_bytes); !s.ok()) return s;
  if (absl::Status s = CheckGranule(core_->space(), label, min_order); !s.ok()) return s;
  core_->set_limits(order, min_order, max_bytes);
  return absl::OkStatus();
}

unsigned PagePool::min_order() const { return core_->min_order(); }
Bytes PagePool::max_bytes() const { return core_->max_bytes(); }

unsigned PagePool::order() const { return core_->order(); }
size_t PagePool::pages_in_use() const { return core_->pages_in_use(); }
const PagePool::Options& PagePool::options() const { return core_->options(); }
dma::Policy PagePool::policy() const { return core_->policy(); }
dma::AddressSpace& PagePool::address_space() const { return core_->space(); }
PagePoolStats PagePool::stats() const { return core_->stats(); }
absl::Status PagePool::LastFailure() const { return core_->LastFailure(); }

}  // namespace dmakit::frag
