// SPDX-License-Identifier: Apache-2.0
//
// Audit classes 23 and 26, and what else depends on when something was mapped and unmapped: late
// attach, detach, and mappings that are sampled.
#include <algorithm>
#include <atomic>
#include <thread>

#include "dma/ring_pool.h"
#include "tests/dma/audit_testing.h"

namespace dmakit::dma {
namespace {

using testing::AuditRig;
using testing::Buffer;
using testing::Fixture;
using testing::Only;
using testing::Says;
using testing::Silent;

constexpr Direction kTo = Direction::kToDevice;
constexpr Direction kFrom = Direction::kFromDevice;

TEST_CASE("Class 23: what is live at detach, one report per owner") {
  AuditRig r;
  SECTION("wrong") {
    std::vector<Mapping> leaked;
    for (int i = 0; i < 3; ++i) leaked.push_back(r.Map(r.buffer.part(i * 64, 64), kTo, "tx0"));
    leaked.push_back(r.Map(r.buffer.part(4096, 100), kFrom, "rx0"));
    auto ring = RingPool<uint64_t>::Create(*r.nic, {.count = 8, .label = "ring"});
    r.Unmap(r.Map(r.buffer.part(8192, 64), kTo, "fine"));
    auto page = r.space->Reserve(Bytes(4096), Bytes(0), "pool");
    REQUIRE(page->Map(r.buffer.view(12288, 4096)).ok());
    r.nic.reset();
    INFO(r.audit.Text());
    CHECK(r.audit.total(AuditCode::kLeaked) == 3);
    CHECK(r.audit.errors() == 3);
    auto reports = r.audit.reports();
    std::sort(reports.begin(), reports.end(),
              [](const AuditReport& a, const AuditReport& b) { return a.owner < b.owner; });
    REQUIRE(reports.size() == 3);
    CHECK(reports[0].owner == "ring");
    CHECK(reports[0].kind == MappingKind::kCoherent);
    CHECK(reports[1].owner == "rx0");
    CHECK(Says(reports[1], "1 mapping (100 bytes)"));
    CHECK(reports[2].owner == "tx0");
    CHECK(Says(reports[2], "3 mappings (192 bytes)"));
    CHECK_FALSE(reports[2].history.empty());
  }
  SECTION("right: all unmapped; a pool's pages are not the device's") {
    auto page = r.space->Reserve(Bytes(4096), Bytes(0), "pool");
    REQUIRE(page->Map(r.buffer.view(12288, 4096)).ok());
    r.Unmap(r.Map(r.buffer.part(0, 64), kTo, "tx0"));
    r.nic.reset();
    CHECK(Silent(r.audit));
    CHECK(r.audit.live() == 0);
  }
}

TEST_CASE("Class 23: raw mappings left when their books end") {
  AuditRig r;
  {
    RawDma raw(*r.nic);
    for (int i = 0; i < 2; ++i) {
      REQUIRE_FALSE(raw.IsError(raw.MapSingle(r.buffer.part(i * 64, 64), kTo, "tx7")));
    }
  }
  const AuditReport report = Only(r.audit, AuditCode::kLeaked);
  CHECK(report.owner == "tx7");
  CHECK(Says(report, "2 raw mappings"));
}

TEST_CASE("Class 26: an access after the unmap is tied to the mapping that was there") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  AuditRig r({.policy = policy});
  Mapping m = r.Map(r.buffer.part(8, 100), kFrom, "rx5");
  const Iova at = m.iova();
  REQUIRE(r.DeviceWrites(at, 100));
  SECTION("right: before it; and after it, at the next mapping's address") {
    r.Unmap(std::move(m));
    Mapping next = r.Map(r.buffer.part(8, 100), kFrom, "rx5");
    CHECK(r.DeviceWrites(next.iova(), 100));
    CHECK(Silent(r.audit));
    CHECK(r.audit.unexplained_faults() == 0);
  }
  SECTION("wrong") {
    r.Unmap(std::move(m));
    r.clock.Advance(Nanos{1234});
    // Deferred: what the device still has in its cache lets it through. It is seen all the same.
    CHECK(r.DeviceWrites(at, 1) == (policy == Policy::kDeferred));
    const AuditReport report = Only(r.audit, AuditCode::kAccessAfterUnmap);
    CHECK(report.owner == "rx5");
    CHECK(report.range == Range{at, Bytes(100)});
    CHECK(Says(report, "1234 ns after"));
    CHECK(Says(report, "write at " + ToString(at)));
    CHECK(report.history.back().what == AuditEvent::What::kFault);
  }
  SECTION("wrong: by a device that was detached") {
    auto keep = std::move(m);
    r.nic.reset();
    REQUIRE(r.audit.total(AuditCode::kLeaked) == 1);
    CHECK_FALSE(r.DeviceReads(at, 1));
    CHECK(r.audit.total(AuditCode::kAccessAfterUnmap) == 1);
  }
}

TEST_CASE("A fault where nothing was mapped, or without the right to, is only counted") {
  AuditRig r;
  Mapping m = r.Map(r.buffer.part(0, 100), kTo, "tx0");
  CHECK_FALSE(r.DeviceReads(Iova(0x7777'0000), 1));
  CHECK_FALSE(r.DeviceWrites(m.iova(), 1));
  CHECK(Silent(r.audit));
  CHECK(r.audit.unexplained_faults() == 2);
}

TEST_CASE("Class 26: a ring is given what was unmapped before; class 2: what never was mapped") {
  AuditRig r;
  Mapping m = r.Map(r.buffer.part(8, 100), kTo, "tx2");
  const Range range{m.iova(), Bytes(100)};
  Observer* const watching = r.nic->observer();
  REQUIRE(watching != nullptr);
  SECTION("wrong: unmapped") {
    r.Unmap(std::move(m));
    r.clock.Advance(Nanos{77});
    watching->OnPosted(*r.nic, {range, kTo, "wq 3"});
    const AuditReport report = Only(r.audit, AuditCode::kAccessAfterUnmap);
    CHECK(report.owner == "tx2");
    CHECK(Says(report, "'wq 3'"));
    CHECK(Says(report, "77 ns after the unmap"));
    watching->OnCompleted(*r.nic, range.base, Bytes(0));
  }
  SECTION("wrong: nowhere") {
    watching->OnPosted(*r.nic, {{Iova{0x1000}, Bytes(64)}, kTo, "wq 3"});
    CHECK(Only(r.audit, AuditCode::kNothingMapped).owner == "wq 3");
    watching->OnCompleted(*r.nic, Iova{0x1000}, Bytes(0));
    r.Unmap(std::move(m));
  }
  SECTION("right: posted, completed, unmapped") {
    watching->OnPosted(*r.nic, {range, kTo, "wq 3"});
    watching->OnCompleted(*r.nic, range.base, Bytes(0));
    r.Unmap(std::move(m));
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 26: a fault at an address that is mapped again is not the old mapping's") {
  AuditRig r;
  Mapping m = r.Map(r.buffer.part(0, 100), kTo, "old");
  const Iova at = m.iova();
  r.Unmap(std::move(m));
  Mapping again = r.Map(r.buffer.part(0, 100), kTo, "new");
  REQUIRE(again.iova() == at);
  CHECK_FALSE(r.DeviceWrites(at, 1));  // it may only read
  CHECK(Silent(r.audit));
  CHECK(r.audit.unexplained_faults() == 1);
}

TEST_CASE("Two devices on one domain: a late access is reported by the one whose mapping it was") {
  AuditRig r;
  auto other = r.space->Attach({.name = "nic1", .domain = r.iommu.get()});
  REQUIRE(other.ok());
  REQUIRE(r.audit.Attach(**other).ok());
  auto foreign = (*other)->Map(r.buffer.part(4096, 64), kFrom, {.owner = "other"});
  REQUIRE(foreign.ok());
  Mapping m = r.Map(r.buffer.part(0, 64), kFrom, "mine");
  const Iova at = m.iova();
  r.Unmap(std::move(m));
  CHECK_FALSE(r.DeviceWrites(at, 1));
  CHECK(Only(r.audit, AuditCode::kAccessAfterUnmap).owner == "mine");
  foreign = absl::StatusOr<Mapping>(Mapping());
  other->reset();
  CHECK(r.audit.errors() == 1);
}

TEST_CASE("Attached late: what is live is imported and marked, and its mistakes are seen") {
  AuditRig r;
  r.audit.Detach(*r.nic);
  Mapping a = r.Map(r.buffer.part(0, 100), kFrom, "rx0");
  Mapping b = r.Map(r.buffer.part(4096, 100), kFrom, "rx1");
  const std::span<std::byte> list[] = {r.buffer.part(8192, 64)};
  auto sg = r.nic->MapSg(list, kFrom, {.owner = "rx2"});
  auto page = r.space->Reserve(Bytes(4096), Bytes(0), "pool");
  REQUIRE(page->Map(r.buffer.view(12288, 4096)).ok());
  REQUIRE(r.audit.Attach(*r.nic).ok());
  CHECK(r.audit.live() == 4);
  SECTION("wrong") {
    REQUIRE(a.SyncForDevice(0, 10).ok());
    const AuditReport report = Only(r.audit, AuditCode::kSyncForDeviceOfFromDevice);
    CHECK(report.owner == "rx0");
    CHECK(report.pre_existing);
    CHECK(report.history.front().what == AuditEvent::What::kImported);
    r.nic.reset();
    CHECK(r.audit.total(AuditCode::kLeaked) == 3);
    CHECK(Says(r.audit.reports()[1], "1 from before the audit"));
  }
  SECTION("right") {
    REQUIRE(a.SyncForCpu(0, 10).ok());
    r.Unmap(std::move(a));
    r.Unmap(std::move(b));
    REQUIRE(r.nic->Unmap(*std::move(sg)).ok());
    REQUIRE(page->Unmap(Policy::kStrict).ok());
    CHECK(r.audit.live() == 0);
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Attached while packet pages come and go: none is missed, none stays behind") {
  AuditRig r;
  r.audit.Detach(*r.nic);
  auto fixed = r.space->Reserve(Bytes(4096), Bytes(0), "pool");
  REQUIRE(fixed->Map(r.buffer.view(0, 4096)).ok());
  auto moving = r.space->Reserve(Bytes(4096), Bytes(0), "pool");
  std::atomic<bool> stop{false};
  std::thread pool([&] {
    while (!stop.load()) {
      if (!moving->Map(r.buffer.view(4096, 4096)).ok()) std::abort();
      if (!moving->Unmap(Policy::kStrict).ok()) std::abort();
    }
  });
  bool right = true;
  for (int i = 0; i < 200; ++i) {
    if (!r.audit.Attach(*r.nic).ok()) std::abort();
    std::this_thread::yield();
    right = right && r.audit.live() <= 2;
    r.audit.Detach(*r.nic);
  }
  REQUIRE(r.audit.Attach(*r.nic).ok());
  stop.store(true);
  pool.join();
  CHECK(right);
  CHECK(r.audit.live() == 1);
  CHECK(Silent(r.audit));
}

TEST_CASE("Detached, it hears nothing; one observer at a time; it may be attached again") {
  AuditRig r;
  Audit second({.memory = &r.kinds});
  CHECK(absl::IsFailedPrecondition(second.Attach(*r.nic)));
  r.audit.Detach(*r.nic);
  REQUIRE(second.Attach(*r.nic).ok());
  Mapping m = r.Map(r.buffer.part(0, 100), kTo);
  REQUIRE(m.SyncForCpu(0, 1).ok());
  CHECK(Silent(r.audit));
  CHECK(second.errors() == 1);
  second.Detach(*r.nic);
  REQUIRE(r.audit.Attach(*r.nic).ok());
  REQUIRE(m.SyncForCpu(0, 1).ok());
  CHECK(r.audit.errors() == 1);
  CHECK(second.errors() == 1);
}

TEST_CASE("Sampled: one mapping in N is invalidated at once, its address kept out of use") {
  AuditRig r({.audit = {.sample_one_in = 3}, .policy = Policy::kDeferred});
  std::vector<Iova> at;
  for (int i = 0; i < 6; ++i) {
    Mapping m = r.Map(r.buffer.part(0, 64), kFrom, "rx0");
    at.push_back(m.iova());
    REQUIRE(r.DeviceWrites(m.iova(), 64));  // now in the device's cache
    const uint64_t before = r.iommu->stats().invalidations;
    auto ticket = r.nic->Unmap(std::move(m));
    REQUIRE(ticket.ok());
    const bool sampled = i % 3 == 2;
    CHECK(ticket->done() == sampled);
    CHECK(r.iommu->stats().invalidations - before == (sampled ? 1 : 0));
    CHECK(r.DeviceWrites(at[i], 1) == !sampled);  // late: this one it cannot
  }
  CHECK(r.audit.total(AuditCode::kAccessAfterUnmap) == 6);
  REQUIRE(r.space->flush_queue()->Flush().ok());
  for (int i = 0; i < 60; ++i) {
    Mapping m = r.Map(r.buffer.part(0, 64), kFrom, "rx0");
    CHECK(m.iova() != at[2]);
    CHECK(m.iova() != at[5]);
  }
}

TEST_CASE("Sampled: a page of the address space too; none with sampling off") {
  const uint64_t interval = GENERATE(0, 1);
  AuditRig r({.audit = {.sample_one_in = interval}, .policy = Policy::kDeferred});
  auto page = r.space->Reserve(Bytes(4096), Bytes(0), "pool");
  REQUIRE(page->Map(r.buffer.view(0, 4096)).ok());
  auto ticket = page->Unmap(Policy::kDeferred);
  REQUIRE(ticket.ok());
  CHECK(ticket->done() == (interval == 1));
}

TEST_CASE("Sampled addresses kept out of use go back when addresses run out, and at detach") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain({.width = AddressBits(16)});  // 15 usable pages
  auto nic = f.Attach("nic0", domain);
  host::FakeMemoryKinds kinds;
  Audit audit({.sample_one_in = 1, .memory = &kinds});
  REQUIRE(audit.Attach(*nic).ok());
  Buffer buffer(15 * 4096);
  for (int i = 0; i < 100; ++i) REQUIRE(nic->Map(buffer.part(0, 4096), kTo).ok());
  CHECK(nic->Map(buffer.all(), kTo).ok());
  nic.reset();
  nic = f.Attach("nic0", domain);
  CHECK(nic->Map(buffer.all(), kTo).ok());
  nic.reset();
  f.space.reset();
}

}  // namespace
}  // namespace dmakit::dma
