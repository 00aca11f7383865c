// SPDX-License-Identifier: Apache-2.0
//
// The model on a thread of its own and the driver on others: for ThreadSanitizer, and to show that
// nothing depends on stepping. Threads collect, the main thread asserts.
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/nic/enic/testing.h"
#include "tests/nic/numbering_wire.h"

namespace dmakit::nic::enic {
namespace {

TEST_CASE("100,000 frames with the model on its own thread") {
  RigOptions options;
  options.port = {.ring_size = 256, .mtu = 1500, .stop_deadline = std::chrono::seconds(20)};
  options.threaded = true;
  Rig rig(options);
  NumberingWire wire(100000, 16);
  rig.model.Plug(&wire);
  {
    auto thread = nic::ModelThread::Start(rig.model, rig.threads);
    REQUIRE(thread.ok());
    rig.Start();
    rig.port->SetTxOwner(0, &rig.port->rx_pool(0));
    ForwardUntil(*rig.port, 0, [&] { return wire.received() == 100000; });
    CHECK(rig.port->Stop().ok());
  }
  CHECK(wire.received() == 100000);
  CHECK(wire.wrong() == 0);
  CHECK(rig.rx().frames == 100000);
  CHECK(rig.tx().frames == 100000);
  CHECK(rig.rx().dropped + rig.tx().dropped == 0);
  rig.CheckClean();
}

TEST_CASE("three queues, a thread each, statistics read by a fourth") {
  for (const dma::Policy policy : {dma::Policy::kPersistent, dma::Policy::kDeferred}) {
    constexpr uint32_t kQueues = 3;
    constexpr uint64_t kFrames = 20000;
    RigOptions options;
    options.port = {.rx_queues = kQueues,
                    .tx_queues = kQueues,
                    .ring_size = 128,
                    .mtu = 1500,
                    .policy = policy,
                    .stop_deadline = std::chrono::seconds(20)};
    options.threaded = true;
    Rig rig(options);
    NumberingWire wire(kFrames, 64);
    rig.model.Plug(&wire);
    {
      auto thread = nic::ModelThread::Start(rig.model, rig.threads);
      REQUIRE(thread.ok());
      rig.Start();
      std::vector<std::jthread> workers;
      for (uint32_t q = 0; q < kQueues; ++q) {
        workers.emplace_back(
            [&, q] { ForwardUntil(*rig.port, q, [&] { return wire.received() == kFrames; }); });
      }
      uint64_t most = 0;
      std::jthread reader([&](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          uint64_t now = 0;
          for (const QueueStats& q : rig.port->stats().queues) now += q.rx.frames;
          if (now < most) most = ~uint64_t{0};  // counters never go back
          most = std::max(most, now);
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
      workers.clear();
      reader.request_stop();
      reader.join();
      CHECK(most <= kFrames);
      CHECK(rig.port->Stop().ok());
    }
    CHECK(wire.received() == kFrames);
    CHECK(wire.wrong() == 0);
    rig.CheckClean();
  }
}

TEST_CASE("start and stop with a model that runs by itself") {
  RigOptions options;
  options.port = {.ring_size = 64, .mtu = 1500, .stop_deadline = std::chrono::seconds(20)};
  options.threaded = true;
  Rig rig(options);
  NumberingWire wire(1u << 30, 1);
  rig.model.Plug(&wire);
  auto thread = nic::ModelThread::Start(rig.model, rig.threads);
  REQUIRE(thread.ok());
  REQUIRE(rig.MakeSpace().ok());
  REQUIRE(rig.Open().ok());
  for (int round = 0; round < 50; ++round) {
    REQUIRE(rig.port->Start().ok());
    const uint64_t before = wire.received();
    ForwardUntil(*rig.port, 0, [&] { return wire.received() > before + 20; });
    const absl::Status stopped = rig.port->Stop();
    INFO(stopped);
    REQUIRE(stopped.ok());  // with frames still arriving
    REQUIRE(rig.iommu->stats().live_mappings == 0);
  }
  { nic::ModelThread ended = *std::move(thread); }
  rig.CheckClean();
}

}  // namespace
}  // namespace dmakit::nic::enic
