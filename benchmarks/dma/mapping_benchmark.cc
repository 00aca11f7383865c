// SPDX-License-Identifier: Apache-2.0
//
// What one map and unmap of a caller's buffer costs on the software IOMMU: by policy, with and
// without the audit, and with devices behind the IOMMU whose translation caches an invalidation
// must visit. Compare rows of one run; absolute times are the machine's.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "dma/address_space.h"
#include "dma/audit.h"
#include "dma/host/clock.h"
#include "dma/host/fence.h"
#include "dma/host/host_memory.h"
#include "dma/software_iommu.h"

namespace dmakit::dma {
namespace {

constexpr size_t kBuffer = 2048;

// A device, and `live` mappings that stay, as a driver's rings would.
struct Rig {
  explicit Rig(Policy policy) {
    memory = *host::HostMemory::Create({});
    iommu = *SoftwareIommu::Create({});
    AddressSpace::Options options;
    options.memory = memory.get();
    options.fence = &fence;
    options.policy = policy;
    space = *AddressSpace::Create(std::move(options));
    DeviceOptions device_options;
    device_options.name = "nic";
    device_options.domain = iommu.get();
    device = *space->Attach(std::move(device_options));
  }

  host::MembarrierFence fence;
  std::unique_ptr<host::HostMemory> memory;
  std::unique_ptr<SoftwareIommu> iommu;
  std::unique_ptr<AddressSpace> space;
  std::unique_ptr<Device> device;
};

// range(0): live mappings; range(1): whether the audit is attached.
void MapUnmap(benchmark::State& state, Policy policy) {
  Rig rig(policy);
  std::vector<std::byte> bytes(kBuffer * 2);
  std::vector<std::vector<std::byte>> others(static_cast<size_t>(state.range(0)));
  std::optional<Audit> audit;
  if (state.range(1) != 0) {
    audit.emplace();
    if (!audit->Attach(*rig.device).ok()) return state.SkipWithError("the audit does not attach");
  }
  std::vector<Mapping> live;
  for (std::vector<std::byte>& other : others) {
    other.resize(kBuffer);
    absl::StatusOr<Mapping> mapping = rig.device->Map(other, Direction::kFromDevice);
    if (!mapping.ok()) return state.SkipWithError("map failed");
    live.push_back(*std::move(mapping));
  }
  for (auto _ : state) {
    absl::StatusOr<Mapping> mapping =
        rig.device->Map(std::span(bytes).first(kBuffer), Direction::kFromDevice);
    if (!mapping.ok() || !rig.device->Unmap(*std::move(mapping)).ok()) {
      return state.SkipWithError("map or unmap failed");
    }
  }
  const AddressSpace::Stats stats = rig.space->stats();
  const auto pairs = static_cast<double>(state.iterations());
  state.counters["invalidations/pair"] = static_cast<double>(stats.invalidations) / pairs;
  live.clear();
  if (audit) audit->Detach(*rig.device);
}

// How an owner calls: with nothing of its own, with an IOVA cache, with a flush lane too.
enum class Own { kNothing, kCache, kCacheAndLane };

// range(0): ports that have used the translation, as devices would have; an invalidation goes to
// each of them.
void MapUseUnmap(benchmark::State& state, Policy policy, Own own) {
  Rig rig(policy);
  std::vector<std::byte> bytes(kBuffer * 2);
  std::unique_ptr<iova::Cache> cache;
  FlushLane lane;
  if (own != Own::kNothing) cache = *rig.space->NewCache("benchmark");
  if (own == Own::kCacheAndLane) lane = *rig.space->NewFlushLane("benchmark");
  std::vector<std::unique_ptr<DevicePort>> ports;
  for (int64_t i = 0; i < state.range(0); ++i) {
    ports.push_back(rig.iommu->NewPort("port" + std::to_string(i)));
  }
  const std::byte word[8] = {};
  for (auto _ : state) {
    absl::StatusOr<Mapping> mapping =
        rig.device->Map(std::span(bytes).first(kBuffer), Direction::kFromDevice,
                        {.owner = "?", .cache = cache.get()});
    if (!mapping.ok()) return state.SkipWithError("map failed");
    for (const auto& port : ports) benchmark::DoNotOptimize(port->Write(mapping->iova(), word));
    if (!rig.device->Unmap(*std::move(mapping), {.cache = cache.get(), .lane = &lane}).ok()) {
      return state.SkipWithError("unmap failed");
    }
  }
  const auto pairs = static_cast<double>(state.iterations());
  state.counters["invalidations/pair"] =
      static_cast<double>(rig.space->stats().invalidations) / pairs;
  state.counters["tree/pair"] =
      static_cast<double>(rig.space->iova_space().stats().operations) / pairs;
}

BENCHMARK_CAPTURE(MapUseUnmap, strict, Policy::kStrict, Own::kNothing)
    ->ArgName("ports")
    ->Arg(0)
    ->Arg(1)
    ->Arg(8);
BENCHMARK_CAPTURE(MapUseUnmap, strict_cache, Policy::kStrict, Own::kCache)
    ->ArgName("ports")
    ->Arg(0)
    ->Arg(1)
    ->Arg(8);
BENCHMARK_CAPTURE(MapUseUnmap, deferred, Policy::kDeferred, Own::kNothing)
    ->ArgName("ports")
    ->Arg(0)
    ->Arg(1)
    ->Arg(8);
BENCHMARK_CAPTURE(MapUseUnmap, deferred_lane, Policy::kDeferred, Own::kCacheAndLane)
    ->ArgName("ports")
    ->Arg(0)
    ->Arg(1)
    ->Arg(8);

BENCHMARK_CAPTURE(MapUnmap, strict, Policy::kStrict)
    ->ArgNames({"live", "audit"})
    ->ArgsProduct({{1, 1024}, {0, 1}});
BENCHMARK_CAPTURE(MapUnmap, deferred, Policy::kDeferred)
    ->ArgNames({"live", "audit"})
    ->ArgsProduct({{1, 1024}, {0, 1}});

}  // namespace
}  // namespace dmakit::dma

BENCHMARK_MAIN();
