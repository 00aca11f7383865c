// SPDX-License-Identifier: Apache-2.0
//
// What comes and goes in bursts: recycled pages are the warm ones whatever the burst, and a ring
// whose refill stops half-way gives each buffer back once.
#include <vector>

#include "tests/frag/testing.h"

namespace dmakit::frag::testing {
namespace {

TEST_CASE("bursts of every size: no page is made once warm, the warmest comes first") {
  constexpr size_t kMost = 64;
  FakeRig rig;
  auto pool = rig.Pool({.order = 0, .max_bytes = Bytes{kMost * kBasePageSize}});
  REQUIRE(pool->Prepare(kMost) == kMost);
  const PagePoolStats warm = pool->stats();
  uint64_t taken = 0;
  for (size_t burst = 1; burst <= kMost; ++burst) {
    for (int round = 0; round < 3; ++round) {
      std::vector<Page*> pages;
      for (size_t i = 0; i < burst; ++i) pages.push_back(pool->Take());
      taken += burst;
      REQUIRE(pages.back() != nullptr);
      for (Page* page : pages) pool->Release(page);
      Page* again = pool->Take();
      ++taken;
      REQUIRE(again == pages.back());
      pool->Release(again);
    }
  }
  const PagePoolStats stats = pool->stats();
  CHECK(stats.alloc_fast == warm.alloc_fast + taken);
  CHECK(stats.alloc_slow == warm.alloc_slow);
  CHECK(stats.alloc_empty == warm.alloc_empty);
  CHECK(stats.maps == warm.maps);
  CHECK(stats.unmaps == 0);
}

// Two buffers of 2048 bytes a page. A slot that was not filled is empty: nothing to release.
TEST_CASE("the k-th page of a ring of 16 fails, for all k: each buffer is given back once") {
  const bool stays = GENERATE(false, true);  // and all after it
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict);
  for (uint64_t k = 1; k <= 9; ++k) {
    FakeRig rig;
    auto pool = rig.Pool({.order = 0, .policy = policy});
    std::vector<Fragment> ring(16);
    uint64_t cut = 0, released = 0;
    const auto empty = [&] {
      for (Fragment& slot : ring) {
        if (slot.empty()) continue;
        pool->Release(slot);
        slot = {};
        ++released;
      }
    };
    {
      FragAllocator cutter = Cutter(*pool, {.size = 2048});
      for (int round = 0; round < 3; ++round) {
        rig.fail_memory.FailAt(round == 1 ? 0 : k, stays);
        for (Fragment& slot : ring) {
          if ((slot = cutter.Allocate()).empty()) break;
          ++cut;
        }
        rig.fail_memory.FailAt(0);
        if (round == 1) CHECK_FALSE(ring.back().empty());
        empty();
        CHECK(pool->pages_in_use() <= 1);  // the one being cut
      }
      // Full at the end, and the cutter goes first.
      for (Fragment& slot : ring) cut += (slot = cutter.Allocate()).empty() ? 0 : 1;
    }
    empty();
    CHECK(cut == released);
    CHECK(pool->stats().bad_releases == 0);
    CHECK(pool->pages_in_use() == 0);
    pool.reset();
    CHECK(rig.memory.blocks() == 0);
    CHECK(rig.domain.stats().maps == rig.domain.stats().unmaps);
    CHECK(rig.domain.live().empty());
  }
}

}  // namespace
}  // namespace dmakit::frag::testing
