// SPDX-License-Identifier: Apache-2.0
//
// Audit classes 17 to 22 and 24: syncs of what is not mapped, the wrong way, or for the side that
// has it already.
#include "tests/dma/audit_testing.h"

namespace dmakit::dma {
namespace {

using testing::AuditRig;
using testing::Only;
using testing::Says;
using testing::Silent;

constexpr Direction kTo = Direction::kToDevice;
constexpr Direction kFrom = Direction::kFromDevice;
constexpr Direction kBoth = Direction::kBidirectional;

struct RawRig : AuditRig {
  RawDma raw{*nic};
  Iova from = Single(0, kFrom, "rx0");

  Iova Single(size_t offset, Direction direction, std::string_view owner) {
    const Iova address = raw.MapSingle(buffer.part(offset, 1000), direction, owner);
    REQUIRE_FALSE(raw.IsError(address));
    return address;
  }
  Iova List() {
    const std::span<std::byte> list[] = {buffer.part(8192, 64), buffer.part(8256, 64)};
    const auto segments = raw.MapSg(list, kFrom, "rx1");
    REQUIRE_FALSE(segments.empty());
    REQUIRE_FALSE(raw.IsError(segments[0].iova));
    return segments[0].iova;
  }
};

TEST_CASE("Class 17: nothing live contains the range") {
  RawRig r;
  SECTION("after the unmap") {
    REQUIRE(r.raw.UnmapSingle(r.from, Bytes(1000), kFrom).ok());
    CHECK(absl::IsInvalidArgument(r.raw.SyncForCpu(r.from, Bytes(10), kFrom)));
    const AuditReport report = Only(r.audit, AuditCode::kSyncNothingMapped);
    CHECK(Says(report, ToString(r.from)));
    CHECK(report.owner == "rx0");
  }
  SECTION("behind the bytes, though in their granule") {
    CHECK_FALSE(r.raw.SyncForCpu(r.from + Bytes(1000), Bytes(1), kFrom).ok());
    Only(r.audit, AuditCode::kSyncNothingMapped);
  }
  SECTION("right: any part, to the last byte") {
    CHECK(r.raw.SyncForCpu(r.from + Bytes(999), Bytes(1), kFrom).ok());
    CHECK(r.raw.SyncForCpu(r.from, Bytes(999), kFrom).ok());
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 18: the range runs beyond its mapping, which is named") {
  RawRig r;
  SECTION("wrong") {
    CHECK_FALSE(r.raw.SyncForCpu(r.from + Bytes(10), Bytes(991), kFrom).ok());
    const AuditReport report = Only(r.audit, AuditCode::kSyncBeyondMapping);
    CHECK(report.owner == "rx0");
    CHECK(report.range == Range{r.from, Bytes(1000)});
    CHECK(Says(report, "991 bytes"));
  }
  SECTION("right") {
    CHECK(r.raw.SyncForCpu(r.from + Bytes(10), Bytes(990), kFrom).ok());
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 19: another direction than was mapped") {
  RawRig r;
  SECTION("wrong") {
    CHECK_FALSE(r.raw.SyncForCpu(r.from, Bytes(10), kBoth).ok());
    const AuditReport report = Only(r.audit, AuditCode::kSyncWrongDirection);
    CHECK(report.owner == "rx0");
    CHECK(Says(report, std::string(Name(kBoth))));
  }
  SECTION("right") {
    CHECK(r.raw.SyncForCpu(r.from, Bytes(10), kFrom).ok());
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 20: for the CPU, of what the device only reads") {
  AuditRig r;
  Mapping m = r.Map(r.buffer.part(0, 100), kTo, "tx0");
  SECTION("wrong") {
    REQUIRE(m.SyncForCpu(0, 100).ok());
    const AuditReport report = Only(r.audit, AuditCode::kSyncForCpuOfToDevice);
    CHECK(report.owner == "tx0");
    CHECK(Says(report, "only reads"));
  }
  SECTION("right: write, then sync for the device") {
    REQUIRE(m.SyncForDevice(0, 50).ok());
    REQUIRE(m.SyncForDevice(0, 100).ok());
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 21: for the device, of what it only writes and has") {
  AuditRig r;
  Mapping m = r.Map(r.buffer.part(0, 100), kFrom, "rx0");
  SECTION("wrong") {
    REQUIRE(m.SyncForDevice(0, 100).ok());
    const AuditReport report = Only(r.audit, AuditCode::kSyncForDeviceOfFromDevice);
    CHECK(report.owner == "rx0");
    CHECK(Says(report, "only writes"));
  }
  SECTION("wrong: another part than the CPU has") {
    REQUIRE(m.SyncForCpu(0, 10).ok());
    REQUIRE(m.SyncForDevice(10, 90).ok());
    Only(r.audit, AuditCode::kSyncForDeviceOfFromDevice);
  }
  SECTION("right: given back after it was taken, again and again") {
    for (int i = 0; i < 3; ++i) {
      REQUIRE(m.SyncForCpu(0, 60).ok());
      REQUIRE(m.SyncForCpu(60, 40).ok());
      REQUIRE(m.SyncForDevice(0, 100).ok());
    }
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 22: a list synced with another number of entries") {
  RawRig r;
  const Iova list = r.List();
  SECTION("wrong") {
    CHECK_FALSE(r.raw.SyncSgForCpu(list, 1, kFrom).ok());
    const AuditReport report = Only(r.audit, AuditCode::kSyncWrongEntryCount);
    CHECK(report.owner == "rx1");
    CHECK(Says(report, "made of 2"));
  }
  SECTION("right") {
    CHECK(r.raw.SyncSgForCpu(list, 2, kFrom).ok());
    CHECK(r.raw.SyncSgForDevice(list, 2, kFrom).ok());
    CHECK(r.raw.UnmapSg(list, 2, kFrom).ok());
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 24: handed to the side that has it already") {
  AuditRig r;
  Mapping m = r.Map(r.buffer.part(0, 100), kBoth, "q3");
  SECTION("the CPU, twice") {
    REQUIRE(m.SyncForCpu(0, 100).ok());
    REQUIRE(m.SyncForCpu(20, 10).ok());
    const AuditReport report = Only(r.audit, AuditCode::kSyncWrongOwner);
    CHECK(report.owner == "q3");
    CHECK(Says(report, "CPU has it"));
  }
  SECTION("the device, which has it since the map") {
    REQUIRE(m.SyncForDevice(0, 100).ok());
    CHECK(Says(Only(r.audit, AuditCode::kSyncWrongOwner), "device has it"));
  }
  SECTION("the device, twice") {
    REQUIRE(m.SyncForCpu(0, 100).ok());
    REQUIRE(m.SyncForDevice(0, 100).ok());
    REQUIRE(m.SyncForDevice(0, 1).ok());
    Only(r.audit, AuditCode::kSyncWrongOwner);
  }
  SECTION("right: to and fro, in parts, and an empty one") {
    REQUIRE(m.SyncForCpu(0, 50).ok());
    REQUIRE(m.SyncForCpu(40, 30).ok());  // in part new
    REQUIRE(m.SyncForDevice(0, 70).ok());
    REQUIRE(m.SyncForCpu(0, 100).ok());
    REQUIRE(m.SyncForDevice(0, 0).ok());
    CHECK(Silent(r.audit));
  }
}

}  // namespace
}  // namespace dmakit::dma
