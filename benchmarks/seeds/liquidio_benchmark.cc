// SPDX-License-Identifier: Apache-2.0
//
// LiquidIO's UDP transmit in the shape of the source's tables: service demand (driver processor
// time per packet) with gather lists mapped as before (per slot with two syncs on a physical
// function, per packet on a virtual one, rings of 2,048) and after (one coherent block per ring,
// rings of 512). Both map packet data per packet with IOVAs of the kernel of that time, in rings
// that are filled to the brim; the third column is "after" with this library's. The physical
// function's "before" has 98,304 static mappings in a window of 32 bits that is full but for what
// packets need, as two physical functions with 16 rings had; "after" has 16 x 512, the receive
// buffers, in the same.
//
// That window is not the source's fault reproduced: packets finish in order and what is free is one
// hole, so that searches stay short, as in an empty window. kernel_iova_test has the case where
// they do not. Nor are the columns like for like: this library's maps through dma::Device.
//
// Modelled: the device and its IOMMU are software; an invalidation costs what it costs here, and
// not the wait for hardware. A sync of a coherent device is a call that does nothing. Best of five
// interleaved rounds. Read ratios, of one run.

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <stdexcept>

#include "benchmarks/seeds/liquidio_before.h"
#include "benchmarks/seeds/liquidio_rig.h"

namespace dmakit::seeds {
namespace {

using nic::liquidio::CoherentSlots;

constexpr int kRounds = 5;
constexpr uint32_t kPackets = 20'000;

// The source's, in Gb/s before and after: flows 1, 4, 8 by 360, 1024, 1518 bytes.
constexpr double kPf[3][3][2] = {{{0.52, 0.93}, {1.62, 2.84}, {2.44, 4.21}},
                                 {{0.45, 1.59}, {1.34, 5.48}, {2.27, 8.31}},
                                 {{0.40, 1.61}, {1.64, 4.24}, {2.87, 6.52}}};
constexpr double kVf[3][3][2] = {{{1.28, 1.49}, {4.44, 4.39}, {6.08, 6.51}},
                                 {{2.35, 2.35}, {6.41, 8.07}, {9.56, 9.54}},
                                 {{3.41, 3.65}, {9.35, 9.34}, {9.56, 9.57}}};

// A window with `fixed` static pages, and all else taken but for `holes`.
void Fill(LinearTree& tree, uint64_t fixed, uint64_t holes) {
  for (uint64_t i = 0; i < fixed; ++i) tree.Allocate(1);
  for (uint64_t left = LinearTree::kHighest32 - fixed - holes; left > 0;) {
    const auto pages = static_cast<uint32_t>(std::bit_floor(std::min<uint64_t>(left, 1024)));
    if (!tree.Allocate(pages)) break;
    left -= pages;
  }
}

struct Cost {
  double ns = std::numeric_limits<double>::max();  // per packet
  double visits = 0;  // of the tree, per allocation: one for each piece of a packet
  double maps = 0;    // of anything, per packet
  double syncs = 0;   // per packet
};

// That went out; one that was dropped would be no packet sent for its time.
template <typename Driver>
uint64_t Frames(const Driver& driver) {
  uint64_t frames = 0;
  for (size_t i = 0; i < driver.tx_count(); ++i) {
    const nic::TxQueueStats stats = driver.tx_stats(i);
    if (stats.dropped != 0) throw std::runtime_error("packets were dropped");
    frames += stats.frames;
  }
  return frames;
}

// Keeps the faster round, whole. Syncs are counted in packets of their own, behind the timed ones.
template <typename Rig, typename Visits>
void Measure(LiquidioMachine& machine, Rig& rig, uint32_t bytes, Visits visits, Cost& cost) {
  rig.Send(kPackets / 10, bytes);
  const uint64_t seen = visits();
  const uint64_t maps = machine.iommu->stats().maps;
  const uint64_t frames = Frames(rig.driver());
  Cost now;
  now.ns = rig.Send(kPackets, bytes);
  const auto sent = static_cast<double>(Frames(rig.driver()) - frames);
  now.visits = static_cast<double>(visits() - seen) / (sent * Rig::kPieces);
  now.maps = static_cast<double>(machine.iommu->stats().maps - maps) / sent;
  if (now.ns >= cost.ns) return;
  const SyncCounter syncs(*machine.device);
  const uint64_t uncounted = Frames(rig.driver());
  rig.Send(kPackets / 10, bytes);
  now.syncs = static_cast<double>(syncs.for_cpu() + syncs.for_device()) /
              static_cast<double>(Frames(rig.driver()) - uncounted);
  cost = now;
}

template <typename Lists>
void MeasureKernel(bool vf, uint32_t ring, size_t flows, uint32_t bytes, uint64_t fixed,
                   Cost& cost) {
  LiquidioMachine machine(vf);
  LinearTree tree;
  // What full rings need, and what magazines may park.
  if (fixed != 0) Fill(tree, fixed, flows * (ring * 3 + 4 * 128) + 2 * 32 * 128);
  MagazineCache iovas(tree, flows);
  size_t cpu = 0;
  LiquidioRig<KernelMapped, Lists> rig(machine, vf, ring, flows,
                                       [&] { return KernelMapped(*machine.iommu, iovas, cpu++); });
  Measure(
      machine, rig, bytes, [&] { return tree.visits_total(); }, cost);
}

void MeasureOwn(bool vf, size_t flows, uint32_t bytes, Cost& cost) {
  LiquidioMachine machine(vf);
  const auto cache = Must(machine.space->NewCache("tx"));
  LiquidioRig<DmakitMapped, CoherentSlots> rig(
      machine, vf, 512, flows, [&] { return DmakitMapped(*machine.device, *cache); });
  Measure(
      machine, rig, bytes, [&] { return machine.space->iova_space().stats().visits_total; }, cost);
}

void Print(const Cost& cost) {
  std::printf("  %7.0f %9.2f %5.2f %5.2f", cost.ns, cost.visits, cost.maps, cost.syncs);
}

// What the numbers stand for, with the numbers.
void Explain() {
  std::puts(
      "before: rings of 2048, gather lists mapped per slot (PF) or per packet (VF), packet data "
      "mapped\n  with a kernel-style allocator. PF: 98,304 static pages, and the 32-bit window "
      "full "
      "but for what\n  full rings and magazines need. VF: an empty window; its lists have IOVAs of "
      "dmakit, not of the\n  kernel's allocator.\n"
      "after: rings of 512, one coherent block of lists; data as before; PF: 8,192 static pages in "
      "a\n  window as full. dmakit: the same with dmakit's IOVAs, in a window that is NOT full.\n"
      "NOT reproduced: the source's long searches. Packets finish in order and what is free is one "
      "hole,\n  so PF visits are those of an empty window, whatever is static; kernel_iova_test "
      "has "
      "the case\n  where a search reads it all.\n"
      "Not like for like: dmakit's column maps through dma::Device, the kernel's straight in the "
      "domain.\n"
      "Receive is not run (the refill threshold changes nothing here). One thread serves all "
      "flows.\n"
      "Modelled: device and IOMMU are software. Waiting for an invalidation costs 0; a sync of "
      "this\n  coherent device is a call that does nothing. No IP stack, so ratios are not those "
      "of "
      "Gb/s.\n"
      "Columns: driver ns per packet, tree nodes visited per allocation, maps and syncs per "
      "packet;\n  best of 5 interleaved rounds.");
}

void Table(bool vf) {
  std::printf("\n%s, UDP transmit\n", vf ? "Virtual function" : "Physical function");
  std::printf("%5s %5s  %-29s  %-29s  %-29s  %7s  %7s  %s\n", "", "", "before", "after", "dmakit",
              "before/", "before/", "source, Gb/s");
  std::printf("%5s %5s", "flows", "bytes");
  for (int column = 0; column < 3; ++column) {
    std::printf("  %7s %9s %5s %5s", "ns", "visits", "maps", "syncs");
  }
  std::printf("  %7s  %7s  %s\n", "after", "dmakit", "before -> after");
  const size_t flows[] = {1, 4, 8};
  const uint32_t sizes[] = {360, 1024, 1518};
  for (size_t f = 0; f < 3; ++f) {
    for (size_t s = 0; s < 3; ++s) {
      Cost before, after, own;
      for (int round = 0; round < kRounds; ++round) {
        if (vf) {
          MeasureKernel<MapPerPacket>(vf, 2048, flows[f], sizes[s], 0, before);
        } else {
          MeasureKernel<MapPerSlot>(vf, 2048, flows[f], sizes[s], 16 * 2048 * 3, before);
        }
        MeasureKernel<CoherentSlots>(vf, 512, flows[f], sizes[s], vf ? 0 : 16 * 512, after);
        MeasureOwn(vf, flows[f], sizes[s], own);
      }
      const auto& source = vf ? kVf[f][s] : kPf[f][s];
      std::printf("%5zu %5u", flows[f], sizes[s]);
      for (const Cost* cost : {&before, &after, &own}) Print(*cost);
      std::printf("  %6.2fx  %6.2fx  %.2f -> %.2f (%.2fx)\n", before.ns / after.ns,
                  before.ns / own.ns, source[0], source[1], source[1] / source[0]);
    }
  }
}

}  // namespace
}  // namespace dmakit::seeds

int main() {
  try {
    dmakit::seeds::Explain();
    dmakit::seeds::Table(/*vf=*/false);
    dmakit::seeds::Table(/*vf=*/true);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return EXIT_FAILURE;
  }
}
