// SPDX-License-Identifier: Apache-2.0
//
// How drivers go wrong with mappings over time: they leak them steadily, look at buffers on the
// wrong side of an unmap, and unmap a packet with another length than it was mapped with. Each
// under the audit, in front of a device that really loses its translations.
#include <algorithm>
#include <array>
#include <deque>
#include <vector>

#include "tests/dma/audit_testing.h"

namespace dmakit::dma {
namespace {

using testing::AuditRig;
using testing::Only;
using testing::Says;
using testing::Silent;

constexpr Direction kTo = Direction::kToDevice;
constexpr Direction kFrom = Direction::kFromDevice;
constexpr size_t kRing = 16;

// 2048 bytes of a slot, which nothing else shares a granule with while it is live.
Mapping MapSlot(AuditRig& r, size_t slot) {
  return r.Map(r.buffer.part(slot % kRing * 4096, 2048), kFrom, "rx3");
}

TEST_CASE("ten times the ring: live mappings never exceed it, under either policy") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  AuditRig r({.policy = policy});
  const uint64_t before = r.iommu->stats().live_mappings;
  {
    std::deque<Mapping> ring;
    for (size_t i = 0; i < 10 * kRing; ++i) {
      if (ring.size() == kRing) {
        REQUIRE(r.DeviceWrites(ring.front().iova(), 60));
        r.Unmap(std::move(ring.front()));
        ring.pop_front();
      }
      ring.push_back(MapSlot(r, i));
      REQUIRE(r.nic->stats().live_mappings <= kRing);
      REQUIRE(r.audit.live() <= kRing);
    }
    for (Mapping& mapping : ring) r.Unmap(std::move(mapping));
  }
  CHECK(r.nic->stats().maps == 10 * kRing);
  CHECK(r.nic->stats().unmaps == 10 * kRing);
  CHECK(r.iommu->stats().live_mappings == before);
  CHECK(r.audit.live() == 0);
  r.nic.reset();
  CHECK(Silent(r.audit));
}

TEST_CASE("twelve maps for each unmap: the leak is counted and its ring named") {
  AuditRig r;
  std::vector<Mapping> forgotten;
  for (size_t i = 0; i < 120; ++i) {
    Mapping mapping = MapSlot(r, i);
    if (i % 12 == 11) {
      r.Unmap(std::move(mapping));
    } else {
      forgotten.push_back(std::move(mapping));
    }
    REQUIRE(r.audit.live() == forgotten.size());
  }
  r.nic.reset();
  CHECK(r.audit.total(AuditCode::kLeaked) == 1);
  const auto reports = r.audit.reports();
  const auto leak = std::find_if(reports.begin(), reports.end(),
                                 [](const auto& x) { return x.code == AuditCode::kLeaked; });
  REQUIRE(leak != reports.end());
  CHECK(leak->owner == "rx3");
  CHECK(Says(*leak, "110 mappings"));
  CHECK(r.iommu->stats().live_mappings == 0);  // all the same, the device is shut out
}

// The list's own entries say where the bytes are, before and after; its addresses lead nowhere
// after.
TEST_CASE("a received list: its bytes are there after the unmap, and its addresses are not") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  AuditRig r({.policy = policy});
  std::vector<std::span<std::byte>> list;
  for (size_t i = 0; i < 5; ++i) list.push_back(r.buffer.part(i * 8192 + 100 * i, 1500));
  auto sg = r.nic->MapSg(list, kFrom, {.owner = "rx0"});
  REQUIRE(sg.ok());
  const std::vector<SgSegment> segments(sg->segments().begin(), sg->segments().end());
  uint8_t value = 1;
  for (const SgSegment& s : segments) REQUIRE(r.DeviceWrites(s.iova, s.length.value(), value++));
  REQUIRE(sg->SyncForCpu().ok());
  for (size_t i = 0; i < list.size(); ++i) CHECK(list[i].back() == static_cast<std::byte>(i + 1));
  REQUIRE(sg->SyncForDevice().ok());
  REQUIRE(r.nic->Unmap(*std::move(sg)).ok());
  CHECK(sg->empty());
  CHECK(sg->segments().empty());  // nothing to look up any more
  CHECK_FALSE(sg->SyncForCpu().ok());
  if (FlushQueue* queue = r.space->flush_queue()) REQUIRE(queue->Flush().ok());
  for (size_t i = 0; i < list.size(); ++i) {
    const auto same = [&](std::byte b) { return b == static_cast<std::byte>(i + 1); };
    CHECK(std::all_of(list[i].begin(), list[i].end(), same));
  }
  for (const SgSegment& s : segments) CHECK_FALSE(r.DeviceWrites(s.iova, 1, 0xee));
  CHECK(list[0][0] == std::byte{1});
}

TEST_CASE("packets of 1 to 64 bytes end with the length they were mapped with, padded or not") {
  AuditRig r;
  RawDma raw(*r.nic);
  for (size_t length = 1; length <= 64; ++length) {
    for (const size_t mapped : {length, size_t{60}}) {
      const Iova address = raw.MapSingle(r.buffer.part(64, mapped), kTo, "tx0");
      REQUIRE_FALSE(raw.IsError(address));
      const uint64_t errors = r.audit.total(AuditCode::kWrongSize);
      uint64_t wrong = 0;
      for (const size_t claimed : {length, size_t{60}, mapped + 1, mapped - 1}) {
        if (claimed == mapped) continue;
        REQUIRE_FALSE(raw.UnmapSingle(address, Bytes(claimed), kTo).ok());
        ++wrong;
      }
      REQUIRE(r.audit.total(AuditCode::kWrongSize) == errors + wrong);
      REQUIRE(r.DeviceReads(address, mapped));  // it is still there
      REQUIRE(raw.UnmapSingle(address, Bytes(mapped), kTo).ok());
      REQUIRE_FALSE(r.DeviceReads(address, 1));
    }
  }
  CHECK(raw.live() == 0);
}

// Sibling of the loops that start at another index: any order, any size, one handle each.
TEST_CASE("buffers unmapped in another order than mapped, of sizes that are no cluster") {
  AuditRig r;
  std::vector<Mapping> live;
  for (int round = 0; round < 50; ++round) {
    for (size_t i = 0; i < 8; ++i) {
      live.push_back(r.Map(r.buffer.part(i * 8192, 100 + i * 900), kFrom, "rx0"));
    }
    std::rotate(live.begin(), live.begin() + 2 + round % 5, live.end());
    for (Mapping& mapping : live) {
      REQUIRE(r.DeviceWrites(mapping.iova(), mapping.bytes().size()));
      r.Unmap(std::move(mapping));
    }
    live.clear();
    REQUIRE(r.iommu->stats().live_mappings == 0);
    REQUIRE(r.audit.live() == 0);
  }
  CHECK(Silent(r.audit));
}

}  // namespace
}  // namespace dmakit::dma
