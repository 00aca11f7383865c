// SPDX-License-Identifier: Apache-2.0
//
// Scatter-gather: the segments lead, through the domain, to exactly the entries' bytes, within the
// device's limits, and a failure anywhere leaves nothing.
#include <algorithm>
#include <random>

#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::Fixture;
using testing::Has;
using List = std::vector<std::span<std::byte>>;

struct Sg : Fixture {
  FakeDomain* domain;
  std::unique_ptr<Device> nic;
  Buffer buffer{64 * 4096};

  explicit Sg(Bytes max_segment = Bytes(1ull << 32), Bytes boundary = Bytes(0),
              DomainFacts facts = {}) {
    NewSpace();
    domain = &NewDomain(std::move(facts));
    auto made = space->Attach({.name = "nic0",
                               .domain = domain,
                               .max_segment = max_segment,
                               .segment_boundary = boundary});
    REQUIRE(made.ok());
    nic = *std::move(made);
  }
  SgMapping Map(const List& list) {
    auto sg = nic->MapSg(list, Direction::kToDevice, {.owner = "tx0"});
    INFO(sg.status().ToString());
    REQUIRE(sg.ok());
    return *std::move(sg);
  }
  uint64_t live_ranges() { return space->iova_space().stats().live_ranges; }

  // Where the device gets to at `iova`, and how far it can go from there.
  std::span<std::byte> At(Iova iova) {
    for (const FakeDomain::Entry& e : domain->live()) {
      if (!e.range.Contains(iova)) continue;
      const uint64_t offset = (iova - e.range.base).value();
      return {e.memory.cpu + offset, e.memory.size - offset};
    }
    return {};
  }
  // Whether the segments, byte by byte, are the entries.
  bool Leads(const SgMapping& sg, const List& list) {
    size_t entry = 0, done = 0;
    for (const SgSegment& s : sg.segments()) {
      if (!sg.range().Contains(Range{s.iova, s.length})) return false;
      Iova at = s.iova;
      for (uint64_t left = s.length.value(); left != 0;) {
        if (entry == list.size()) return false;
        const std::span<std::byte> there = At(at);
        const uint64_t n = std::min<uint64_t>({left, there.size(), list[entry].size() - done});
        if (n == 0 || there.data() != list[entry].data() + done) return false;
        at += Bytes(n);
        left -= n;
        done += n;
        if (done == list[entry].size()) ++entry, done = 0;
      }
    }
    return entry == list.size();
  }
};

TEST_CASE("Eight neighbours merge to one segment and one map, and are unmapped whole") {
  Sg f;
  List list;
  for (int i = 0; i < 8; ++i) list.push_back(f.buffer.part(4096 * i + 100, 4096));
  SgMapping sg = f.Map(list);
  CHECK(sg.segments().size() == 1);
  CHECK(sg.entries().size() == 8);
  CHECK(sg.range().size == Bytes(9 * 4096));
  CHECK(f.domain->stats().maps == 1);
  CHECK(f.Leads(sg, list));
  REQUIRE(f.nic->Unmap(std::move(sg)).ok());
  CHECK(sg.empty());
  CHECK(sg.segments().empty());
  CHECK(f.domain->live().empty());
  CHECK(f.domain->stats().unmaps == 1);
  CHECK(f.live_ranges() == 0);
}

TEST_CASE("Buffers that meet at granule boundaries merge wherever they lie in memory") {
  Sg f;
  const List list{f.buffer.part(10 * 4096 + 96, 4000), f.buffer.part(2 * 4096, 8192),
                  f.buffer.part(40 * 4096, 100)};
  SgMapping sg = f.Map(list);
  CHECK(sg.segments().size() == 1);
  CHECK(sg.segments()[0].length == Bytes(4000 + 8192 + 100));
  CHECK(f.domain->stats().maps == 3);
  CHECK(f.Leads(sg, list));
}

TEST_CASE("Entries that do not line up, and entries in one granule, get granules of their own") {
  Sg f;
  const List list{f.buffer.part(0, 100), f.buffer.part(200, 100), f.buffer.part(100, 100),
                  f.buffer.part(4096 + 8, 64), f.buffer.part(300, 20)};
  SgMapping sg = f.Map(list);
  CHECK(sg.segments().size() == 5);
  CHECK(sg.range().size == Bytes(5 * 4096));
  CHECK(f.Leads(sg, list));
  // In memory, granule 1 follows granule 0: those two entries share a map.
  CHECK(f.domain->stats().maps == 4);
}

TEST_CASE("Touching entries share their granule") {
  Sg f;
  const List list{f.buffer.part(0, 100), f.buffer.part(100, 100), f.buffer.part(200, 8000)};
  SgMapping sg = f.Map(list);
  CHECK(sg.segments().size() == 1);
  CHECK(sg.range().size == Bytes(3 * 4096));
  CHECK(f.domain->stats().maps == 1);
  CHECK(f.Leads(sg, list));
}

TEST_CASE("Neighbours merge only while the whole entry fits; a longer entry is split") {
  Sg f(Bytes(4096));
  const List list{f.buffer.part(0, 3000), f.buffer.part(3000, 1096), f.buffer.part(4096, 3000),
                  f.buffer.part(7096, 9000)};
  SgMapping sg = f.Map(list);
  std::vector<uint64_t> lengths;
  for (const SgSegment& s : sg.segments()) lengths.push_back(s.length.value());
  CHECK(lengths == std::vector<uint64_t>{4096, 3000, 4096, 4096, 808});
  CHECK(f.Leads(sg, list));
}

TEST_CASE("No segment crosses a multiple of the boundary; a list that fits below it is not cut") {
  Sg f(Bytes(1ull << 32), Bytes(16384));
  std::vector<SgMapping> held;
  for (int i = 0; i < 5; ++i) {
    held.push_back(f.Map({f.buffer.part(4096 * i, 3 * 4096)}));
    CHECK(held.back().segments().size() == 1);
  }
  const List list{f.buffer.part(100, 40000)};
  SgMapping sg = f.Map(list);
  CHECK(sg.segments().size() >= 3);
  for (const SgSegment& s : sg.segments()) {
    CHECK(s.iova.value() / 16384 == (s.iova.value() + s.length.value() - 1) / 16384);
  }
  CHECK(f.Leads(sg, list));
}

TEST_CASE("Bad lists are refused by entry, with nothing mapped") {
  Sg f;
  CHECK(absl::IsInvalidArgument(f.nic->MapSg({}, Direction::kToDevice).status()));
  const List empty_entry{f.buffer.part(0, 10), f.buffer.part(10, 0)};
  const absl::Status s = f.nic->MapSg(empty_entry, Direction::kToDevice).status();
  CHECK(absl::IsInvalidArgument(s));
  CHECK(Has(s, "entry 1"));
  const List null_entry{std::span<std::byte>{}};
  CHECK(absl::IsInvalidArgument(f.nic->MapSg(null_entry, Direction::kToDevice).status()));
  // Each entry fits into the address space, together they do not.
  const size_t huge = (~uint64_t{0} >> 1) - reinterpret_cast<uintptr_t>(f.buffer.data());
  const List sum(5, std::span<std::byte>{f.buffer.data() + 1, huge});
  CHECK(absl::IsInvalidArgument(f.nic->MapSg(sum, Direction::kToDevice).status()));
  CHECK(f.domain->stats().maps == 0);
  CHECK(f.live_ranges() == 0);
}

// An error must never look like a length, and earlier segments must not keep their mapping.
TEST_CASE("Failure at map k of header + 17 fragments leaves nothing, for all k") {
  Sg f;
  List list;
  list.push_back(f.buffer.part(54, 66));
  for (int i = 0; i < 17; ++i) list.push_back(f.buffer.part(4096 * (2 * i + 2) + 8 * i, 1500));
  SgMapping before = f.Map({f.buffer.part(0, 64)});
  for (uint64_t k = 1; k <= 18; ++k) {
    const uint64_t unmaps = f.domain->stats().unmaps;
    f.faults.map.FailAt(k);
    auto sg = f.nic->MapSg(list, Direction::kToDevice, {.owner = "tx0"});
    REQUIRE(f.faults.map.triggered());
    CHECK(absl::IsResourceExhausted(sg.status()));
    CHECK(Has(sg.status(), "tx0"));
    CHECK(f.domain->live().size() == 1);
    CHECK(f.domain->stale().empty());
    CHECK(f.live_ranges() == 1);
    CHECK(f.domain->stats().unmaps - unmaps == (k == 1 ? 0 : 1));
    CHECK(f.space->quarantine().count() == 0);
  }
  f.faults.map.FailAt(0);
  SgMapping sg = f.Map(list);
  CHECK(f.Leads(sg, list));
}

TEST_CASE("A failed map whose undoing fails too is held, not reused") {
  for (const bool short_unmap : {false, true}) {
    Sg f;
    const List list{f.buffer.part(0, 10), f.buffer.part(8192, 10)};
    f.faults.map.FailAt(2);
    (short_unmap ? f.faults.short_unmap : f.faults.unmap).FailAt(1);
    const absl::Status s = f.nic->MapSg(list, Direction::kToDevice).status();
    CHECK(absl::IsResourceExhausted(s));
    CHECK(Has(s, "quarantine"));
    CHECK(f.live_ranges() == 1);
    REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
    CHECK(f.live_ranges() == 0);
    CHECK(f.domain->live().empty());
  }
}

TEST_CASE("A list that exceeds the domain's budget fails and leaves it as it was") {
  Sg f(Bytes(1ull << 32), Bytes(0), {.max_mappings = 8});
  List list;
  for (int i = 0; i < 9; ++i) list.push_back(f.buffer.part(8192 * i, 10));
  CHECK(absl::IsResourceExhausted(f.nic->MapSg(list, Direction::kToDevice).status()));
  CHECK(f.domain->live().empty());
  List adjacent;  // one run of memory: one mapping, however many entries
  for (int i = 0; i < 30; ++i) adjacent.push_back(f.buffer.part(4096 * i, 4096));
  f.Map(adjacent);
  CHECK(f.domain->stats().maps == 8 + 1);
}

TEST_CASE("Random lists under random limits lead to their bytes") {
  std::mt19937 random(7);
  auto pick = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    const Bytes max_segment(pick(0, 1) ? pick(1, 300) * 64 : 1ull << 32);
    const Bytes boundary(pick(0, 1) ? 1ull << pick(10, 17) : 0);
    Sg f(max_segment, boundary);
    for (int n = 0; n < 10; ++n) {
      List list;
      size_t next = 0;
      for (uint32_t i = pick(1, 20); i != 0; --i) {
        size_t start = pick(0, 2) == 0 ? next : pick(0, 50 * 4096);
        if (pick(0, 2) == 0) start &= ~size_t{4095};
        const size_t length = pick(0, 1) ? pick(1, 9000) : 4096 * pick(1, 3);
        list.push_back(f.buffer.part(start, length));
        next = start + length;
        if (next > 50 * 4096) next = 0;
      }
      SgMapping sg = f.Map(list);
      CHECK(f.Leads(sg, list));
      for (const SgSegment& s : sg.segments()) {
        CHECK(s.length.value() != 0);
        CHECK(s.length <= max_segment);
        if (boundary.value() == 0) continue;
        CHECK(s.iova.value() / boundary.value() ==
              (s.iova.value() + s.length.value() - 1) / boundary.value());
      }
    }
    CHECK(f.domain->live().empty());
    CHECK(f.domain->stale_reuses() == 0);
    CHECK(f.live_ranges() == 0);
  }
}

}  // namespace
}  // namespace dmakit::dma
