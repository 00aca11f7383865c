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
// Modelled: the device and its IOMMU are software; an invalidation costs what it costs here, and
// not the wait for hardware. A sync of a coherent device is a call that does nothing. Best of five
// interleaved rounds. Read ratios, of one run.

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
  double ns = std::numeric_limits<double>::max();
  double visits = 0;  // of the tree, per packet
  void Best(double now, double seen) {
    if (now < ns) *this = {now, seen};
  }
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
  rig.Send(kPackets / 10, bytes);
  const uint64_t before = tree.visits_total();
  const uint64_t frames = Frames(rig.driver());
  const double ns = rig.Send(kPackets, bytes);
  const auto sent = static_cast<double>(Frames(rig.driver()) - frames);
  cost.Best(ns, static_cast<double>(tree.visits_total() - before) / sent);
}

void MeasureOwn(bool vf, size_t flows, uint32_t bytes, Cost& cost) {
  LiquidioMachine machine(vf);
  const auto cache = Must(machine.space->NewCache("tx"));
  LiquidioRig<DmakitMapped, CoherentSlots> rig(
      machine, vf, 512, flows, [&] { return DmakitMapped(*machine.device, *cache); });
  rig.Send(kPackets / 10, bytes);
  const uint64_t before = machine.space->iova_space().stats().visits_total;
  const uint64_t frames = Frames(rig.driver());
  const double ns = rig.Send(kPackets, bytes);
  const auto sent = static_cast<double>(Frames(rig.driver()) - frames);
  const uint64_t after = machine.space->iova_space().stats().visits_total;
  cost.Best(ns, static_cast<double>(after - before) / sent);
}

void Table(bool vf) {
  std::printf("\n%s, UDP transmit: driver ns per packet (tree nodes visited per packet)\n",
              vf ? "Virtual function" : "Physical function");
  std::printf("%5s %6s  %20s  %20s  %20s  %7s  %7s  %s\n", "flows", "bytes", "before", "after",
              "after, dmakit's IOVA", "ratio", "dmakit", "source, Gb/s");
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
      std::printf(
          "%5zu %6u  %11.0f (%6.1f)  %11.0f (%6.1f)  %11.0f (%6.1f)  %6.2fx  %6.2fx  "
          "%.2f -> %.2f (%.2fx)\n",
          flows[f], sizes[s], before.ns, before.visits, after.ns, after.visits, own.ns, own.visits,
          before.ns / after.ns, before.ns / own.ns, source[0], source[1], source[1] / source[0]);
    }
  }
}

}  // namespace
}  // namespace dmakit::seeds

int main() {
  try {
    dmakit::seeds::Table(/*vf=*/false);
    dmakit::seeds::Table(/*vf=*/true);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return EXIT_FAILURE;
  }
}
