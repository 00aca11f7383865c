// SPDX-License-Identifier: Apache-2.0
//
// Fault class "flush covers too little": whatever the shape of the range, no entry with a byte in
// it may hit afterwards, and none outside it may be lost. Every page is unmapped first, so that
// each access shows whether its old translation is still cached: stale if so, a fault if not.
#include <algorithm>
#include <random>
#include <vector>

#include "dma/software_iommu.h"
#include "tests/catch.h"
#include "tests/dma/iommu_testing.h"

namespace dmakit::dma {
namespace {

using namespace testing;

struct Block {
  uint64_t iova;
  uint64_t size;
};

// Blocks mapped, cached in the port, and unmapped again: everything is stale.
class Stale {
 public:
  explicit Stale(std::vector<Block> blocks) : blocks_(std::move(blocks)), memory_(4 * k1G) {}

  void Prepare() {
    REQUIRE(iommu_->InvalidateAll().ok());
    for (const Block& block : blocks_) {
      REQUIRE(Map(*iommu_, block.iova, memory_.View(block.iova, block.size)));
      REQUIRE(Peek(*port_, block.iova).has_value());
      REQUIRE(Unmap(*iommu_, block.iova, block.size));
    }
  }
  bool IsCached(const Block& block) {
    const uint64_t stale = iommu_->walk_stats().stale_uses;
    const bool hit = Peek(*port_, block.iova + block.size - 8).has_value();
    CHECK(iommu_->walk_stats().stale_uses == stale + (hit ? 1 : 0));
    return hit;
  }
  // Exactly the blocks that `range` touches are gone after it was invalidated.
  void CheckRange(Range range) {
    Prepare();
    REQUIRE(iommu_->Invalidate(range).ok());
    for (const Block& block : blocks_) {
      if (IsCached(block) == At(block.iova, block.size).Overlaps(range)) {
        FAIL("after invalidation of " << ToString(range) << ": " << block.size << " bytes at "
                                      << ToString(Iova(block.iova)));
      }
    }
  }
  SoftwareIommu& iommu() { return *iommu_; }

 private:
  std::vector<Block> blocks_;
  Backing memory_;
  std::unique_ptr<SoftwareIommu> iommu_ = NewIommu({.fault_records = 1});
  std::unique_ptr<DevicePort> port_ = iommu_->NewPort("nic0");
};

TEST_CASE("invalidation: any start and size covers every page it touches, and no other") {
  std::vector<Block> pages;
  for (uint64_t i = 0; i < 12; ++i) pages.push_back({k1G - 6 * k4K + i * k4K, k4K});
  Stale stale(pages);
  const std::vector<uint64_t> edges = {0, 1, 2047, 4094, 4095};
  for (uint64_t page = 0; page < 4; ++page) {
    for (const uint64_t offset : edges) {
      const uint64_t start = pages[2 + page].iova + offset;
      for (uint64_t pages_long = 0; pages_long <= 6; ++pages_long) {
        for (const uint64_t more : edges) {
          const uint64_t size = pages_long * k4K + more;
          if (size == 0) continue;
          stale.CheckRange(At(start, size));
        }
      }
    }
  }
}

TEST_CASE("invalidation: one byte of a large leaf drops all of it") {
  Stale stale({{k1G, k1G},
               {2 * k1G, k2M},
               {2 * k1G + k2M, k2M},
               {2 * k1G + 2 * k2M, k4K},
               {2 * k1G + 2 * k2M + k4K, k4K}});
  for (const uint64_t at : {k1G - 1, k1G, k1G + 12345, 2 * k1G - 1, 2 * k1G, 2 * k1G + k2M - 1,
                            2 * k1G + k2M, 2 * k1G + 2 * k2M - 1, 2 * k1G + 2 * k2M,
                            2 * k1G + 2 * k2M + k4K, 2 * k1G + 2 * k2M + 2 * k4K}) {
    stale.CheckRange(At(at, 1));
    stale.CheckRange(At(at, 2));
    stale.CheckRange(At(at - 1, 2));
    stale.CheckRange(At(at, k2M + 1));
  }
}

TEST_CASE("invalidation: random ranges over mixed leaves") {
  std::mt19937_64 random(7);
  std::vector<Block> blocks = {{0, k1G}, {3 * k1G, k2M}, {3 * k1G + 2 * k2M, k2M}};
  for (uint64_t i = 0; i < 16; ++i) blocks.push_back({2 * k1G + i * 3 * k4K, k4K});
  Stale stale(blocks);
  for (int i = 0; i < 400; ++i) {
    const Block& near = blocks[random() % blocks.size()];
    const uint64_t start = near.iova + near.size - random() % (2 * k4K);
    stale.CheckRange(At(start, 1 + (random() >> (random() % 64)) % (4 * k1G)));
  }
}

TEST_CASE("invalidation: ranges that end at 2^64 - 1") {
  const uint64_t top = (uint64_t{1} << 48) - k4K;
  const Backing memory(k4K);
  const auto iommu = NewIommu();
  const auto port = iommu->NewPort("nic0");
  const auto stale = [&] {
    REQUIRE(iommu->InvalidateAll().ok());
    REQUIRE(Map(*iommu, top, memory.View(0, k4K)));  // the last page of 48 bits
    REQUIRE(Peek(*port, top).has_value());
    REQUIRE(Unmap(*iommu, top, k4K));
  };
  for (const uint64_t from : {uint64_t{1}, k4K, top, top + 1, top + k4K - 1}) {
    stale();
    REQUIRE(iommu->Invalidate(At(from, ~uint64_t{0} - from + 1)).ok());
    INFO("from " << from);
    CHECK_FALSE(Peek(*port, top).has_value());
  }
  stale();
  REQUIRE(iommu->Invalidate(At(0, ~uint64_t{0})).ok());
  CHECK_FALSE(Peek(*port, top).has_value());
  stale();
  REQUIRE(iommu->Invalidate(At(top + k4K, ~uint64_t{0} - top - k4K + 1)).ok());
  CHECK(Peek(*port, top).has_value());
  REQUIRE(iommu->Invalidate(At(~uint64_t{0}, 1)).ok());
  CHECK(Peek(*port, top).has_value());
  // One byte more than there is.
  CHECK(iommu->Invalidate(At(top, ~uint64_t{0} - top + 2)).code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(Peek(*port, top).has_value());
}

TEST_CASE("invalidation: an empty range is not an operation") {
  Stale stale({{k1G, k4K}});
  stale.Prepare();
  const uint64_t before = stale.iommu().stats().invalidations;
  CHECK(stale.iommu().Invalidate(At(k1G, 0)).ok());
  CHECK(stale.IsCached({k1G, k4K}));
  CHECK(stale.iommu().stats().invalidations == before);
}

TEST_CASE("invalidation: all of it, in all ports, in one operation") {
  const Backing memory(8 * k4K);
  const auto iommu = NewIommu();
  const auto a = iommu->NewPort("a");
  const auto b = iommu->NewPort("b");
  REQUIRE(Map(*iommu, k2M, memory.View(0, 8 * k4K)));
  for (uint64_t i = 0; i < 8; ++i) {
    REQUIRE(Peek(*a, k2M + i * k4K).has_value());
    REQUIRE(Peek(*b, k2M + i * k4K).has_value());
  }
  REQUIRE(Unmap(*iommu, k2M, 8 * k4K));
  REQUIRE(iommu->InvalidateAll().ok());
  CHECK(iommu->stats().invalidations == 1);
  for (uint64_t i = 0; i < 8; ++i) {
    CHECK_FALSE(Peek(*a, k2M + i * k4K).has_value());
    CHECK_FALSE(Peek(*b, k2M + i * k4K).has_value());
  }
  CHECK(iommu->walk_stats().stale_uses == 0);
}

// Leaf unmaps change no table, so the upper levels stay cached; a range that covers all that a
// table maps drops it too.
TEST_CASE("invalidation: walk-cache entries inside the range go, those that cover more stay") {
  const Backing memory(2 * k2M);
  const auto iommu = NewIommu({.page_sizes = k4K});
  const auto port = iommu->NewPort("nic0");
  REQUIRE(Map(*iommu, k1G, memory.View(0, k2M)));
  REQUIRE(Map(*iommu, k1G + k2M, memory.View(k2M, k2M)));
  const auto levels_for = [&](uint64_t iova) {
    const uint64_t before = iommu->walk_stats().levels_read;
    REQUIRE(Peek(*port, iova).has_value());
    return iommu->walk_stats().levels_read - before;
  };
  CHECK(levels_for(k1G) == 4);
  CHECK(levels_for(k1G + k2M) == 2);
  REQUIRE(iommu->Invalidate(At(k1G, k4K)).ok());
  CHECK(levels_for(k1G) == 1);
  REQUIRE(iommu->Invalidate(At(k1G + 1, k2M)).ok());  // no table lies in it whole
  CHECK(levels_for(k1G) == 1);
  CHECK(levels_for(k1G + k2M) == 1);
  REQUIRE(iommu->Invalidate(At(k1G, k2M)).ok());
  CHECK(levels_for(k1G) == 2);
  CHECK(levels_for(k1G + k2M) == 0);
  REQUIRE(iommu->Invalidate(At(k1G, k1G)).ok());
  CHECK(levels_for(k1G) == 3);
  REQUIRE(iommu->Invalidate(At(0, uint64_t{1} << 39)).ok());
  CHECK(levels_for(k1G) == 4);
  REQUIRE(iommu->InvalidateAll().ok());
  CHECK(levels_for(k1G) == 4);
}

}  // namespace
}  // namespace dmakit::dma
