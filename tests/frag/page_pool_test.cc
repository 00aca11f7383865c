// SPDX-License-Identifier: Apache-2.0
//
// PagePool on its own: options, caps, recycling, refused releases, orders and fallback.
#include "frag/page_pool.h"

#include <set>
#include <vector>

#include "tests/frag/testing.h"

namespace dmakit::frag::testing {
namespace {

std::string Refusal(FakeRig& rig, PagePool::Options options) {
  options.label = "rx7";
  auto made = PagePool::Create(*rig, options);
  REQUIRE_FALSE(made.ok());
  CHECK(made.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(made.status().message());
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("options that make no sense are refused by name, value and rule") {
  FakeRig rig;
  CHECK(Has(Refusal(rig, {.order = 10}), "rx7: order 10"));
  CHECK(Has(Refusal(rig, {.order = 0xffffffff}), "order 4294967295"));
  CHECK(Has(Refusal(rig, {.order = 1, .min_order = 2}), "order 1"));
  CHECK(Has(Refusal(rig, {.order = 3, .min_order = 10}), "min_order 10"));
  CHECK(Has(Refusal(rig, {.order = 3, .max_bytes = Bytes{32767}}), "max_bytes 32767"));
  CHECK(Has(Refusal(rig, {.max_bytes = Bytes{0}}), "32768"));
  CHECK(Has(Refusal(rig, {.teardown_deadline = dma::Nanos{-1}}), "teardown_deadline -1"));
  CHECK(rig.memory.blocks() == 0);
}

TEST_CASE("a pool needs a device to know which addresses it may use") {
  dma::host::FakeMemory memory;
  auto space = dma::AddressSpace::Create({.memory = &memory});
  REQUIRE(space.ok());
  auto pool = PagePool::Create(**space, {.label = "rx0"});
  REQUIRE_FALSE(pool.ok());
  CHECK(pool.status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("pages are never smaller than the domain's granule") {
  RigOptions options;
  options.domain.facts.page_sizes = 65536;
  FakeRig rig(options);
  CHECK(Has(Refusal(rig, {.order = 5, .min_order = 3}), "granule of 65536"));
  auto pool = rig.Pool({.order = 5, .min_order = 4});
  Page* page = pool->Take();
  REQUIRE(page != nullptr);
  pool->Release(page);
}

TEST_CASE("a pool that never had a page") {
  FakeRig rig;
  {
    auto pool = rig.Pool();
    CHECK(pool->stats().pages == 0);
    CHECK(pool->pages_in_use() == 0);
    CHECK(pool->Fold() == 0);
    CHECK(pool->LastFailure().ok());
    CHECK(rig.memory.blocks() == 0);
    CHECK(pool->Prepare(0) == 0);
  }
  CHECK(rig.waiter.pauses == 0);
  CHECK(rig.domain.stats().maps == 0);
  CHECK(rig.reports.empty());
}

TEST_CASE("a page: aligned to its size in memory and IOVA, one map, one reference") {
  const unsigned order = GENERATE(0u, 1u, 3u, 6u, 9u);
  FakeRig rig;
  {
    auto pool = rig.Pool({.order = order});
    Page* page = pool->Take();
    REQUIRE(page != nullptr);
    CHECK(page->size == 4096u << order);
    CHECK(page->order == order);
    CHECK(page->outstanding == 1);
    CHECK(page->iova.value() != 0);
    CHECK(page->iova.value() % page->size == 0);
    CHECK(reinterpret_cast<uintptr_t>(page->base) % page->size == 0);
    REQUIRE(rig.domain.live().size() == 1);
    CHECK(rig.domain.live()[0].memory.cpu == page->base);
    CHECK(rig.domain.live()[0].range == Range{page->iova, Bytes{page->size}});
    // Metadata is outside of what the device can write.
    const auto* meta = reinterpret_cast<std::byte*>(page);
    CHECK((meta + sizeof(Page) <= page->base || meta >= page->base + page->size));
    CHECK(pool->pages_in_use() == 1);
    pool->Release(page);
    CHECK(pool->pages_in_use() == 0);
  }
  CHECK(rig.domain.live().empty());
  CHECK(rig.memory.blocks() == 0);
}

TEST_CASE("recycling is last in, first out") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 0});
  std::vector<Page*> pages;
  for (int i = 0; i < 20; ++i) pages.push_back(pool->Take());
  for (Page* page : pages) pool->Release(page);
  for (int i = 20; i-- > 0;) CHECK(pool->Take() == pages[i]);
  for (Page* page : pages) pool->Release(page);

  // Bursts of any size find their own pages again: nothing is made, mapped or reordered.
  for (size_t burst = 1; burst <= 20; ++burst) {
    std::vector<Page*> taken;
    for (size_t i = 0; i < burst; ++i) taken.push_back(pool->Take());
    for (size_t i = 0; i < burst; ++i) CHECK(taken[i] == pages[19 - i]);
    while (!taken.empty()) {
      pool->Release(taken.back());
      taken.pop_back();
    }
  }
  const PagePoolStats stats = pool->stats();
  CHECK(stats.alloc_slow == 20);
  CHECK(stats.alloc_empty == 20);
  CHECK(stats.alloc_fast == 20 + 210);
  CHECK(stats.recycle_cached == 20 + 20 + 210);
  CHECK(stats.maps == 20);
  CHECK(stats.unmaps == 0);
}

TEST_CASE("the cap holds, is counted, and taking goes on when a page is back") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 3, .max_bytes = Bytes{5 * 32768 + 32767}});
  std::vector<Page*> pages;
  while (Page* page = pool->Take()) pages.push_back(page);
  CHECK(pages.size() == 5);
  CHECK(pool->stats().alloc_failed_cap == 1);
  CHECK(pool->stats().bytes == 5 * 32768);
  CHECK(Has(std::string(pool->LastFailure().message()), "the cap is 196607 bytes"));
  CHECK(pool->Take() == nullptr);
  CHECK(pool->stats().alloc_failed_cap == 2);
  pool->Release(pages[2]);
  CHECK(pool->Take() == pages[2]);
  for (Page* page : pages) pool->Release(page);
  CHECK(pool->stats().bytes_peak == 5 * 32768);
  CHECK(pool->stats().pages_peak == 5);
  CHECK(rig.memory.bytes_in_use() == Bytes{5 * 32768});
}

TEST_CASE("Prepare makes the pages of the first fill ahead of it") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  FakeRig rig;
  auto pool = rig.Pool({.order = 1, .max_bytes = Bytes{10 * 8192}, .policy = policy});
  CHECK(pool->Prepare(4) == 4);
  CHECK(pool->Prepare(4) == 4);
  CHECK(pool->stats().maps == 4);
  CHECK(pool->pages_in_use() == 0);
  CHECK(pool->Prepare(11) == 10);
  CHECK(pool->stats().alloc_failed_cap == 1);
  std::set<Page*> pages;
  for (int i = 0; i < 10; ++i) pages.insert(pool->Take());
  CHECK(pages.size() == 10);
  CHECK(pages.count(nullptr) == 0);
  CHECK(pool->stats().alloc_fast == 10);
  CHECK(pool->stats().maps == 10);
  for (Page* page : pages) pool->Release(page);
}

TEST_CASE("Trim gives back free pages, and only those") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  FakeRig rig;
  auto pool = rig.Pool({.order = 1, .policy = policy});
  CHECK(pool->Trim() == 0);
  std::vector<Page*> pages;
  for (int i = 0; i < 10; ++i) pages.push_back(pool->Take());
  CHECK(pool->Trim() == 0);
  for (int i = 0; i < 8; ++i) pool->Release(pages[i]);
  if (policy == Policy::kDeferred) {
    CHECK(pool->Trim() == 0);  // not before the flush
    CHECK(rig.memory.blocks() == 10);
    REQUIRE(rig.space->flush_queue()->Flush().ok());
  }
  CHECK(pool->Trim(3) == 5);
  CHECK(rig.memory.blocks() == 5);
  CHECK(pool->Trim() == 3);
  CHECK(rig.memory.blocks() == 2);
  CHECK(rig.domain.stats().live_mappings == 2);
  CHECK(rig.domain.stale().empty());
  CHECK(pool->stats().pages == 2);
  CHECK(pool->pages_in_use() == 2);
  CHECK(pool->stats().alloc_waive == 0);
  pool->Release(pages[8]);
  pool->Release(pages[9]);
}

TEST_CASE("releases that cannot be right are refused, counted and change nothing") {
  FakeRig rig;
  rig.audit.Expect(dma::AuditCode::kBadRelease);
  rig.audit.Expect(dma::AuditCode::kReferenceCount);
  auto pool = rig.Pool({.order = 0});
  auto other = rig.Pool({.label = "rx1", .order = 0});
  Page* page = pool->Take();
  Page* foreign = other->Take();

  pool->Release(page, 2);  // more than is out
  CHECK(pool->stats().bad_releases == 1);
  CHECK(page->outstanding == 1);
  pool->Release(page, 0xffffffff);
  CHECK(pool->stats().bad_releases == 2);
  pool->Release(foreign);
  CHECK(pool->stats().bad_releases == 3);
  CHECK(foreign->outstanding == 1);
  pool->Release(page, 0);  // nothing is nothing
  CHECK(pool->stats().bad_releases == 3);
  CHECK(pool->pages_in_use() == 1);

  pool->Release(page);
  CHECK(pool->pages_in_use() == 0);
  pool->Release(page);  // twice: the reference count starts at 0 and does not wrap
  pool->Release(page, 0);
  CHECK(pool->stats().bad_releases == 4);
  CHECK(page->outstanding == 0);
  CHECK(pool->Take() == page);
  CHECK(pool->Take() != page);  // and it is in the free list once
  CHECK(pool->stats().recycle_cached == 1);

  other->Release(foreign);
  CHECK(other->stats().bad_releases == 0);
  pool->Release(page);
}

TEST_CASE("what other threads return too often is refused when it is folded") {
  FakeRig rig;
  rig.audit.Expect(dma::AuditCode::kBadRelease);
  rig.audit.Expect(dma::AuditCode::kReferenceCount);
  auto pool = rig.Pool({.order = 0, .teardown_deadline = dma::Nanos{0}});
  Page* page = pool->Take();
  {
    Returner returner;
    returner.Return(page);
    returner.Return(page);
  }
  CHECK(pool->Fold() == 0);
  CHECK(pool->stats().bad_releases == 1);
  CHECK(page->outstanding == 1);
  CHECK(page->returned.load() == 0);
  {
    Returner returner;
    returner.Return(page);
  }
  CHECK(pool->Fold() == 1);
  {
    Returner returner;
    returner.Return(page);  // it is free already
  }
  CHECK(pool->Fold() == 0);
  CHECK(pool->stats().bad_releases == 2);
  CHECK(pool->Take() == page);
  pool->Release(page);
}

TEST_CASE("memory is short: smaller pages, recycled while it is, given up afterwards") {
  FakeRig rig({.largest = Bytes{8192}});
  auto pool = rig.Pool({.order = 3, .max_bytes = Bytes{128 * 8192}});
  std::vector<Page*> pages;
  while (Page* page = pool->Take()) {
    CHECK(page->size == 8192);
    pages.push_back(page);
    if (pages.size() == 8) break;
  }
  REQUIRE(pages.size() == 8);
  CHECK(pool->stats().order_fallbacks == 8);
  CHECK(pool->stats().alloc_slow_high_order == 8);
  for (Page* page : pages) pool->Release(page);
  for (int i = 8; i-- > 0;) CHECK(pool->Take() == pages[i]);  // recycled, in order
  for (Page* page : pages) pool->Release(page);
  CHECK(pool->stats().alloc_waive == 0);

  rig.memory.set_largest(Bytes{~uint64_t{0}});
  // Within 64 pages that come back it notices, and the small pages go as they come.
  size_t rounds = 0;
  while (pool->stats().alloc_waive == 0 && rounds < 65) {
    pool->Release(pool->Take());
    ++rounds;
  }
  CHECK(rounds <= 64);
  std::vector<Page*> all;
  for (int i = 0; i < 8; ++i) all.push_back(pool->Take());
  for (Page* page : all) pool->Release(page);
  Page* large = nullptr;
  for (int i = 0; i < 8; ++i) {
    large = pool->Take();
    if (large->size == 32768) break;
    all[0] = large;
    pool->Release(large);
  }
  CHECK(large->size == 32768);
  pool->Release(large);
  CHECK(pool->stats().alloc_waive >= 7);
  CHECK(pool->stats().pages * 32768 == pool->stats().bytes);
}

TEST_CASE("a shortage that ends and comes back while pages are recycled loses nothing") {
  FakeRig rig({.largest = Bytes{4096}});
  constexpr uint64_t kCap = 5 * 32768;
  auto pool = rig.Pool({.order = 3, .max_bytes = Bytes{kCap}});
  Random random(7);
  std::vector<Page*> out;
  uint64_t wanted = 0, smaller = 0;
  for (int i = 0; i < 20000; ++i) {
    if (i % 500 == 0) {
      rig.memory.set_largest(Bytes{4096u << Below(random, 4)});
      REQUIRE(pool->SetOrder(i % 1000 == 0 ? 3 : 2).ok());
    }
    // Now more is taken, now more comes back.
    if (Below(random, 100) < (i % 300 < 150 ? 70u : 30u)) {
      if (Page* page = pool->Take()) {
        ++(page->order == pool->order() ? wanted : smaller);
        out.push_back(page);
      }
    } else if (!out.empty()) {
      const size_t at = Below(random, out.size());
      pool->Release(out[at]);
      out.erase(out.begin() + at);
    }
    REQUIRE(pool->stats().bytes <= kCap);
    REQUIRE(rig.memory.bytes_in_use() == Bytes{pool->stats().bytes});
    REQUIRE(pool->pages_in_use() == out.size());
  }
  CHECK(wanted > 100);
  CHECK(smaller > 100);
  CHECK(pool->stats().order_fallbacks > 10);
  CHECK(pool->stats().alloc_waive > 10);
  for (Page* page : out) pool->Release(page);
  CHECK(rig.domain.stats().live_mappings == pool->stats().pages);
}

TEST_CASE("while memory is short, small pages fill all of the cap") {
  FakeRig rig({.largest = Bytes{8192}});
  auto pool = rig.Pool({.order = 3, .max_bytes = Bytes{32768 + 4096}});
  std::vector<Page*> pages;
  while (Page* page = pool->Take()) pages.push_back(page);
  CHECK(pool->stats().bytes == 32768 + 4096);
  CHECK(pages.size() == 5);
  for (Page* page : pages) pool->Release(page);
}

TEST_CASE("in good times the cap makes no page smaller") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 3, .max_bytes = Bytes{32768 + 4096}});
  Page* page = pool->Take();
  CHECK(pool->Take() == nullptr);
  CHECK(pool->stats().alloc_failed_cap == 1);
  pool->Release(page);
}

TEST_CASE("fallback ends at min_order") {
  FakeRig rig({.largest = Bytes{8192}});
  auto pool = rig.Pool({.order = 3, .min_order = 2});
  CHECK(pool->Take() == nullptr);
  CHECK(pool->stats().alloc_failed_memory == 1);
  CHECK(pool->LastFailure().code() == absl::StatusCode::kResourceExhausted);
  CHECK(rig.memory.blocks() == 0);
  rig.memory.set_largest(Bytes{16384});
  Page* page = pool->Take();
  REQUIRE(page != nullptr);
  CHECK(page->size == 16384);
  pool->Release(page);
}

TEST_CASE("IOVAs of the wanted size are short: smaller pages") {
  RigOptions options;
  // 2 MiB of addresses, none aligned to 2 MiB.
  options.domain.facts.apertures = {{Iova{0x100000}, Iova{0x2fffff}}};
  FakeRig rig(options);
  auto pool = rig.Pool({.order = 9});
  Page* page = pool->Take();
  REQUIRE(page != nullptr);
  CHECK(page->size == 1 << 20);
  CHECK(pool->stats().order_fallbacks == 1);
  std::vector<Page*> pages{page};
  while (Page* next = pool->Take()) pages.push_back(next);
  uint64_t bytes = 0;
  for (Page* each : pages) bytes += each->size;
  CHECK(bytes == 2 << 20);  // every address is used
  CHECK(pool->stats().alloc_failed_map == 1);
  for (Page* each : pages) pool->Release(each);
}

TEST_CASE("the order changes: free pages of another size go, others when they come back") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  FakeRig rig;
  {
    auto pool = rig.Pool({.order = 3, .policy = policy});
    Page* free = pool->Take();
    Page* out = pool->Take();
    pool->Release(free);
    CHECK(pool->SetOrder(10).code() == absl::StatusCode::kInvalidArgument);
    CHECK(pool->order() == 3);
    REQUIRE(pool->SetOrder(5).ok());
    CHECK(pool->order() == 5);
    Page* larger = pool->Take();
    REQUIRE(larger != nullptr);
    CHECK(larger->size == 4096 << 5);
    if (policy == Policy::kDeferred) {
      rig.space->flush_queue()->Flush().IgnoreError();
      Page* more = pool->Take();
      pool->Release(more);
      rig.space->flush_queue()->Flush().IgnoreError();
    }
    CHECK(pool->stats().alloc_waive == 1);
    pool->Release(out);
    pool->Release(larger);
    if (policy == Policy::kDeferred) rig.space->flush_queue()->Flush().IgnoreError();
    Page* again = pool->Take();
    CHECK(again->size == 4096 << 5);
    CHECK(pool->stats().alloc_waive == 2);
    CHECK(pool->stats().bytes == pool->stats().pages * (4096 << 5));
    CHECK(rig.memory.bytes_in_use() == Bytes{pool->stats().bytes});
    pool->Release(again);
  }
  CHECK(rig.memory.blocks() == 0);
  CHECK(rig.domain.live().empty());
}

TEST_CASE("an order whose page the cap cannot hold is refused") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 3, .min_order = 2, .max_bytes = Bytes{1 << 20}});
  CHECK(pool->SetOrder(8).ok());
  CHECK(Has(pool->SetOrder(9).ToString(), "max_bytes 1048576"));
  CHECK_FALSE(pool->SetOrder(1).ok());
  CHECK(pool->order() == 8);
}

TEST_CASE("TakeAtLeast goes above the wanted order, and its pages are recycled too") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 0, .max_bytes = Bytes{16 * 4096}});
  Page* small = pool->Take();
  Page* large = pool->TakeAtLeast(9000);
  REQUIRE(large != nullptr);
  CHECK(large->size == 16384);
  CHECK(pool->TakeAtLeast(4096)->size == 4096);
  pool->Release(large);
  CHECK(pool->TakeAtLeast(16384) == large);
  CHECK(pool->TakeAtLeast(0xffffffff) == nullptr);
  CHECK(pool->TakeAtLeast((2 << 20) + 1) == nullptr);
  CHECK(pool->LastFailure().code() == absl::StatusCode::kInvalidArgument);
  // Free small pages make room for a large one at the cap.
  pool->Release(small);
  std::vector<Page*> pages;
  while (Page* page = pool->Take()) pages.push_back(page);
  CHECK(pool->stats().bytes == 16 * 4096);
  for (Page* page : pages) pool->Release(page);
  Page* second = pool->TakeAtLeast(9000);
  REQUIRE(second != nullptr);
  CHECK(second != large);
  CHECK(pool->stats().bytes <= 16 * 4096);
  CHECK(pool->stats().alloc_waive > 0);
  pool->Release(second);
  pool->Release(large);
}

TEST_CASE("the counters add up") {
  FakeRig rig({.largest = Bytes{16384}});
  auto pool = rig.Pool({.order = 3, .max_bytes = Bytes{40 * 4096}});
  Random random(11);
  std::vector<Page*> out;
  uint64_t taken = 0, failed = 0, freed = 0;
  for (int i = 0; i < 5000; ++i) {
    if (Below(random, 2) == 0) {
      Page* page = pool->TakeAtLeast(1 + static_cast<uint32_t>(Below(random, 20000)));
      if (page == nullptr) {
        ++failed;
        continue;
      }
      ++taken;
      out.push_back(page);
    } else if (!out.empty()) {
      const size_t at = Below(random, out.size());
      if (Below(random, 2) == 0) {
        pool->Release(out[at]);
      } else {
        Returner returner;
        returner.Return(out[at]);
      }
      ++freed;
      out.erase(out.begin() + at);
    }
  }
  pool->Fold();
  const PagePoolStats s = pool->stats();
  CHECK(s.alloc_fast + s.alloc_slow + s.alloc_slow_high_order == taken);
  CHECK(s.alloc_failed_cap + s.alloc_failed_memory + s.alloc_failed_map == failed);
  CHECK(s.recycle_cached + s.recycle_ring == freed);
  CHECK(s.maps - s.unmaps == s.pages);
  CHECK(s.alloc_waive == s.unmaps);
  CHECK(rig.domain.stats().maps == s.maps);
  CHECK(rig.domain.stats().unmaps == s.unmaps);
  CHECK(s.bad_releases == 0);
  for (Page* page : out) pool->Release(page);
}

}  // namespace
}  // namespace dmakit::frag::testing
