// SPDX-License-Identifier: Apache-2.0
//
// How much memory and how many maps rings of receive buffers take, counted: the figures of the
// fragment allocator that this one follows, and what traffic adds.
#include <deque>
#include <memory>
#include <vector>

#include "tests/frag/testing.h"

namespace dmakit::frag::testing {
namespace {

constexpr uint32_t kQueues = 8;
constexpr uint32_t kRing = 4096;
constexpr double kMiB = 1 << 20;
constexpr uint64_t kPackets = kSanitized ? 20'000 : 200'000;

struct Filled {
  uint64_t bytes = 0;
  uint64_t maps = 0;
  uint64_t buffers = 0;
};

// Rings filled for the first time, one pool and cutter each.
Filled Fill(uint32_t mtu, unsigned order) {
  UntouchedMemory memory;
  RigOptions options;
  options.memory = &memory;
  FakeRig rig(options);
  std::vector<std::unique_ptr<PagePool>> pools;
  Filled filled;
  for (uint32_t queue = 0; queue < kQueues; ++queue) {
    pools.push_back(rig.Pool({.label = "rx" + std::to_string(queue), .order = order}));
    FragAllocator cutter = Cutter(*pools.back(), {.size = BufferSize(mtu)});
    std::vector<Fragment> ring;
    for (uint32_t i = 0; i < kRing; ++i) ring.push_back(cutter.Allocate());
    for (const Fragment& fragment : ring) {
      REQUIRE_FALSE(fragment.empty());
      REQUIRE(fragment.iova().value() % 64 == 0);
    }
    filled.buffers += ring.size();
    filled.bytes += pools.back()->stats().bytes;
    for (const Fragment& fragment : ring) pools.back()->Release(fragment);
  }
  CHECK(memory.bytes_in_use() == Bytes{filled.bytes});
  filled.maps = rig.domain.stats().maps;
  return filled;
}

TEST_CASE("8 queues of 4,096 at MTU 9000, pages of 32 KiB: 341.5 MiB, one map per three buffers") {
  CHECK(BufferSize(9000) == 9088);
  const Filled filled = Fill(9000, 3);
  CHECK(filled.buffers == 8 * 4096);
  CHECK(filled.bytes / kMiB <= 341.5);
  CHECK(filled.maps == 8 * 1366);  // ceil(4096 / 3)
  CHECK(filled.bytes == filled.maps * 32768);
}

TEST_CASE("8 queues of 4,096 at MTU 9000, default order: at most 300 MiB") {
  const unsigned order = FragAllocator::BestOrder(BufferSize(9000), 3, 9);
  CHECK(order == 4);
  const Filled filled = Fill(9000, order);
  CHECK(filled.bytes / kMiB <= 300);
  CHECK(filled.bytes / kMiB == 293);
  CHECK(filled.maps == 8 * 586);  // ceil(4096 / 7)
}

TEST_CASE("MTU 1500: 20 buffers per page of 32 KiB") {
  CHECK(BufferSize(1500) == 1600);
  const Filled filled = Fill(1500, 3);
  CHECK(filled.maps == 8 * 205);  // ceil(4096 / 20)
  CHECK(filled.buffers / filled.maps >= 19);
  CHECK(FragAllocator::FragmentsPerPage(1600, 3) == 20);
  CHECK(filled.bytes / kMiB < 52);
}

// A receive ring whose packets go out through a transmit ring: bursts are received in order, sent,
// and their buffers come back when `in_flight` later ones have been sent. Each turn reaps
// transmit completions first, then receives, then refills.
struct Traffic {
  uint32_t burst = 32;
  uint32_t in_flight = 64;
  bool other_thread = false;  // completions come back through a Returner
  uint64_t fewest_posted = ~uint64_t{0};
  uint64_t atomics = 0;

  void Run(PagePool& pool, FragAllocator& cutter, uint64_t packets) {
    std::deque<Fragment> posted, sent;
    Returner returner;
    const auto refill = [&] {
      while (posted.size() < kRing) {
        const Fragment fragment = cutter.Allocate();
        if (fragment.empty()) break;  // later
        posted.push_back(fragment);
      }
    };
    const auto give_back = [&](const Fragment& fragment) {
      other_thread ? returner.Return(fragment) : pool.Release(fragment);
    };
    refill();
    for (uint64_t done = 0; done < packets; done += burst) {
      while (sent.size() > in_flight - burst) {
        give_back(sent.front());
        sent.pop_front();
      }
      returner.Flush();
      for (uint32_t i = 0; i < burst; ++i) {
        REQUIRE_FALSE(posted.empty());
        sent.push_back(posted.front());
        posted.pop_front();
      }
      refill();
      fewest_posted = std::min<uint64_t>(fewest_posted, posted.size());
    }
    atomics = returner.atomics();
    for (const Fragment& fragment : sent) give_back(fragment);
    for (const Fragment& fragment : posted) give_back(fragment);
    returner.Flush();
  }
};

TEST_CASE("under traffic: at most two extra pages per queue, and no map per packet") {
  const uint32_t mtu = GENERATE(1500u, 9000u);
  const unsigned order = GENERATE(3u, 4u);
  const uint32_t burst = GENERATE(32u, 64u);
  const bool other_thread = GENERATE(false, true);
  UntouchedMemory memory;
  RigOptions options;
  options.memory = &memory;
  FakeRig rig(options);
  const uint32_t stride = BufferSize(mtu);
  const uint32_t per_page = FragAllocator::FragmentsPerPage(stride, order);
  const uint64_t ring_pages = (kRing + per_page - 1) / per_page;
  auto pool = rig.Pool({.order = order, .max_bytes = Bytes{(ring_pages + 2) * (4096 << order)}});
  FragAllocator cutter = Cutter(*pool, {.size = stride});

  Traffic traffic{.burst = burst, .in_flight = 64, .other_thread = other_thread};
  traffic.Run(*pool, cutter, kPackets);
  const PagePoolStats warm = pool->stats();
  CHECK(warm.pages_peak <= ring_pages + 2);
  CHECK(warm.maps <= ring_pages + 2);
  CHECK(warm.unmaps == 0);
  CHECK(rig.domain.stats().invalidations == 0);
  // What is in the transmit ring is missing in the receive ring, and the rest of two pages.
  INFO("MTU " << mtu << " order " << order << " burst " << burst << ": fewest posted "
              << traffic.fewest_posted << ", atomics per packet "
              << static_cast<double>(traffic.atomics) / kPackets << ", pages " << warm.pages_peak
              << " for " << ring_pages);
  CHECK(traffic.fewest_posted + 64 + 2 * per_page >= kRing);

  // Two atomics for each page of a burst, on the returning side only.
  CHECK(traffic.atomics <= kPackets / burst * 2 * (burst / per_page + 2));
  if (!other_thread) CHECK(traffic.atomics == 0);

  // Steady state: nothing is mapped, unmapped or invalidated, however many packets more.
  traffic.Run(*pool, cutter, 3 * kPackets);
  CHECK(pool->stats().maps == warm.maps);
  CHECK(rig.domain.stats().maps == warm.maps);
  CHECK(rig.domain.stats().unmaps == 0);
  CHECK(rig.domain.stats().invalidations == 0);
  CHECK(pool->stats().pages_peak == warm.pages_peak);
}

TEST_CASE("without a cap the ring is always full, for the pages of what is in flight") {
  UntouchedMemory memory;
  RigOptions options;
  options.memory = &memory;
  FakeRig rig(options);
  auto pool = rig.Pool({.order = 3});
  FragAllocator cutter = Cutter(*pool, {.size = BufferSize(9000)});
  Traffic traffic{.burst = 32, .in_flight = 64};
  traffic.Run(*pool, cutter, kPackets);
  CHECK(traffic.fewest_posted == kRing);
  CHECK(pool->stats().pages_peak <= 1366 + 64 / 3 + 2);
}

TEST_CASE("strict and deferred: counts per page, not per packet") {
  UntouchedMemory memory;
  RigOptions options;
  options.memory = &memory;
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  FakeRig rig(options);
  // Room for a common flush: 64 pages beyond what the ring needs.
  auto pool = rig.Pool({.order = 3, .max_bytes = Bytes{(205 + 2 + 64) * 32768}, .policy = policy});
  FragAllocator cutter = Cutter(*pool, {.size = BufferSize(1500)});
  Traffic traffic;
  traffic.Run(*pool, cutter, kPackets);
  const dma::DomainStats stats = rig.domain.stats();
  CHECK(stats.maps <= kPackets / 20 + 205 + 2);
  CHECK(stats.unmaps <= kPackets / 20 + 205 + 2);
  if (policy == Policy::kStrict) {
    CHECK(stats.invalidations == stats.unmaps);
  } else {
    CHECK(stats.invalidations * 32 <= stats.unmaps);
  }
}

}  // namespace
}  // namespace dmakit::frag::testing
