// SPDX-License-Identifier: Apache-2.0
#include "frag/frag_allocator.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dmakit::frag {

namespace {

constexpr uint64_t kLargestPage = uint64_t{kBasePageSize} << kMaxOrder;

// In 64 bits: no sum of 32-bit lengths wraps.
constexpr uint64_t Stride(uint64_t size, uint64_t tailroom, uint64_t alignment) {
  return (size + tailroom + alignment - 1) & ~(alignment - 1);
}

}  // namespace

absl::StatusOr<FragAllocator> FragAllocator::Create(PagePool& pool, Options options) {
  const std::string& label = pool.options().label;
  if (options.size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("fragments of pool ", label, ": size 0: must be at least 1"));
  }
  if (!std::has_single_bit(options.alignment) || options.alignment > kBasePageSize) {
    return absl::InvalidArgumentError(absl::StrCat("fragments of pool ", label, ": alignment ",
                                                   options.alignment,
                                                   ": must be a power of two, at most 4096"));
  }
  const uint64_t stride = Stride(options.size, options.tailroom, options.alignment);
  const uint64_t page = uint64_t{kBasePageSize} << pool.order();
  if (stride > page) {
    return absl::InvalidArgumentError(
        absl::StrCat("fragments of pool ", label, ": size ", options.size, " with tailroom ",
                     options.tailroom, " takes ", stride, " bytes, a page of order ", pool.order(),
                     " has ", page, "; choose a larger order (at most ", kMaxOrder, ", ",
                     kLargestPage, " bytes) or smaller fragments"));
  }
  return FragAllocator(pool, options, static_cast<uint32_t>(stride));
}

FragAllocator::FragAllocator(PagePool& pool, const Options& options, uint32_t stride)
    : pool_(&pool), stride_(stride), options_(options) {}

// What was moved from keeps its stride: with neither page nor pool, every Allocate is an empty one.
FragAllocator::FragAllocator(FragAllocator&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      page_(std::exchange(other.page_, nullptr)),
      offset_(std::exchange(other.offset_, 0)),
      limit_(std::exchange(other.limit_, 0)),
      stride_(other.stride_),
      options_(other.options_) {}

FragAllocator& FragAllocator::operator=(FragAllocator&& other) noexcept {
  if (this == &other) return *this;
  Retire();
  pool_ = std::exchange(other.pool_, nullptr);
  page_ = std::exchange(other.page_, nullptr);
  offset_ = std::exchange(other.offset_, 0);
  limit_ = std::exchange(other.limit_, 0);
  stride_ = other.stride_;
  options_ = other.options_;
  return *this;
}

FragAllocator::~FragAllocator() { Retire(); }

Fragment FragAllocator::AllocateSlow() {
  if (!NextPage(stride_)) return {};
  return Cut(stride_, options_.size);
}

Fragment FragAllocator::AllocateSize(uint32_t size) {
  const uint64_t stride = Stride(size, options_.tailroom, options_.alignment);
  if (size == 0 || pool_ == nullptr) return {};
  if (stride > limit_ - offset_) {
    const uint64_t page = uint64_t{kBasePageSize} << pool_->order();
    if (stride > std::max<uint64_t>(page, stride_)) return {};
    if (!NextPage(static_cast<uint32_t>(stride))) return {};
  }
  return Cut(static_cast<uint32_t>(stride), size);
}

// A page with room for one fragment of `stride`, and for one of stride_ if the pool has such a
// page.
bool FragAllocator::NextPage(uint32_t stride) {
  Retire();
  if (pool_ == nullptr) return false;
  Page* page = pool_->TakeAtLeast(stride);
  if (page == nullptr) return false;
  page->cutting = 1;
  page_ = page;
  limit_ = page->size;
  return true;
}

// Before a new page is taken, so that a page whose fragments are all back can be that page.
void FragAllocator::Retire() {
  if (page_ == nullptr) return;
  page_->cutting = 0;
  pool_->Release(page_);
  page_ = nullptr;
  offset_ = 0;
  limit_ = 0;
}

uint32_t FragAllocator::FragmentsPerPage(uint32_t stride, unsigned order) {
  if (stride == 0 || order > kMaxOrder) return 0;
  return (kBasePageSize << order) / stride;
}

unsigned FragAllocator::BestOrder(uint32_t stride, unsigned least, unsigned most) {
  most = std::min(most, kMaxOrder);
  least = std::min(least, most);
  unsigned best = least;
  uint64_t best_waste = ~uint64_t{0};  // per 2 MiB
  for (unsigned order = least; order <= most; ++order) {
    const uint64_t page = uint64_t{kBasePageSize} << order;
    const uint64_t waste = page - uint64_t{FragmentsPerPage(stride, order)} * stride;
    if (waste * 16 <= page) return order;
    if (waste << (kMaxOrder - order) < best_waste) {
      best = order;
      best_waste = waste << (kMaxOrder - order);
    }
  }
  return best;
}

}  // namespace dmakit::frag
