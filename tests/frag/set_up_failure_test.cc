// SPDX-License-Identifier: Apache-2.0
//
// Every path that sets something up, with its k-th step failing, for all k: memory source, IOVA
// nodes, domain maps. Afterwards all is as before, and the same call works.
#include <memory>
#include <memory_resource>
#include <new>
#include <vector>

#include "tests/frag/testing.h"

namespace dmakit::frag::testing {
namespace {

// The default resource of the process while it lives: where iova::Space gets its nodes from.
class FailingNodes final : public std::pmr::memory_resource {
 public:
  FailingNodes() : before_(std::pmr::set_default_resource(this)) {}
  ~FailingNodes() override { std::pmr::set_default_resource(before_); }
  uint64_t fail_at = 0;  // 0: never
  uint64_t calls = 0;
  int64_t blocks = 0;

 private:
  void* do_allocate(size_t size, size_t alignment) override {
    if (++calls == fail_at) throw std::bad_alloc();
    ++blocks;
    return std::pmr::new_delete_resource()->allocate(size, alignment);
  }
  void do_deallocate(void* block, size_t size, size_t alignment) override {
    --blocks;
    std::pmr::new_delete_resource()->deallocate(block, size, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  std::pmr::memory_resource* before_;
};

// Two devices, each behind a domain of its own: a map is two steps.
struct TwoDomains {
  dma::host::FailPoint steps;  // of memory source and both domains, in one count
  dma::host::FailPoint fail_unmap;
  dma::FakeDomain first{{.name = "first", .fail_map = &steps, .fail_unmap = &fail_unmap}};
  dma::FakeDomain second{{.name = "second", .fail_map = &steps}};
  dma::host::FakeMemory memory{{.fail = &steps}};
  FakeWaiter waiter;
  std::unique_ptr<dma::AddressSpace> space;
  std::unique_ptr<dma::Device> devices[2];

  TwoDomains() {
    auto made = dma::AddressSpace::Create({.memory = &memory, .policy = Policy::kDeferred});
    REQUIRE(made.ok());
    space = *std::move(made);
    for (int i = 0; i < 2; ++i) {
      auto attached =
          space->Attach({.name = i == 0 ? "nic0" : "nic1", .domain = i == 0 ? &first : &second});
      REQUIRE(attached.ok());
      devices[i] = *std::move(attached);
    }
  }
  std::unique_ptr<PagePool> Pool(PagePool::Options options) {
    options.label = "rx0";
    options.waiter = &waiter;
    auto pool = PagePool::Create(*space, std::move(options));
    REQUIRE(pool.ok());
    return *std::move(pool);
  }
  uint64_t live() const { return first.stats().live_mappings + second.stats().live_mappings; }
  uint64_t live_ranges() {
    space->iova_space().ReclaimAll();
    return space->iova_space().stats().live_ranges;
  }
};

TEST_CASE("Take: the k-th failure of memory or map leaves nothing behind") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  TwoDomains rig;
  const uint64_t ranges = rig.live_ranges();
  uint64_t k = 1;
  for (;; ++k) {
    auto pool = rig.Pool({.order = 3, .min_order = 3, .policy = policy});
    rig.steps.FailAt(k);
    Page* page = pool->Take();
    const bool triggered = rig.steps.triggered();
    rig.steps.FailAt(0);
    if (!triggered) {
      REQUIRE(page != nullptr);
      pool->Release(page);
      break;
    }
    CHECK(page == nullptr);
    CHECK_FALSE(pool->LastFailure().ok());
    CHECK(pool->stats().pages == 0);
    CHECK(pool->stats().bytes == 0);
    CHECK(pool->stats().alloc_failed_memory + pool->stats().alloc_failed_map == 1);
    CHECK(pool->stats().pages_quarantined == 0);
    CHECK(rig.memory.blocks() == 0);
    CHECK(rig.live() == 0);
    CHECK(rig.live_ranges() == ranges);
    page = pool->Take();
    REQUIRE(page != nullptr);
    CHECK(rig.live() == 2);
    pool->Release(page);
  }
  CHECK(k == 4);  // memory, two maps
  CHECK(rig.memory.blocks() == 0);
  CHECK(rig.live() == 0);
  CHECK(rig.live_ranges() == ranges);
}

TEST_CASE("Take with fallback: the k-th failure costs size, not the page, or leaves nothing") {
  TwoDomains rig;
  for (uint64_t k = 1;; ++k) {
    auto pool = rig.Pool({.order = 3});
    rig.steps.FailAt(k);
    Page* page = pool->Take();
    const bool triggered = rig.steps.triggered();
    rig.steps.FailAt(0);
    if (page == nullptr) {
      CHECK((k == 2 || k == 3));
      CHECK(rig.memory.blocks() == 0);
      CHECK(rig.live() == 0);
      continue;
    }
    // Memory falls back; a domain that cannot map a page is not asked for smaller ones.
    CHECK((!triggered || k == 1));
    CHECK(page->size == (triggered ? 16384 : 32768));
    CHECK(pool->stats().order_fallbacks == (triggered ? 1 : 0));
    CHECK(rig.memory.bytes_in_use() == Bytes{page->size});
    pool->Release(page);
    if (!triggered) break;
  }
}

TEST_CASE("memory that fails at every order is one failure, and not a byte") {
  TwoDomains rig;
  auto pool = rig.Pool({.order = 9});
  rig.steps.FailAt(1, true);
  CHECK(pool->Take() == nullptr);
  CHECK(rig.steps.calls() == 10);
  CHECK(pool->stats().alloc_failed_memory == 1);
  CHECK(pool->Prepare(3) == 0);
  CHECK(pool->stats().alloc_failed_memory == 2);
  rig.steps.FailAt(0);
  Page* page = pool->Take();
  REQUIRE(page != nullptr);
  CHECK(page->order == 9);
  pool->Release(page);
}

TEST_CASE("Prepare: the k-th failure keeps the pages made before it") {
  const uint64_t steps = 3 * 5;
  for (uint64_t k = 1; k <= steps + 1; ++k) {
    TwoDomains rig;
    auto pool = rig.Pool({.order = 2, .min_order = 2});
    rig.steps.FailAt(k);
    const size_t free = pool->Prepare(5);
    CHECK(free == (k <= steps ? (k - 1) / 3 : 5));
    CHECK(pool->stats().pages == free);
    CHECK(rig.memory.blocks() == free);
    CHECK(rig.live() == 2 * free);
    rig.steps.FailAt(0);
    CHECK(pool->Prepare(5) == 5);
    pool.reset();
    CHECK(rig.memory.blocks() == 0);
    CHECK(rig.live() == 0);
  }
}

TEST_CASE("IOVA nodes: the k-th failure in Create, Take and Prepare") {
  constexpr size_t kPages = 300;
  uint64_t create_failures = 0, take_failures = 0;
  for (uint64_t k = 1;; ++k) {
    FailingNodes nodes;
    bool triggered = false;
    {
      FakeRig rig;
      const uint64_t maps = rig.domain.stats().maps;
      nodes.calls = 0;
      nodes.fail_at = k;
      auto pool = PagePool::Create(*rig, {.label = "rx0", .order = 0, .waiter = &rig.waiter});
      if (!pool.ok()) {
        ++create_failures;
        CHECK(pool.status().code() == absl::StatusCode::kResourceExhausted);
        pool = PagePool::Create(*rig, {.label = "rx0", .order = 0, .waiter = &rig.waiter});
        REQUIRE(pool.ok());
      }
      for (size_t count = 1; count <= kPages; ++count) {
        const size_t free = (*pool)->Prepare(count);
        CHECK(rig.memory.blocks() == free);
        CHECK(rig.domain.stats().live_mappings == free);
        if (free == count) continue;
        ++take_failures;
        CHECK(free == count - 1);
        CHECK((*pool)->stats().alloc_failed_map == 1);
        CHECK((*pool)->Prepare(count) == count);
      }
      CHECK(rig.domain.stats().maps == maps + kPages);
      triggered = nodes.calls >= k;
      nodes.fail_at = 0;
      pool->reset();
      CHECK(rig.memory.blocks() == 0);
      CHECK(rig.domain.live().empty());
    }
    CHECK(nodes.blocks == 0);
    if (!triggered) break;
  }
  CHECK(create_failures >= 1);
  CHECK(take_failures >= 1);
}

TEST_CASE("a map that failed in one domain and could not be undone in another is quarantined") {
  TwoDomains rig;
  {
    auto pool = rig.Pool({.order = 0, .policy = Policy::kStrict});
    rig.steps.FailAt(3);  // memory, first, second
    rig.fail_unmap.FailAt(1);
    CHECK(pool->Take() == nullptr);
    rig.fail_unmap.FailAt(0);
    CHECK(pool->stats().pages_quarantined == 1);
    CHECK(pool->stats().pages == 0);
    CHECK(rig.memory.blocks() == 1);  // the first device can still write there
    CHECK(rig.first.live().size() == 1);
    rig.steps.FailAt(0);

    // The same for a page that is mapped again: the pool goes on with another one.
    Page* page = pool->Take();
    REQUIRE(page != nullptr);
    pool->Release(page);
    rig.steps.FailAt(2);
    rig.fail_unmap.FailAt(1);
    CHECK(pool->Take() == nullptr);
    rig.steps.FailAt(0);
    CHECK(pool->stats().pages_quarantined == 2);
    Page* other = pool->Take();
    REQUIRE(other != nullptr);
    CHECK(other != page);
    pool->Release(other);
    CHECK(rig.memory.blocks() == 3);
  }
  CHECK(rig.memory.blocks() == 2);
  rig.fail_unmap.FailAt(0);
  REQUIRE(rig.space->quarantine().ReleaseAfterReset("").ok());
  CHECK(rig.memory.blocks() == 0);
  CHECK(rig.live() == 0);
}

TEST_CASE("open and close a thousand times, at many sizes: all comes back each time") {
  TwoDomains rig;
  const uint64_t ranges = rig.live_ranges();
  for (unsigned round = 0; round < 1000; ++round) {
    auto pool = rig.Pool({.order = round % 10, .policy = static_cast<Policy>(round % 3)});
    FragAllocator cutter = Cutter(*pool, {.size = 1 + round % 4096});
    Fragment a = cutter.Allocate(), b = cutter.Allocate();
    REQUIRE_FALSE(b.empty());
    pool->Release(b);
    pool->Release(a);
  }
  CHECK(rig.memory.blocks() == 0);
  CHECK(rig.live() == 0);
  CHECK(rig.live_ranges() == ranges);
  CHECK(rig.space->quarantine().total_held() == 0);
  CHECK(rig.first.stats().maps == rig.first.stats().unmaps);
}

// --- Through FragAllocator, and on the way back -------------------------------------------------

struct Entry {
  const char* name;
  bool (*call)(PagePool&);  // takes something and gives it back; false: there was nothing
};

const Entry kEntries[] = {
    {"Allocate",
     [](PagePool& pool) {
       FragAllocator cutter = Cutter(pool, {.size = 2000});
       const Fragment f = cutter.Allocate();
       if (!f.empty()) pool.Release(f);
       return !f.empty();
     }},
    {"AllocateSize",
     [](PagePool& pool) {
       FragAllocator cutter = Cutter(pool, {.size = 64});
       const Fragment f = cutter.AllocateSize(4096);
       if (!f.empty()) pool.Release(f);
       return !f.empty();
     }},
    {"Allocate, returned by another",
     [](PagePool& pool) {
       FragAllocator cutter = Cutter(pool, {.size = 2000});
       const Fragment f = cutter.Allocate();
       if (!f.empty()) Returner().Return(f);
       cutter.Retire();
       pool.Fold();
       return !f.empty();
     }},
    {"TakeAtLeast",
     [](PagePool& pool) {
       Page* page = pool.TakeAtLeast(40000);
       if (page != nullptr) pool.Release(page);
       return page != nullptr;
     }},
    {"refill of a pool of another order",
     [](PagePool& pool) {
       const bool set = pool.SetOrder(pool.order() == 2 ? 1 : 2).ok();
       const size_t free = pool.Prepare(2);
       pool.Trim();
       return set && free == 2;
     }},
};

TEST_CASE("the k-th failure of memory or map, for all k, in every way to take") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  for (const Entry& entry : kEntries) {
    TwoDomains rig;
    const uint64_t ranges = rig.live_ranges();
    uint64_t k = 1;
    for (bool triggered = true; triggered; ++k) {
      INFO(entry.name << ", k = " << k);
      auto pool = rig.Pool({.order = 2, .min_order = 1, .policy = policy});
      rig.steps.FailAt(k);
      const bool took = entry.call(*pool);
      triggered = rig.steps.triggered();
      rig.steps.FailAt(0);
      if (!took) {
        CHECK(triggered);
        CHECK_FALSE(pool->LastFailure().ok());
      }
      CHECK(entry.call(*pool));  // again, without failure
      CHECK(pool->pages_in_use() == pool->stats().pages_waiting_flush);
      CHECK(pool->stats().bad_releases == 0);
      pool.reset();
      CHECK(rig.memory.blocks() == 0);
      CHECK(rig.live() == 0);
      CHECK(rig.live_ranges() == ranges);
      CHECK(rig.space->quarantine().count() == 0);
    }
    CHECK(k > 4);
  }
}

TEST_CASE("the k-th unmap, whole or short, or invalidation fails, for all k, on every way back") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  for (const Entry& entry : kEntries) {
    for (int edge = 0; edge < 3; ++edge) {
      uint64_t k = 1;
      for (bool triggered = true; triggered; ++k) {
        INFO(entry.name << ", edge " << edge << ", k = " << k);
        FakeRig rig({.policy = policy});
        auto& fail = edge == 0 ? rig.fail_unmap : edge == 1 ? rig.short_unmap : rig.fail_invalidate;
        auto pool = rig.Pool({.order = 2, .policy = policy});
        fail.FailAt(k);
        CHECK(entry.call(*pool));
        CHECK(entry.call(*pool));
        pool.reset();
        triggered = fail.triggered();
        fail.FailAt(0);
        const size_t held = rig.space->quarantine().count();
        CHECK((held > 0) == triggered);
        CHECK(rig.memory.blocks() == held);  // kept, not reused
        CHECK(rig.domain.stale_reuses() == 0);
        CHECK(entry.call(*rig.Pool({.order = 2, .policy = policy})));  // beside what is held
        REQUIRE(rig.space->quarantine().ReleaseAfterReset("").ok());
        CHECK(rig.memory.blocks() == 0);
        CHECK(rig.domain.live().empty());
        CHECK(rig.domain.stale().empty());
        rig.space->iova_space().ReclaimAll();
        CHECK(rig.space->iova_space().stats().live_ranges == 0);
      }
      CHECK(k > 2);
    }
  }
}

}  // namespace
}  // namespace dmakit::frag::testing
