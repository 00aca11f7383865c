// SPDX-License-Identifier: Apache-2.0
//
// Frames from the wire through receive, driver and transmit back to the wire: the same bytes, in
// order, none lost, under every policy, and with the maps, unmaps and invalidations that the policy
// allows.
#include <set>
#include <string>
#include <vector>

#include "nic/endian.h"
#include "tests/nic/enic/testing.h"
#include "tests/nic/flows.h"

namespace dmakit::nic::enic {
namespace {

using testing::MakeFrame;
using testing::NumberedFrame;

TEST_CASE("frames of every size come back the same, in order") {
  Rig rig;
  rig.Start();
  std::vector<Frame> sent;
  for (uint32_t size = 60; size <= 9018; size += 97) sent.push_back(NumberedFrame(size, size));
  sent.push_back(NumberedFrame(1, 9018));
  sent.push_back(Frame(14, std::byte{3}));
  for (const Frame& frame : sent) rig.wire.Send(frame);
  CHECK(Loop(rig) == sent.size());
  CHECK(rig.wire.from_nic == sent);
  REQUIRE(rig.port->Stop().ok());
  CHECK(rig.rx().frames == sent.size());
  CHECK(rig.tx().frames == sent.size());
  CHECK(rig.rx().bytes == rig.tx().bytes);
  CHECK(rig.rx().dropped + rig.tx().dropped == 0);
  rig.CheckClean();
}

TEST_CASE("a frame longer than the MTU allows is dropped, counted, and hurts no other") {
  RigOptions options;
  options.port.mtu = 1500;
  Rig rig(options);
  rig.Start();
  for (const size_t size : {1518u, 1519u, 9000u, 20000u, 60u}) {
    rig.wire.Send(size == 20000 ? Frame(size) : NumberedFrame(1, size));
  }
  CHECK(Loop(rig) == 2);
  CHECK(rig.rx().truncated == 3);
  CHECK(rig.rx().dropped == 3);
  CHECK(rig.rx().frames == 2);
  rig.CheckClean();
}

TEST_CASE("the tag stays in the frame unless stripping was asked for") {
  Rig rig;
  rig.Start();
  const Frame tagged = MakeFrame({.size = 100, .vlan = 0x6064});
  rig.wire.Send(tagged);
  CHECK(Loop(rig) == 1);
  CHECK(rig.wire.from_nic.at(0) == tagged);
}

// --- Policies ------------------------------------------------------------------------------------

struct PolicyRun {
  uint64_t maps = 0;  // while frames moved, not for the first fill
  uint64_t unmaps = 0;
  uint64_t invalidations = 0;
  uint64_t pages_peak = 0;
  uint64_t fill_pages = 0;
};

// `frames` of 60 bytes, numbered, through a ring of 512 at MTU 1500.
PolicyRun Run(dma::Policy policy, uint64_t frames, unsigned order = 3) {
  RigOptions options;
  options.port = {.mtu = 1500, .page_order = order, .policy = policy};
  Rig rig(options);
  rig.Start();
  PolicyRun run;
  run.fill_pages = rig.pool().pages;
  // One lap, so that every buffer of the first fill has been used.
  for (int i = 0; i < 1024; ++i) rig.wire.Send(NumberedFrame(0, 60));
  REQUIRE(Loop(rig) == 1024);
  rig.wire.from_nic.clear();
  const frag::PagePoolStats before = rig.pool();
  const uint64_t invalidations = rig.iommu->stats().invalidations;
  uint64_t wrong = 0;
  for (uint64_t n = 0; n < frames;) {
    for (int i = 0; i < 1000 && n < frames; ++i, ++n) {
      Frame frame(60, std::byte{1});
      StoreBe<uint64_t>(frame, 14, n);
      rig.wire.Send(std::move(frame));
    }
    Loop(rig);
    for (const Frame& frame : rig.wire.from_nic) {
      if (frame.size() != 60) ++wrong;
    }
    if (LoadBe<uint64_t>(rig.wire.from_nic.back(), 14) != n - 1) ++wrong;
    rig.wire.from_nic.clear();
  }
  CHECK(wrong == 0);
  CHECK(rig.tx().frames == frames + 1024);
  const frag::PagePoolStats after = rig.pool();
  run.maps = after.maps - before.maps;
  run.unmaps = after.unmaps - before.unmaps;
  run.invalidations = rig.iommu->stats().invalidations - invalidations;
  run.pages_peak = after.pages_peak;
  CHECK(rig.port->Stop().ok());
  CHECK(rig.iommu->stats().live_mappings == 0);
  CHECK(rig.rx().dropped + rig.tx().dropped == 0);
  rig.CheckClean();
  return run;
}

TEST_CASE("persistent: in steady state no map, no unmap, no invalidation") {
  const PolicyRun run = Run(dma::Policy::kPersistent, 10000);
  CHECK(run.maps == 0);
  CHECK(run.unmaps == 0);
  CHECK(run.invalidations == 0);
  CHECK(run.pages_peak <= run.fill_pages + 2);
}

TEST_CASE("persistent: the number of maps does not grow with the number of frames") {
  for (const uint64_t frames : {uint64_t{2500}, uint64_t{10000}}) {
    CHECK(Run(dma::Policy::kPersistent, frames).maps == 0);
  }
}

TEST_CASE("strict: one map, one unmap, one invalidation per page of 20 buffers") {
  const PolicyRun run = Run(dma::Policy::kStrict, 10000);
  // 20 frames per page; what is in the ring at either end shifts it by a page or two.
  CHECK(run.unmaps >= 10000 / 20 - 2);
  CHECK(run.unmaps <= 10000 / 20 + 2);
  CHECK(run.maps == run.unmaps);
  CHECK(run.invalidations == run.unmaps);
  CHECK(run.pages_peak <= run.fill_pages + 2);
}

TEST_CASE("deferred: one map and one unmap per page, many pages per invalidation") {
  const PolicyRun run = Run(dma::Policy::kDeferred, 10000);
  CHECK(run.unmaps >= 10000 / 20 - 2);
  CHECK(run.unmaps <= 10000 / 20 + 2);
  CHECK(run.maps <= run.unmaps + 20);
  CHECK(run.invalidations >= 1);
  CHECK(run.invalidations * 10 <= run.unmaps);
}

TEST_CASE("under traffic of every size a queue needs at most two pages more than fill its ring") {
  for (const dma::Policy policy : {dma::Policy::kPersistent, dma::Policy::kStrict}) {
    for (const uint32_t mtu : {1500u, 9000u}) {
      for (const std::optional<unsigned> order : {std::optional<unsigned>(3), {}}) {
        RigOptions options;
        options.port = {.ring_size = 256, .mtu = mtu, .page_order = order, .policy = policy};
        Rig rig(options);
        rig.Start();
        const uint64_t fill = rig.pool().pages;
        for (uint32_t i = 0; i < 3000; ++i) {
          rig.wire.Send(NumberedFrame(i, 60 + i * 31 % (mtu - 42)));
          if (i % 500 == 499) Loop(rig);
        }
        CHECK(rig.tx().frames == 3000);
        CHECK(rig.pool().pages_peak <= fill + 2);
        CHECK(rig.rx().dropped == 0);
        rig.CheckClean();
      }
    }
  }
}

TEST_CASE("a page that a device still has is never given to anybody else") {
  // Without an invalidation a stale translation would be used: the IOMMU records that. Here the
  // device's translation cache holds one page's translation after its last fragment came back.
  for (const dma::Policy policy : {dma::Policy::kStrict, dma::Policy::kDeferred}) {
    RigOptions options;
    options.port = {.ring_size = 64, .mtu = 1500, .policy = policy};
    Rig rig(options);
    rig.Start();
    for (uint32_t i = 0; i < 2000; ++i) rig.wire.Send(NumberedFrame(i, 1000));
    CHECK(Loop(rig) == 2000);
    CHECK(rig.iommu->walk_stats().stale_uses == 0);
    CHECK(rig.iommu->walk_stats().faults == 0);
    for (uint32_t i = 0; i < 2000; ++i) REQUIRE(rig.wire.from_nic[i] == NumberedFrame(i, 1000));
  }
}

TEST_CASE("high page orders gone: smaller pages serve, and frames move") {
  RigOptions options;
  options.port = {.ring_size = 128, .mtu = 9000, .page_order = 6};
  Rig rig(options);
  REQUIRE(rig.MakeSpace().ok());
  REQUIRE(rig.Open().ok());
  rig.memory.set_largest(Bytes{16384});
  REQUIRE(rig.port->Start().ok());
  CHECK(rig.pool().order_fallbacks > 0);
  for (uint32_t i = 0; i < 500; ++i) rig.wire.Send(NumberedFrame(i, 9000));
  CHECK(Loop(rig) == 500);
  for (uint32_t i = 0; i < 500; ++i) REQUIRE(rig.wire.from_nic[i] == NumberedFrame(i, 9000));
  rig.CheckClean();
}

// A ring is armed with buffers of pages of another order than those that are still out.
TEST_CASE("the page order changes under traffic: after Stop the pool has every reference back") {
  for (const dma::Policy policy :
       {dma::Policy::kPersistent, dma::Policy::kStrict, dma::Policy::kDeferred}) {
    RigOptions options;
    options.port = {.ring_size = 64, .mtu = 1500, .page_order = 3, .policy = policy};
    Rig rig(options);
    rig.Start();
    uint64_t sent = 0;
    for (const unsigned order : {0u, 3u, 1u, 2u, 0u, 3u}) {
      REQUIRE(rig.port->rx_pool(0).SetOrder(order).ok());
      for (uint32_t i = 0; i < 100; ++i) rig.wire.Send(NumberedFrame(sent + i, 1000));
      sent += 100;
      REQUIRE(Loop(rig) == 100);
    }
    REQUIRE(rig.port->Stop().ok());
    CHECK(rig.port->rx_pool(0).pages_in_use() == 0);
    CHECK(rig.pool().pages == 0);
    CHECK(rig.pool().bad_releases == 0);
    CHECK(rig.pool().pages_quarantined == 0);
    CHECK(rig.iommu->stats().live_mappings == 0);
    CHECK(rig.rx().dropped + rig.tx().dropped == 0);
    rig.CheckClean();
  }
}

// --- Several queues ------------------------------------------------------------------------------

TEST_CASE("flows spread over queues, each in order, all of them there") {
  for (const uint32_t queues : {2u, 5u, 64u}) {
    RigOptions options;
    options.port = {.rx_queues = queues, .tx_queues = queues, .ring_size = 64, .mtu = 1500};
    Rig rig(options);
    rig.Start();
    CheckFlows(rig, queues);
    REQUIRE(rig.port->Stop().ok());
    rig.CheckClean();
  }
}

TEST_CASE("what the device knows about a frame reaches the packet") {
  RigOptions options;
  options.port = {.rx_queues = 2, .tx_queues = 0, .ring_size = 64, .mtu = 1500};
  Rig rig(options);
  rig.Start();
  rig.wire.Send(MakeFrame({.tcp = true}));
  rig.StepAll();
  std::vector<Packet> packets(4);
  size_t got = rig.port->Receive(0, packets);
  if (got == 0) got = rig.port->Receive(1, packets);
  REQUIRE(got == 1);
  CHECK(packets[0].rx ==
        (RxFlags::kIpv4ChecksumGood | RxFlags::kL4ChecksumGood | RxFlags::kRssHash));
  CHECK(packets[0].hash != 0);
  CHECK(packets[0].hash_type == static_cast<uint8_t>(RssType::kTcpIpv4));
  Release(std::span(packets).first(1), nullptr);
}

TEST_CASE("packets received on one port are sent on another: one IOVA on both") {
  auto iommu2 = dma::SoftwareIommu::Create({.name = "iommu2"}).value();
  Rig rig({.port = {.tx_queues = 0, .ring_size = 128, .mtu = 1500}});
  rig.Start();
  Model model2(iommu2->NewPort("enic1"));
  TestWire wire2;
  model2.Plug(&wire2);
  ModelWaiter waiter2(model2);
  {
    auto device =
        rig.space->Attach({.name = "enic1", .domain = iommu2.get(), .waiter = &waiter2}).value();
    auto out = Port::Create(std::move(device), model2.bar0(),
                            {.rx_queues = 0, .ring_size = 64, .mtu = 1500})
                   .value();
    out->SetTxOwner(0, &rig.port->rx_pool(0));
    REQUIRE(out->Start().ok());
    std::vector<Packet> packets(32);
    for (uint32_t i = 0; i < 1000; ++i) rig.wire.Send(NumberedFrame(i, 60 + i));
    for (size_t have = 0, sent = 0; wire2.from_nic.size() < 1000;) {
      rig.model.Step();
      if (sent == have) {
        have = rig.port->Receive(0, packets);
        sent = 0;
      }
      sent += out->Transmit(0, std::span(packets).subspan(sent, have - sent));
      model2.Step();
    }
    for (uint32_t i = 0; i < 1000; ++i) REQUIRE(wire2.from_nic[i] == NumberedFrame(i, 60 + i));
    REQUIRE(out->Stop().ok());
    REQUIRE(rig.port->Stop().ok());
    CHECK(model2.violation_count() == 0);
    CHECK(iommu2->walk_stats().faults == 0);
  }
  CHECK(iommu2->stats().live_mappings == 0);
  rig.CheckClean();
  rig.port.reset();
  rig.space.reset();
}

}  // namespace
}  // namespace dmakit::nic::enic
