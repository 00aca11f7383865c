// SPDX-License-Identifier: Apache-2.0
//
// The audit on mappings that are bounced and on devices that are not coherent: the classes of wrong
// syncs are the same, and some mistakes show only here.
#include <algorithm>

#include "tests/dma/audit_testing.h"

namespace dmakit::dma {
namespace {

using testing::AuditRig;
using testing::AuditRigOptions;
using testing::Buffer;
using testing::Fixture;
using testing::Only;
using testing::Says;
using testing::Silent;

constexpr Direction kTo = Direction::kToDevice;
constexpr Direction kFrom = Direction::kFromDevice;
constexpr Direction kBoth = Direction::kBidirectional;

// A device that is bounced, not coherent, both.
AuditRigOptions Kind(bool checked = false) {
  const int kind = GENERATE(0, 1, 2);
  AuditRigOptions options;
  options.audit.checked = checked;
  options.coherent = kind == 0;
  options.trusted = kind == 1;
  options.policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  return options;
}

AuditRigOptions Bounced() {
  AuditRigOptions options;
  options.audit.checked = true;
  options.trusted = false;
  return options;
}

TEST_CASE("Classes 19, 20, 21 and 24 are found whatever a sync has to move") {
  AuditRig r(Kind());
  SECTION("19: another direction than was mapped") {
    RawDma raw(*r.nic);
    const Iova at = raw.MapSingle(r.buffer.part(10, 100), kFrom, "rx0");
    REQUIRE_FALSE(raw.IsError(at));
    CHECK_FALSE(raw.SyncForCpu(at, Bytes(10), kBoth).ok());
    Only(r.audit, AuditCode::kSyncWrongDirection);
    REQUIRE(raw.UnmapSingle(at, Bytes(100), kFrom).ok());
  }
  SECTION("20: for the CPU, of what the device only reads") {
    Mapping m = r.Map(r.buffer.part(10, 100), kTo, "tx0");
    REQUIRE(m.SyncForCpu(0, 100).ok());
    Only(r.audit, AuditCode::kSyncForCpuOfToDevice);
  }
  SECTION("21: for the device, of what it only writes and has") {
    Mapping m = r.Map(r.buffer.part(10, 100), kFrom);
    REQUIRE(m.SyncForDevice(0, 100).ok());
    Only(r.audit, AuditCode::kSyncForDeviceOfFromDevice);
  }
  SECTION("24: for the side that has it already") {
    Mapping m = r.Map(r.buffer.part(10, 100), kBoth);
    REQUIRE(m.SyncForCpu(0, 100).ok());
    REQUIRE(m.SyncForCpu(0, 10).ok());
    Only(r.audit, AuditCode::kSyncWrongOwner);
  }
}

TEST_CASE("Right use is silent, in checked mode too") {
  AuditRig r(Kind(true));
  Mapping rx = r.Map(r.buffer.part(10, 100), kFrom, "rx0", {.before = 10, .after = 10});
  REQUIRE(r.DeviceWrites(rx.iova(), 60));
  REQUIRE(rx.SyncForCpu(0, 60).ok());
  CHECK(r.buffer.data()[69] == std::byte{0x11});
  r.buffer.data()[10] = std::byte{1};  // its own now
  REQUIRE(rx.SyncForDevice(0, 60).ok());
  REQUIRE(r.DeviceWrites(rx.iova(), 100));
  REQUIRE(rx.SyncForCpu(20, 80).ok());
  r.buffer.data()[40] = std::byte{2};
  REQUIRE(r.nic->Unmap(std::move(rx), {.skip_sync = true}).ok());
  Mapping tx = r.Map(r.buffer.part(4096 + 64, 100), kTo, "tx0");
  r.buffer.data()[4096 + 64] = std::byte{3};
  REQUIRE(tx.SyncForDevice(0, 100).ok());
  CHECK(r.DeviceReads(tx.iova(), 100));
  r.Unmap(std::move(tx));
  const std::span<std::byte> list[] = {r.buffer.part(8192 + 64, 64), r.buffer.part(16384, 4096)};
  auto sg = r.nic->MapSg(list, kBoth, {.owner = "q0"});
  REQUIRE(sg.ok());
  REQUIRE(sg->SyncForCpu().ok());
  list[0][0] = std::byte{4};
  REQUIRE(sg->SyncForDevice().ok());
  REQUIRE(r.nic->Unmap(*std::move(sg)).ok());
  CHECK(Silent(r.audit));
}

TEST_CASE("Class 9 to 16: the audit sees the caller's memory, not the slot") {
  AuditRig r(Bounced());
  SECTION("9: on a stack") {
    r.kinds.Set(r.buffer.part(100, 10), host::MemoryKind::kStack);
    Mapping m = r.Map(r.buffer.part(100, 10), kFrom);
    Only(r.audit, AuditCode::kOnStack);
  }
  SECTION("15: a cache line that another mapping's device writes") {
    Mapping first = r.Map(r.buffer.part(0, 10), kFrom, "rx0");
    Mapping second = r.Map(r.buffer.part(10, 10), kFrom, "rx1");
    Only(r.audit, AuditCode::kSharedCacheLine);
  }
}

TEST_CASE("Class 12: memory that was bounced because it cannot be reached is no mistake") {
  Fixture f;
  f.NewSpace();
  Buffer buffer(4096);
  FakeDomain domain({.facts = {.fixed_memory = true}, .reachable = [&](MemoryView m) {
                       return m.cpu < buffer.data() || m.cpu >= buffer.data() + 4096;
                     }});
  auto nic = f.space->Attach({.name = "nic0", .domain = &domain});
  REQUIRE(nic.ok());
  host::FakeMemoryKinds kinds;
  Audit audit({.memory = &kinds});
  REQUIRE(audit.Attach(**nic).ok());
  {
    REQUIRE((*nic)->Map(buffer.all(), kFrom).ok());
    const std::span<std::byte> list[] = {buffer.part(0, 10), buffer.part(100, 10)};
    REQUIRE((*nic)->MapSg(list, kTo).ok());
    CHECK((*nic)->stats().bounced_maps == 2);
  }
  CHECK(Silent(audit));
}

TEST_CASE("Class 24: unmapped with skip_sync, and never synced for the CPU") {
  AuditRig r(Kind());
  Mapping m = r.Map(r.buffer.part(10, 100), kFrom);
  REQUIRE(r.DeviceWrites(m.iova(), 100));
  SECTION("wrong") {
    REQUIRE(r.nic->Unmap(std::move(m), {.skip_sync = true}).ok());
    const AuditReport report = Only(r.audit, AuditCode::kSyncWrongOwner);
    CHECK(report.owner == "rx0");
    CHECK(Says(report, "skip_sync"));
  }
  SECTION("right: what is needed was synced") {
    REQUIRE(m.SyncForCpu(0, 20).ok());
    REQUIRE(r.nic->Unmap(std::move(m), {.skip_sync = true}).ok());
    CHECK(Silent(r.audit));
  }
  SECTION("raw, wrong and right") {
    r.Unmap(std::move(m));
    RawDma raw(*r.nic);
    for (const bool synced : {true, false}) {
      const Iova at = raw.MapSingle(r.buffer.part(4096 + 10, 100), kFrom, "rx1");
      REQUIRE_FALSE(raw.IsError(at));
      if (synced) REQUIRE(raw.SyncForCpu(at, Bytes(50), kFrom).ok());
      REQUIRE(raw.UnmapSingle(at, Bytes(100), kFrom, {.skip_sync = true}).ok());
      if (synced) CHECK(Silent(r.audit));
    }
    CHECK(Only(r.audit, AuditCode::kSyncWrongOwner).owner == "rx1");
  }
  SECTION("right: the device only read") {
    Mapping tx = r.Map(r.buffer.part(4096, 100), kTo);
    REQUIRE(r.nic->Unmap(std::move(tx), {.skip_sync = true}).ok());
    r.Unmap(std::move(m));
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 25: the CPU writes bounced bytes that the device has, in any direction") {
  AuditRig r(Bounced());
  const Direction direction = GENERATE(kTo, kFrom, kBoth);
  SECTION("without a sync") {
    Mapping m = r.Map(r.buffer.part(10, 100), direction, "q0");
    r.buffer.data()[12] ^= std::byte{1};
    r.Unmap(std::move(m));
    const AuditReport report = Only(r.audit, AuditCode::kCpuAccess);
    CHECK(report.owner == "q0");
    CHECK(Says(report, "byte 2 "));
    CHECK(Says(report, "while the device had it"));
  }
  SECTION("in a list") {
    const std::span<std::byte> list[] = {r.buffer.part(0, 10), r.buffer.part(5000, 10)};
    auto sg = r.nic->MapSg(list, direction, {.owner = "q0"});
    REQUIRE(sg.ok());
    list[1][1] ^= std::byte{1};
    REQUIRE(r.nic->Unmap(*std::move(sg)).ok());
    CHECK(Says(Only(r.audit, AuditCode::kCpuAccess), "byte 11 "));
  }
}

TEST_CASE("Class 25: a header written after a sync, which the unmap overwrites") {
  AuditRig r(Bounced());
  Mapping m = r.Map(r.buffer.part(0, 100), kFrom, "rx0");
  REQUIRE(r.DeviceWrites(m.iova(), 100));
  REQUIRE(m.SyncForCpu(0, 50).ok());
  std::fill_n(r.buffer.data(), 14, std::byte{0x66});
  SECTION("wrong: the whole buffer is copied back") {
    r.Unmap(std::move(m));
    const AuditReport report = Only(r.audit, AuditCode::kCpuAccess);
    CHECK(Says(report, "the unmap overwrites it"));
    CHECK(Says(report, "skip_sync"));
  }
  SECTION("right: skip_sync") {
    REQUIRE(r.nic->Unmap(std::move(m), {.skip_sync = true}).ok());
    CHECK(r.buffer.data()[13] == std::byte{0x66});
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 27: the device wrote in its slot, beside the bytes that it was given") {
  AuditRigOptions options = Bounced();
  options.audit.checked = false;  // needs no zones
  options.policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  AuditRig r(std::move(options));
  Mapping m = r.Map(r.buffer.part(100, 100), kFrom, "rx0");
  SECTION("wrong") {
    REQUIRE(r.DeviceWrites(m.iova(), 101));
    const std::byte beside = r.buffer.data()[200];
    r.Unmap(std::move(m));
    const AuditReport report = Only(r.audit, AuditCode::kWroteOutside);
    CHECK(report.owner == "rx0");
    CHECK(Says(report, "byte 200 "));
    CHECK(r.buffer.data()[200] == beside);
  }
  SECTION("right") {
    REQUIRE(r.DeviceWrites(m.iova(), 100));
    r.Unmap(std::move(m));
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Classes 17 and 18: syncs of packet pages by their addresses") {
  AuditRig r(Kind());
  auto page = r.space->Reserve(Bytes(4096), Bytes(4096), "pool");
  REQUIRE(page.ok());
  REQUIRE(page->Map(r.buffer.view(4096, 4096)).ok());
  SECTION("17: nothing is there") {
    REQUIRE(page->Unmap(Policy::kStrict).ok());
    r.nic->SyncForCpu({page->iova(), Bytes(64)});
    Only(r.audit, AuditCode::kSyncNothingMapped);
  }
  SECTION("18: beyond the page's end") {
    r.nic->SyncForCpu({page->iova() + Bytes(4000), Bytes(97)});
    CHECK(Only(r.audit, AuditCode::kSyncBeyondMapping).owner == "pool");
  }
  SECTION("right: any part, in any order") {
    r.nic->SyncForDevice({page->iova(), Bytes(4096)});
    REQUIRE(r.DeviceWrites(page->iova(), 100));
    r.nic->SyncForCpu({page->iova(), Bytes(100)});
    r.nic->SyncForCpu({page->iova(), Bytes(100)});
    CHECK(r.buffer.data()[4096] == std::byte{0x11});
    CHECK(Silent(r.audit));
  }
}

}  // namespace
}  // namespace dmakit::dma
