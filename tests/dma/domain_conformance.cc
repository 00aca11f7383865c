// SPDX-License-Identifier: Apache-2.0
//
// The clauses of dma/domain.h, one section each.
#include "tests/dma/domain_conformance.h"

#include <cstddef>
#include <string>
#include <thread>
#include <utility>

#include "tests/catch.h"

namespace dmakit::dma::testing {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPages = 16;

// Never read: a domain only notes where memory is.
alignas(kPage) std::byte arena[kPages * kPage];

MemoryView Pages(size_t count, size_t from = 0) {
  return MemoryView::Of(std::span(arena)).Sub(from * kPage, count * kPage);
}
Range At(uint64_t page, uint64_t count) { return {Iova(page * kPage), Bytes(count * kPage)}; }

absl::StatusCode CodeOfMap(Domain& domain, Range range, MemoryView memory) {
  return domain.Map(range, memory, Access::kReadWrite).code();
}
absl::StatusCode CodeOfMap(Domain& domain, Range range) {
  return CodeOfMap(domain, range, Pages(range.size.value() / kPage));
}

// Unmaps and returns how much went away; -1 on an error.
int64_t Unmapped(Domain& domain, Range range) {
  const absl::StatusOr<Bytes> removed = domain.Unmap(range);
  return removed.ok() ? static_cast<int64_t>(removed->value()) : -1;
}

struct Snapshot {
  explicit Snapshot(const Domain& domain)
      : live(domain.stats().live_mappings), bytes(domain.stats().mapped_bytes) {}
  uint64_t live, bytes;
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

// The domain of most clauses.
std::unique_ptr<Domain> Plain(const DomainFactory& make) {
  std::unique_ptr<Domain> domain = make({});
  REQUIRE(domain != nullptr);
  return domain;
}

// Whether the wish was granted; else the clause ends, and says so.
bool Granted(const std::unique_ptr<Domain>& domain, const char* wish) {
  if (domain == nullptr) WARN("skipped, this domain cannot have " << wish);
  return domain != nullptr;
}

// With no wish at all: whatever there is fits together.
void CheckOwnFacts(const DomainFactory& make) {
  const auto domain = Plain(make);
  const DomainFacts& facts = domain->facts();
  CHECK_FALSE(domain->name().empty());
  CHECK(facts.granule() == Bytes(kPage));
  CHECK(facts.width >= AddressBits(32));
  REQUIRE_FALSE(facts.apertures.empty());
  for (size_t i = 0; i < facts.apertures.size(); ++i) {
    CHECK(facts.apertures[i].valid());
    CHECK(facts.apertures[i].last <= facts.width.ToMask().highest());
    if (i > 0) CHECK(facts.apertures[i - 1].last < facts.apertures[i].first);
  }
  for (const Interval& hole : facts.reserved) CHECK(hole.valid());
  CHECK(Snapshot(*domain).live == 0);
}

void CheckFacts(const DomainFactory& make) {
  const auto domain =
      make({.width = AddressBits(39), .reserved = {{Iova(0xfee00000), Iova(0xfeefffff)}}});
  if (!Granted(domain, "39 bits with an interrupt window")) return;
  const DomainFacts& facts = domain->facts();
  CHECK_FALSE(domain->name().empty());
  CHECK(facts.width == AddressBits(39));
  CHECK(facts.granule() == Bytes(kPage));
  REQUIRE_FALSE(facts.apertures.empty());
  for (size_t i = 0; i < facts.apertures.size(); ++i) {
    CHECK(facts.apertures[i].valid());
    CHECK(facts.apertures[i].last.value() < uint64_t{1} << 39);
    if (i > 0) CHECK(facts.apertures[i - 1].last < facts.apertures[i].first);
  }
  REQUIRE(facts.reserved.size() == 1);
  CHECK(facts.reserved[0] == Interval{Iova(0xfee00000), Iova(0xfeefffff)});
}

void CheckCounts(const DomainFactory& make) {
  const auto domain = Plain(make);
  REQUIRE(CodeOfMap(*domain, At(16, 3)) == absl::StatusCode::kOk);
  REQUIRE(CodeOfMap(*domain, At(32, 1)) == absl::StatusCode::kOk);
  CHECK(domain->stats().maps == 2);
  CHECK(domain->stats().live_mappings == 2);
  CHECK(domain->stats().mapped_bytes == 4 * kPage);

  CHECK(Unmapped(*domain, At(16, 3)) == 3 * kPage);
  CHECK(domain->stats().unmaps == 1);
  CHECK(domain->stats().live_mappings == 1);
  CHECK(domain->stats().mapped_bytes == kPage);

  const uint64_t before = domain->stats().invalidations;
  CHECK(domain->Invalidate(At(16, 3)).ok());
  CHECK(domain->stats().invalidations == before + 1);
  CHECK(domain->InvalidateAll().ok());
  CHECK(domain->stats().invalidations == before + 2);
  CHECK(domain->stats().maps == 2);
  CHECK(Unmapped(*domain, At(32, 1)) == kPage);
  CHECK(domain->InvalidateAll().ok());
}

void CheckBadShapes(const DomainFactory& make) {
  const auto domain = Plain(make);
  const auto bad = absl::StatusCode::kInvalidArgument;
  CHECK(CodeOfMap(*domain, At(16, 0), Pages(0)) == bad);
  CHECK(CodeOfMap(*domain, {Iova(kPage + 1), Bytes(kPage)}, Pages(1)) == bad);
  CHECK(CodeOfMap(*domain, {Iova(kPage + 2048), Bytes(kPage)}, Pages(1)) == bad);
  for (const uint64_t size : {uint64_t{1}, uint64_t{kPage - 1}, uint64_t{kPage + 1}}) {
    CHECK(CodeOfMap(*domain, {Iova(kPage), Bytes(size)}, {arena, arena, size}) == bad);
  }
  CHECK(CodeOfMap(*domain, At(16, 2), Pages(1)) == bad);
  CHECK(CodeOfMap(*domain, At(16, 1), Pages(2)) == bad);
  CHECK(CodeOfMap(*domain, At(16, 1), {arena + 64, arena + 64, kPage}) == bad);
  // The sum of base and size is 2^64 + 4096.
  const Range wraps{Iova(~uint64_t{0} - kPage + 1), Bytes(2 * kPage)};
  CHECK(CodeOfMap(*domain, wraps, Pages(2)) == bad);
  CHECK(domain->stats().maps == 0);
  CHECK(Snapshot(*domain).live == 0);
  CHECK(Snapshot(*domain).bytes == 0);
}

void CheckOverlaps(const DomainFactory& make) {
  const auto domain = Plain(make);
  REQUIRE(CodeOfMap(*domain, At(100, 4)) == absl::StatusCode::kOk);
  const Snapshot before(*domain);
  for (uint64_t first = 96; first <= 104; ++first) {
    for (uint64_t count = 1; count <= 12; ++count) {
      if (!At(first, count).Overlaps(At(100, 4))) continue;
      INFO("pages " << first << " + " << count);
      CHECK(CodeOfMap(*domain, At(first, count)) == absl::StatusCode::kAlreadyExists);
    }
  }
  CHECK(Snapshot(*domain) == before);
  CHECK(CodeOfMap(*domain, At(99, 1)) == absl::StatusCode::kOk);
  CHECK(CodeOfMap(*domain, At(104, 1)) == absl::StatusCode::kOk);
  CHECK(Unmapped(*domain, At(99, 6)) == 6 * kPage);
  CHECK(domain->InvalidateAll().ok());
}

void CheckWidth(const DomainFactory& make) {
  for (const unsigned bits : {32u, 36u, 39u, 48u}) {
    INFO(bits << " bits");
    const auto domain = make({.width = AddressBits(bits)});
    if (!Granted(domain, "a width of its choice")) continue;
    const uint64_t pages = (uint64_t{1} << bits) / kPage;
    CHECK(CodeOfMap(*domain, At(pages, 1)) == absl::StatusCode::kOutOfRange);
    CHECK(CodeOfMap(*domain, At(pages - 1, 2)) == absl::StatusCode::kOutOfRange);
    CHECK(CodeOfMap(*domain, {Iova(~uint64_t{0} - kPage + 1), Bytes(kPage)}, Pages(1)) ==
          absl::StatusCode::kOutOfRange);
    CHECK(domain->stats().live_mappings == 0);
    REQUIRE(CodeOfMap(*domain, At(pages - 1, 1)) == absl::StatusCode::kOk);
    CHECK(CodeOfMap(*domain, At(pages - 1, 1)) == absl::StatusCode::kAlreadyExists);
    CHECK(Unmapped(*domain, At(pages - 1, 1)) == kPage);
    CHECK(domain->Invalidate(At(pages - 1, 1)).ok());
  }
}

void CheckReserved(const DomainFactory& make) {
  const auto domain = make({.reserved = {{Iova(100 * kPage), Iova(104 * kPage - 1)}}});
  if (!Granted(domain, "reserved ranges of its choice")) return;
  for (uint64_t first = 96; first <= 104; ++first) {
    for (uint64_t count = 1; count <= 12; ++count) {
      if (!At(first, count).Overlaps(At(100, 4))) continue;
      INFO("pages " << first << " + " << count);
      CHECK(CodeOfMap(*domain, At(first, count)) == absl::StatusCode::kOutOfRange);
    }
  }
  CHECK(domain->stats().live_mappings == 0);
  CHECK(CodeOfMap(*domain, At(98, 2)) == absl::StatusCode::kOk);
  CHECK(CodeOfMap(*domain, At(104, 2)) == absl::StatusCode::kOk);
  CHECK(Unmapped(*domain, At(98, 2)) == 2 * kPage);
  CHECK(Unmapped(*domain, At(104, 2)) == 2 * kPage);
  CHECK(domain->InvalidateAll().ok());
}

void CheckBudget(const DomainFactory& make) {
  const auto domain = make({.max_mappings = 8});
  if (!Granted(domain, "a budget of 8 mappings")) return;
  CHECK(domain->facts().max_mappings == 8);
  for (uint64_t i = 0; i < 8; ++i)
    REQUIRE(CodeOfMap(*domain, At(16 + i, 1)) == absl::StatusCode::kOk);
  const absl::Status status = domain->Map(At(64, 1), Pages(1), Access::kRead);
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(status.message()).find('8') != std::string::npos);  // names the limit
  CHECK(domain->stats().live_mappings == 8);
  CHECK(Unmapped(*domain, At(20, 1)) == kPage);
  CHECK(domain->InvalidateAll().ok());
  CHECK(CodeOfMap(*domain, At(64, 8)) == absl::StatusCode::kOk);  // one mapping, however large
  CHECK(Unmapped(*domain, At(0, 128)) == 15 * kPage);
  CHECK(domain->InvalidateAll().ok());
}

void CheckUnmap(const DomainFactory& make) {
  const auto domain = Plain(make);
  const auto map_three = [&] {
    REQUIRE(CodeOfMap(*domain, At(16, 2)) == absl::StatusCode::kOk);
    REQUIRE(CodeOfMap(*domain, At(18, 1)) == absl::StatusCode::kOk);
    REQUIRE(CodeOfMap(*domain, At(24, 4)) == absl::StatusCode::kOk);
  };
  map_three();
  CHECK(Unmapped(*domain, At(16, 12)) == 7 * kPage);
  CHECK(domain->stats().live_mappings == 0);
  CHECK(Unmapped(*domain, At(16, 12)) == 0);  // twice: nothing is there to remove
  CHECK(domain->InvalidateAll().ok());

  map_three();
  CHECK(Unmapped(*domain, At(19, 5)) == 0);
  CHECK(Unmapped(*domain, At(18, 6)) == kPage);
  CHECK(domain->stats().live_mappings == 2);
  // All there is, up to the last address of 64 bits.
  CHECK(Unmapped(*domain, {Iova(kPage), Bytes(~uint64_t{0} - kPage + 1)}) == 6 * kPage);
  CHECK(domain->stats().live_mappings == 0);
  CHECK(domain->stats().mapped_bytes == 0);
  CHECK(domain->InvalidateAll().ok());

  const auto bad = absl::StatusCode::kInvalidArgument;
  CHECK(domain->Unmap({Iova(~uint64_t{0} - kPage + 1), Bytes(2 * kPage)}).status().code() == bad);
}

void CheckCuts(const DomainFactory& make) {
  const auto domain = Plain(make);
  REQUIRE(CodeOfMap(*domain, At(16, 2)) == absl::StatusCode::kOk);
  REQUIRE(CodeOfMap(*domain, At(20, 4)) == absl::StatusCode::kOk);
  if (!domain->facts().splittable) {
    const Snapshot before(*domain);
    for (const Range cut :
         {At(20, 1), At(23, 1), At(21, 2), At(16, 5), At(16, 7), At(17, 7), At(8, 13)}) {
      INFO(ToString(cut));
      CHECK(domain->Unmap(cut).status().code() == absl::StatusCode::kInvalidArgument);
      CHECK(Snapshot(*domain) == before);
    }
    CHECK(Unmapped(*domain, At(16, 8)) == 6 * kPage);
  } else {
    CHECK(Unmapped(*domain, At(21, 2)) == 2 * kPage);
    CHECK(domain->stats().mapped_bytes == 4 * kPage);
    CHECK(CodeOfMap(*domain, At(21, 2)) == absl::StatusCode::kOk);
    CHECK(Unmapped(*domain, At(16, 8)) == 6 * kPage);
  }
  CHECK(domain->stats().live_mappings == 0);
  CHECK(domain->InvalidateAll().ok());
}

void CheckInvalidate(const DomainFactory& make) {
  const auto domain = Plain(make);
  REQUIRE(CodeOfMap(*domain, At(16, 4)) == absl::StatusCode::kOk);
  // Ranges that fit no page, reach past the width, or cover nothing that was ever mapped.
  for (const Range range : {Range{Iova(1), Bytes(1)}, Range{Iova(16 * kPage + 4095), Bytes(2)},
                            Range{Iova(kPage), Bytes(~uint64_t{0} - kPage + 1)},
                            Range{Iova(~uint64_t{0}), Bytes(1)}, At(500, 3)}) {
    INFO(ToString(range));
    CHECK(domain->Invalidate(range).ok());
  }
  CHECK(domain->stats().live_mappings == 1);  // forgets caches, not mappings
  CHECK(Unmapped(*domain, At(16, 4)) == 4 * kPage);
  CHECK(domain->Invalidate(At(16, 4)).ok());
  CHECK(CodeOfMap(*domain, At(16, 4)) == absl::StatusCode::kOk);
  CHECK(Unmapped(*domain, At(16, 4)) == 4 * kPage);
  CHECK(domain->InvalidateAll().ok());
}

void CheckAccess(const DomainFactory& make) {
  const auto domain = Plain(make);
  for (const Access access : {Access::kNone, Access::kSnoop}) {
    INFO(Name(access));
    const absl::Status status = domain->Map(At(16, 1), Pages(1), access);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(status.message()).find(Name(access)) != std::string::npos);
  }
  CHECK(domain->stats().maps == 0);
  for (const Access access : {Access::kRead, Access::kWrite, Access::kReadWrite}) {
    for (const Access how : {Access::kNone, Access::kSnoop}) {
      INFO(Name(access | how));
      REQUIRE(domain->Map(At(16, 1), Pages(1), access | how).ok());
      CHECK(domain->Map(At(16, 1), Pages(1), access).code() == absl::StatusCode::kAlreadyExists);
      CHECK(Unmapped(*domain, At(16, 1)) == kPage);
      CHECK(domain->InvalidateAll().ok());
    }
  }
}

void CheckSyncs(const DomainFactory& make) {
  const auto domain = Plain(make);
  REQUIRE(CodeOfMap(*domain, At(16, 4)) == absl::StatusCode::kOk);
  const DomainStats before = domain->stats();
  const std::byte first = arena[0];
  for (const Range range :
       {At(16, 4), At(0, 100), At(500, 3), Range{Iova(16 * kPage + 5), Bytes(1)},
        Range{Iova(16 * kPage), Bytes(0)}, Range{Iova(kPage), Bytes(~uint64_t{0} - kPage + 1)}}) {
    INFO(ToString(range));
    domain->SyncForCpu(range);
    domain->SyncForDevice(range);
  }
  CHECK(arena[0] == first);  // no device wrote
  CHECK(domain->stats().live_mappings == 1);
  CHECK(domain->stats().invalidations == before.invalidations);
  CHECK(Unmapped(*domain, At(16, 4)) == 4 * kPage);
  domain->SyncForCpu(At(16, 4));
  CHECK(domain->InvalidateAll().ok());
}

void CheckThreads(const DomainFactory& make) {
  const auto domain = Plain(make);
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kRounds = 200;
  std::vector<uint64_t> failures(kThreads, 0);
  {
    std::vector<std::jthread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < kRounds; ++i) {
          const Range range = At((t + 1) * 1024 + i % 7 * 16, 1 + i % 5);
          const bool ok = CodeOfMap(*domain, range) == absl::StatusCode::kOk &&
                          (domain->SyncForDevice(range), domain->SyncForCpu(range), true) &&
                          Unmapped(*domain, range) == static_cast<int64_t>(range.size.value()) &&
                          domain->Invalidate(range).ok();
          failures[t] += ok ? 0 : 1;
        }
      });
    }
  }
  for (const uint64_t count : failures) CHECK(count == 0);
  CHECK(domain->stats().maps == kThreads * kRounds);
  CHECK(domain->stats().unmaps == kThreads * kRounds);
  CHECK(domain->stats().live_mappings == 0);
  CHECK(domain->stats().mapped_bytes == 0);
}

}  // namespace

void CheckDomainConformance(const DomainFactory& make) {
  SECTION("facts fit together") { CheckOwnFacts(make); }
  SECTION("facts are what was asked for and fit together") { CheckFacts(make); }
  SECTION("events and live mappings are counted") { CheckCounts(make); }
  SECTION("a map that is not whole granules changes nothing") { CheckBadShapes(make); }
  SECTION("a map over a live mapping changes nothing") { CheckOverlaps(make); }
  SECTION("the last page of the width is the last") { CheckWidth(make); }
  SECTION("reserved holes cannot be mapped") { CheckReserved(make); }
  SECTION("the budget of mappings holds and is named") { CheckBudget(make); }
  SECTION("unmap says how much went away") { CheckUnmap(make); }
  SECTION("a mapping is not cut unless the domain splits") { CheckCuts(make); }
  SECTION("any range can be invalidated") { CheckInvalidate(make); }
  SECTION("access is read, write or both, snooped or not") { CheckAccess(make); }
  SECTION("any range can be synced, and nothing else happens") { CheckSyncs(make); }
  SECTION("all methods can be called from any thread") { CheckThreads(make); }
}

}  // namespace dmakit::dma::testing
