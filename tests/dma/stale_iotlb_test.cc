// SPDX-License-Identifier: Apache-2.0
//
// Fault class "stale IOTLB": memory that is given back, or used for something else, while a device
// may still reach it through a translation that was removed but never invalidated.
#include <vector>

#include "dma/software_iommu.h"
#include "tests/catch.h"
#include "tests/dma/iommu_testing.h"

namespace dmakit::dma {
namespace {

using namespace testing;

struct Fixture {
  explicit Fixture(SoftwareIommu::Options options = {})
      : iommu(NewIommu(std::move(options))), port(iommu->NewPort("nic0")), memory(2 * k1G) {
    memory.Mark(0, 100);
    memory.Mark(k4K, 101);
  }
  uint64_t stale() const { return iommu->walk_stats().stale_uses; }

  std::unique_ptr<SoftwareIommu> iommu;
  std::unique_ptr<DevicePort> port;
  Backing memory;
};

TEST_CASE("stale IOTLB: use after unmap is performed and on record, until it is invalidated") {
  Fixture f;
  REQUIRE(Map(*f.iommu, k4K, f.memory.View(0, k4K)));
  REQUIRE(Peek(*f.port, k4K) == 100);
  CHECK(f.stale() == 0);
  REQUIRE(Unmap(*f.iommu, k4K, k4K));

  CHECK(Peek(*f.port, k4K) == 100);
  CHECK(Poke(*f.port, k4K + 8, 5));
  CHECK(*f.memory.at(8) == std::byte{5});
  CHECK(f.stale() == 2);
  CHECK(f.iommu->walk_stats().faults == 0);
  const auto uses = f.iommu->stale_uses();
  REQUIRE(uses.size() == 2);
  CHECK(uses[0].device == "nic0");
  CHECK(uses[0].iova == Iova(k4K));
  CHECK(uses[0].access == Access::kRead);
  CHECK(uses[1].iova == Iova(k4K + 8));
  CHECK(uses[1].access == Access::kWrite);

  REQUIRE(f.iommu->Invalidate(At(k4K, k4K)).ok());
  CHECK_FALSE(Peek(*f.port, k4K).has_value());
  CHECK(f.stale() == 2);
  CHECK(f.iommu->walk_stats().faults == 1);
}

TEST_CASE("stale IOTLB: blocked where asked, and on record all the same") {
  Fixture f({.stale = SoftwareIommu::StaleAccess::kBlock});
  REQUIRE(Map(*f.iommu, k4K, f.memory.View(0, k4K)));
  REQUIRE(Peek(*f.port, k4K) == 100);
  REQUIRE(Unmap(*f.iommu, k4K, k4K));
  CHECK_FALSE(Peek(*f.port, k4K).has_value());
  CHECK_FALSE(Poke(*f.port, k4K, 5));
  CHECK_FALSE(f.port->Publish(Iova(k4K), 5, 4));
  CHECK_FALSE(f.port->LoadAcquire(Iova(k4K), 4).has_value());
  CHECK(f.stale() == 4);
  CHECK(f.iommu->walk_stats().faults == 0);
  uint64_t value = 0;
  std::memcpy(&value, f.memory.at(0), sizeof(value));
  CHECK(value == 100);
}

TEST_CASE("stale IOTLB: an IOVA used again for other memory still reaches the old one") {
  Fixture f;
  REQUIRE(Map(*f.iommu, k4K, f.memory.View(0, k4K)));
  REQUIRE(Peek(*f.port, k4K) == 100);
  REQUIRE(Unmap(*f.iommu, k4K, k4K));
  REQUIRE(Map(*f.iommu, k4K, f.memory.View(k4K, k4K)));
  CHECK(Peek(*f.port, k4K) == 100);
  CHECK(f.stale() == 1);
  REQUIRE(f.iommu->Invalidate(At(k4K, k4K)).ok());
  CHECK(Peek(*f.port, k4K) == 101);
  CHECK(f.stale() == 1);
}

// What a pool does that recycles a page without the invalidation between: same page, same IOVA.
TEST_CASE("stale IOTLB: the same memory mapped again does not hide the missing invalidation") {
  Fixture f;
  for (int round = 0; round < 300; ++round) {
    REQUIRE(Map(*f.iommu, k4K, f.memory.View(0, k4K)));
    REQUIRE(Peek(*f.port, k4K) == 100);
    REQUIRE(Unmap(*f.iommu, k4K, k4K));
    REQUIRE(Map(*f.iommu, k4K, f.memory.View(0, k4K)));
    const uint64_t before = f.stale();
    REQUIRE(Peek(*f.port, k4K) == 100);
    REQUIRE(f.stale() == before + 1);
    REQUIRE(Unmap(*f.iommu, k4K, k4K));
    REQUIRE(f.iommu->Invalidate(At(k4K, k4K)).ok());
  }
}

// Pools recycle in powers of two; so many unmaps later a page comes by again.
TEST_CASE("stale IOTLB: nor does it when a power of two of unmaps lies between") {
  for (uint64_t between = 1; between <= 4096; between *= 2) {
    Fixture f;
    REQUIRE(Map(*f.iommu, k4K, f.memory.View(0, k4K)));
    REQUIRE(Peek(*f.port, k4K) == 100);
    REQUIRE(Unmap(*f.iommu, k4K, k4K));
    for (uint64_t i = 1; i < between; ++i) {
      REQUIRE(Map(*f.iommu, k2M, f.memory.View(k4K, k4K)));
      REQUIRE(Unmap(*f.iommu, k2M, k4K));
    }
    REQUIRE(Map(*f.iommu, k4K, f.memory.View(0, k4K)));
    REQUIRE(Peek(*f.port, k4K) == 100);
    INFO(between << " unmaps");
    CHECK(f.stale() == 1);
  }
}

TEST_CASE("stale IOTLB: narrower permission counts, and what was cached decides") {
  Fixture f;
  REQUIRE(Map(*f.iommu, k4K, f.memory.View(0, k4K), Access::kReadWrite));
  REQUIRE(Poke(*f.port, k4K, 1));
  REQUIRE(Unmap(*f.iommu, k4K, k4K));
  REQUIRE(Map(*f.iommu, k4K, f.memory.View(0, k4K), Access::kRead));
  CHECK(Poke(*f.port, k4K, 2));
  CHECK(f.stale() == 1);
  REQUIRE(f.iommu->Invalidate(At(k4K, k4K)).ok());
  CHECK_FALSE(Poke(*f.port, k4K, 3));
}

TEST_CASE("stale IOTLB: other ranges and other ports are not stale") {
  Fixture f;
  const auto other = f.iommu->NewPort("nic1");
  REQUIRE(Map(*f.iommu, k4K, f.memory.View(0, k4K)));
  REQUIRE(Map(*f.iommu, 2 * k4K, f.memory.View(k4K, k4K)));
  REQUIRE(Peek(*f.port, k4K) == 100);
  REQUIRE(Peek(*f.port, 2 * k4K) == 101);
  REQUIRE(Unmap(*f.iommu, k4K, k4K));
  CHECK(Peek(*f.port, 2 * k4K) == 101);
  CHECK_FALSE(Peek(*other, k4K).has_value());  // it never had the translation
  CHECK(f.stale() == 0);
  CHECK(Peek(*f.port, k4K) == 100);
  CHECK(f.stale() == 1);
}

TEST_CASE("stale IOTLB: large leaves, and small ones that took their place") {
  Fixture f;
  REQUIRE(Map(*f.iommu, k1G, f.memory.View(0, k1G)));
  REQUIRE(Peek(*f.port, k1G) == 100);
  REQUIRE(f.iommu->walk_stats().levels_read == 2);  // one leaf of 1 GiB
  REQUIRE(Unmap(*f.iommu, k1G, k1G));
  REQUIRE(Map(*f.iommu, k1G, f.memory.View(0, k4K)));
  CHECK(Peek(*f.port, k1G) == 100);  // same bytes, by the old leaf
  CHECK(Peek(*f.port, k1G + k4K) == 101);
  CHECK(f.stale() == 2);
  REQUIRE(f.iommu->Invalidate(At(k1G + 5 * k2M, 1)).ok());
  CHECK_FALSE(Peek(*f.port, k1G + k4K).has_value());
  CHECK(Peek(*f.port, k1G) == 100);
  CHECK(f.stale() == 2);
}

TEST_CASE("stale IOTLB: the records are bounded, the count is not") {
  Fixture f({.fault_records = 3});
  REQUIRE(Map(*f.iommu, k4K, f.memory.View(0, k4K)));
  REQUIRE(Peek(*f.port, k4K) == 100);
  REQUIRE(Unmap(*f.iommu, k4K, k4K));
  for (uint64_t i = 0; i < 10; ++i) CHECK(Peek(*f.port, k4K + 8 * i).has_value());
  CHECK(f.stale() == 10);
  const auto uses = f.iommu->stale_uses();
  REQUIRE(uses.size() == 3);
  CHECK(uses[0].iova == Iova(k4K + 8 * 7));
}

}  // namespace
}  // namespace dmakit::dma
