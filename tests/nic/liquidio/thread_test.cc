// SPDX-License-Identifier: Apache-2.0
//
// The model on a thread of its own and the driver on others: for ThreadSanitizer, and to show that
// nothing depends on stepping. Threads collect, the main thread asserts.
#include <chrono>
#include <thread>
#include <vector>

#include "tests/nic/liquidio/testing.h"
#include "tests/nic/numbering_wire.h"

namespace dmakit::nic::liquidio {
namespace {

RigOptions Threaded(ReceiveMode mode, uint32_t queues) {
  RigOptions options;
  options.port = {.rx_queues = queues,
                  .tx_queues = queues,
                  .ring_size = 256,
                  .mtu = 1500,
                  .stop_deadline = std::chrono::seconds(20)};
  options.extra = {.mode = mode, .counter_start = 0xfffff000};
  options.threaded = true;
  return options;
}

TEST_CASE("tens of thousands of frames with the model on its own thread, a thread per queue") {
  for (const ReceiveMode mode : kModes) {
    constexpr uint32_t kQueues = 3;
    constexpr uint64_t kFrames = 30000;
    Rig rig(Threaded(mode, kQueues));
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
      std::jthread reader([&](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          static_cast<void>(rig.port->stats());
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
      workers.clear();
      reader.request_stop();
      reader.join();
      const absl::Status stopped = rig.port->Stop();
      INFO(stopped);
      CHECK(stopped.ok());
    }
    CHECK(wire.received() == kFrames);
    CHECK(wire.wrong() == 0);
    uint64_t bad = 0;
    for (const QueueStats& q : rig.port->stats().queues) {
      bad += q.rx.bad_completions + q.tx.bad_completions + q.rx.dropped + q.tx.dropped;
    }
    CHECK(bad == 0);
    rig.CheckClean();
  }
}

TEST_CASE("start and stop with a model that runs by itself, with frames still arriving") {
  for (const ReceiveMode mode : kModes) {
    Rig rig(Threaded(mode, 1));
    NumberingWire wire(1u << 30, 1);
    rig.model.Plug(&wire);
    auto thread = nic::ModelThread::Start(rig.model, rig.threads);
    REQUIRE(thread.ok());
    REQUIRE(rig.MakeSpace().ok());
    REQUIRE(rig.Open().ok());
    for (int round = 0; round < 30; ++round) {
      REQUIRE(rig.port->Start().ok());
      const uint64_t before = wire.received();
      ForwardUntil(*rig.port, 0, [&] { return wire.received() > before + 20; });
      const absl::Status stopped = rig.port->Stop();
      INFO(stopped);
      REQUIRE(stopped.ok());
      REQUIRE(rig.iommu->stats().live_mappings == 0);
    }
    { nic::ModelThread ended = *std::move(thread); }
    rig.CheckClean();
  }
}

}  // namespace
}  // namespace dmakit::nic::liquidio
