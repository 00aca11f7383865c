// SPDX-License-Identifier: Apache-2.0
//
// FakeDomain passes the suite of all domains, and its faults are the ones it is told to have.
#include <memory>

#include "dma/fakes.h"
#include "tests/catch.h"
#include "tests/dma/domain_conformance.h"

namespace dmakit::dma {
namespace {

alignas(4096) std::byte memory[4 * 4096];

MemoryView Page(size_t n, size_t count = 1) {
  return MemoryView::Of({memory + 4096 * n, 4096 * count});
}
Range At(uint64_t page, uint64_t count = 1) { return {Iova(page * 4096), Bytes(4096 * count)}; }

testing::DomainFactory Factory(bool splittable, bool implied) {
  return [=](const testing::DomainWish& wish) -> std::unique_ptr<Domain> {
    DomainFacts facts;
    facts.width = wish.width.value_or(AddressBits(48));
    facts.reserved = wish.reserved;
    facts.max_mappings = wish.max_mappings;
    facts.splittable = splittable;
    facts.unmap_invalidates = implied;
    return std::make_unique<FakeDomain>(FakeDomain::Options{.facts = std::move(facts)});
  };
}

TEST_CASE("The fake passes the domains' suite") {
  testing::CheckDomainConformance(Factory(false, false));
}
TEST_CASE("The fake passes the domains' suite when it can split") {
  testing::CheckDomainConformance(Factory(true, false));
}
TEST_CASE("The fake passes the domains' suite when unmap invalidates") {
  testing::CheckDomainConformance(Factory(false, true));
}

TEST_CASE("Told to fail: the chosen call fails and changes nothing") {
  host::FailPoint map, unmap, invalidate, short_unmap;
  FakeDomain d({.fail_map = &map,
                .fail_unmap = &unmap,
                .fail_invalidate = &invalidate,
                .short_unmap = &short_unmap});
  map.FailAt(2);
  REQUIRE(d.Map(At(1), Page(0), Access::kRead).ok());
  CHECK(absl::IsResourceExhausted(d.Map(At(2, 2), Page(1, 2), Access::kRead)));
  REQUIRE(d.Map(At(2, 2), Page(1, 2), Access::kRead).ok());
  unmap.FailAt(1);
  CHECK_FALSE(d.Unmap(At(1)).ok());
  CHECK(d.live().size() == 2);
  short_unmap.FailAt(1);
  CHECK(*d.Unmap(At(1, 4)) == Bytes(8192));  // the last granule that is mapped stays
  REQUIRE(d.live().size() == 1);
  CHECK(d.live()[0].range == At(3));
  invalidate.FailAt(1);
  CHECK_FALSE(d.InvalidateAll().ok());
  CHECK(d.stale().size() == 2);
}

TEST_CASE("What is unmapped is stale until an invalidation covers it, and its reuse is counted") {
  FakeDomain d;
  REQUIRE(d.Map(At(1, 4), Page(0, 4), Access::kRead).ok());
  REQUIRE(d.Unmap(At(1, 4)).ok());
  REQUIRE(d.Invalidate(At(2, 2)).ok());
  CHECK(d.stale() == std::vector<Range>{At(1), At(4)});
  REQUIRE(d.Map(At(2, 2), Page(0, 2), Access::kRead).ok());
  CHECK(d.stale_reuses() == 0);
  REQUIRE(d.Map(At(4), Page(3), Access::kRead).ok());
  CHECK(d.stale_reuses() == 1);
  REQUIRE(d.InvalidateAll().ok());
  CHECK(d.stale().empty());
  CHECK(d.log().back() == "invalidate all");
  CHECK(d.log().front() == "map [0x1000, 0x4fff] read");
}

}  // namespace
}  // namespace dmakit::dma
