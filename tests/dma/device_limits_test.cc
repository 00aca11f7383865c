// SPDX-License-Identifier: Apache-2.0
//
// What a device can reach: widths and masks as types of their own, in automatic and explicit mode,
// and the preference for low addresses with what it costs.
#include <algorithm>
#include <concepts>
#include <type_traits>
#include <vector>

#include "dma/software_iommu.h"
#include "tests/dma/light_domain.h"
#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::Fixture;
using testing::Has;
using testing::LightDomain;

// --- A number of bits is not a mask, and neither is an integer ---

template <typename From, typename To>
concept Becomes = std::convertible_to<From, To> || requires(To to, From from) {
  to = from;
};

static_assert(!Becomes<AddressBits, AddressMask> && !Becomes<AddressMask, AddressBits>);
static_assert(!std::constructible_from<AddressBits, AddressMask>);
static_assert(!std::constructible_from<AddressMask, AddressBits>);
static_assert(!Becomes<int, AddressBits> && !Becomes<unsigned, AddressBits>);
static_assert(!Becomes<uint64_t, AddressBits> && !Becomes<uint64_t, AddressMask>);
static_assert(!Becomes<int, AddressMask> && !Becomes<unsigned, AddressMask>);
static_assert(!Becomes<AddressBits, uint64_t> && !Becomes<AddressMask, uint64_t>);
static_assert(!Becomes<Iova, AddressMask> && !Becomes<AddressMask, Iova>);
static_assert(!Becomes<Bytes, AddressBits> && !Becomes<Bytes, AddressMask>);
static_assert(!std::equality_comparable_with<AddressBits, AddressMask>);

// Whatever of dma/ says how far something reaches says it in one of the two.
static_assert(std::same_as<decltype(DeviceOptions::mask), AddressMask>);
static_assert(std::same_as<decltype(DomainFacts::width), AddressBits>);
static_assert(std::same_as<decltype(AddressSpace::Options::prefer), AddressBits>);
static_assert(std::same_as<decltype(SoftwareIommu::Options::width), AddressBits>);
static_assert(std::same_as<decltype(iova::Space::Request::highest), Iova>);
static_assert(std::same_as<decltype(iova::Cache::Options::highest), Iova>);

TEST_CASE("Automatic and explicit masks on a 39-bit domain: the narrower of the two decides") {
  struct Case {
    AddressMask mask;
    unsigned bits;  // of what is handed out
  };
  const Case cases[] = {
      {{}, 39},                        // automatic: what the domain translates
      {AddressBits(39).ToMask(), 39},  // explicit, and the same
      {AddressBits(48).ToMask(), 39},  // explicit, and more than the domain
      {AddressMask(0xffff'ffff), 32},  // explicit, and less
      {AddressBits(64).ToMask(), 39},
  };
  for (const bool software : {false, true}) {
    for (const Case& c : cases) {
      Fixture f;
      f.NewSpace();
      std::unique_ptr<SoftwareIommu> iommu = *SoftwareIommu::Create({.width = AddressBits(39)});
      Domain& domain =
          software ? static_cast<Domain&>(*iommu) : f.NewDomain({.width = AddressBits(39)});
      auto nic = f.space->Attach({.name = "nic0", .domain = &domain, .mask = c.mask});
      REQUIRE(nic.ok());
      Buffer buffer(4 * 4096);
      auto m = (*nic)->Map(buffer.all(), Direction::kToDevice);
      REQUIRE(m.ok());
      CHECK(m->range().last() == AddressBits(c.bits).ToMask().highest());  // from the top
      auto page = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
      REQUIRE(page.ok());
      CHECK(page->Map(buffer.view(0, 4096)).ok());
      CHECK((page->iova().value() >> c.bits) == 0);
    }
  }
}

TEST_CASE("Bits where a mask belongs are refused in both modes, not taken for a tiny mask") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain({.width = AddressBits(39)});
  for (const uint64_t bits : {uint64_t{39}, uint64_t{32}, uint64_t{0}, uint64_t{0xfffffffe}}) {
    const absl::Status s =
        f.space->Attach({.name = "nic0", .domain = &domain, .mask = AddressMask(bits)}).status();
    CHECK(absl::IsInvalidArgument(s));
    CHECK(Has(s, "AddressBits::ToMask"));
  }
  for (const unsigned bits : {0u, 65u}) {
    AddressSpace::Options options = f.Options();
    options.prefer = AddressBits(bits);
    const absl::Status s = AddressSpace::Create(std::move(options)).status();
    CHECK(absl::IsInvalidArgument(s));
    CHECK(Has(s, "1 to 64"));
  }
}

// --- The preference ---

AddressSpace::Options Preferring(Fixture& f, unsigned bits) {
  AddressSpace::Options options = f.Options();
  options.prefer = AddressBits(bits);
  return options;
}

TEST_CASE("Without a preference addresses come from the top, with one from below it") {
  for (const unsigned bits : {64u, 32u, 20u}) {
    Fixture f;
    f.NewSpace(Preferring(f, bits));
    FakeDomain& domain = f.NewDomain();
    auto nic = f.Attach("nic0", domain);
    auto cache = f.space->NewCache("tx0");
    REQUIRE(cache.ok());
    Buffer buffer(4096);
    const uint64_t top = AddressBits(std::min(bits, 48u)).ToMask().value();
    auto m = nic->Map(buffer.all(), Direction::kToDevice);
    auto cached = nic->Map(buffer.all(), Direction::kToDevice, {.cache = cache->get()});
    auto page = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
    auto cached_page = f.space->Reserve(Bytes(4096), Bytes(0), "pool", cache->get());
    REQUIRE(m.ok());
    REQUIRE(cached.ok());
    REQUIRE(page.ok());
    REQUIRE(cached_page.ok());
    CHECK(m->iova() == Iova(top - 0x0fff));
    CHECK(cached->iova() == Iova(top - 0x1fff));
    CHECK(page->iova() == Iova(top - 0x2fff));
    CHECK(cached_page->iova() == Iova(top - 0x3fff));
    CHECK(f.space->iova_space().stats().preferred_misses == 0);
    m = Mapping();
    cached = Mapping();
    page = SharedRange();
    cached_page = SharedRange();
    cache->reset();
  }
}

TEST_CASE("With the preference a 32-bit device can come after the pages; without it, it is late") {
  for (const bool preferring : {true, false}) {
    Fixture f;
    f.NewSpace(Preferring(f, preferring ? 32 : 64));
    FakeDomain& d0 = f.NewDomain();
    FakeDomain& d1 = f.NewDomain();
    auto wide = f.Attach("wide", d0);
    Buffer buffer(4096);
    auto page = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
    REQUIRE(page.ok());
    REQUIRE(page->Map(buffer.view(0, 4096)).ok());
    auto narrow =
        f.space->Attach({.name = "narrow", .domain = &d1, .mask = AddressBits(32).ToMask()});
    CHECK(narrow.ok() == preferring);
    if (!preferring) CHECK(Has(narrow.status(), "mask, 0xffffffff"));
    CHECK(d1.live().size() == (preferring ? 1 : 0));
  }
}

TEST_CASE(
    "A preference is no limit: a full low window is left for high addresses, and missed no "
    "more than once a call") {
  Fixture f;
  f.NewSpace(Preferring(f, 16));  // 15 pages
  FakeDomain& domain = f.NewDomain({.width = AddressBits(17)});
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(4096);
  std::vector<Mapping> held;
  for (int i = 0; i < 31; ++i) {
    auto m = nic->Map(buffer.all(), Direction::kToDevice);
    REQUIRE(m.ok());
    CHECK((m->iova().value() >= 0x10000) == (i >= 15));
    CHECK(m->iova() != Iova(0));
    held.push_back(*std::move(m));
  }
  CHECK(f.space->iova_space().stats().preferred_misses == 16);
  CHECK(f.space->iova_space().stats().reclaims == 0);
  CHECK(absl::IsResourceExhausted(nic->Map(buffer.all(), Direction::kToDevice).status()));
  held.erase(held.begin() + 3);  // a low one
  CHECK(nic->Map(buffer.all(), Direction::kToDevice)->iova().value() < 0x10000);
}

// 50,000 live ranges, and not one free page below 4 GiB.
void FillLow(iova::Space& space) {
  uint64_t base = 0x1000;
  for (int i = 0; i < 49'999; ++i, base += 0x1000) {
    REQUIRE(space.AllocateFixed({Iova(base), Bytes(0x1000)}).ok());
  }
  REQUIRE(space.AllocateFixed({Iova(base), Bytes(0x1'0000'0000 - base)}).ok());
}

struct Visits {
  uint64_t most = 0;
  uint64_t height = 0;
  uint64_t reclaims = 0;
};

// The most nodes that one map or reservation visits; `cached` through a cache that never hits.
Visits MapAboveFullWindow(unsigned prefer, bool cached) {
  Fixture f;
  f.NewSpace(Preferring(f, prefer));
  LightDomain domain(AddressBits(33));
  auto nic = f.space->Attach({.name = "nic0", .domain = &domain});
  REQUIRE(nic.ok());
  iova::Space& space = f.space->iova_space();
  FillLow(space);
  auto cache = f.space->NewCache("tx0");
  REQUIRE(cache.ok());
  iova::Cache* const own = cached ? cache->get() : nullptr;
  Buffer buffer(4096);
  std::vector<Mapping> maps;
  std::vector<SharedRange> pages;
  Visits visits;
  for (int i = 0; i < 2000; ++i) {
    auto m = (*nic)->Map(buffer.all(), Direction::kToDevice, {.cache = own});
    REQUIRE(m.ok());
    visits.most = std::max(visits.most, space.stats().visits_last);
    maps.push_back(*std::move(m));
    auto page = f.space->Reserve(Bytes(4096), Bytes(0), "pool", own);
    REQUIRE(page.ok());
    visits.most = std::max(visits.most, space.stats().visits_last);
    pages.push_back(*std::move(page));
    REQUIRE(maps.back().iova().value() >> 32 == 1);
  }
  const iova::Space::Stats stats = space.stats();
  CHECK(stats.preferred_misses == (prefer == 32 ? 4000 : 0));
  CHECK(stats.live_ranges >= 54'000);
  visits.height = stats.tree_height;
  visits.reclaims = stats.reclaims;
  maps.clear();
  pages.clear();
  cache->reset();
  return visits;
}

TEST_CASE(
    "The preference is no tax: low window full, 50,000 live ranges, one bounded search more") {
  for (const bool cached : {false, true}) {
    const Visits plain = MapAboveFullWindow(64, cached);
    const Visits preferring = MapAboveFullWindow(32, cached);
    WARN("visits at most " << plain.most << " plain, " << preferring.most
                           << " with a preference, height " << preferring.height);
    CHECK(preferring.most <= plain.most + 2 * preferring.height - 1);
    CHECK(preferring.reclaims == 0);  // a wish that is not met empties no cache
  }
}

TEST_CASE(
    "The last page, the last 2 MiB and everything in a 64-bit space (exclusive-end overflow)") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain({.width = AddressBits(64)});
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(2 << 20);
  for (const size_t size : {size_t{4096}, size_t{2} << 20}) {
    auto m = nic->Map(buffer.part(0, size), Direction::kToDevice);
    REQUIRE(m.ok());
    CHECK(m->range().last() == Iova::Max());
    auto page = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
    REQUIRE(page.ok());
    CHECK(page->iova() == m->range().base - Bytes(4096));
    REQUIRE(page->Map(buffer.view(0, 4096)).ok());
    REQUIRE(nic->Unmap(*std::move(m)).ok());
    REQUIRE(page->Unmap(Policy::kStrict).ok());
    CHECK(domain.live().empty());
    CHECK(domain.stale().empty());
  }
  auto last = nic->Map(buffer.all(), Direction::kToDevice);
  REQUIRE(last.ok());
  nic.reset();  // unmaps whatever there is
  CHECK(domain.live().empty());
  CHECK(domain.stale().empty());
  CHECK(f.space->iova_space().stats().live_ranges == 0);
}

TEST_CASE(
    "The whole map path out of addresses: nothing is parked, address 0 is never used "
    "(mixed error sentinels)") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain({.width = AddressBits(16)});  // 15 pages
  auto nic = f.Attach("nic0", domain);
  auto cache = f.space->NewCache("tx0");
  REQUIRE(cache.ok());
  Buffer buffer(16 * 4096);
  std::vector<Mapping> held;
  for (int i = 0; i < 15; ++i) {
    auto m = nic->Map(buffer.part(0, 4096), Direction::kToDevice, {.cache = cache->get()});
    REQUIRE(m.ok());
    CHECK(m->iova() != Iova(0));
    held.push_back(*std::move(m));
  }
  const uint64_t frees = f.space->iova_space().stats().frees;
  const std::span<std::byte> list[] = {buffer.part(0, 10), buffer.part(8192, 10)};
  for (int i = 0; i < 3; ++i) {
    CHECK(absl::IsResourceExhausted(
        nic->Map(buffer.part(0, 4096), Direction::kToDevice, {.cache = cache->get()}).status()));
    CHECK(absl::IsResourceExhausted(
        nic->MapSg(list, Direction::kToDevice, {.cache = cache->get()}).status()));
    CHECK(absl::IsResourceExhausted(nic->AllocateCoherent({.size = Bytes(64)}).status()));
    CHECK(absl::IsResourceExhausted(
        f.space->Reserve(Bytes(4096), Bytes(0), "pool", cache->get()).status()));
  }
  CHECK((*cache)->stats().parked == 0);
  CHECK(f.space->iova_space().stats().frees == frees);
  CHECK(f.space->iova_space().stats().rejected_frees == 0);
  CHECK(f.space->iova_space().stats().rejected_drains == 0);
  CHECK(domain.live().size() == 15);
  CHECK(f.memory.blocks() == 0);
  held.clear();
  cache->reset();
  CHECK(f.space->iova_space().stats().live_ranges == 0);
}

}  // namespace
}  // namespace dmakit::dma
