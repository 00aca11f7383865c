// SPDX-License-Identifier: Apache-2.0

#include "nic/rx_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frag/frag_allocator.h"
#include "frag/page.h"

namespace dmakit::nic {
namespace {

// The default pages of a ring are of these orders: 32 KiB to 2 MiB.
constexpr unsigned kLeastDefaultOrder = 3;

constexpr uint64_t PageBytes(unsigned order) { return uint64_t{frag::kBasePageSize} << order; }

unsigned OrderFor(uint32_t bytes) {
  unsigned order = 0;
  while (order < frag::kMaxOrder && PageBytes(order) < bytes) ++order;
  return order;
}

}  // namespace

absl::StatusOr<RxPoolPlan> PlanRxPool(const PortOptions& options, uint32_t buffers,
                                      uint32_t capacity) {
  if (options.mtu < kMinMtu || options.mtu > kMaxMtu) {
    return absl::InvalidArgumentError(
        absl::StrCat("mtu ", options.mtu, ": must be between ", kMinMtu, " and ", kMaxMtu));
  }
  if (options.headroom > kMaxHeadroom) {
    return absl::InvalidArgumentError(
        absl::StrCat("headroom ", options.headroom, ": must be at most ", kMaxHeadroom, " bytes"));
  }
  RxPoolPlan plan;
  plan.capacity = capacity == 0 ? options.mtu + kFrameOverhead : capacity;
  plan.buffer_size = (options.headroom + plan.capacity + 63) / 64 * 64;
  plan.min_order = OrderFor(plan.buffer_size);
  plan.order = options.page_order.value_or(frag::FragAllocator::BestOrder(
      plan.buffer_size, std::max(plan.min_order, kLeastDefaultOrder), frag::kMaxOrder));
  if (plan.order < plan.min_order || plan.order > frag::kMaxOrder) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page order ", plan.order, ": must be between ", plan.min_order, " and ", frag::kMaxOrder,
        " for receive buffers of ", plan.buffer_size, " bytes (mtu ", options.mtu, ", headroom ",
        options.headroom, "); a page has 4096 << order bytes"));
  }
  const uint32_t per_page = frag::FragAllocator::FragmentsPerPage(plan.buffer_size, plan.order);
  plan.fill_pages = std::max(1u, (buffers + per_page - 1) / per_page);
  plan.spare_pages = options.extra_pages;
  if (options.policy == dma::Policy::kDeferred) {
    plan.spare_pages += std::clamp(plan.fill_pages, 16u, 256u);
  }
  plan.max_bytes = Bytes{(uint64_t{plan.fill_pages} + plan.spare_pages) * PageBytes(plan.order)};
  return plan;
}

absl::StatusOr<std::unique_ptr<frag::PagePool>> NewRxPool(dma::AddressSpace& space,
                                                          const PortOptions& options,
                                                          const RxPoolPlan& plan, std::string label,
                                                          dma::Waiter& waiter) {
  return frag::PagePool::Create(space, {.label = std::move(label),
                                        .order = plan.order,
                                        .min_order = plan.min_order,
                                        .max_bytes = plan.max_bytes,
                                        .policy = options.policy,
                                        .numa = {},
                                        .teardown_deadline = options.stop_deadline,
                                        .waiter = &waiter});
}

}  // namespace dmakit::nic
