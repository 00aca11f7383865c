// SPDX-License-Identifier: Apache-2.0
//
// An address space on the kernel's IOMMU, counted in ioctls: what is mapped once costs a packet
// none, and what is adjacent costs one.
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dma/address_space.h"
#include "dma/device.h"
#include "dma/host/fakes.h"
#include "frag/frag_allocator.h"
#include "frag/page_pool.h"
#include "tests/catch.h"
#include "tests/dma/host/vfio_testing.h"

namespace dmakit::dma::host {
namespace {

using testing::kPage;
using testing::Pages;

struct Space {
  explicit Space(FakeVfioKernel::Options options = {}) : rig(std::move(options)) {
    space = *AddressSpace::Create({.memory = &memory, .policy = Policy::kStrict});
    device = *space->Attach({.name = "nic0", .domain = rig.domain});
  }
  VfioCallCounts counts() const { return rig.kernel.counts(); }

  testing::VfioRig rig;
  FakeMemory memory{};
  std::unique_ptr<AddressSpace> space{};
  std::unique_ptr<Device> device{};
};

TEST_CASE("packets from a persistent pool cost no ioctl, however many") {
  Space s;
  const auto pool = *frag::PagePool::Create(
      *s.space, {.label = "rx0", .order = 3, .max_bytes = KiB(512), .policy = Policy::kPersistent});
  REQUIRE(pool->Prepare(16) == 16);
  CHECK(s.counts().dma_maps == 16);
  auto fragments = *frag::FragAllocator::Create(*pool, {.size = 2048});
  const VfioCallCounts before = s.counts();
  std::vector<frag::Fragment> ring;
  uint64_t packets = 0;
  for (int round = 0; round < 1000; ++round) {
    for (int i = 0; i < 64; ++i) {
      const frag::Fragment fragment = fragments.Allocate();
      if (fragment.empty()) break;
      ring.push_back(fragment);
      ++packets;
    }
    for (const frag::Fragment& fragment : ring) pool->Release(fragment);
    ring.clear();
  }
  CHECK(packets == 64'000);
  CHECK(s.counts().ioctls == before.ioctls);
  CHECK(s.counts().dma_maps == before.dma_maps);
  CHECK(s.counts().dma_unmaps == before.dma_unmaps);
}

TEST_CASE("a strict pool costs one map and one unmap per page, not per packet") {
  Space s;
  const auto pool = *frag::PagePool::Create(
      *s.space, {.label = "rx0", .order = 3, .max_bytes = KiB(512), .policy = Policy::kStrict});
  auto fragments = *frag::FragAllocator::Create(*pool, {.size = 2048});
  for (int i = 0; i < 16 * 100; ++i) pool->Release(fragments.Allocate());
  fragments.Retire();
  const frag::PagePoolStats stats = pool->stats();
  CHECK(s.counts().dma_maps == stats.maps);
  CHECK(s.counts().dma_unmaps == stats.unmaps);
  CHECK(stats.maps <= 101);
}

TEST_CASE("a packet page of 2 MiB is one ioctl and one mapping") {
  Space s;
  const auto pool =
      *frag::PagePool::Create(*s.space, {.label = "rx0", .order = 9, .max_bytes = MiB(8)});
  const VfioCallCounts before = s.counts();
  REQUIRE(pool->Prepare(2) == 2);
  CHECK(s.counts().ioctls == before.ioctls + 2);
  CHECK(s.rig.domain->stats().live_mappings == 2);
  CHECK(s.rig.domain->stats().mapped_bytes == MiB(4).value());
}

TEST_CASE("a list whose entries are adjacent in memory is one ioctl") {
  Space s({.max_mappings = 8});
  const Pages pages(100);
  std::vector<std::span<std::byte>> entries;
  for (size_t i = 0; i < 100; ++i) entries.push_back(pages.At(i).bytes());
  const VfioCallCounts before = s.counts();
  auto mapping = s.device->MapSg(entries, Direction::kFromDevice);
  REQUIRE(mapping.ok());
  CHECK(s.counts().dma_maps == before.dma_maps + 1);
  CHECK(s.rig.domain->stats().live_mappings == 1);
  REQUIRE(s.device->Unmap(*std::move(mapping)).ok());
  CHECK(s.counts().dma_unmaps == before.dma_unmaps + 1);
  CHECK(s.rig.kernel.mappings().empty());
}

TEST_CASE("a list that is adjacent in runs is one ioctl for each run, and one unmap") {
  Space s;
  const Pages pages(12);
  std::vector<std::span<std::byte>> entries;
  for (const size_t page : {0, 1, 2, 6, 7, 4}) entries.push_back(pages.At(page).bytes());
  // Parts of pages that follow each other are adjacent too.
  entries.push_back(pages.At(9).bytes().first(100));
  entries.push_back(pages.At(9, 2).bytes().subspan(100, 5000));
  const VfioCallCounts before = s.counts();
  auto mapping = s.device->MapSg(entries, Direction::kToDevice);
  REQUIRE(mapping.ok());
  CHECK(s.counts().dma_maps == before.dma_maps + 4);
  REQUIRE(s.device->Unmap(*std::move(mapping)).ok());
  CHECK(s.counts().dma_unmaps == before.dma_unmaps + 1);
}

TEST_CASE("what the address space hands out lies within what the IOMMU translates") {
  for (const unsigned bits : {36u, 39u, 48u}) {
    Space s({.width = AddressBits(bits),
             .reserved = {{Iova(0), Iova(0xfffff)}, {Iova(0xfee00000), Iova(0xfeefffff)}}});
    const Pages pages(4);
    std::vector<Mapping> mappings;
    for (int i = 0; i < 200; ++i) {
      auto mapping = s.device->Map(pages.At(0, 4).bytes(), Direction::kBidirectional);
      REQUIRE(mapping.ok());
      mappings.push_back(*std::move(mapping));
    }
    CHECK(s.rig.kernel.mappings().size() == 200);
    for (auto& mapping : mappings) CHECK(s.device->Unmap(std::move(mapping)).ok());
  }
}

TEST_CASE("a short unmap quarantines, and the IOVA is not used again") {
  FailPoint short_unmap;
  Space s({.short_unmap = &short_unmap});
  const Pages pages(2);
  auto mapping = s.device->Map(pages.At(0, 2).bytes(), Direction::kFromDevice);
  REQUIRE(mapping.ok());
  short_unmap.FailAt(1);
  CHECK_FALSE(s.device->Unmap(*std::move(mapping)).ok());
  CHECK(s.space->stats().quarantined == 1);
  auto next = s.device->Map(pages.At(0, 2).bytes(), Direction::kFromDevice);
  REQUIRE(next.ok());
  REQUIRE(s.device->Unmap(*std::move(next)).ok());
  CHECK(s.rig.kernel.mappings().size() == 1);
  CHECK(s.space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(s.rig.kernel.mappings().empty());
}

TEST_CASE("an address space unwinds when the kernel refuses its k-th call") {
  for (uint64_t k = 1;; ++k) {
    INFO("call " << k);
    FailPoint fail;
    Space s({.fail = &fail});
    fail.FailAt(k);
    bool failed = false;
    {
      const auto pool = frag::PagePool::Create(
          *s.space, {.label = "rx0", .order = 0, .min_order = 0, .max_bytes = KiB(64)});
      REQUIRE(pool.ok());
      failed = (*pool)->Prepare(4) != 4;
      if (!failed) {
        const Pages pages(1);
        auto mapping = s.device->Map(pages.At(0).bytes(), Direction::kToDevice);
        failed = !mapping.ok();
      }
    }
    if (!fail.triggered()) break;
    CHECK(s.space->quarantine().ReleaseAfterReset("nic0").ok());
    CHECK(s.rig.kernel.mappings().empty());
    REQUIRE(k < 100);
  }
}

TEST_CASE("memory that a user may not lock fails a map by name, and nothing stays") {
  Space s({.root = false, .memlock_limit = KiB(16)});
  const Pages pages(8);
  const auto mapping = s.device->Map(pages.At(0, 8).bytes(), Direction::kToDevice);
  REQUIRE_FALSE(mapping.ok());
  CHECK(mapping.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(VfioProblemOf(mapping.status()) == VfioProblem::kMemlock);  // through all layers
  CHECK(std::string(mapping.status().message()).find("RLIMIT_MEMLOCK") != std::string::npos);
  CHECK(s.rig.kernel.mappings().empty());
  CHECK(s.device->stats().live_mappings == 0);
}

}  // namespace
}  // namespace dmakit::dma::host
