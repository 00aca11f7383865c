// SPDX-License-Identifier: Apache-2.0
//
// A domain for millions of map and unmap pairs: one atomic word per page, no lock, no allocation
// after its creation. It translates nothing; it checks what a deferred policy must keep to: no page
// is mapped twice, and none is mapped again before an invalidation that began after its unmap.
#ifndef DMAKIT_TESTS_DMA_LIGHT_DOMAIN_H_
#define DMAKIT_TESTS_DMA_LIGHT_DOMAIN_H_

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "dma/domain.h"

namespace dmakit::dma::testing {

class LightDomain final : public Domain {
 public:
  explicit LightDomain(AddressBits width) : pages_((width.ToMask().value() >> 12) + 1) {
    facts_.width = width;
    facts_.apertures = {{Iova(0), width.ToMask().highest()}};
  }

  std::string_view name() const override { return "light"; }
  const DomainFacts& facts() const override { return facts_; }

  absl::Status Map(Range range, MemoryView, Access) override {
    ForPages(range, [this](std::atomic<uint64_t>& page) {
      const uint64_t was = page.exchange(kMapped, std::memory_order_relaxed);
      // A page that waits holds the epoch of its unmap.
      if (was == kMapped || was > epoch_.load(std::memory_order_relaxed)) ++wrong_;
    });
    maps_.fetch_add(1, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  absl::StatusOr<Bytes> Unmap(Range range) override {
    const uint64_t waits_for = epoch_.load(std::memory_order_relaxed) + 1;
    ForPages(range, [this, waits_for](std::atomic<uint64_t>& page) {
      if (page.exchange(waits_for, std::memory_order_relaxed) != kMapped) ++wrong_;
    });
    unmaps_.fetch_add(1, std::memory_order_relaxed);
    return range.size;
  }
  absl::Status Invalidate(Range range) override {
    ForPages(range, [](std::atomic<uint64_t>& page) {
      uint64_t was = page.load(std::memory_order_relaxed);
      if (was != kMapped) page.compare_exchange_strong(was, 0, std::memory_order_relaxed);
    });
    invalidations_.fetch_add(1, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  absl::Status InvalidateAll() override {
    epoch_.fetch_add(1, std::memory_order_relaxed);
    invalidations_.fetch_add(1, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  DomainStats stats() const override {
    DomainStats stats;
    stats.unmaps = unmaps_.load(std::memory_order_relaxed);
    stats.maps = maps_.load(std::memory_order_relaxed);
    stats.invalidations = invalidations_.load(std::memory_order_relaxed);
    stats.live_mappings = stats.maps - stats.unmaps;
    return stats;
  }

  // Double maps and unmaps, and pages used again too early.
  uint64_t wrong() const { return wrong_.load(); }

 private:
  static constexpr uint64_t kMapped = ~uint64_t{0};

  template <typename Visit>
  void ForPages(const Range& range, Visit visit) {
    const uint64_t first = range.base.value() >> 12;
    for (uint64_t n = 0; n < range.size.value() >> 12; ++n) visit(pages_[first + n]);
  }

  DomainFacts facts_;
  std::vector<std::atomic<uint64_t>> pages_;
  std::atomic<uint64_t> epoch_{0}, maps_{0}, unmaps_{0}, invalidations_{0}, wrong_{0};
};

}  // namespace dmakit::dma::testing

#endif  // DMAKIT_TESTS_DMA_LIGHT_DOMAIN_H_
