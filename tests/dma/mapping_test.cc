// SPDX-License-Identifier: Apache-2.0
//
// Single streaming mappings: what is mapped, what is refused, and every way one can end.
#include "dma/mapping.h"

#include <algorithm>
#include <limits>

#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::Fixture;
using testing::Has;

struct One : Fixture {
  FakeDomain* domain;
  std::unique_ptr<Device> nic;
  Buffer buffer{64 * 4096};

  explicit One(DomainFacts facts = {}, Policy policy = Policy::kStrict) {
    AddressSpace::Options options = Options();
    options.policy = policy;
    NewSpace(std::move(options));
    domain = &NewDomain(std::move(facts));
    nic = Attach("nic0", *domain);
  }
  uint64_t live_ranges() { return space->iova_space().stats().live_ranges; }
  size_t Unmaps() {
    const std::vector<std::string> log = domain->log();
    return std::count_if(log.begin(), log.end(),
                         [](const std::string& s) { return s.rfind("unmap", 0) == 0; });
  }
};

TEST_CASE("Whole granules are mapped, the address has the offset, the access the direction") {
  One f;
  struct Case {
    size_t offset, length;
    uint64_t granules;
  };
  for (const Case& c : {Case{0, 1, 1}, Case{0, 4096, 1}, Case{0, 4097, 2}, Case{4095, 1, 1},
                        Case{4095, 2, 2}, Case{100, 8092, 2}, Case{100, 8093, 3}}) {
    auto m = f.nic->Map(f.buffer.part(c.offset, c.length), Direction::kFromDevice);
    REQUIRE(m.ok());
    CHECK(m->range().size == Bytes(c.granules * 4096));
    CHECK(m->iova().value() % 4096 == c.offset);
    CHECK(m->range().Contains(Range{m->iova(), Bytes(c.length)}));
    CHECK(m->bytes().data() == f.buffer.data() + c.offset);
    REQUIRE(f.domain->live().size() == 1);
    CHECK(f.domain->live()[0].memory.cpu == f.buffer.data());
    CHECK(f.domain->live()[0].access == Access::kWrite);
  }
  CHECK(f.domain->live().empty());
  auto read = f.nic->MapToDevice(f.buffer.part(0, 10));
  REQUIRE(read.ok());
  CHECK(f.domain->live()[0].access == Access::kRead);
  auto both = f.nic->Map(f.buffer.part(4096, 10), Direction::kBidirectional);
  REQUIRE(both.ok());
  CHECK(f.nic->stats().live_mappings == 2);
}

TEST_CASE("A coarse granule decides what is mapped") {
  One f({.page_sizes = 65536});
  auto m = f.nic->Map(f.buffer.part(5000, 100), Direction::kToDevice);
  REQUIRE(m.ok());
  CHECK(m->range().size.value() % 65536 == 0);
  CHECK(m->iova().value() % 65536 == reinterpret_cast<uintptr_t>(m->bytes().data()) % 65536);
}

TEST_CASE("Spans without bytes and spans beyond the address space are refused by name") {
  One f;
  std::byte* const base = f.buffer.data();
  const auto address = reinterpret_cast<uintptr_t>(base);
  const size_t max = std::numeric_limits<size_t>::max();
  CHECK(absl::IsInvalidArgument(f.nic->Map({}, Direction::kToDevice).status()));
  CHECK(absl::IsInvalidArgument(f.nic->Map({base, 0}, Direction::kToDevice).status()));
  for (size_t length :
       {max, max - 1, max - 4095, max - address, max - address - 1, max - address - 4094}) {
    const absl::Status s =
        f.nic->Map({base, length}, Direction::kToDevice, {.owner = "tx0"}).status();
    CHECK(absl::IsInvalidArgument(s));
    CHECK(Has(s, "nic0"));
    CHECK(Has(s, "tx0"));
  }
  CHECK(f.domain->stats().maps == 0);
  CHECK(f.live_ranges() == 0);
  CHECK(f.nic->stats().map_failures == 8);
}

// The driver's own loop over header and fragments, with the k-th mapping failing.
TEST_CASE("Map failure at fragment k of header + 17: unwinding unmaps each slot once") {
  for (uint64_t k = 1; k <= 18; ++k) {
    One f;
    auto before = f.nic->Map(f.buffer.part(0, 64), Direction::kToDevice);
    REQUIRE(before.ok());
    f.faults.map.FailAt(k);
    std::vector<Mapping> slots;
    absl::Status status;
    for (size_t i = 0; i < 18; ++i) {
      auto m = f.nic->MapToDevice(f.buffer.part(4096 * (i + 1) + i, 1500), {.owner = "tx0"});
      if (!m.ok()) {
        status = m.status();
        break;
      }
      slots.push_back(*std::move(m));
    }
    CHECK(absl::IsResourceExhausted(status));
    CHECK(Has(status, "tx0"));
    CHECK(slots.size() == k - 1);
    for (Mapping& m : slots) {
      auto ticket = f.nic->Unmap(std::move(m));
      REQUIRE(ticket.ok());
      CHECK(ticket->done());
    }
    slots.clear();
    CHECK(f.Unmaps() == k - 1);
    CHECK(f.domain->live().size() == 1);
    CHECK(f.live_ranges() == 1);
    CHECK(f.nic->stats().live_mappings == 1);
    CHECK(f.domain->stale().empty());
  }
}

TEST_CASE("Strict: one unmap and one invalidation before the call returns") {
  One f;
  auto m = f.nic->Map(f.buffer.part(0, 9000), Direction::kToDevice);
  REQUIRE(m.ok());
  auto ticket = f.nic->Unmap(*std::move(m));
  REQUIRE(ticket.ok());
  CHECK(ticket->done());
  CHECK(f.domain->stats().unmaps == 1);
  CHECK(f.domain->stats().invalidations == 1);
  CHECK(f.domain->stale().empty());
}

TEST_CASE("Where an unmap implies the invalidation none is asked for") {
  One f({.unmap_invalidates = true});
  REQUIRE(f.nic->Unmap(*f.nic->Map(f.buffer.part(0, 9000), Direction::kToDevice)).ok());
  CHECK(f.domain->stats().unmaps == 1);
  CHECK(f.domain->stats().invalidations == 0);
}

TEST_CASE("Short unmap: an error that says so, and nothing is reused before the reset") {
  One f;
  auto m = f.nic->Map(f.buffer.part(0, 8192), Direction::kFromDevice, {.owner = "rx7"});
  REQUIRE(m.ok());
  const Range range = m->range();
  f.faults.short_unmap.FailAt(1);
  const absl::Status status = f.nic->Unmap(*std::move(m)).status();
  CHECK_FALSE(status.ok());
  CHECK(Has(status, "4096 of 8192"));
  CHECK(Has(status, "rx7"));
  CHECK(Has(status, "quarantine"));
  CHECK(f.space->quarantine().count() == 1);
  CHECK(f.space->stats().quarantined == 1);
  CHECK(f.live_ranges() == 1);
  CHECK(f.space->iova_space().FindLive(range.base).has_value());
  CHECK(f.nic->stats().live_mappings == 0);

  f.faults.unmap.FailAt(1);  // the reset did not help yet
  CHECK_FALSE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(f.space->quarantine().count() == 1);
  CHECK(f.live_ranges() == 1);
  REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(f.domain->live().empty());
  CHECK(f.domain->stale().empty());
  CHECK(f.live_ranges() == 0);
}

TEST_CASE(
    "Failed unmap and failed invalidation are quarantined, from Unmap and from a destructor") {
  for (const bool destructor : {false, true}) {
    for (const int what : {0, 1, 2}) {
      One f;
      host::FailPoint& fault = what == 0   ? f.faults.unmap
                               : what == 1 ? f.faults.invalidate
                                           : f.faults.short_unmap;
      {
        auto m = f.nic->Map(f.buffer.part(0, 4096), Direction::kFromDevice);
        REQUIRE(m.ok());
        fault.FailAt(1);
        if (!destructor) CHECK_FALSE(f.nic->Unmap(*std::move(m)).ok());
      }
      CHECK(f.space->quarantine().count() == 1);
      CHECK(f.live_ranges() == 1);
      REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
      CHECK(f.live_ranges() == 0);
      CHECK(f.domain->live().empty());
      CHECK(f.domain->stale().empty());
    }
  }
}

TEST_CASE("A handle ends once: moved from, unmapped, foreign") {
  One f;
  FakeDomain& other_domain = f.NewDomain();
  auto other = f.Attach("nic1", other_domain);
  auto m = f.nic->Map(f.buffer.part(0, 100), Direction::kToDevice);
  REQUIRE(m.ok());
  Mapping moved = *std::move(m);
  CHECK(m->empty());
  CHECK(m->bytes().empty());
  CHECK(absl::IsFailedPrecondition(f.nic->Unmap(*std::move(m)).status()));
  CHECK(absl::IsInvalidArgument(other->Unmap(std::move(moved)).status()));
  CHECK_FALSE(moved.empty());  // still mapped, still owned
  CHECK(f.domain->live().size() == 1);
  REQUIRE(f.nic->Unmap(std::move(moved)).ok());
  CHECK(moved.empty());
  CHECK(absl::IsFailedPrecondition(f.nic->Unmap(std::move(moved)).status()));
  CHECK(f.Unmaps() == 1);
  Mapping a = *f.nic->Map(f.buffer.part(0, 100), Direction::kToDevice);
  Mapping b = *f.nic->Map(f.buffer.part(4096, 100), Direction::kToDevice);
  a = std::move(b);  // what `a` had is unmapped
  CHECK(f.domain->live().size() == 1);
}

TEST_CASE("Exhaustion: an error, nothing mapped, address 0 never handed out, then it works again") {
  One f({.width = AddressBits(16)});  // 16 pages, of which page 0 is never used
  std::vector<Mapping> held;
  for (int i = 0; i < 15; ++i) {
    auto m = f.nic->Map(f.buffer.part(4096 * i, 4096), Direction::kToDevice);
    REQUIRE(m.ok());
    CHECK(m->iova().value() != 0);
    held.push_back(*std::move(m));
  }
  const absl::Status s =
      f.nic->Map(f.buffer.part(0, 4096), Direction::kToDevice, {.owner = "tx0"}).status();
  CHECK(absl::IsResourceExhausted(s));
  CHECK(Has(s, "tx0"));
  CHECK(Has(s, "4096"));
  CHECK(f.domain->live().size() == 15);
  held.pop_back();
  CHECK(f.nic->Map(f.buffer.part(0, 4096), Direction::kToDevice).ok());
}

TEST_CASE("A range that ends at the last address of a 64-bit space") {
  One f({.width = AddressBits(64)});
  auto m = f.nic->Map(f.buffer.part(0, 4096), Direction::kToDevice);
  REQUIRE(m.ok());
  CHECK(m->range().last() == Iova::Max());
  REQUIRE(f.nic->Unmap(*std::move(m)).ok());
  CHECK(f.domain->live().empty());
}

TEST_CASE("Streaming mappings lie below their own device's mask only") {
  Fixture f;
  f.NewSpace();
  FakeDomain& d0 = f.NewDomain();
  FakeDomain& d1 = f.NewDomain();
  auto wide = f.Attach("wide", d0);
  auto narrow =
      f.space->Attach({.name = "narrow", .domain = &d1, .mask = AddressBits(32).ToMask()});
  REQUIRE(narrow.ok());
  Buffer buffer(4096);
  auto a = wide->Map(buffer.all(), Direction::kToDevice);
  auto b = (*narrow)->Map(buffer.all(), Direction::kToDevice);
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  CHECK(a->range().last().value() > 0xffffffffu);
  CHECK(b->range().last().value() <= 0xffffffffu);
}

TEST_CASE("An IOVA cache serves its owner, and is passed by where its ceiling is too high") {
  One f;
  auto cache = f.space->NewCache("tx0");
  REQUIRE(cache.ok());
  auto m = f.nic->Map(f.buffer.part(0, 4096), Direction::kToDevice, {.cache = cache->get()});
  REQUIRE(m.ok());
  const Iova first = m->iova();
  REQUIRE(f.nic->Unmap(*std::move(m), {.cache = cache->get()}).ok());
  CHECK((*cache)->stats().parked == 1);
  m = f.nic->Map(f.buffer.part(0, 4096), Direction::kToDevice, {.cache = cache->get()});
  REQUIRE(m.ok());
  CHECK(m->iova() == first);
  CHECK((*cache)->stats().hits == 1);

  FakeDomain& low = f.NewDomain();
  auto narrow =
      f.space->Attach({.name = "narrow", .domain = &low, .mask = AddressBits(32).ToMask()});
  REQUIRE(narrow.ok());
  auto below =
      (*narrow)->Map(f.buffer.part(0, 4096), Direction::kToDevice, {.cache = cache->get()});
  REQUIRE(below.ok());
  CHECK(below->range().last().value() <= 0xffffffffu);
  auto range = f.space->Reserve(Bytes(4096), Bytes(0), "pool", cache->get());
  REQUIRE(range.ok());
  CHECK(range->iova().value() <= 0xffffffffu);
  CHECK((*cache)->stats().hits == 1);
  *m = Mapping();
}

TEST_CASE("Sync stays within the mapping and needs a live one") {
  One f;
  auto m = f.nic->Map(f.buffer.part(10, 100), Direction::kFromDevice);
  REQUIRE(m.ok());
  CHECK(m->SyncForCpu(0, 100).ok());
  CHECK(m->SyncForDevice(100, 0).ok());
  CHECK(absl::IsOutOfRange(m->SyncForCpu(0, 101)));
  CHECK(absl::IsOutOfRange(m->SyncForCpu(101, 0)));
  CHECK(absl::IsOutOfRange(m->SyncForDevice(1, std::numeric_limits<size_t>::max())));
  Mapping moved = *std::move(m);
  CHECK_FALSE(m->SyncForCpu(0, 0).ok());
  f.nic.reset();
  CHECK(absl::IsFailedPrecondition(moved.SyncForCpu(0, 1)));
}

}  // namespace
}  // namespace dmakit::dma
