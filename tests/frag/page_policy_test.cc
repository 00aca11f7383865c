// SPDX-License-Identifier: Apache-2.0
//
// When pages are mapped and unmapped under each policy, what happens when that fails, and what a
// device that still uses a page after its last release runs into.
#include <set>
#include <vector>

#include "tests/frag/testing.h"

namespace dmakit::frag::testing {
namespace {

// One page filled with fragments, each given back; `rounds` times.
void Cycle(PagePool& pool, int rounds) {
  FragAllocator cutter = Cutter(pool, {.size = 2048});
  for (int round = 0; round < rounds; ++round) {
    std::vector<Fragment> fragments;
    for (uint32_t i = 0; i < 32768 / 2048; ++i) {
      fragments.push_back(cutter.Allocate());
      REQUIRE_FALSE(fragments.back().empty());
    }
    for (const Fragment& fragment : fragments) pool.Release(fragment);
  }
}

template <typename AnyRig>
dma::DomainStats DomainStats(AnyRig& rig) {
  if constexpr (std::is_same_v<AnyRig, FakeRig>) {
    return rig.domain.stats();
  } else {
    return rig.iommu->stats();
  }
}

TEMPLATE_TEST_CASE("maps, unmaps and invalidations per policy", "", FakeRig, IommuRig) {
  SECTION("persistent: one map per page ever; the end unmaps and invalidates each once") {
    TestType rig;
    {
      auto pool = rig.Pool({.order = 3});
      Cycle(*pool, 100);
      CHECK(DomainStats(rig).maps == pool->stats().pages);
      CHECK(pool->stats().pages == 1);
      CHECK(DomainStats(rig).unmaps == 0);
      CHECK(DomainStats(rig).invalidations == 0);
      std::vector<Page*> pages;
      for (int i = 0; i < 7; ++i) pages.push_back(pool->Take());
      for (Page* page : pages) pool->Release(page);
    }
    CHECK(DomainStats(rig).maps == 7);
    CHECK(DomainStats(rig).unmaps == 7);
    CHECK(DomainStats(rig).invalidations == 7);
    CHECK(DomainStats(rig).live_mappings == 0);
  }
  SECTION("strict: one map, one unmap, one invalidation per page and round") {
    TestType rig;
    {
      auto pool = rig.Pool({.order = 3, .policy = Policy::kStrict});
      Cycle(*pool, 100);  // 16 fragments each
      CHECK(DomainStats(rig).maps == 100);
      CHECK(DomainStats(rig).unmaps == 100);
      CHECK(DomainStats(rig).invalidations == 100);
      CHECK(pool->stats().pages == 1);  // one page, one IOVA
      CHECK(pool->stats().alloc_slow_high_order == 1);
      CHECK(rig.memory.blocks() == 1);
    }
    CHECK(DomainStats(rig).live_mappings == 0);
    CHECK(DomainStats(rig).invalidations == 100);
  }
  SECTION("deferred: one unmap per page and round, one invalidation for many") {
    TestType rig;
    {
      auto pool =
          rig.Pool({.order = 3, .max_bytes = Bytes{10 * 32768}, .policy = Policy::kDeferred});
      Cycle(*pool, 100);
      CHECK(DomainStats(rig).maps == 100);
      CHECK(DomainStats(rig).unmaps == 100);
      CHECK(pool->stats().pages == 10);
      CHECK(DomainStats(rig).invalidations == 9);  // each time the cap is reached
      CHECK(rig.space->flush_queue()->stats().flushes == 9);
      // The pool has a lane of its own. An audit must hear of a release before its ticket is done,
      // which the common lane sees to.
      CHECK(rig.space->flush_queue()->stats().common == (dmakit::testing::kCheckedBuild ? 100 : 0));
      CHECK(pool->stats().alloc_failed_cap == 0);
    }
    CHECK(DomainStats(rig).live_mappings == 0);
    CHECK(DomainStats(rig).invalidations == 10);
    CHECK(rig.space->flush_queue()->stats().pending_ranges == 0);
  }
}

TEST_CASE("deferred without a flush queue is strict, and says so") {
  FakeRig rig({.policy = Policy::kStrict});
  REQUIRE(rig.space->flush_queue() == nullptr);
  auto pool = rig.Pool({.policy = Policy::kDeferred});
  CHECK(pool->policy() == Policy::kStrict);
  Cycle(*pool, 3);
  CHECK(rig.domain.stats().unmaps == 3);
  CHECK(rig.domain.stats().invalidations == 3);
  CHECK(pool->stats().pages_waiting_flush == 0);
  FakeRig with({.policy = Policy::kDeferred});
  CHECK(with.Pool({.policy = Policy::kDeferred})->policy() == Policy::kDeferred);
}

TEST_CASE("a page keeps its IOVA and its memory for life, mapped or not") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  FakeRig rig;
  auto pool = rig.Pool({.order = 2, .max_bytes = Bytes{4 * 16384}, .policy = policy});
  std::set<std::pair<std::byte*, Iova>> identities;
  for (int i = 0; i < 200; ++i) {
    Page* page = pool->Take();
    REQUIRE(page != nullptr);
    identities.insert({page->base, page->iova});
    pool->Release(page);
  }
  CHECK(identities.size() == pool->stats().pages);
  CHECK(identities.size() == (policy == Policy::kDeferred ? 4u : 1u));
}

TEST_CASE("the last fragment decides, whoever returns it") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 0, .policy = Policy::kStrict});
  Page* page = pool->Take();
  page->outstanding += 3;  // what a cutter does
  pool->Release(page, 2);
  CHECK(rig.domain.stats().unmaps == 0);
  {
    Returner returner;  // another port's transmit ring
    returner.Return(page);
  }
  CHECK(rig.domain.stats().unmaps == 0);
  pool->Release(page);
  CHECK(rig.domain.stats().unmaps == 0);
  CHECK(pool->Fold() == 1);
  CHECK(rig.domain.stats().unmaps == 1);
  CHECK(rig.domain.stale().empty());
}

// --- A device that goes on using a page ------------------------------------------------------

TEST_CASE("strict: a device access after the last release faults") {
  IommuRig rig;
  rig.audit.Expect(dma::AuditCode::kAccessAfterUnmap);
  auto pool = rig.Pool({.order = 0, .policy = Policy::kStrict});
  Page* page = pool->Take();
  const Iova iova = page->iova;
  REQUIRE(rig.Write(iova, 1));  // the translation is cached now
  REQUIRE(rig.Write(iova, 2));
  CHECK(rig.iommu->walk_stats().iotlb_hits >= 1);
  pool->Release(page);

  CHECK_FALSE(rig.Write(iova, 3));
  REQUIRE(rig.iommu->faults().size() == 1);
  CHECK(rig.iommu->faults()[0].iova == iova);
  CHECK(rig.iommu->faults()[0].reason == dma::SoftwareIommu::Fault::Reason::kNotPresent);
  CHECK(rig.iommu->stale_uses().empty());

  Page* again = pool->Take();
  REQUIRE(again == page);
  CHECK(again->base[0] == std::byte{2});
  CHECK(rig.Write(iova, 4));
  pool->Release(again);
}

TEST_CASE("deferred: an access between unmap and flush is on record, and nothing is reused yet") {
  IommuRig rig;
  rig.audit.Expect(dma::AuditCode::kAccessAfterUnmap);
  auto pool = rig.Pool({.order = 0, .max_bytes = Bytes{2 * 4096}, .policy = Policy::kDeferred});
  Page* page = pool->Take();
  const Iova iova = page->iova;
  std::byte* const base = page->base;
  REQUIRE(rig.Write(iova, 1));
  pool->Release(page);
  CHECK(pool->stats().pages_waiting_flush == 1);
  CHECK(pool->pages_in_use() == 1);

  CHECK(rig.Write(iova, 2));  // through the stale entry, as silicon does
  REQUIRE(rig.iommu->stale_uses().size() == 1);
  CHECK(rig.iommu->stale_uses()[0].iova == iova);
  CHECK(base[0] == std::byte{2});

  // Neither memory nor IOVA came back to anyone: there is another page, and other addresses.
  Page* other = pool->Take();
  REQUIRE(other != nullptr);
  CHECK(other != page);
  CHECK(other->base != base);
  CHECK(other->iova != iova);
  auto range = rig.space->Reserve(Bytes{4096}, Bytes{4096}, "other");
  REQUIRE(range.ok());
  CHECK(range->iova() != iova);

  // At the cap a flush is forced, and only then the page comes back.
  CHECK(rig.iommu->stats().invalidations == 0);
  Page* again = pool->Take();
  CHECK(again == page);
  CHECK(rig.iommu->stats().invalidations == 1);
  CHECK(rig.space->flush_queue()->stats().flushes == 1);

  // After its next release and a flush the device runs into a fault.
  pool->Release(again);
  REQUIRE(rig.space->flush_queue()->Flush().ok());
  CHECK_FALSE(rig.Write(iova, 3));
  CHECK(rig.iommu->faults().size() == 1);
  pool->Release(other);
}

TEST_CASE("deferred: a flush from elsewhere frees the page without one of its own") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 0, .policy = Policy::kDeferred});
  Page* page = pool->Take();
  pool->Release(page);
  REQUIRE(rig.space->flush_queue()->Flush().ok());
  CHECK(pool->Take() == page);
  CHECK(pool->stats().alloc_slow == 1);
  CHECK(rig.domain.stats().invalidations == 1);
  pool->Release(page);
}

TEST_CASE("persistent: no IOMMU sees a late write while the pool lives; after it, it faults") {
  IommuRig rig;
  rig.audit.Expect(dma::AuditCode::kAccessAfterUnmap);
  Iova iova;
  {
    auto pool = rig.Pool({.order = 0});
    Page* page = pool->Take();
    iova = page->iova;
    REQUIRE(rig.Write(iova, 1));
    pool->Release(page);
    // The page is free, and mapped as promised: the write lands in what the next owner gets. The
    // translation is valid, so neither fault nor stale use can show it; only a check that knows who
    // owns the page can.
    CHECK(rig.Write(iova, 2));
    CHECK(rig.iommu->faults().empty());
    CHECK(rig.iommu->stale_uses().empty());
    CHECK(rig.iommu->stats().unmaps == 0);
    Page* again = pool->Take();
    CHECK(again == page);
    CHECK(again->base[0] == std::byte{2});
    pool->Release(again);
  }
  CHECK(rig.memory.blocks() == 0);
  CHECK_FALSE(rig.Write(iova, 3));
  CHECK(rig.iommu->faults().size() == 1);
  CHECK(rig.iommu->stale_uses().empty());
}

TEST_CASE("a page that is given up is out of every device's reach before its memory goes") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  IommuRig rig;
  rig.audit.Expect(dma::AuditCode::kAccessAfterUnmap);
  auto pool = rig.Pool({.order = 3, .policy = policy});
  Page* page = pool->Take();
  const Iova iova = page->iova;
  REQUIRE(rig.Write(iova, 1));
  REQUIRE(pool->SetOrder(0).ok());
  pool->Release(page);
  if (policy == Policy::kDeferred) {
    CHECK(rig.memory.blocks() == 1);  // kept until the flush
    CHECK(rig.Write(iova, 2));
    CHECK(rig.iommu->stale_uses().size() == 1);
    REQUIRE(rig.space->flush_queue()->Flush().ok());
  }
  Page* small = pool->Take();
  CHECK_FALSE(rig.Write(iova, 3));
  CHECK(rig.memory.blocks() == 1);
  CHECK(rig.memory.written_after_free() == 0);
  pool->Release(small);
}

// --- Failures --------------------------------------------------------------------------------

TEST_CASE("an unmap that fails puts the page in quarantine, and the pool goes on") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  const bool partly = GENERATE(false, true);
  FakeRig rig;
  rig.audit.Expect(dma::AuditCode::kBadRelease);
  {
    auto pool = rig.Pool({.order = 1, .max_bytes = Bytes{3 * 8192}, .policy = policy});
    Page* page = pool->Take();
    const Range range{page->iova, Bytes{page->size}};
    (partly ? rig.short_unmap : rig.fail_unmap).FailAt(1);
    pool->Release(page);
    CHECK(pool->stats().pages_quarantined == 1);
    CHECK(pool->stats().pages == 0);
    CHECK(pool->stats().bytes == 0);
    CHECK(pool->pages_in_use() == 0);
    CHECK(rig.space->quarantine().count() == 1);
    CHECK(rig.memory.blocks() == 1);  // the device may still write there
    pool->Release(page);              // a double release finds nothing
    CHECK(pool->stats().bad_releases == 1);

    std::vector<Page*> pages;
    while (Page* next = pool->Take()) pages.push_back(next);
    CHECK(pages.size() == 3);
    for (Page* next : pages) {
      CHECK(next != page);
      CHECK_FALSE(range.Overlaps({next->iova, Bytes{next->size}}));
      pool->Release(next);
    }
    REQUIRE(rig.space->quarantine().ReleaseAfterReset("nic0").ok());
    CHECK(rig.space->quarantine().count() == 0);
    CHECK(rig.memory.blocks() == 3);
  }
  CHECK(rig.memory.blocks() == 0);
  CHECK(rig.domain.live().empty());
}

TEST_CASE("a flush that fails puts its pages in quarantine") {
  FakeRig rig;
  {
    auto pool = rig.Pool({.order = 0, .max_bytes = Bytes{3 * 4096}, .policy = Policy::kDeferred});
    Page* first = pool->Take();
    Page* second = pool->Take();
    Page* kept = pool->Take();
    pool->Release(first);
    pool->Release(second);
    rig.fail_invalidate.FailAt(1, true);
    Page* next = pool->Take();  // forces the flush
    CHECK(pool->stats().pages_quarantined == 2);
    REQUIRE(next != nullptr);
    CHECK(next != first);
    CHECK(next != second);
    CHECK(pool->stats().pages == 2);
    CHECK(rig.memory.blocks() == 4);
    rig.fail_invalidate.FailAt(0);
    pool->Release(next);
    pool->Release(kept);
    REQUIRE(rig.space->quarantine().ReleaseAfterReset("").ok());
    CHECK(rig.memory.blocks() == 2);
  }
  CHECK(rig.memory.blocks() == 0);
}

TEST_CASE("a pool whose unmaps always fail stops at a second cap until the reset") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 0, .max_bytes = Bytes{4 * 4096}, .policy = Policy::kStrict});
  rig.fail_unmap.FailAt(1, true);
  for (int i = 0; i < 4; ++i) {
    Page* page = pool->Take();
    REQUIRE(page != nullptr);
    pool->Release(page);
  }
  CHECK(pool->Take() == nullptr);
  CHECK(pool->stats().alloc_failed_cap == 1);
  CHECK(pool->stats().pages_quarantined == 4);
  CHECK(rig.memory.blocks() == 4);
  rig.fail_unmap.FailAt(0);
  REQUIRE(rig.space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(rig.memory.blocks() == 0);
  Page* page = pool->Take();
  REQUIRE(page != nullptr);
  pool->Release(page);
}

TEST_CASE("an unmap that fails at the end of the pool or after a new order quarantines") {
  FakeRig rig;
  {
    auto pool = rig.Pool({.order = 0});
    Page* page = pool->Take();
    REQUIRE(pool->SetOrder(1).ok());
    rig.fail_unmap.FailAt(1);
    pool->Release(page);
    CHECK(pool->stats().pages_quarantined == 1);
    CHECK(pool->stats().pages == 0);
    Page* larger = pool->Take();
    pool->Release(larger);
    rig.fail_unmap.FailAt(1);
  }
  CHECK(rig.space->quarantine().count() == 2);
  CHECK(rig.memory.blocks() == 2);
  REQUIRE(rig.space->quarantine().ReleaseAfterReset("").ok());
  CHECK(rig.memory.blocks() == 0);
  CHECK(rig.domain.live().empty());
}

TEST_CASE("a page that cannot be mapped again waits for a better time") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 0, .policy = Policy::kStrict});
  Page* page = pool->Take();
  pool->Release(page);
  rig.fail_map.FailAt(1);
  CHECK(pool->Take() == nullptr);
  CHECK(pool->stats().alloc_failed_map == 1);
  CHECK_FALSE(pool->LastFailure().ok());
  CHECK(pool->pages_in_use() == 0);
  CHECK(pool->Take() == page);
  CHECK(pool->stats().alloc_slow == 1);
  pool->Release(page);
}

// --- The end of the pool ---------------------------------------------------------------------

TEST_CASE("the end of a pool waits for what is out") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  FakeRig rig;
  auto pool = rig.Pool({.order = 0, .policy = policy});
  Page* page = pool->Take();
  Returner returner;
  rig.waiter.on_pause = [&] {
    if (rig.waiter.pauses == 5) {
      returner.Return(page);
      returner.Flush();
    }
  };
  pool.reset();
  CHECK(rig.waiter.pauses == 5);
  CHECK(rig.space->quarantine().count() == 0);
  CHECK(rig.memory.blocks() == 0);
  CHECK(rig.domain.live().empty());
  CHECK(rig.domain.stats().unmaps == 1);
  CHECK(rig.domain.stats().invalidations == 1);
}

TEST_CASE("after the deadline what is out is quarantined, and a late return finds its page") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  IommuRig rig;
  auto pool = rig.Pool({.order = 0, .policy = policy, .teardown_deadline = dma::Nanos{20'000'000}});
  std::vector<Page*> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(pool->Take());
  const Iova iova = pages[1]->iova;
  const Fragment fragment{pages[1], 64, 64};
  Returner early, late;
  early.Return(pages[1]);
  late.Return(pages[2]);
  pool->Release(pages[0]);
  pool->Release(pages[3]);
  pool.reset();
  CHECK(rig.waiter.pauses == 20);
  CHECK(rig.space->quarantine().count() == 2);
  CHECK(rig.memory.blocks() == 2);
  CHECK(rig.space->iova_space().stats().caches == 0);
  CHECK(rig.Write(iova, 9));  // the device still had it: no fault, and nobody else's memory
  CHECK(rig.iommu->faults().empty());
  CHECK(fragment.bytes().size() == 64);
  CHECK(fragment.data() == pages[1]->base + 64);

  // Metadata and pool are there for whoever comes late.
  early.Flush();
  late.Flush();
  CHECK(early.atomics() == 2);
  CHECK(rig.memory.blocks() == 2);

  REQUIRE(rig.space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(rig.memory.blocks() == 0);
  CHECK_FALSE(rig.Write(iova, 9));
  CHECK(rig.memory.written_after_free() == 0);
}

TEST_CASE("a space that ends with quarantined pages leaves no memory behind") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 0, .teardown_deadline = dma::Nanos{0}});
  REQUIRE(pool->Take() != nullptr);
  pool.reset();
  CHECK(rig.memory.blocks() == 1);
  rig.device.reset();
  rig.space.reset();
  CHECK(rig.memory.blocks() == 0);
  CHECK(rig.domain.live().empty());
}

}  // namespace
}  // namespace dmakit::frag::testing
