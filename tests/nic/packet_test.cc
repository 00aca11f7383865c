// SPDX-License-Identifier: Apache-2.0
//
// Packets and the order of their references; the buffers of a receive ring; how large its pool is.
#include "nic/packet.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "dma/address_space.h"
#include "dma/fakes.h"
#include "dma/host/fakes.h"
#include "frag/frag_allocator.h"
#include "frag/returner.h"
#include "nic/frag_source.h"
#include "nic/port.h"
#include "nic/rx_pool.h"
#include "tests/catch.h"

namespace dmakit::nic {
namespace {

// An address space with one device, which is what a pool needs.
struct Space {
  Space() {
    space = dma::AddressSpace::Create({.memory = &memory, .clock = &clock}).value();
    device = space->Attach({.name = "nic", .domain = &domain}).value();
  }
  std::unique_ptr<frag::PagePool> NewPool(const PortOptions& options, uint32_t buffers) {
    plan = PlanRxPool(options, buffers).value();
    return NewRxPool(*space, options, plan, "test", dma::SystemWaiter()).value();
  }

  dma::host::FakeMemory memory;
  dma::host::FakeClock clock;
  dma::FakeDomain domain;
  std::unique_ptr<dma::AddressSpace> space;
  std::unique_ptr<dma::Device> device;
  RxPoolPlan plan;
};

TEST_CASE("a packet adds up its segments and refuses one too many") {
  frag::Page page;
  Packet packet;
  packet.rx = RxFlags::kRssHash;
  packet.tx = TxFlags::kTso;
  packet.ResetTo({&page, 64, 100});
  CHECK(packet.length == 100);
  CHECK(packet.rx == RxFlags::kNone);
  CHECK(packet.tx == TxFlags::kNone);
  for (size_t i = 1; i < Packet::kMaxSegments; ++i) REQUIRE(packet.Append({&page, 0, 10}));
  CHECK_FALSE(packet.Append({&page, 0, 10}));
  CHECK(packet.length == 100 + 10 * (Packet::kMaxSegments - 1));
  CHECK(packet.parts().size() == Packet::kMaxSegments);
}

TEST_CASE("releasing a packet gives every reference back once") {
  Space s;
  const auto pool = s.NewPool({.mtu = 1500}, 63);
  auto source = FragSource::Create(*pool, {.size = 1600, .headroom = 64, .capacity = 1518}).value();
  Packet packet;
  RxBuffer buffer;
  for (int i = 0; i < 5; ++i) {
    REQUIRE(source.Take(buffer));
    const Segment segment{buffer.page, buffer.offset, 10};
    if (i == 0) {
      packet.ResetTo(segment);
    } else {
      REQUIRE(packet.Append(segment));
    }
  }
  source.Rest();
  CHECK(pool->pages_in_use() == 1);
  frag::Returner returner(pool.get());
  ReleaseSegments(packet, returner);
  CHECK(packet.segment_count == 0);
  CHECK(packet.length == 0);
  CHECK(pool->pages_in_use() == 0);
  ReleaseSegments(packet, returner);  // empty now: nothing to give back
  CHECK(pool->stats().bad_releases == 0);
}

TEST_CASE("a buffer keeps headroom in front of what the device may write, for every MTU") {
  Space s;
  for (uint32_t mtu = kMinMtu; mtu <= kMaxMtu; mtu += 61) {
    for (const uint32_t headroom : {0u, 64u, 256u}) {
      const PortOptions options{.mtu = mtu, .headroom = headroom};
      const auto pool = s.NewPool(options, 63);
      auto source = FragSource::Create(*pool, {.size = s.plan.buffer_size,
                                               .headroom = headroom,
                                               .capacity = mtu + kFrameOverhead})
                        .value();
      RxBuffer a, b;
      REQUIRE(source.Take(a));
      REQUIRE(source.Take(b));
      REQUIRE(a.offset >= headroom);
      REQUIRE(a.iova == a.page->iova + Bytes{a.offset});
      REQUIRE(a.capacity == mtu + 18);
      // The next buffer's headroom begins behind what the device may write.
      REQUIRE(b.page == a.page);
      REQUIRE(b.offset - headroom >= a.offset + a.capacity);
      REQUIRE(b.offset + b.capacity <= b.page->size);
      source.Put(a);
      source.Put(b);
    }
  }
}

TEST_CASE("buffers that do not fit are refused by name") {
  Space s;
  const auto pool = s.NewPool({.mtu = 1500}, 63);
  for (const FragSource::Options& o :
       {FragSource::Options{100, 100, 1}, {100, 0, 0}, {100, 50, 51}, {0, 0, 1}}) {
    const auto source = FragSource::Create(*pool, o);
    CHECK(source.status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("ring memory is within the figures") {
  // 8 queues of 4096 descriptors at MTU 9000, headroom 64.
  const auto total = [](std::optional<unsigned> order) {
    const RxPoolPlan plan =
        PlanRxPool({.ring_size = 4096, .mtu = 9000, .page_order = order}, 4095).value();
    return 8.0 * static_cast<double>(plan.max_bytes.value()) / (1 << 20);
  };
  CHECK(total(std::nullopt) <= 300);
  const RxPoolPlan by_three = PlanRxPool({.mtu = 9000, .page_order = 3}, 4095).value();
  CHECK(by_three.buffer_size == 9088);
  CHECK(by_three.fill_pages == 4095 / 3);
  CHECK(8.0 * by_three.fill_pages * 32 / 1024 <= 341.5);
  CHECK(by_three.spare_pages == 2);
  CHECK(by_three.min_order == 2);

  const RxPoolPlan small = PlanRxPool({.mtu = 1500, .page_order = 3}, 511).value();
  CHECK(frag::FragAllocator::FragmentsPerPage(small.buffer_size, 3) >= 20);
  const RxPoolPlan deferred =
      PlanRxPool({.mtu = 1500, .page_order = 3, .policy = dma::Policy::kDeferred}, 511).value();
  CHECK(deferred.spare_pages == 2 + std::clamp(deferred.fill_pages, 16u, 256u));
}

TEST_CASE("impossible pool options are refused with value and rule") {
  const auto message = [](const PortOptions& options) {
    return std::string(PlanRxPool(options, 63).status().message());
  };
  CHECK(message({.mtu = 67}) == "mtu 67: must be between 68 and 9000");
  CHECK(message({.mtu = 9001}) == "mtu 9001: must be between 68 and 9000");
  CHECK(message({.headroom = 16385}) == "headroom 16385: must be at most 16384 bytes");
  CHECK(message({.headroom = ~0u}).find("headroom 4294967295") == 0);
  CHECK(message({.page_order = 30}).find("page order 30: must be between 2 and 9") == 0);
  CHECK(message({.page_order = 1}).find("page order 1: must be between 2 and 9") == 0);
  CHECK(message({.mtu = 1500, .page_order = 0}).empty());
}

}  // namespace
}  // namespace dmakit::nic
