// SPDX-License-Identifier: Apache-2.0
//
// The strategies that the benchmark compares do what the source says they did, by count.

#include "benchmarks/seeds/liquidio_before.h"

#include <optional>
#include <string>
#include <utility>

#include "benchmarks/seeds/liquidio_rig.h"
#include "benchmarks/seeds/map_each.h"
#include "nic/wire/memory_wire.h"
#include "tests/catch.h"

namespace dmakit::seeds {
namespace {

using nic::PageAddressing;
using nic::liquidio::CoherentSlots;

constexpr uint32_t kRing = 256;
constexpr uint32_t kPackets = 2'000;

struct PerPacket {
  double maps = 0;
  double unmaps = 0;
  double invalidations = 0;
  double syncs_for_cpu = 0;
  double syncs_for_device = 0;
};

// In steady state: maps of the domain, syncs of the device.
template <typename Addressing, typename Lists>
PerPacket Run(LiquidioMachine& machine, const std::function<Addressing()>& addressing) {
  LiquidioRig<Addressing, Lists> rig(machine, machine.vf, kRing, 1, addressing);
  rig.Send(512, 1000);
  const dma::DomainStats before = machine.iommu->stats();
  const uint64_t lists = rig.driver().tx_stats(0).frames;
  const SyncCounter syncs(*machine.device);
  rig.Send(kPackets, 1000);
  const dma::DomainStats after = machine.iommu->stats();
  const double sent = static_cast<double>(rig.driver().tx_stats(0).frames - lists);
  CHECK(sent >= kPackets);
  CHECK(rig.driver().tx_stats(0).dropped == 0);
  CHECK(machine.model.violation_count() == 0);
  return {static_cast<double>(after.maps - before.maps) / sent,
          static_cast<double>(after.unmaps - before.unmaps) / sent,
          static_cast<double>(after.invalidations - before.invalidations) / sent,
          static_cast<double>(syncs.for_cpu()) / sent,
          static_cast<double>(syncs.for_device()) / sent};
}

// No driver is left, and packets have gone back.
void CheckNothingMapped(LiquidioMachine& machine) {
  machine.fragments.reset();
  machine.pool->Trim();
  CHECK(machine.iommu->stats().live_mappings == 0);
}

template <typename Lists>
PerPacket OfLists(bool vf) {
  LiquidioMachine machine(vf);
  const PerPacket cost = Run<PageAddressing, Lists>(machine, [] { return PageAddressing(); });
  CHECK(machine.iommu->walk_stats().faults == 0);
  CHECK(machine.space->quarantine().count() == 0);
  CheckNothingMapped(machine);
  return cost;
}

TEST_CASE("gather lists: nothing is mapped per packet, but where each packet maps its own") {
  const bool vf = GENERATE(false, true);
  const PerPacket coherent = OfLists<CoherentSlots>(vf);
  CHECK(coherent.maps == 0);
  CHECK(coherent.unmaps == 0);
  CHECK(coherent.invalidations == 0);
  CHECK(coherent.syncs_for_cpu == 0);
  CHECK(coherent.syncs_for_device == 0);
  const PerPacket slot = OfLists<MapPerSlot>(vf);
  CHECK(slot.maps == 0);
  CHECK(slot.unmaps == 0);
  CHECK(slot.invalidations == 0);
  CHECK(slot.syncs_for_cpu == 1);
  CHECK(slot.syncs_for_device == 1);
  const PerPacket packet = OfLists<MapPerPacket>(vf);
  CHECK(packet.maps == 1);
  CHECK(packet.unmaps == 1);
  CHECK(packet.invalidations == 1);
  CHECK(packet.syncs_for_cpu == 0);
  CHECK(packet.syncs_for_device == 0);
}

TEST_CASE("a list of its own mapping per slot is synced twice a packet, and mapped with its ring") {
  LiquidioMachine machine(false);
  auto slots = Must(MapPerSlot::Create(*machine.device,
                                       {.count = 8, .entry_size = Bytes{200}, .label = "lists"}));
  CHECK(slots.maps() == 8);
  Iova first;
  Iova second;
  REQUIRE(slots.Give(0, first));
  REQUIRE(slots.Give(1, second));
  CHECK(first != second);
  slots.Take(0);
  slots.Take(1);
  CHECK(slots.counts().syncs == 4);
  CHECK(slots.counts().maps == 8);
}

TEST_CASE("receive as before: info and receive buffers mapped one by one, all the time") {
  constexpr uint32_t kFrames = 1'000;
  LiquidioMachine machine(false);
  nic::MemorySource wire({nic::Frame(600, std::byte{7})}, 2 * kFrames);
  machine.model.Plug(&wire);
  std::vector<MapEach> sources;
  sources.emplace_back(
      Must(nic::FragSource::Create(*machine.pool, {.size = 1600, .capacity = 1544})),
      *machine.device);
  auto driver =
      Must(nic::liquidio::Driver<MapEach, PageAddressing, CoherentSlots, MapPerSlot>::Create(
          *machine.device, {.bar0 = machine.model.bar0()}, {.ring_size = kRing, .mtu = 1500},
          std::move(sources), {}));
  REQUIRE(driver->Start().ok());
  // An info buffer and a receive buffer for each slot, beside the ring.
  CHECK(machine.iommu->stats().live_mappings >= 2 * kRing);
  uint64_t received = 0;
  std::vector<nic::Packet> burst(32);
  dma::DomainStats before;
  for (uint64_t counted = 0, rounds = 0; received < 2 * kFrames; ++rounds) {
    REQUIRE(rounds < 100'000);
    if (counted == 0 && received >= kFrames) {
      before = machine.iommu->stats();
      counted = received;
    }
    while (machine.model.Step()) {
    }
    const size_t got = driver->rx(0).Receive(burst);
    for (size_t i = 0; i < got; ++i) machine.pool->Release(burst[i].segments[0].page);
    received += got;
  }
  const dma::DomainStats after = machine.iommu->stats();
  const auto maps = static_cast<double>(after.maps - before.maps);
  // Refilled by 16, so that the last ones may be missing.
  CHECK(maps >= kFrames - kRing);
  CHECK(maps <= kFrames + kRing);
  CHECK(after.unmaps - before.unmaps >= kFrames - kRing);
  REQUIRE(driver->Stop().ok());
  CHECK(driver->rx(0).source().failures() == 0);
  driver->rx(0).source().inner().Rest();
  machine.model.Plug(nullptr);
  CHECK(machine.iommu->walk_stats().faults == 0);
}

TEST_CASE("packet data: two maps a packet of two pieces, whoever gives the IOVAs, and none left") {
  SECTION("the kernel's") {
    LiquidioMachine machine(false);
    LinearTree tree;
    std::optional<MagazineCache> iovas(std::in_place, tree, 1);
    const PerPacket cost = Run<KernelMapped, CoherentSlots>(
        machine, [&] { return KernelMapped(*machine.iommu, *iovas, 0); });
    CHECK(cost.maps == 2);
    CHECK(cost.unmaps == 2);
    CHECK(cost.invalidations == 2);
    CHECK(machine.iommu->walk_stats().faults == 0);
    CheckNothingMapped(machine);
    iovas.reset();
    CHECK(tree.size() == 0);
  }
  SECTION("dmakit's") {
    LiquidioMachine machine(false);
    const auto cache = Must(machine.space->NewCache("tx"));
    const PerPacket cost = Run<DmakitMapped, CoherentSlots>(
        machine, [&] { return DmakitMapped(*machine.device, *cache); });
    CHECK(cost.maps == 2);
    CHECK(cost.unmaps == 2);
    CHECK(machine.iommu->walk_stats().faults == 0);
    CheckNothingMapped(machine);
  }
}

}  // namespace
}  // namespace dmakit::seeds
