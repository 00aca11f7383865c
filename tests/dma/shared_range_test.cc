// SPDX-License-Identifier: Apache-2.0
//
// SharedRange: one IOVA in all domains or none, under each policy, and what stays out of use when
// an unmap or a flush fails.
#include <algorithm>

#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::Fixture;
using testing::Has;
using State = FlushTicket::State;

// Two devices, each in a domain of its own.
struct Pair : Fixture {
  FakeDomain* d0;
  FakeDomain* d1;
  std::unique_ptr<Device> nic0, nic1;
  Buffer buffer{16 * 4096};

  explicit Pair(Policy policy = Policy::kStrict, DeferredLimits limits = {}) {
    AddressSpace::Options options = Options();
    options.policy = policy;
    options.deferred = limits;
    NewSpace(std::move(options));
    d0 = &NewDomain();
    d1 = &NewDomain();
    nic0 = Attach("nic0", *d0);
    nic1 = Attach("nic1", *d1);
  }
  SharedRange Reserve() {
    auto range = space->Reserve(Bytes(4096), Bytes(0), "pool");
    REQUIRE(range.ok());
    return *std::move(range);
  }
  MemoryView Page(size_t n = 0) { return buffer.view(4096 * n, 4096); }
  uint64_t live_ranges() { return space->iova_space().stats().live_ranges; }
};

TEST_CASE("The IOVA is the handle's for its whole life, the memory comes and goes") {
  Pair f;
  SharedRange range = f.Reserve();
  const Iova iova = range.iova();
  for (size_t i = 0; i < 5; ++i) {
    REQUIRE(range.Map(f.Page(i)).ok());
    CHECK(range.mapped());
    CHECK(f.d0->live()[0].memory.cpu == f.Page(i).cpu);
    REQUIRE(range.Unmap(i % 2 ? Policy::kStrict : Policy::kPersistent).ok());
    CHECK_FALSE(range.mapped());
    CHECK(range.iova() == iova);
    CHECK(f.live_ranges() == 1);
  }
  CHECK(f.d0->stats().invalidations == 5);
  CHECK(f.d1->stats().invalidations == 5);
  CHECK(f.d0->stale_reuses() == 0);
  range = SharedRange();
  CHECK(f.live_ranges() == 0);
}

TEST_CASE("Wrong use is an error and changes nothing") {
  Pair f;
  SharedRange range = f.Reserve();
  CHECK(absl::IsFailedPrecondition(range.Unmap(Policy::kStrict).status()));
  CHECK(absl::IsInvalidArgument(range.Map(f.buffer.view(0, 8192))));
  CHECK(absl::IsInvalidArgument(range.Map({nullptr, nullptr, 4096})));
  REQUIRE(range.Map(f.Page()).ok());
  CHECK(absl::IsFailedPrecondition(range.Map(f.Page(1))));
  CHECK(f.d0->live().size() == 1);
  SharedRange moved = std::move(range);
  CHECK(range.empty());
  CHECK(absl::IsFailedPrecondition(range.Map(f.Page())));
  CHECK(absl::IsFailedPrecondition(range.Unmap(Policy::kStrict).status()));
  CHECK(absl::IsInvalidArgument(f.space->Reserve(Bytes(0), Bytes(0), "pool").status()));
  CHECK(absl::IsInvalidArgument(f.space->Reserve(Bytes(100), Bytes(0), "pool").status()));
  CHECK(absl::IsInvalidArgument(f.space->Reserve(Bytes(4096), Bytes(48000), "pool").status()));
}

TEST_CASE("A map that fails in the k-th domain leaves none") {
  for (uint64_t k = 1; k <= 2; ++k) {
    Pair f;
    SharedRange range = f.Reserve();
    f.faults.map.FailAt(k);
    const absl::Status s = range.Map(f.Page());
    CHECK(absl::IsResourceExhausted(s));
    CHECK(Has(s, "pool"));
    CHECK(Has(s, k == 1 ? "domain0" : "domain1"));
    CHECK_FALSE(range.mapped());
    CHECK_FALSE(range.quarantined());
    CHECK(f.d0->live().empty());
    CHECK(f.d1->live().empty());
    CHECK(f.d0->stale().empty());
    CHECK(range.Map(f.Page()).ok());
  }
}

TEST_CASE("A failed unmap in one domain: the other is unmapped, the range is out of use") {
  for (uint64_t k = 1; k <= 2; ++k) {
    Pair f;
    SharedRange range = f.Reserve();
    REQUIRE(range.Map(f.Page()).ok());
    f.faults.unmap.FailAt(k);
    const absl::Status s = range.Unmap(Policy::kStrict).status();
    CHECK_FALSE(s.ok());
    CHECK(Has(s, "quarantine"));
    CHECK(f.d0->live().size() + f.d1->live().size() == 1);
    CHECK(f.d0->stale().empty());
    CHECK(f.d1->stale().empty());
    CHECK(f.space->quarantine().count() == 1);
    CHECK(range.quarantined());
    CHECK(absl::IsFailedPrecondition(range.Map(f.Page(1))));
    // Only the device whose domain failed has to be reset.
    REQUIRE(f.space->quarantine().ReleaseAfterReset(k == 1 ? "nic1" : "nic0").ok());
    CHECK(f.space->quarantine().count() == 1);
    REQUIRE(f.space->quarantine().ReleaseAfterReset(k == 1 ? "nic0" : "nic1").ok());
    CHECK(f.d0->live().size() + f.d1->live().size() == 0);
    CHECK(f.d0->stale().empty());
    CHECK(f.d1->stale().empty());
    CHECK_FALSE(range.quarantined());
    CHECK(range.Map(f.Page(1)).ok());  // usable again
  }
}

TEST_CASE("A failed invalidation is owed until a release does it") {
  Pair f;
  SharedRange range = f.Reserve();
  REQUIRE(range.Map(f.Page()).ok());
  f.faults.invalidate.FailAt(2);
  CHECK_FALSE(range.Unmap(Policy::kStrict).ok());
  CHECK(f.d1->stale().size() == 1);
  range = SharedRange();
  CHECK(f.live_ranges() == 1);  // handle gone, range still held
  f.faults.invalidate.FailAt(1);
  CHECK_FALSE(f.space->quarantine().ReleaseAfterReset("nic1").ok());
  CHECK(f.live_ranges() == 1);
  REQUIRE(f.space->quarantine().ReleaseAfterReset("nic1").ok());
  CHECK(f.d1->stale().empty());
  CHECK(f.live_ranges() == 0);
}

TEST_CASE("Destroying a mapped range unmaps and invalidates it, or holds it") {
  for (const bool fails : {false, true}) {
    Pair f;
    {
      SharedRange range = f.Reserve();
      REQUIRE(range.Map(f.Page()).ok());
      if (fails) f.faults.unmap.FailAt(1);
    }
    CHECK(f.space->quarantine().count() == (fails ? 1 : 0));
    CHECK(f.live_ranges() == (fails ? 1 : 0));
    CHECK(f.d1->live().empty());
    CHECK(f.d1->stale().empty());
    REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
    CHECK(f.live_ranges() == 0);
  }
}

TEST_CASE("Quarantine keeps memory, IOVA and translation until the reset") {
  Pair f;
  SharedRange range = f.Reserve();
  auto memory = f.memory.Allocate({.size = Bytes(4096), .numa = {}, .label = "page"});
  REQUIRE(memory.ok());
  REQUIRE(range.Map(memory->view()).ok());
  std::move(range).Quarantine(*std::move(memory), "still posted at stop", "nic1");
  CHECK(range.empty());
  CHECK(f.memory.blocks() == 1);
  CHECK(f.d1->live().size() == 1);
  CHECK(f.space->quarantine().Describe()[0].find("still posted") != std::string::npos);
  REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(f.memory.blocks() == 1);
  REQUIRE(f.space->quarantine().ReleaseAfterReset("nic1").ok());
  CHECK(f.memory.blocks() == 0);
  CHECK(f.live_ranges() == 0);
  CHECK(f.d0->live().empty());
  CHECK(f.d0->stale().empty());
}

TEST_CASE("Without a device named, quarantine waits for all that are attached") {
  Pair f;
  SharedRange range = f.Reserve();
  REQUIRE(range.Map(f.Page()).ok());
  std::move(range).Quarantine({}, "lost completion");
  REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(f.live_ranges() == 1);
  REQUIRE(f.space->quarantine().ReleaseAfterReset("nic1").ok());
  CHECK(f.live_ranges() == 0);
}

TEST_CASE("Memory handed over after a failed unmap is kept by the item that is there") {
  Pair f;
  SharedRange range = f.Reserve();
  auto memory = f.memory.Allocate({.size = Bytes(4096), .numa = {}, .label = "page"});
  REQUIRE(memory.ok());
  REQUIRE(range.Map(memory->view()).ok());
  f.faults.short_unmap.FailAt(1);
  REQUIRE_FALSE(range.Unmap(Policy::kStrict).ok());
  std::move(range).Quarantine(*std::move(memory), "unmap failed");
  CHECK(f.space->quarantine().count() == 1);
  CHECK(f.memory.blocks() == 1);
  REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(f.memory.blocks() == 0);
  CHECK(f.live_ranges() == 0);
}

TEST_CASE("Deferred: unmapped at once, usable again when the ticket is done") {
  Pair f(Policy::kDeferred);
  SharedRange range = f.Reserve();
  for (int round = 0; round < 3; ++round) {
    REQUIRE(range.Map(f.Page()).ok());
    auto ticket = range.Unmap(Policy::kDeferred);
    REQUIRE(ticket.ok());
    CHECK(ticket->state() == State::kPending);
    CHECK(f.d0->live().empty());
    CHECK(f.d0->stats().invalidations == static_cast<uint64_t>(round));
    CHECK(absl::IsFailedPrecondition(range.Map(f.Page(1))));
    REQUIRE(f.space->flush_queue()->Flush().ok());
    CHECK(ticket->done());
    CHECK(f.d0->stats().invalidations == static_cast<uint64_t>(round) + 1);
    CHECK(f.d1->stats().invalidations == static_cast<uint64_t>(round) + 1);
  }
  CHECK(f.d0->stale_reuses() == 0);
}

TEST_CASE("Strict policy in a deferred space invalidates at once; deferred in a strict one too") {
  Pair deferred(Policy::kDeferred);
  SharedRange a = deferred.Reserve();
  REQUIRE(a.Map(deferred.Page()).ok());
  CHECK(a.Unmap(Policy::kStrict)->done());
  CHECK(deferred.d0->stale().empty());
  Pair strict;
  SharedRange b = strict.Reserve();
  REQUIRE(b.Map(strict.Page()).ok());
  CHECK(b.Unmap(Policy::kDeferred)->done());
  CHECK(strict.d0->stale().empty());
}

TEST_CASE("A handle destroyed while its flush is pending: the IOVA waits for the flush") {
  Pair f(Policy::kDeferred);
  {
    SharedRange range = f.Reserve();
    REQUIRE(range.Map(f.Page()).ok());
    REQUIRE(range.Unmap(Policy::kDeferred).ok());
  }
  CHECK(f.live_ranges() == 1);
  REQUIRE(f.space->flush_queue()->Flush().ok());
  CHECK(f.live_ranges() == 0);
}

TEST_CASE("A failed flush: tickets say quarantined, range and memory are held until the reset") {
  for (const bool handle_lives : {true, false}) {
    Pair f(Policy::kDeferred);
    SharedRange range = f.Reserve();
    REQUIRE(range.Map(f.Page()).ok());
    auto ticket = range.Unmap(Policy::kDeferred);
    REQUIRE(ticket.ok());
    if (!handle_lives) range = SharedRange();
    f.faults.invalidate.FailAt(1);
    CHECK_FALSE(f.space->flush_queue()->Flush().ok());
    CHECK(ticket->state() == State::kQuarantined);
    CHECK(f.space->quarantine().count() == 1);
    CHECK(f.live_ranges() == 1);
    if (handle_lives) CHECK(absl::IsFailedPrecondition(range.Map(f.Page())));
    REQUIRE(f.space->quarantine().ReleaseAfterReset("").ok());
    CHECK(f.d0->stale().empty());
    CHECK(f.d1->stale().empty());
    if (handle_lives) {
      CHECK(range.Map(f.Page()).ok());
    } else {
      CHECK(f.live_ranges() == 0);
    }
  }
}

TEST_CASE("Quarantined while its flush is pending: the flush does not let it go") {
  Pair f(Policy::kDeferred);
  SharedRange range = f.Reserve();
  auto memory = f.memory.Allocate({.size = Bytes(4096), .numa = {}, .label = "page"});
  REQUIRE(memory.ok());
  REQUIRE(range.Map(memory->view()).ok());
  REQUIRE(range.Unmap(Policy::kDeferred).ok());
  std::move(range).Quarantine(*std::move(memory), "device hangs");
  REQUIRE(f.space->flush_queue()->Flush().ok());
  CHECK(f.memory.blocks() == 1);
  CHECK(f.live_ranges() == 1);
  REQUIRE(f.space->quarantine().ReleaseAfterReset("").ok());
  CHECK(f.memory.blocks() == 0);
  CHECK(f.live_ranges() == 0);
}

TEST_CASE("Pages lie below the lowest mask of all devices") {
  Pair f;
  FakeDomain& low = f.NewDomain();
  auto narrow =
      f.space->Attach({.name = "narrow", .domain = &low, .mask = AddressBits(32).ToMask()});
  REQUIRE(narrow.ok());
  SharedRange range = f.Reserve();
  CHECK(range.iova().value() <= 0xffffffffu);
  REQUIRE(range.Map(f.Page()).ok());
  CHECK(low.live().size() == 1);
  range = SharedRange();
  narrow->reset();
  CHECK(f.Reserve().iova().value() > 0xffffffffu);
}

}  // namespace
}  // namespace dmakit::dma
