// SPDX-License-Identifier: Apache-2.0
//
// What one receive buffer costs: cut from a page that was mapped once, or mapped and unmapped by
// itself as drivers did before. Compare rows of one run; absolute times are the machine's.

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "dma/address_space.h"
#include "dma/host/fence.h"
#include "dma/host/host_memory.h"
#include "dma/software_iommu.h"
#include "frag/frag_allocator.h"
#include "frag/page_pool.h"
#include "frag/returner.h"

namespace dmakit::frag {
namespace {

constexpr uint32_t kBuffer = 1600;  // MTU 1500: see nic::RxBufferSize
constexpr size_t kRing = 512;

struct Rig {
  Rig() {
    memory = *dma::host::HostMemory::Create({});
    iommu = *dma::SoftwareIommu::Create({});
    dma::AddressSpace::Options options;
    options.memory = memory.get();
    options.fence = &fence;
    space = *dma::AddressSpace::Create(std::move(options));
    dma::DeviceOptions device_options;
    device_options.name = "nic";
    device_options.domain = iommu.get();
    device = *space->Attach(std::move(device_options));
  }

  dma::host::MembarrierFence fence;
  std::unique_ptr<dma::host::HostMemory> memory;
  std::unique_ptr<dma::SoftwareIommu> iommu;
  std::unique_ptr<dma::AddressSpace> space;
  std::unique_ptr<dma::Device> device;
};

// A full ring whose oldest buffer comes back and is replaced.
template <typename GiveBack>
void Fragments(benchmark::State& state, Rig& rig, PagePool& pool, GiveBack&& give_back) {
  auto fragments = FragAllocator::Create(pool, {.size = kBuffer});
  if (!fragments.ok()) return state.SkipWithError("no fragment allocator");
  std::vector<Fragment> ring(kRing);
  for (Fragment& slot : ring) slot = fragments->Allocate();
  const uint64_t maps = rig.iommu->stats().maps;
  size_t at = 0;
  for (auto _ : state) {
    give_back(ring[at]);
    ring[at] = fragments->Allocate();
    benchmark::DoNotOptimize(ring[at].page);
    at = at + 1 == kRing ? 0 : at + 1;
  }
  const auto buffers = static_cast<double>(state.iterations());
  state.counters["maps/buffer"] = static_cast<double>(rig.iommu->stats().maps - maps) / buffers;
  for (const Fragment& slot : ring) give_back(slot);
}

void FragmentOwner(benchmark::State& state) {
  Rig rig;
  const auto pool = *PagePool::Create(*rig.space, {.label = "ring", .order = 3});
  Fragments(state, rig, *pool, [&](const Fragment& fragment) { pool->Release(fragment); });
}
BENCHMARK(FragmentOwner);

// As another thread would give it back, in bursts of 32.
void FragmentReturner(benchmark::State& state) {
  Rig rig;
  const auto pool = *PagePool::Create(*rig.space, {.label = "ring", .order = 3});
  {
    Returner returner;
    int burst = 0;
    Fragments(state, rig, *pool, [&](const Fragment& fragment) {
      returner.Return(fragment);
      if (++burst % 32 == 0) returner.Flush();
    });
    state.counters["atomics/buffer"] =
        static_cast<double>(returner.atomics()) / static_cast<double>(state.iterations());
  }
}
BENCHMARK(FragmentReturner);

// The fault of the enic source: one map and one unmap per buffer.
void MapEachBuffer(benchmark::State& state) {
  Rig rig;
  std::vector<std::byte> memory(kRing * size_t{kBuffer});
  std::vector<dma::Mapping> ring(kRing);
  const auto map = [&](size_t at) {
    return rig.device->Map(std::span(memory).subspan(at * kBuffer, kBuffer),
                           dma::Direction::kFromDevice);
  };
  for (size_t i = 0; i < kRing; ++i) ring[i] = *map(i);
  const uint64_t maps = rig.iommu->stats().maps;
  size_t at = 0;
  for (auto _ : state) {
    if (!rig.device->Unmap(std::move(ring[at])).ok()) return state.SkipWithError("unmap failed");
    ring[at] = *map(at);
    at = at + 1 == kRing ? 0 : at + 1;
  }
  const auto buffers = static_cast<double>(state.iterations());
  state.counters["maps/buffer"] = static_cast<double>(rig.iommu->stats().maps - maps) / buffers;
}
BENCHMARK(MapEachBuffer);

}  // namespace
}  // namespace dmakit::frag

BENCHMARK_MAIN();
