// SPDX-License-Identifier: Apache-2.0
//
// Changes of a port while frames are about: nothing is lost, what was delivered comes first, and a
// change that fails leads back to where it was.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/nic/liquidio/testing.h"

namespace dmakit::nic::liquidio {
namespace {

using testing::NumberedFrame;

// A sanitizer makes every frame cost ten times as much.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kChanges = 50;
#else
constexpr int kChanges = 200;
#endif

TEST_CASE("changes of everything under traffic lose no frame, and keep their order") {
  for (const ReceiveMode mode : kModes) {
    for (const dma::Policy policy :
         {dma::Policy::kPersistent, dma::Policy::kStrict, dma::Policy::kDeferred}) {
      RigOptions options;
      options.port = {.ring_size = 128, .mtu = 9000, .policy = policy};
      options.extra.mode = mode;
      Rig rig(options);
      rig.Start();
      std::mt19937 random(5);
      uint32_t sent = 0, got = 0;
      std::vector<Packet> packets(32);
      for (int change = 0; change < kChanges; ++change) {
        for (int i = 0; i < 30; ++i, ++sent) {
          rig.wire.Send(NumberedFrame(sent, 60 + sent * 61 % 8900));
        }
        for (int i = 0; i < 3; ++i) rig.model.Step();
        const size_t have = rig.port->Receive(0, std::span(packets).first(random() % 20));
        PortOptions next = rig.port->options();
        next.ring_size = 128 + random() % 1920;
        next.mtu = 9000 - random() % 10;
        next.headroom = random() % 200;
        const absl::Status changed = rig.port->Reconfigure(next);
        INFO(changed);
        REQUIRE(changed.ok());
        // Held over the change, and still good.
        for (size_t i = 0; i < have; ++i, ++got) {
          REQUIRE(BytesOf(packets[i]) == NumberedFrame(got, 60 + got * 61 % 8900));
        }
        Release(std::span(packets).first(have), &rig.port->rx_pool(0));
      }
      for (bool busy = true; busy;) {
        busy = rig.model.Step();
        const size_t have = rig.port->Receive(0, packets);
        busy |= have > 0;
        for (size_t i = 0; i < have; ++i, ++got) {
          REQUIRE(BytesOf(packets[i]) == NumberedFrame(got, 60 + got * 61 % 8900));
        }
        Release(std::span(packets).first(have), &rig.port->rx_pool(0));
      }
      CHECK(got == sent);
      CHECK(rig.rx().dropped == 0);
      REQUIRE(rig.port->Stop().ok());
      CHECK(rig.iommu->stats().live_mappings == 0);
      rig.CheckClean();
    }
  }
}

TEST_CASE("queues come and go, and what theirs had delivered comes first on those that are left") {
  RigOptions options = Small();
  options.port.rx_queues = options.port.tx_queues = 4;
  Rig rig(options);
  rig.Start();
  for (uint16_t flow = 0; flow < 64; ++flow) {
    rig.wire.Send(testing::MakeFrame({.size = 100, .source_port = flow}));
  }
  rig.StepAll();
  PortOptions fewer = rig.port->options();
  fewer.rx_queues = fewer.tx_queues = 1;
  REQUIRE(rig.port->Reconfigure(fewer).ok());
  CHECK(rig.rx(0).kept == 64);
  CHECK(Loop(rig) == 64);
  PortOptions more = fewer;
  more.rx_queues = more.tx_queues = 7;
  REQUIRE(rig.port->Reconfigure(more).ok());
  for (uint16_t flow = 0; flow < 64; ++flow) {
    rig.wire.Send(testing::MakeFrame({.size = 100, .source_port = flow}));
  }
  CHECK(Loop(rig, 7) == 64);
  REQUIRE(rig.port->Stop().ok());
  CHECK(rig.iommu->stats().live_mappings == 0);
  rig.CheckClean();
}

TEST_CASE("info mode: a frame that is delivered while the ring is being taken away is kept, too") {
  HandRigOptions options;
  options.port = {.ring_size = 128, .mtu = 1500};
  HandRig rig(options);
  rig.Start();
  REQUIRE(rig.model.Deliver(0, NumberedFrame(1, 60)));
  // Between the last look at the counter and the reset.
  rig.bar.on_write = [&](uint64_t offset, uint64_t value) {
    if (offset == 0x10000 && (value >> 23 & 1) != 0 && rig.model.ring(0).oq_on()) {
      CHECK(rig.model.Deliver(0, NumberedFrame(2, 60)));
    }
    return true;
  };
  PortOptions next = rig.port->options();
  next.ring_size = 256;
  REQUIRE(rig.port->Reconfigure(next).ok());
  std::vector<Packet> packets(4);
  REQUIRE(rig.port->Receive(0, packets) == 2);
  CHECK(BytesOf(packets[0]) == NumberedFrame(1, 60));
  CHECK(BytesOf(packets[1]) == NumberedFrame(2, 60));
  Release(std::span(packets).first(2), &rig.port->rx_pool(0));
}

TEST_CASE("a change that is refused changes nothing, not even for a moment") {
  Rig rig(Small());
  rig.Start();
  const uint64_t resets = rig.rx().ring_allocations;
  PortOptions bad = rig.port->options();
  bad.ring_size = 100;
  CHECK(rig.port->Reconfigure(bad).code() == absl::StatusCode::kInvalidArgument);
  bad = rig.port->options();
  bad.rx_queues = 65;
  CHECK(rig.port->Reconfigure(bad).code() == absl::StatusCode::kInvalidArgument);
  bad = rig.port->options();
  bad.vlan_strip = true;
  CHECK(rig.port->Reconfigure(bad).code() == absl::StatusCode::kInvalidArgument);
  CHECK(rig.rx().ring_allocations == resets);
  rig.wire.Send(NumberedFrame(1, 60));
  CHECK(Loop(rig, 2) == 1);
}

TEST_CASE("a change that fails at its k-th step leaves the port as it was, for all k") {
  uint64_t k = 1;
  for (bool triggered = true; triggered; ++k) {
    INFO("k = " << k);
    FailPoint fail;
    RigOptions options = Small();
    options.fail = &fail;
    Rig rig(options);
    rig.Start();
    rig.wire.Send(NumberedFrame(7, 3000));
    rig.StepAll();
    PortOptions next = rig.port->options();
    next.ring_size = 300;
    fail.FailAt(k);
    const absl::Status changed = rig.port->Reconfigure(next);
    triggered = fail.triggered();
    fail.FailAt(0);
    INFO(changed);
    if (!changed.ok()) {
      CHECK(changed.code() == absl::StatusCode::kAborted);
      CHECK(rig.port->options().ring_size == 128);
    }
    rig.wire.Send(NumberedFrame(8, 60));
    CHECK(Loop(rig, 2) == 2);
    CHECK(rig.wire.from_nic.at(0) == NumberedFrame(7, 3000));
    REQUIRE(rig.port->Stop().ok());
    CHECK(rig.iommu->stats().live_mappings == 0);
    rig.CheckClean();
  }
  CHECK(k > 6);
}

}  // namespace
}  // namespace dmakit::nic::liquidio
