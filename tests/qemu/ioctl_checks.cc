// SPDX-License-Identifier: Apache-2.0
//
// What mapping costs on the real thing: system calls per packet, counted, and guest instructions
// per received frame, which is what the time stamp counter counts under QEMU's -icount.

#include <x86intrin.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "benchmarks/seeds/map_each.h"
#include "nic/e1000e/driver.h"
#include "nic/frag_source.h"
#include "tests/nic/frames.h"
#include "tests/qemu/function.h"
#include "tests/qemu/pair.h"

namespace dmakit::qemu {
namespace {

using nic::FragSource;
using nic::Packet;
using nic::PageAddressing;
using nic::e1000e::DriverOptions;
using seeds::MapEach;

constexpr uint32_t kFrames = 2'000;
constexpr uint32_t kWarmUp = 200;
constexpr DriverOptions kOptions = {.ring_size = 64, .mtu = 1500};

struct Cost {
  double ioctls = 0;        // per frame
  double instructions = 0;  // of Receive, per frame
};

template <typename Receiver, typename Sender>
Cost Measure(dma::host::VfioKernel& kernel, Packets& packets, Receiver& receiver, Sender& sender,
             frag::PagePool& pool) {
  sender.tx(0).SetOwner(&packets.pool());
  dma::host::VfioCallCounts before;
  uint64_t instructions = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t n = 0; n < kWarmUp + kFrames;) {
    if (n == kWarmUp) {
      before = kernel.counts();
      instructions = 0;
    }
    Packet packet = packets.Carry(nic::testing::NumberedFrame(n, 1'000));
    REQUIRE(sender.tx(0).Transmit({&packet, 1}) == 1);
    Packet burst[4];
    for (size_t got = 0; got == 0;) {
      const uint64_t begin = __rdtsc();
      got = receiver.rx(0).Receive(burst);
      const uint64_t spent = __rdtsc() - begin;
      if (got != 0) instructions += spent;  // a look that found nothing is waiting
      for (size_t i = 0; i < got; ++i) {
        REQUIRE(TakeBytes(burst[i], pool) == nic::testing::NumberedFrame(n++, 1'000));
      }
      REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(300));
    }
    sender.tx(0).Reap();
  }
  const dma::host::VfioCallCounts after = kernel.counts();
  return {static_cast<double>(after.ioctls - before.ioctls) / kFrames,
          static_cast<double>(instructions) / kFrames};
}

struct Bench {
  Bench() : receiver(kernel, 0), sender(kernel, 1), memory(dma::Policy::kStrict) {
    receiver.Attach(memory.space());
    sender.Attach(memory.space());
    packets.emplace(memory.space());
    pool = Need(frag::PagePool::Create(memory.space(), {.label = "receive", .order = 4}));
  }
  ~Bench() {
    packets.reset();
    pool.reset();
    receiver.Detach();
    sender.Detach();
  }
  FragSource Source() { return Need(FragSource::Create(*pool, {.size = 2048, .capacity = 2048})); }

  dma::host::SystemVfioKernel kernel;
  Function receiver;
  Function sender;
  Memory memory;
  std::optional<Packets> packets;
  std::unique_ptr<frag::PagePool> pool;
};

TEST_CASE("persistent mappings need no system call a packet, mapping each buffer two", "[ioctls]") {
  Cost persistent;
  Cost each;
  {
    Bench bench;
    std::vector<FragSource> sources;
    sources.push_back(bench.Source());
    auto receiver =
        bench.receiver.Start(kOptions, std::move(sources), std::vector<PageAddressing>(1));
    auto sender =
        bench.sender.Start(kOptions, std::vector<FragSource>{}, std::vector<PageAddressing>(1));
    persistent = Measure(bench.kernel, *bench.packets, *receiver, *sender, *bench.pool);
    CHECK(sender->Stop().ok());
    CHECK(receiver->Stop().ok());
    receiver->rx(0).source().Rest();
  }
  {
    Bench bench;
    std::vector<MapEach> sources;
    sources.emplace_back(bench.Source(), bench.receiver.device());
    auto receiver =
        bench.receiver.Start(kOptions, std::move(sources), std::vector<PageAddressing>(1));
    auto sender =
        bench.sender.Start(kOptions, std::vector<FragSource>{}, std::vector<PageAddressing>(1));
    each = Measure(bench.kernel, *bench.packets, *receiver, *sender, *bench.pool);
    CHECK(sender->Stop().ok());
    CHECK(receiver->Stop().ok());
    CHECK(receiver->rx(0).source().failures() == 0);
    receiver->rx(0).source().inner().Rest();
  }
  std::printf("ioctls per packet: persistent %.4f, strict per buffer %.4f\n", persistent.ioctls,
              each.ioctls);
  std::printf("time stamp counts per packet: persistent %.0f, strict per buffer %.0f, ratio %.1f\n",
              persistent.instructions, each.instructions,
              each.instructions / persistent.instructions);
  CHECK(persistent.ioctls == 0);
  CHECK(each.ioctls == 2);
  CHECK(each.instructions > 2 * persistent.instructions);
}

}  // namespace
}  // namespace dmakit::qemu
