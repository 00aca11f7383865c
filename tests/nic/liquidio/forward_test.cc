// SPDX-License-Identifier: Apache-2.0
//
// Frames from the wire through receive, driver and transmit back to the wire: the same bytes, in
// order, none lost, in both receive modes, on rings of every size, with counters that wrap, and
// with the maps, unmaps and invalidations that are allowed.
#include <cstdint>
#include <string>
#include <vector>

#include "nic/endian.h"
#include "nic/frame_info.h"
#include "tests/nic/flows.h"
#include "tests/nic/liquidio/testing.h"

namespace dmakit::nic::liquidio {
namespace {

using testing::MakeFrame;
using testing::NumberedFrame;

// A sanitizer makes every frame cost ten times as much.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
const std::vector<uint32_t> kRings = {128, 129, 2048};
const std::vector<size_t> kBursts = {32};
#else
const std::vector<uint32_t> kRings = {128, 129, 500, 512, 1023, 2048};
const std::vector<size_t> kBursts = {1, 32, 300};
#endif

std::vector<Frame> EverySize() {
  std::vector<Frame> frames;
  for (uint32_t size = 60; size <= 9018; size += 97) frames.push_back(NumberedFrame(size, size));
  for (const uint32_t size : {1647u, 1648u, 1649u, 1663u, 1664u, 1665u, 3328u, 3329u, 9018u}) {
    frames.push_back(NumberedFrame(size, size));
  }
  frames.push_back(Frame(14, std::byte{3}));
  return frames;
}

TEST_CASE("frames of every size come back the same, in both modes, wherever counters start") {
  const std::vector<Frame> frames = EverySize();
  for (const ReceiveMode mode : kModes) {
    for (const uint32_t start : {0u, 0xffffffffu, 0xffffffc0u}) {
      for (const bool vf : {false, true}) {
        RigOptions options;
        options.model.vf = vf;
        options.extra = {.vf = vf, .mode = mode, .counter_start = start};
        Rig rig(options);
        rig.Start();
        for (const Frame& frame : frames) rig.wire.Send(frame);
        CHECK(Loop(rig) == frames.size());
        CHECK(rig.wire.from_nic == frames);
        REQUIRE(rig.port->Stop().ok());
        CHECK(rig.rx().frames == frames.size());
        CHECK(rig.tx().frames == frames.size());
        CHECK(rig.rx().bytes == rig.tx().bytes);
        CHECK(rig.rx().dropped + rig.tx().dropped == 0);
        CHECK(rig.rx().bad_completions + rig.tx().bad_completions == 0);
        rig.CheckClean();
      }
    }
  }
}

TEST_CASE("rings from the smallest to the largest, also of odd sizes, with bursts of any size") {
  for (const ReceiveMode mode : kModes) {
    for (const uint32_t ring : kRings) {
      for (const size_t burst : kBursts) {
        RigOptions options;
        options.port = {.ring_size = ring};
        options.extra.mode = mode;
        Rig rig(options);
        rig.Start();
        const uint32_t count = 3 * ring;
        for (uint32_t i = 0; i < count; ++i) {
          rig.wire.Send(NumberedFrame(i, 60 + i * 37 % 4000));
        }
        CHECK(Loop(rig, 1, burst) == count);
        REQUIRE(rig.wire.from_nic.size() == count);
        for (uint32_t i = 0; i < count; ++i) {
          REQUIRE(rig.wire.from_nic[i] == NumberedFrame(i, 60 + i * 37 % 4000));
        }
        REQUIRE(rig.port->Stop().ok());
        CHECK(rig.iommu->stats().live_mappings == 0);
        rig.CheckClean();
      }
    }
  }
}

TEST_CASE("a frame longer than the MTU allows is dropped, counted, and hurts no other") {
  for (const ReceiveMode mode : kModes) {
    for (const uint32_t mtu : {68u, 1500u}) {
      RigOptions options;
      options.port.mtu = mtu;
      options.extra.mode = mode;
      Rig rig(options);
      rig.Start();
      for (const size_t size : {mtu + 18, mtu + 19, 9000u, 60u}) {
        rig.wire.Send(Frame(size, std::byte{1}));
      }
      CHECK(Loop(rig) == 2);
      CHECK(rig.rx().truncated == 2);
      CHECK(rig.rx().dropped == 2);
      rig.CheckClean();
    }
  }
}

TEST_CASE("in steady state nothing is mapped, unmapped or invalidated: one allocation per ring") {
  for (const ReceiveMode mode : kModes) {
    RigOptions options;
    options.port = {.ring_size = 256, .mtu = 9000};
    options.extra.mode = mode;
    Rig rig(options);
    rig.Start();
    const auto move = [&](uint32_t count) {
      for (uint32_t i = 0; i < count; ++i) rig.wire.Send(NumberedFrame(i, 60 + i * 31 % 8900));
      REQUIRE(Loop(rig) == count);
      rig.wire.from_nic.clear();
    };
    move(1000);  // every slot was used, and the pool has its spare pages
    const dma::DomainStats before = rig.iommu->stats();
    const dma::DeviceStats device = rig.space->device_stats()[0].second;
    move(5000);
    const dma::DomainStats after = rig.iommu->stats();
    CHECK(after.maps == before.maps);
    CHECK(after.unmaps == before.unmaps);
    CHECK(after.invalidations == before.invalidations);
    CHECK(rig.space->device_stats()[0].second.maps == device.maps);
    // Two rings, gather lists, info buffers.
    CHECK(device.maps == (mode == ReceiveMode::kInfo ? 4u : 3u));
    CHECK(rig.rx().ring_allocations == 1);
    CHECK(rig.rx().info_maps == (mode == ReceiveMode::kInfo ? 1u : 0u));
    CHECK(rig.tx().ring_allocations == 1);
    CHECK(rig.tx().list_maps == 1);
    rig.CheckClean();
  }
}

TEST_CASE("frames move under every policy, and Stop leaves nothing mapped") {
  for (const ReceiveMode mode : kModes) {
    for (const dma::Policy policy :
         {dma::Policy::kPersistent, dma::Policy::kStrict, dma::Policy::kDeferred}) {
      RigOptions options;
      options.port = {.ring_size = 128, .mtu = 1500, .policy = policy};
      options.extra.mode = mode;
      Rig rig(options);
      rig.Start();
      for (uint32_t i = 0; i < 3000; ++i) rig.wire.Send(NumberedFrame(i, 1000));
      CHECK(Loop(rig) == 3000);
      for (uint32_t i = 0; i < 3000; ++i) REQUIRE(rig.wire.from_nic[i] == NumberedFrame(i, 1000));
      REQUIRE(rig.port->Stop().ok());
      CHECK(rig.iommu->stats().live_mappings == 0);
      rig.CheckClean();
    }
  }
}

TEST_CASE("flows spread over queues, each in order, all of them there") {
  for (const uint32_t queues : {2u, 5u, 64u}) {
    RigOptions options;
    options.port = {.rx_queues = queues, .tx_queues = queues, .ring_size = 128, .mtu = 1500};
    Rig rig(options);
    rig.Start();
    CheckFlows(rig, queues);
    REQUIRE(rig.port->Stop().ok());
    rig.CheckClean();
  }
}

TEST_CASE("what the device knows about a frame reaches the packet, in both modes the same") {
  uint32_t hash = 0;
  for (const ReceiveMode mode : kModes) {
    RigOptions options;
    options.port = {.tx_queues = 0, .ring_size = 128, .mtu = 1500};
    options.extra.mode = mode;
    Rig rig(options);
    rig.Start();
    rig.wire.Send(MakeFrame({.tcp = true}));
    rig.wire.Send(MakeFrame({.bad_l4_checksum = true}));
    rig.StepAll();
    std::vector<Packet> packets(4);
    REQUIRE(rig.port->Receive(0, packets) == 2);
    CHECK(packets[0].rx ==
          (RxFlags::kIpv4ChecksumGood | RxFlags::kL4ChecksumGood | RxFlags::kRssHash));
    CHECK(packets[1].rx == (RxFlags::kIpv4ChecksumGood | RxFlags::kRssHash));
    CHECK(packets[0].hash != 0);
    if (mode == ReceiveMode::kBuffer) CHECK(packets[0].hash == hash);
    hash = packets[0].hash;
    Release(std::span(packets).first(2), nullptr);
  }
}

TEST_CASE("frames that find no credits are dropped and counted when they may not wait") {
  RigOptions options;
  options.port = {.tx_queues = 0, .ring_size = 128, .mtu = 1500};
  options.model.lossless = false;
  Rig rig(options);
  rig.Start();
  for (uint32_t i = 0; i < 200; ++i) rig.wire.Send(NumberedFrame(i, 60));
  rig.StepAll();
  CHECK(rig.model.drops() == 200 - 128);
  REQUIRE(rig.port->Stop().ok());
  CHECK(rig.rx().left_at_stop == 128);
}

}  // namespace
}  // namespace dmakit::nic::liquidio
