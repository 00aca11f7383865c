// SPDX-License-Identifier: Apache-2.0
//
// AddressSpace: creation, what it needs to begin with, statistics, and an end with things still
// live.
#include "dma/address_space.h"

#include "dma/ring_pool.h"
#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::Fixture;
using testing::Has;

TEST_CASE("A page range has one IOVA in all domains, each with its device's access") {
  Fixture f;
  AddressSpace& space = f.NewSpace();
  FakeDomain& d0 = f.NewDomain();
  FakeDomain& d1 = f.NewDomain();
  auto nic0 = f.Attach("nic0", d0);
  auto nic1 = space.Attach({.name = "nic1", .domain = &d1, .page_access = Access::kRead});
  REQUIRE(nic1.ok());
  Buffer buffer(8192);
  auto range = space.Reserve(Bytes(8192), Bytes(8192), "pool");
  REQUIRE(range.ok());
  REQUIRE(range->Map(buffer.view(0, 8192)).ok());
  REQUIRE(d0.live().size() == 1);
  REQUIRE(d1.live().size() == 1);
  CHECK(d0.live()[0].range == d1.live()[0].range);
  CHECK(d0.live()[0].access == Access::kReadWrite);
  CHECK(d1.live()[0].access == Access::kRead);
}

TEST_CASE("Memory is required; nothing can be reserved before the first device") {
  CHECK(absl::IsInvalidArgument(AddressSpace::Create({}).status()));
  Fixture f;
  AddressSpace& space = f.NewSpace();
  CHECK_FALSE(space.has_devices());
  CHECK(absl::IsFailedPrecondition(space.Reserve(Bytes(4096), Bytes(0), "pool").status()));
  CHECK(absl::IsFailedPrecondition(space.NewCache("rx0").status()));
  auto nic = f.Attach("nic0", f.NewDomain());
  CHECK(space.has_devices());
  CHECK(space.Reserve(Bytes(4096), Bytes(0), "pool").ok());
}

TEST_CASE("Bad deferred limits are an error, not a fallback") {
  Fixture f;
  AddressSpace::Options options = f.Options();
  options.policy = Policy::kDeferred;
  options.deferred.max_ranges = 0;
  const absl::Status s = AddressSpace::Create(std::move(options)).status();
  CHECK(absl::IsInvalidArgument(s));
  CHECK(Has(s, "max_ranges 0"));
}

TEST_CASE("The policy in force is told") {
  for (const Policy policy : {Policy::kPersistent, Policy::kStrict, Policy::kDeferred}) {
    Fixture f;
    AddressSpace::Options options = f.Options();
    options.policy = policy;
    AddressSpace& space = f.NewSpace(std::move(options));
    CHECK(space.stats().policy == policy);
    CHECK(space.stats().fallback.empty());
    CHECK((space.flush_queue() != nullptr) == (policy == Policy::kDeferred));
  }
}

TEST_CASE("Statistics sum each domain once, however many devices share it") {
  Fixture f;
  AddressSpace& space = f.NewSpace();
  FakeDomain& shared = f.NewDomain();
  FakeDomain& own = f.NewDomain();
  auto a = f.Attach("a", shared);
  auto b = f.Attach("b", shared);
  auto c = f.Attach("c", own);
  Buffer buffer(8192);
  auto range = space.Reserve(Bytes(4096), Bytes(0), "pool");
  REQUIRE(range.ok());
  REQUIRE(range->Map(buffer.view(0, 4096)).ok());
  auto m = a->Map(buffer.part(4096, 100), Direction::kToDevice);
  REQUIRE(m.ok());
  CHECK(space.stats().maps == 3);
  CHECK(space.stats().live_mappings == 3);
  REQUIRE(a->Unmap(*std::move(m)).ok());
  REQUIRE(range->Unmap(Policy::kStrict).ok());
  CHECK(space.stats().unmaps == 3);
  CHECK(space.stats().invalidations == 3);
  c.reset();  // counts of a device that went stay in the sum
  CHECK(space.stats().maps == 3);
  CHECK(space.stats().live_mappings == 0);
}

TEST_CASE("A space that ends before its handles reports them by owner and makes them dead") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain();
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(8 * 4096);
  auto range = f.space->Reserve(Bytes(4096), Bytes(0), "rx pool");
  auto idle = f.space->Reserve(Bytes(4096), Bytes(0), "rx pool");
  REQUIRE(range.ok());
  REQUIRE(idle.ok());
  REQUIRE(range->Map(buffer.view(0, 4096)).ok());
  auto m = nic->Map(buffer.part(4096, 100), Direction::kToDevice, {.owner = "tx0"});
  const std::span<std::byte> list[] = {buffer.part(8192, 100)};
  auto sg = nic->MapSg(list, Direction::kToDevice, {.owner = "tx1"});
  auto ring = RingPool<uint64_t>::Create(*nic, {.count = 8, .label = "rx0"});
  REQUIRE(m.ok());
  REQUIRE(sg.ok());
  REQUIRE(ring.ok());

  f.space.reset();
  CHECK(domain.live().empty());
  CHECK(domain.stale().empty());
  CHECK(f.Reported("2 page ranges (8192 bytes) of 'rx pool'"));
  CHECK(f.Reported("'tx0'"));
  CHECK(f.Reported("'tx1'"));
  CHECK(f.Reported("'rx0'"));
  CHECK(f.Reported("device 'nic0' attached"));

  CHECK(absl::IsFailedPrecondition(range->Map(buffer.view(0, 4096))));
  CHECK(absl::IsFailedPrecondition(idle->Map(buffer.view(0, 4096))));
  CHECK_FALSE(range->mapped());
  CHECK(absl::IsFailedPrecondition(range->Unmap(Policy::kStrict).status()));
  CHECK(absl::IsFailedPrecondition(nic->Unmap(*std::move(m)).status()));
  CHECK(absl::IsFailedPrecondition(nic->Unmap(*std::move(sg)).status()));
  CHECK(absl::IsFailedPrecondition(nic->Map(buffer.all(), Direction::kToDevice).status()));
  CHECK(absl::IsFailedPrecondition(
      RingPool<uint64_t>::Create(*nic, {.count = 8, .label = "rx1"}).status()));
  CHECK(ring->data() != nullptr);  // memory is the handle's to give back
  CHECK(f.memory.blocks() == 1);
  const uint64_t calls = domain.stats().unmaps + domain.stats().invalidations;
  {
    SharedRange dead = *std::move(range);
    auto dead_ring = *std::move(ring);
  }
  std::move(*idle).Quarantine({}, "too late");
  nic.reset();
  CHECK(domain.stats().unmaps + domain.stats().invalidations == calls);
  CHECK(f.memory.blocks() == 0);
}

TEST_CASE("A space that ends completes what is deferred and what is quarantined") {
  Fixture f;
  AddressSpace::Options options = f.Options();
  options.policy = Policy::kDeferred;
  f.NewSpace(std::move(options));
  FakeDomain& domain = f.NewDomain();
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(4 * 4096);
  auto ticket = nic->Unmap(*nic->Map(buffer.part(0, 100), Direction::kToDevice));
  REQUIRE(ticket.ok());
  CHECK_FALSE(ticket->done());
  f.faults.unmap.FailAt(1);
  REQUIRE_FALSE(nic->Unmap(*nic->Map(buffer.part(0, 100), Direction::kToDevice)).ok());
  auto memory = f.memory.Allocate({.size = Bytes(4096), .numa = {}, .label = "page"});
  auto range = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
  REQUIRE(range->Map(memory->view()).ok());
  std::move(*range).Quarantine(*std::move(memory), "late");
  nic.reset();
  CHECK(f.space->stats().quarantined == 2);
  f.space.reset();
  CHECK(ticket->done());
  CHECK(domain.live().empty());
  CHECK(domain.stale().empty());
  CHECK(f.memory.blocks() == 0);
  CHECK_FALSE(f.Reported("quarantined"));
}

TEST_CASE("What cannot even be unmapped at the end is reported") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain();
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(4096);
  f.faults.unmap.FailAt(1, true);
  REQUIRE_FALSE(nic->Unmap(*nic->Map(buffer.all(), Direction::kFromDevice, {.owner = "rx9"})).ok());
  nic.reset();
  f.space.reset();
  CHECK(f.Reported("quarantined"));
  CHECK(f.Reported("rx9"));
}

}  // namespace
}  // namespace dmakit::dma
