// SPDX-License-Identifier: Apache-2.0
//
// Page tables: which leaves are chosen, what a failure leaves behind, when table pages come and go,
// and long random sequences against a plain list of mappings.
#include "dma/page_table.h"

#include <map>
#include <random>
#include <vector>

#include "dma/host/fakes.h"
#include "dma/software_iommu.h"
#include "tests/catch.h"
#include "tests/dma/iommu_testing.h"

namespace dmakit::dma {
namespace {

using namespace testing;
using internal::PageTable;

constexpr uint64_t kAllSizes = k4K | k2M | k1G;

// Never touched: the table only notes addresses. Aligned to 1 GiB.
std::byte* Pretend(uint64_t offset) { return reinterpret_cast<std::byte*>(64 * k1G + offset); }

PageTable::Leaf LeafAt(const PageTable& table, uint64_t iova) {
  return table.Walk(iova, table.root(), PageTable::kRoot).leaf;
}

// How many leaves of each size [base, base + size) has; REQUIREs that they lead to `memory`.
std::vector<uint64_t> LeavesOf(const PageTable& table, uint64_t base, uint64_t size,
                               std::byte* memory) {
  std::vector<uint64_t> counts(3, 0);
  for (uint64_t at = base; at < base + size;) {
    const PageTable::Leaf leaf = LeafAt(table, at);
    REQUIRE(leaf.present());
    REQUIRE(leaf.memory() == memory + (at - base));
    ++counts[leaf.level];
    at += PageTable::SizeOf(leaf.level);
  }
  return counts;
}

TEST_CASE("page table: the largest leaf that IOVA, memory and size allow") {
  struct Case {
    uint64_t iova, memory, size, sizes;
    std::vector<uint64_t> leaves;  // of 4 KiB, 2 MiB, 1 GiB
  };
  const std::vector<Case> cases = {
      {k4K, 0, k4K, kAllSizes, {1, 0, 0}},
      {k2M, 0, k2M, kAllSizes, {0, 1, 0}},
      {k1G, 0, k1G, kAllSizes, {0, 0, 1}},
      {k2M, 0, k2M - k4K, kAllSizes, {511, 0, 0}},
      {k2M, k4K, k2M, kAllSizes, {512, 0, 0}},
      {k2M + k4K, k4K, 2 * k2M, kAllSizes, {512, 1, 0}},
      {k2M + k4K, 0, 2 * k2M, kAllSizes, {1024, 0, 0}},
      {k1G, k2M, k1G, kAllSizes, {0, 512, 0}},
      {k1G - k2M - k4K, k1G - k2M - k4K, k1G + 2 * (k2M + k4K), kAllSizes, {2, 2, 1}},
      {k1G, 0, k1G, k4K | k2M, {0, 512, 0}},
      {k2M, 0, k2M, k4K | k1G, {512, 0, 0}},
      {k1G, 0, k1G, k4K | k1G, {0, 0, 1}},
      {511 * k1G, 0, 2 * k1G, kAllSizes, {0, 0, 2}},  // across two entries of the root
      {(uint64_t{1} << 48) - k1G, 0, k1G, kAllSizes, {0, 0, 1}},
  };
  for (const Case& c : cases) {
    INFO("iova " << c.iova << " memory " << c.memory << " size " << c.size);
    PageTable table(c.sizes, {});
    REQUIRE(table.Map(At(c.iova, c.size), Pretend(c.memory), Access::kWrite).ok());
    CHECK(LeavesOf(table, c.iova, c.size, Pretend(c.memory)) == c.leaves);
    CHECK(LeafAt(table, c.iova).access() == Access::kWrite);
    CHECK_FALSE(LeafAt(table, c.iova - 1).present());
    if (c.iova + c.size < uint64_t{1} << 48) CHECK_FALSE(LeafAt(table, c.iova + c.size).present());
    table.Clear(At(c.iova, c.size));
    CHECK_FALSE(LeafAt(table, c.iova).present());
    CHECK_FALSE(LeafAt(table, c.iova + c.size - 1).present());
  }
}

TEST_CASE("page table: the k-th table page refused, for all k, changes nothing") {
  // Crosses an entry of the root with small leaves on both sides: 2 tables per level.
  const uint64_t base = 512 * k1G - 3 * k4K;
  const uint64_t size = 6 * k4K;
  host::FailPoint fail;
  uint64_t k = 0;
  for (bool done = false; !done;) {
    ++k;
    PageTable table(kAllSizes, [&fail] { return !fail.Hit(); });
    REQUIRE(table.ok());
    REQUIRE(table.Map(At(512 * k1G + k2M, k4K), Pretend(0), Access::kRead).ok());
    const size_t pages = table.table_pages();
    fail.FailAt(k);
    const absl::Status status = table.Map(At(base, size), Pretend(k4K), Access::kRead);
    done = !fail.triggered();
    INFO("k " << k);
    if (done) {
      CHECK(status.ok());
      CHECK(LeavesOf(table, base, size, Pretend(k4K))[0] == 6);
      CHECK(table.table_pages() == pages + 4);  // three on the left, one on the right
    } else {
      CHECK(status.code() == absl::StatusCode::kResourceExhausted);
      CHECK(table.table_pages() == pages);
      for (uint64_t at = base; at < base + size; at += k4K)
        CHECK_FALSE(LeafAt(table, at).present());
      CHECK(LeafAt(table, 512 * k1G + k2M).memory() == Pretend(0));
      fail.FailAt(0);
      CHECK(table.Map(At(base, size), Pretend(k4K), Access::kRead).ok());
      CHECK(table.table_pages() == pages + 4);
    }
  }
  CHECK(k == 5);
}

TEST_CASE("iommu: the k-th table page refused, for all k, is an error and nothing more") {
  const Backing memory(4 * k2M);
  host::FailPoint fail;
  uint64_t failures = 0;
  for (uint64_t k = 1;; ++k) {
    fail.FailAt(k);
    auto iommu =
        SoftwareIommu::Create({.page_sizes = k4K, .allow_table = [&fail] { return !fail.Hit(); }});
    if (!iommu.ok()) {
      CHECK(iommu.status().code() == absl::StatusCode::kResourceExhausted);
      CHECK(k == 1);  // the root
      ++failures;
      continue;
    }
    const auto port = (*iommu)->NewPort("nic0");
    const size_t pages = (*iommu)->table_pages();
    const absl::Status status =
        (*iommu)->Map(At(k1G, 3 * k2M), memory.View(0, 3 * k2M), Access::kReadWrite);
    if (status.ok()) {
      CHECK_FALSE(fail.triggered());
      CHECK(Peek(*port, k1G + 3 * k2M - 8).has_value());
      break;
    }
    ++failures;
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    CHECK((*iommu)->table_pages() == pages);
    CHECK((*iommu)->stats().maps == 0);
    CHECK((*iommu)->stats().live_mappings == 0);
    CHECK((*iommu)->stats().mapped_bytes == 0);
    CHECK_FALSE(Peek(*port, k1G).has_value());
    CHECK_FALSE(Peek(*port, k1G + 2 * k2M).has_value());
    fail.FailAt(0);
    CHECK(Map(**iommu, k1G, memory.View(0, 3 * k2M)));
    CHECK(Peek(*port, k1G + 2 * k2M).has_value());
  }
  CHECK(failures == 1 + 2 + 3);  // root, levels 2 and 1, three of level 0
}

TEST_CASE("page table: unmapping frees no table page, freeing on demand does") {
  const Backing memory(k2M);
  const auto iommu = NewIommu();
  const auto port = iommu->NewPort("nic0");
  CHECK(iommu->table_pages() == 1);
  for (int round = 0; round < 10; ++round) {
    REQUIRE(Map(*iommu, k1G, memory.View(0, 4 * k4K)));
    CHECK(iommu->table_pages() == 4);
    REQUIRE(Peek(*port, k1G).has_value());
    REQUIRE(Unmap(*iommu, k1G, 4 * k4K));
    REQUIRE(iommu->Invalidate(At(k1G, 4 * k4K)).ok());
    CHECK(iommu->table_pages() == 4);
  }
  REQUIRE(Map(*iommu, 3 * k1G, memory.View(0, k4K)));
  CHECK(iommu->table_pages() == 6);
  REQUIRE(iommu->FreeUnusedTables().ok());
  CHECK(iommu->table_pages() == 4);
  CHECK(Peek(*port, 3 * k1G).has_value());
  CHECK_FALSE(Peek(*port, k1G).has_value());  // not by a walk cache that knows freed tables
  REQUIRE(Unmap(*iommu, 3 * k1G, k4K));
  REQUIRE(iommu->FreeUnusedTables().ok());
  CHECK(iommu->table_pages() == 1);
}

TEST_CASE("page table: a large leaf takes the place of empty tables, also in the walk caches") {
  const Backing memory(2 * k1G);
  memory.Mark(0, 7);
  memory.Mark(k2M + k4K, 8);
  const auto iommu = NewIommu();
  const auto port = iommu->NewPort("nic0");
  size_t most = 0;
  for (int round = 0; round < 20; ++round) {
    for (uint64_t i = 0; i < 3; ++i) {
      REQUIRE(Map(*iommu, k1G + i * k2M, memory.View(k4K, k4K)));
      REQUIRE(Peek(*port, k1G + i * k2M).has_value());
      REQUIRE(Unmap(*iommu, k1G + i * k2M, k4K));
    }
    REQUIRE(iommu->InvalidateAll().ok());
    // The device strays into the empty tables, which puts them into the walk cache.
    CHECK_FALSE(Peek(*port, k1G).has_value());
    CHECK_FALSE(Peek(*port, k1G + k2M + k4K).has_value());
    REQUIRE(Map(*iommu, k1G, memory.View(0, k1G)));
    CHECK(Peek(*port, k1G) == 7);
    CHECK(Peek(*port, k1G + k2M + k4K) == 8);
    CHECK(iommu->walk_stats().stale_uses == 0);
    REQUIRE(Unmap(*iommu, k1G, k1G));
    REQUIRE(iommu->Invalidate(At(k1G, k1G)).ok());
    most = std::max(most, iommu->table_pages());
  }
  CHECK(most == 6);  // root, level 2, level 1, three of level 0: used again each time
}

// Long random sequences of map and unmap, compared page by page with a list of mappings.
TEST_CASE("page table: agrees with a plain list of mappings") {
  std::mt19937_64 random(11);
  PageTable table(kAllSizes, {});
  struct Mapping {
    uint64_t last, memory;
    Access access;
  };
  std::map<uint64_t, Mapping> reference;
  const uint64_t window = 512 * k1G - 8 * k2M;  // around an entry of the root
  const auto find = [&](uint64_t iova) {
    auto at = reference.upper_bound(iova);
    if (at == reference.begin()) return reference.end();
    return (--at)->second.last >= iova ? at : reference.end();
  };
  for (int i = 0; i < 4000; ++i) {
    const uint64_t unit = random() % 2 ? k4K : k2M;
    const uint64_t base = window + random() % (16 * k2M) / unit * unit;
    const uint64_t size = unit * (1 + random() % (unit == k4K ? 700 : 3));
    const auto hit = find(base);
    const auto next = reference.lower_bound(base);
    if (hit != reference.end()) {
      table.Clear(At(hit->first, hit->second.last - hit->first + 1));
      reference.erase(hit);
    } else if (next == reference.end() || next->first > base + size - 1) {
      const uint64_t memory = random() % 2 ? base : random() % (8 * k1G) / k4K * k4K;
      const auto access = static_cast<Access>(1 + random() % 3);
      REQUIRE(table.Map(At(base, size), Pretend(memory), access).ok());
      reference[base] = {base + size - 1, memory, access};
      if (table.has_retired()) table.RecycleRetired();
    }
    if (i % 500 == 499) table.FreeEmptyTables();
    for (int probe = 0; probe < 8; ++probe) {
      const uint64_t iova = window + random() % (17 * k2M);
      const PageTable::Leaf leaf = LeafAt(table, iova);
      const auto expected = find(iova);
      REQUIRE(leaf.present() == (expected != reference.end()));
      if (!leaf.present()) continue;
      const uint64_t offset = iova & (PageTable::SizeOf(leaf.level) - 1);
      REQUIRE(leaf.memory() + offset ==
              Pretend(expected->second.memory + (iova - expected->first)));
      REQUIRE(leaf.access() == expected->second.access);
    }
  }
  for (const auto& [base, mapping] : reference) table.Clear(At(base, mapping.last - base + 1));
  table.FreeEmptyTables();
  CHECK(table.table_pages() == 1);
}

}  // namespace
}  // namespace dmakit::dma
