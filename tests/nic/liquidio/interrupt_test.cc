// SPDX-License-Identifier: Apache-2.0
//
// Interrupts: raised for packets that were not received, once until they are armed again; no
// wake-up is lost, also with a model on a thread of its own.
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/nic/liquidio/testing.h"
#include "tests/nic/numbering_wire.h"

namespace dmakit::nic::liquidio {
namespace {

using testing::NumberedFrame;

// Counts, and can be waited for by one thread.
class CountingNotifier final : public Notifier {
 public:
  void Notify() override { count_.fetch_add(1); }
  bool Wait(dma::Nanos timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (count_.load() == seen_) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    seen_ = count_.load();
    return true;
  }
  int fd() const override { return -1; }
  uint64_t count() const { return count_.load(); }

 private:
  std::atomic<uint64_t> count_{0};
  uint64_t seen_ = 0;
};

// A rig whose port has interrupts, with the notifiers they go to.
struct WakingRig : Rig {
  explicit WakingRig(RigOptions options) : Rig(std::move(options)) {
    REQUIRE(MakeSpace().ok());
    auto device =
        space->Attach({.name = Kit::kName, .domain = &domain, .waiter = &device_waiter()}).value();
    PortInterrupts interrupts{.source = &model};
    for (uint32_t i = 0; i < options_.port.rx_queues; ++i) {
      auto notifier = std::make_unique<CountingNotifier>();
      notifiers.push_back(notifier.get());
      interrupts.notifiers.push_back(std::move(notifier));
    }
    port =
        Port::Create(std::move(device), registers(), options_.port, std::move(interrupts)).value();
    // A model on a thread of its own is started first.
    if (!options_.threaded) REQUIRE(port->Start().ok());
  }
  size_t Drain(uint32_t queue = 0) {
    std::array<Packet, 32> packets;
    size_t all = 0;
    for (;;) {
      const size_t got = port->Receive(queue, packets);
      if (got == 0) return all;
      Release(std::span(packets).first(got), nullptr);
      all += got;
    }
  }
  std::vector<CountingNotifier*> notifiers;
};

RigOptions Waking(uint32_t queues = 1) {
  RigOptions options;
  options.port = {
      .rx_queues = queues, .tx_queues = queues, .ring_size = 128, .mtu = 1500, .interrupts = true};
  return options;
}

TEST_CASE("packets raise an interrupt once; armed with packets left, again at once") {
  WakingRig rig(Waking());
  CHECK(rig.Drain() == 0);
  CHECK(rig.port->Arm(0));
  rig.StepAll();
  CHECK(rig.notifiers[0]->count() == 0);
  for (uint32_t i = 0; i < 10; ++i) rig.wire.Send(NumberedFrame(i, 60));
  rig.StepAll();
  CHECK(rig.notifiers[0]->count() == 1);
  for (uint32_t i = 0; i < 10; ++i) rig.wire.Send(NumberedFrame(i, 60));
  rig.StepAll();
  CHECK(rig.notifiers[0]->count() == 1);
  CHECK_FALSE(rig.port->Arm(0));  // 20 are there
  rig.StepAll();
  CHECK(rig.notifiers[0]->count() == 2);
  CHECK(rig.Drain() == 20);
  CHECK(rig.port->Arm(0));
  rig.StepAll();
  CHECK(rig.notifiers[0]->count() == 2);
  rig.wire.Send(NumberedFrame(1, 60));
  rig.StepAll();
  CHECK(rig.notifiers[0]->count() == 3);
  rig.CheckClean();
}

TEST_CASE("each queue has its own, and one that polls has none") {
  WakingRig rig(Waking(3));
  for (uint32_t q = 0; q < 3; ++q) CHECK(rig.port->Arm(q));
  for (uint16_t flow = 0; flow < 64; ++flow) {
    rig.wire.Send(testing::MakeFrame({.size = 80, .source_port = flow}));
  }
  rig.StepAll();
  for (uint32_t q = 0; q < 3; ++q) {
    CHECK(rig.notifiers[q]->count() == 1);
    CHECK(rig.Drain(q) > 0);
  }
  Rig polling;
  polling.Start();
  CHECK_FALSE(polling.port->Arm(0));
  CHECK(polling.port->notifier(0) == nullptr);
}

TEST_CASE("coalescing: not sooner than asked for after the first packet, and then once") {
  dma::host::FakeClock clock;
  RigOptions options = Waking();
  options.port.coalescing = dma::Nanos{100'000};
  options.model.clock = &clock;
  WakingRig rig(options);
  CHECK(rig.port->Arm(0));
  rig.wire.Send(NumberedFrame(1, 60));
  rig.StepAll();
  clock.Advance(dma::Nanos{99'999});
  rig.StepAll();
  CHECK(rig.notifiers[0]->count() == 0);
  clock.Advance(dma::Nanos{1'500});
  rig.StepAll();
  CHECK(rig.notifiers[0]->count() == 1);
  clock.Advance(dma::Nanos{1'000'000});
  rig.StepAll();
  CHECK(rig.notifiers[0]->count() == 1);
}

TEST_CASE("who sleeps is woken by a change and by Stop, and finds the queue not armed") {
  WakingRig rig(Waking());
  CHECK(rig.port->Arm(0));
  PortOptions next = rig.port->options();
  next.ring_size = 256;
  REQUIRE(rig.port->Reconfigure(next).ok());
  CHECK(rig.notifiers[0]->count() == 1);
  CHECK(rig.port->Arm(0));
  REQUIRE(rig.port->Stop().ok());
  CHECK(rig.notifiers[0]->count() == 2);
  CHECK_FALSE(rig.port->Arm(0));
}

TEST_CASE("frames that a change kept are more to receive, for Arm too") {
  WakingRig rig(Waking());
  for (uint32_t i = 0; i < 5; ++i) rig.wire.Send(NumberedFrame(i, 60));
  rig.StepAll();
  PortOptions next = rig.port->options();
  next.ring_size = 256;
  REQUIRE(rig.port->Reconfigure(next).ok());
  CHECK_FALSE(rig.port->Arm(0));
  CHECK(rig.Drain() == 5);
  CHECK(rig.port->Arm(0));
}

TEST_CASE("the last packet races against arming: no wake-up is lost") {
  RigOptions options = Waking();
  options.threaded = true;
  options.port.stop_deadline = std::chrono::seconds(20);
  WakingRig rig(options);
  constexpr uint64_t kFrames = 20000;
  NumberingWire wire(kFrames, 1);
  rig.model.Plug(&wire);
  uint64_t got = 0, lost = 0;
  {
    auto thread = nic::ModelThread::Start(rig.model, rig.threads);
    REQUIRE(thread.ok());
    REQUIRE(rig.port->Start().ok());
    while (got < kFrames && lost == 0) {
      got += rig.Drain();
      if (got == kFrames || !rig.port->Arm(0)) continue;
      if (!rig.notifiers[0]->Wait(std::chrono::seconds(20))) ++lost;
    }
    CHECK(lost == 0);
    CHECK(rig.port->Stop().ok());
  }
  CHECK(got == kFrames);
  rig.CheckClean();
}

}  // namespace
}  // namespace dmakit::nic::liquidio
