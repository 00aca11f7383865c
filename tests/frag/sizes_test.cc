// SPDX-License-Identifier: Apache-2.0
//
// Sizes at the edges: what nearly wraps, what nearly fills a page, and buffers that must not lie
// across two pages. In every entry point that takes a size.
#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "dma/host/host_memory.h"
#include "dma/raw.h"
#include "dma/ring_pool.h"
#include "iova/cache.h"
#include "tests/frag/testing.h"

namespace dmakit::frag::testing {
namespace {

// Everything that hands out memory or addresses, called with a size and an alignment.
struct EntryPoint {
  const char* name;
  std::function<bool(uint64_t, uint64_t)> succeeds;
};

struct Entries {
  FakeRig rig;
  std::unique_ptr<dma::host::HostMemory> host = *dma::host::HostMemory::Create({});
  std::unique_ptr<iova::Cache> cache = *rig.space->NewCache("test");
  std::unique_ptr<iova::Cache> rounding =
      *iova::Cache::Create(&rig.space->iova_space(), {.round_up = true});
  dma::RawDma raw{*rig.device};
  std::byte byte{};

  std::span<std::byte> Span(uint64_t size) { return {&byte, size}; }
  absl::StatusOr<dma::CoherentBlock> Coherent(uint64_t size, uint64_t alignment,
                                              uint64_t boundary) {
    return rig.device->AllocateCoherent({.size = Bytes(size),
                                         .alignment = Bytes(alignment),
                                         .boundary = Bytes(boundary),
                                         .label = "ring"});
  }
  absl::StatusOr<dma::RingPool<std::byte>> Ring(uint32_t count, uint64_t size, uint64_t alignment) {
    return dma::RingPool<std::byte>::Create(*rig.device, {.count = count,
                                                          .entry_size = Bytes(size),
                                                          .alignment = Bytes(alignment),
                                                          .label = "ring"});
  }

  std::vector<EntryPoint> Addresses() {
    iova::Space& space = rig.space->iova_space();
    return {
        {"Space",
         [&](auto s, auto a) {
           return space.Allocate({.size = Bytes(s), .alignment = Bytes(a)}).ok();
         }},
        {"Cache", [&](auto s, auto a) { return cache->Allocate(Bytes(s), Bytes(a)).ok(); }},
        {"Cache, fast", [&](auto s, auto a) { return !!cache->TryAllocate(Bytes(s), Bytes(a)); }},
        {"Cache, rounding",
         [&](auto s, auto a) { return rounding->Allocate(Bytes(s), Bytes(a)).ok(); }},
        {"Reserve",
         [&](auto s, auto a) { return rig.space->Reserve(Bytes(s), Bytes(a), "page").ok(); }},
        {"Reserve, cache",
         [&](auto s, auto a) {
           return rig.space->Reserve(Bytes(s), Bytes(a), "page", cache.get()).ok();
         }},
    };
  }
  std::vector<EntryPoint> Memory() {
    return {
        {"FakeMemory",
         [&](auto s, auto a) {
           return rig.memory.Allocate({.size = Bytes(s), .alignment = Bytes(a)}).ok();
         }},
        {"HostMemory",
         [&](auto s, auto a) {
           return host->Allocate({.size = Bytes(s), .alignment = Bytes(a)}).ok();
         }},
        {"AllocateCoherent", [&](auto s, auto a) { return Coherent(s, a, 0).ok(); }},
        {"AllocateCoherent, boundary",
         [&](auto s, auto a) { return Coherent(s, a, uint64_t{1} << 63).ok(); }},
        {"RingPool, entry", [&](auto s, auto a) { return Ring(1, s, a).ok(); }},
        {"RingPool, product", [&](auto s, auto a) { return Ring(1u << 31, s >> 30, a).ok(); }},
        {"RawDma, coherent",
         [&](auto s, auto) { return raw.AllocateCoherent(Bytes(s), "ring").cpu != nullptr; }},
    };
  }
  std::vector<EntryPoint> Mappings() {
    constexpr dma::Direction kTo = dma::Direction::kToDevice;
    return {
        {"Map", [&](auto s, auto) { return rig.device->Map(Span(s), kTo).ok(); }},
        {"MapToDevice", [&](auto s, auto) { return rig.device->MapToDevice(Span(s)).ok(); }},
        {"MapSg",
         [&](auto s, auto) {
           const std::span<std::byte> list[] = {Span(s)};
           return rig.device->MapSg(list, kTo).ok();
         }},
        {"MapSg, sum",
         [&](auto s, auto) {
           const std::span<std::byte> list[] = {Span(s / 2), Span(s / 2), Span(4096)};
           return rig.device->MapSg(list, kTo).ok();
         }},
        {"RawDma, single",
         [&](auto s, auto) { return !raw.IsError(raw.MapSingle(Span(s), kTo, "tx0")); }},
        {"RawDma, resource",
         [&](auto s, auto) { return !raw.IsError(raw.MapResource(Span(s), kTo, "bar")); }},
    };
  }
};

TEST_CASE("sizes near 2^64 with every alignment: an error in every entry point, nothing taken") {
  Entries entries;
  FakeRig& rig = entries.rig;
  const uint64_t ranges = rig.space->iova_space().stats().live_ranges;
  std::vector<EntryPoint> all = entries.Addresses();
  for (auto& more : {entries.Memory(), entries.Mappings()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  for (const EntryPoint& entry : all) {
    INFO(entry.name);
    for (const uint64_t below : {0, 1, 2, 63, 64, 127, 4095}) {
      for (uint64_t alignment = 1; alignment <= 1u << 30; alignment *= 2) {
        const uint64_t size = std::numeric_limits<uint64_t>::max() - below;
        if (entry.succeeds(size, alignment)) FAIL("2^64 - " << below + 1 << " by " << alignment);
      }
    }
  }
  CHECK(rig.memory.blocks() == 0);
  CHECK(entries.host->bytes_in_use() == Bytes(0));
  CHECK(rig.domain.stats().maps == 0);
  CHECK(entries.raw.live() == 0);
  rig.space->iova_space().ReclaimAll();
  CHECK(rig.space->iova_space().stats().live_ranges == ranges);
  CHECK(rig.space->iova_space().Validate().empty());
}

TEST_CASE("sizes around a page, cold: in the smallest page that holds them, or refused") {
  const unsigned order = GENERATE(0u, 1u, 3u, 9u);
  const uint32_t tailroom = GENERATE(0u, 1u, 64u);
  UntouchedMemory memory;
  FakeRig rig({.memory = &memory});
  const uint32_t page = kBasePageSize << order, largest = kBasePageSize << kMaxOrder;
  for (uint32_t size = page - 256; size <= page + 256; ++size) {
    auto pool = rig.Pool({.order = order});
    FragAllocator cutter = Cutter(*pool, {.size = 1, .tailroom = tailroom});
    const Fragment fragment = cutter.AllocateSize(size);
    if (fragment.empty() != (size + tailroom > page)) FAIL("AllocateSize " << size);
    auto exact = FragAllocator::Create(*pool, {.size = size, .tailroom = tailroom});
    if (exact.ok() != (size + tailroom <= page)) FAIL("Create " << size);
    if (exact.ok()) {
      const Fragment whole = exact->Allocate();
      if (whole.empty() || whole.size != size || whole.offset != 0) FAIL("Allocate " << size);
      pool->Release(whole);
    }
    Page* taken = pool->TakeAtLeast(size);
    if ((taken == nullptr) != (size > largest)) FAIL("TakeAtLeast " << size);
    if (taken != nullptr) {
      if (taken->size != std::max(page, std::bit_ceil(size))) FAIL("page of " << taken->size);
      pool->Release(taken);
    }
    if (!fragment.empty()) pool->Release(fragment);
  }
  CHECK(memory.bytes_in_use() == Bytes(0));
  CHECK(rig.domain.live().empty());
}

TEST_CASE("coherent blocks of every size around a page hold all of it") {
  FakeRig rig;
  for (const uint32_t page : {4096u, 65536u}) {
    for (uint32_t size = page - 256; size <= page + 256; ++size) {
      auto block = rig.device->AllocateCoherent({.size = Bytes(size), .label = "ring"});
      REQUIRE(block.ok());
      block->data()[size - 1] = std::byte{1};
      const auto live = rig.domain.live();
      if (live.size() != 1 || !live[0].range.Contains(Range{block->iova(), Bytes(size)}) ||
          live[0].memory.size < size) {
        FAIL("size " << size);
      }
    }
  }
  CHECK(rig.memory.blocks() == 0);
}

TEST_CASE("no buffer lies across two pages: the device finds all of it at its address") {
  const unsigned order = GENERATE(0u, 1u, 3u);
  IommuRig rig;
  // Blocks between the pages keep them apart in memory.
  std::vector<dma::host::Memory> between;
  auto pool = rig.Pool({.order = order});
  FragAllocator cutter = Cutter(*pool, {.size = 1700});
  Random random(order);
  std::vector<Fragment> out;
  for (int i = 0; i < 300; ++i) {
    if (i % 5 == 0) between.push_back(*rig.memory.Allocate({.size = Bytes(4096)}));
    const Fragment f = i % 3 == 0
                           ? cutter.AllocateSize(static_cast<uint32_t>(1 + Below(random, 4096)))
                           : cutter.Allocate();
    REQUIRE_FALSE(f.empty());
    REQUIRE(f.offset + f.size <= f.page->size);
    const std::vector<std::byte> bytes(f.size, static_cast<std::byte>(i));
    REQUIRE(rig.port->Write(f.iova(), bytes));
    REQUIRE(std::equal(bytes.begin(), bytes.end(), f.data()));
    out.push_back(f);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const auto same = [&](std::byte b) { return b == static_cast<std::byte>(i); };
    REQUIRE(std::all_of(out[i].data(), out[i].data() + out[i].size, same));
    pool->Release(out[i]);
  }
  CHECK(rig.iommu->walk_stats().faults == 0);
}

}  // namespace
}  // namespace dmakit::frag::testing
