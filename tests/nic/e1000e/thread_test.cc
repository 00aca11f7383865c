// SPDX-License-Identifier: Apache-2.0
//
// The device on a thread of its own and the driver on others: for ThreadSanitizer, and to show that
// nothing depends on stepping. Threads collect, the main thread asserts.
#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/nic/e1000e/testing.h"
#include "tests/nic/numbering_wire.h"

namespace dmakit::nic::e1000e {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kFrames = 10'000;
#else
constexpr uint64_t kFrames = 60'000;
#endif

RigOptions Threaded(uint32_t queues, uint32_t ring, dma::Policy policy) {
  RigOptions options;
  options.port = {.rx_queues = queues,
                  .tx_queues = queues,
                  .ring_size = ring,
                  .mtu = 1500,
                  .policy = policy,
                  .stop_deadline = std::chrono::seconds(20)};
  options.threaded = true;
  return options;
}

TEST_CASE("two queues, a thread each; a third looks at statistics and changes the page order") {
  for (const dma::Policy policy :
       {dma::Policy::kPersistent, dma::Policy::kStrict, dma::Policy::kDeferred}) {
    INFO(dma::Name(policy));
    Rig rig(Threaded(2, 72, policy));
    NumberingWire wire(kFrames, 64);
    rig.model.Plug(&wire);
    {
      auto device = nic::ModelThread::Start(rig.model, rig.threads);
      REQUIRE(device.ok());
      rig.Start();
      std::vector<std::jthread> workers;
      for (uint32_t q = 0; q < 2; ++q) {
        workers.emplace_back(
            [&, q] { ForwardUntil(*rig.port, q, [&] { return wire.received() == kFrames; }); });
      }
      bool went_back = false;
      bool refused = false;
      std::jthread control([&](const std::stop_token& stop) {
        uint64_t frames = 0;
        uint64_t received = 0;
        for (unsigned order = 3; !stop.stop_requested(); order = order == 3 ? 5 : 3) {
          uint64_t now = 0;
          for (const QueueStats& q : rig.port->stats().queues) now += q.rx.frames;
          const ChipCounters chip = rig.port->driver().counters();
          went_back |= now < frames || chip.received < received;
          frames = now;
          received = chip.received;
          refused |= !rig.port->SetPageOrder(order).ok() || !rig.port->driver().link_up();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
      workers.clear();
      control.request_stop();
      control.join();
      CHECK_FALSE(went_back);
      CHECK_FALSE(refused);
      CHECK(rig.port->driver().counters().received == kFrames);
      const absl::Status stopped = rig.port->Stop();
      INFO(stopped);
      CHECK(stopped.ok());
    }
    CHECK(wire.received() == kFrames);
    CHECK(wire.wrong() == 0);
    CHECK(rig.rx(0).frames > 0);
    CHECK(rig.rx(1).frames > 0);
    CHECK(rig.iommu->stats().live_mappings == 0);
    rig.CheckClean();
  }
}

TEST_CASE("start, change and stop while frames go on arriving, on a device that runs by itself") {
  Rig rig(Threaded(2, 64, dma::Policy::kPersistent));
  NumberingWire wire(uint64_t{1} << 30, 1);
  rig.model.Plug(&wire);
  {
    auto device = nic::ModelThread::Start(rig.model, rig.threads);
    REQUIRE(device.ok());
    REQUIRE(rig.MakeSpace().ok());
    REQUIRE(rig.Open().ok());
    PortOptions options = rig.port->options();
    for (int round = 0; round < 10; ++round) {
      REQUIRE(rig.port->Start().ok());
      for (const uint32_t ring : {72u, 64u}) {
        const uint64_t before = wire.received();
        // One flow, so one of the queues has it all.
        ForwardUntil(*rig.port, 0, [&] {
          std::vector<Packet> burst(8);
          const size_t got = rig.port->Receive(1, burst);
          for (size_t n = 0; n < got;)
            n += rig.port->Transmit(0, std::span(burst).subspan(n, got - n));
          return wire.received() > before + 20;
        });
        options.ring_size = ring;
        const absl::Status changed = rig.port->Reconfigure(options);
        INFO(changed);
        REQUIRE(changed.ok());
      }
      const absl::Status stopped = rig.port->Stop();
      INFO(stopped);
      REQUIRE(stopped.ok());
      REQUIRE(rig.iommu->stats().live_mappings == 0);
    }
  }
  rig.CheckClean();
}

}  // namespace
}  // namespace dmakit::nic::e1000e
