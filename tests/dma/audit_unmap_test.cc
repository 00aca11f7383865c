// SPDX-License-Identifier: Apache-2.0
//
// Audit classes 1 to 8: what can go wrong on unmap and free, through the raw interface. Each wrong
// call is refused and changes nothing; the right one after it works.
#include "tests/dma/audit_testing.h"

namespace dmakit::dma {
namespace {

using testing::AuditRig;
using testing::Has;
using testing::Only;
using testing::Says;
using testing::Silent;

constexpr Direction kTo = Direction::kToDevice;
constexpr Direction kFrom = Direction::kFromDevice;

struct RawRig : AuditRig {
  RawDma raw{*nic};

  Iova Single(size_t offset = 8, size_t length = 100) {
    const Iova address = raw.MapSingle(buffer.part(offset, length), kTo, "tx0");
    REQUIRE_FALSE(raw.IsError(address));
    return address;
  }
  Iova List(size_t entries) {
    std::vector<std::span<std::byte>> list;
    for (size_t i = 0; i < entries; ++i) list.push_back(buffer.part(i * 4096, 1000));
    const auto segments = raw.MapSg(list, kFrom, "rx7");
    REQUIRE_FALSE(segments.empty());
    REQUIRE_FALSE(raw.IsError(segments[0].iova));
    return segments[0].iova;
  }
};

TEST_CASE("Class 1: unmapping the error value is reported; checking for it is not") {
  RawRig r;
  SECTION("wrong") {
    const Iova address = r.raw.MapSingle({}, kTo, "tx0");  // fails
    CHECK(address == RawDma::kError);
    CHECK_FALSE(r.raw.UnmapSingle(address, Bytes(0), kTo).ok());
    const AuditReport report = Only(r.audit, AuditCode::kErrorAddress);
    CHECK(Says(report, "failed map"));
    CHECK(Says(report, "0x0"));
  }
  SECTION("right") {
    const Iova address = r.raw.MapSingle({}, kTo, "tx0");
    CHECK(r.raw.IsError(address));
    CHECK(Has(r.raw.last_error(), "tx0"));
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 2: a second unmap, and an unmap inside a mapping, are reported") {
  RawRig r;
  const Iova address = r.Single();
  SECTION("second unmap") {
    REQUIRE(r.raw.UnmapSingle(address, Bytes(100), kTo).ok());
    const auto again = r.raw.UnmapSingle(address, Bytes(100), kTo);
    CHECK(absl::IsInvalidArgument(again.status()));
    const AuditReport report = Only(r.audit, AuditCode::kNothingMapped);
    CHECK(Says(report, ToString(address)));
    CHECK(report.owner == "tx0");  // of the mapping that used to be there
  }
  SECTION("wrong address") {
    CHECK_FALSE(r.raw.UnmapSingle(address + Bytes(4), Bytes(96), kTo).ok());
    const AuditReport report = Only(r.audit, AuditCode::kNothingMapped);
    CHECK(report.owner == "tx0");
    CHECK(Says(report, "lies in"));
    CHECK(r.raw.UnmapSingle(address, Bytes(100), kTo).ok());
  }
  SECTION("right: the same memory mapped and unmapped twice") {
    REQUIRE(r.raw.UnmapSingle(address, Bytes(100), kTo).ok());
    REQUIRE(r.raw.UnmapSingle(r.Single(), Bytes(100), kTo).ok());
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 2: a handle that was moved from is reported; one used once is not") {
  AuditRig r;
  Mapping mapping = r.Map(r.buffer.part(0, 100), kTo, "tx0");
  REQUIRE(r.nic->Unmap(std::move(mapping)).ok());
  REQUIRE(Silent(r.audit));
  CHECK_FALSE(r.nic->Unmap(std::move(mapping)).ok());
  CHECK(Says(Only(r.audit, AuditCode::kNothingMapped), "empty mapping"));
}

TEST_CASE("Class 3: another size than was mapped") {
  RawRig r;
  const Iova address = r.Single(8, 100);
  SECTION("wrong") {
    CHECK_FALSE(r.raw.UnmapSingle(address, Bytes(60), kTo).ok());
    const AuditReport report = Only(r.audit, AuditCode::kWrongSize);
    CHECK(report.owner == "tx0");
    CHECK(Says(report, "60 bytes"));
    CHECK(Says(report, "has 100"));
    CHECK(r.raw.live() == 1);
  }
  REQUIRE(r.raw.UnmapSingle(address, Bytes(100), kTo).ok());
  CHECK(r.audit.total(AuditCode::kWrongSize) == r.audit.errors());
}

TEST_CASE("Class 3: the right size is silent, whatever granules it takes") {
  RawRig r;
  for (const size_t size : {1, 60, 4096, 5000}) {
    const Iova address = r.Single(4090, size);
    REQUIRE(r.raw.UnmapSingle(address, Bytes(size), kTo).ok());
  }
  CHECK(Silent(r.audit));
}

TEST_CASE("Class 4: a single mapping, a list, a block and a resource end with their own calls") {
  RawRig r;
  const Iova single = r.Single(4096 * 8, 64);
  const Iova list = r.List(2);
  const RawDma::Coherent block = r.raw.AllocateCoherent(Bytes(256), "ring");
  REQUIRE(block.cpu != nullptr);
  const Iova window = r.raw.MapResource(r.buffer.part(4096 * 12, 4096), kTo, "bar");
  REQUIRE_FALSE(r.raw.IsError(window));
  SECTION("single as list") { CHECK_FALSE(r.raw.UnmapSg(single, 1, kTo).ok()); }
  SECTION("list as single") { CHECK_FALSE(r.raw.UnmapSingle(list, Bytes(1000), kFrom).ok()); }
  SECTION("block as single") {
    CHECK_FALSE(r.raw.UnmapSingle(block.iova, Bytes(256), Direction::kBidirectional).ok());
  }
  SECTION("single as resource") { CHECK_FALSE(r.raw.UnmapResource(single, Bytes(64), kTo).ok()); }
  SECTION("resource as block") {
    CHECK_FALSE(r.raw.FreeCoherent(Bytes(4096), nullptr, window).ok());
  }
  SECTION("right") {
    CHECK(r.raw.UnmapSingle(single, Bytes(64), kTo).ok());
    CHECK(r.raw.UnmapSg(list, 2, kFrom).ok());
    CHECK(r.raw.FreeCoherent(Bytes(256), block.cpu, block.iova).ok());
    CHECK(r.raw.UnmapResource(window, Bytes(4096), kTo).ok());
    CHECK(r.raw.live() == 0);
    CHECK(Silent(r.audit));
    return;
  }
  const AuditReport report = Only(r.audit, AuditCode::kWrongFamily);
  CHECK_FALSE(report.owner.empty());
  CHECK(r.raw.live() == 4);
}

TEST_CASE("Class 5: a coherent block freed with the address of another") {
  RawRig r;
  const RawDma::Coherent a = r.raw.AllocateCoherent(Bytes(256), "ring a");
  const RawDma::Coherent b = r.raw.AllocateCoherent(Bytes(256), "ring b");
  SECTION("wrong") {
    CHECK_FALSE(r.raw.FreeCoherent(Bytes(256), b.cpu, a.iova).ok());
    const AuditReport report = Only(r.audit, AuditCode::kWrongCpuAddress);
    CHECK(report.owner == "ring a");
    CHECK(report.kind == MappingKind::kCoherent);
    CHECK(r.raw.live() == 2);
  }
  SECTION("right") {
    CHECK(r.raw.FreeCoherent(Bytes(256), a.cpu, a.iova).ok());
    CHECK(r.raw.FreeCoherent(Bytes(256), b.cpu, b.iova).ok());
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 6: a list unmapped with the number of its segments") {
  RawRig r;
  // Eight entries that touch are one segment.
  std::vector<std::span<std::byte>> list;
  for (size_t i = 0; i < 8; ++i) list.push_back(r.buffer.part(i * 512, 512));
  const auto segments = r.raw.MapSg(list, kFrom, "rx7");
  REQUIRE(segments.size() == 1);
  REQUIRE_FALSE(r.raw.IsError(segments[0].iova));
  SECTION("wrong") {
    CHECK_FALSE(r.raw.UnmapSg(segments[0].iova, segments.size(), kFrom).ok());
    const AuditReport report = Only(r.audit, AuditCode::kWrongEntryCount);
    CHECK(report.owner == "rx7");
    CHECK(Says(report, "with 1 entries"));
    CHECK(Says(report, "made of 8"));
  }
  SECTION("right") {
    CHECK(r.raw.UnmapSg(segments[0].iova, 8, kFrom).ok());
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 7: another direction than was mapped") {
  RawRig r;
  const Iova address = r.Single();
  SECTION("wrong") {
    CHECK_FALSE(r.raw.UnmapSingle(address, Bytes(100), kFrom).ok());
    const AuditReport report = Only(r.audit, AuditCode::kWrongDirection);
    CHECK(report.owner == "tx0");
    CHECK(Says(report, std::string(Name(kFrom))));
    CHECK(Says(report, std::string(Name(kTo))));
  }
  SECTION("right") {
    CHECK(r.raw.UnmapSingle(address, Bytes(100), kTo).ok());
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 8: nobody asked whether the map had failed") {
  RawRig r;
  const Iova address = r.raw.MapSingle(r.buffer.part(0, 64), kTo, "tx3");
  SECTION("wrong, and unmapped all the same") {
    CHECK(r.raw.UnmapSingle(address, Bytes(64), kTo).ok());
    const AuditReport report = Only(r.audit, AuditCode::kMapUnchecked);
    CHECK(report.owner == "tx3");
    CHECK(r.raw.live() == 0);
  }
  SECTION("right") {
    REQUIRE_FALSE(r.raw.IsError(address));
    CHECK(r.raw.UnmapSingle(address, Bytes(64), kTo).ok());
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("The raw interface refuses without an audit too, and changes nothing") {
  AuditRig r;
  r.audit.Detach(*r.nic);
  RawDma raw(*r.nic);
  const Iova address = raw.MapSingle(r.buffer.part(0, 64), kTo, "tx0");
  CHECK(absl::IsInvalidArgument(raw.UnmapSingle(address, Bytes(32), kTo).status()));
  CHECK(absl::IsInvalidArgument(raw.UnmapSg(address, 1, kTo).status()));
  CHECK(r.DeviceReads(address, 64));
  CHECK(raw.UnmapSingle(address, Bytes(64), kTo).ok());
  CHECK_FALSE(r.DeviceReads(address, 64));
  CHECK(Silent(r.audit));
}

}  // namespace
}  // namespace dmakit::dma
