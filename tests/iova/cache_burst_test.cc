// SPDX-License-Identifier: Apache-2.0
//
// Bursts against the size of the cache: which level serves them, and which ranges stay warm.
#include <vector>

#include "iova/cache.h"
#include "iova/space.h"
#include "tests/catch.h"
#include "tests/iova/testing.h"

namespace dmakit::iova {
namespace {

using testing::Piece;

constexpr Bytes kPage = KiB(4);

TEST_CASE(
    "Bursts of 1 to twice the cache: hits up to its size, then whole magazines, never the tree") {
  constexpr size_t kMagazine = 16;
  testing::CountingFence fence;
  auto space = Space::Create({.usable = {Piece(0, 0xFFFFFFFF)},
                              .magazine_size = kMagazine,
                              .depot_magazines = 8,
                              .fence = GENERATE(false, true) ? &fence : nullptr})
                   .value();
  auto cache = Cache::Create(space.get(), {}).value();
  for (size_t burst = 1; burst <= 4 * kMagazine; ++burst) {
    INFO("burst of " << burst);
    uint64_t trips = 0, calls = 0, misses = 0;
    for (int round = 0; round < 10; ++round) {
      const Cache::Stats before = cache->stats();
      std::vector<Range> ranges;
      for (size_t i = 0; i < burst; ++i) ranges.push_back(cache->Allocate(kPage).value());
      for (const Range& range : ranges) REQUIRE(cache->Free(range).ok());
      const Cache::Stats after = cache->stats();
      if (round < 2) continue;  // warm up
      trips += after.depot_gets + after.depot_puts - before.depot_gets - before.depot_puts;
      calls += after.tree_calls - before.tree_calls;
      misses += after.misses - before.misses;
      // The warmest first.
      const Range again = cache->Allocate(kPage).value();
      REQUIRE(again == ranges.back());
      REQUIRE(cache->Free(again).ok());
    }
    CHECK(calls == 0);
    CHECK(misses <= trips);
    // A magazine carries 16 ranges each way.
    CHECK(trips <= (burst <= 2 * kMagazine ? 0 : 8 * 2 * (burst / kMagazine)));
  }
}

}  // namespace
}  // namespace dmakit::iova
