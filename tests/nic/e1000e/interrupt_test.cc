// SPDX-License-Identifier: Apache-2.0
//
// Sleeping for frames: no wake-up is lost, whatever comes between the last look and the arming.
#include <atomic>
#include <thread>

#include "nic/notifier.h"
#include "tests/nic/e1000e/testing.h"

namespace dmakit::nic::e1000e {
namespace {

using testing::NumberedFrame;

// A port with interrupts, on a device that is stepped or has a thread.
struct Sleeper {
  explicit Sleeper(bool threaded = false) : rig(Options(threaded)) {
    REQUIRE(rig.MakeSpace().ok());
    auto device =
        rig.space
            ->Attach({.name = "e1000e0", .domain = &rig.domain, .waiter = &rig.device_waiter()})
            .value();
    PortInterrupts interrupts;
    interrupts.source = &rig.model;
    interrupts.notifiers.push_back(NewEventFdNotifier().value());
    rig.port =
        Port::Create(std::move(device), rig.registers(), rig.options_.port, std::move(interrupts))
            .value();
    notifier = rig.port->notifier(0);
    REQUIRE(notifier != nullptr);
  }
  static RigOptions Options(bool threaded) {
    RigOptions options = Small();
    options.threaded = threaded;
    options.port.rx_queues = options.port.tx_queues = 1;
    options.port.interrupts = true;
    options.port.stop_deadline = dma::Nanos{2'000'000'000};
    return options;
  }
  bool Woken() { return notifier->Wait(dma::Nanos{0}); }
  size_t Receive() {
    Packet packet;
    const size_t got = rig.port->Receive(0, {&packet, 1});
    Release({&packet, got}, &rig.port->rx_pool(0));
    return got;
  }

  Rig rig;
  Notifier* notifier = nullptr;
};

TEST_CASE("an armed queue is woken once by the next frame, an unarmed one not at all") {
  Sleeper s;
  REQUIRE(s.rig.port->Start().ok());
  s.rig.wire.Send(NumberedFrame(1, 100));
  s.rig.StepAll();
  CHECK_FALSE(s.Woken());
  CHECK(s.Receive() == 1);
  CHECK(s.Receive() == 0);
  REQUIRE(s.rig.port->Arm(0));
  s.rig.StepAll();
  CHECK_FALSE(s.Woken());  // for what was received long ago
  for (uint32_t i = 0; i < 3; ++i) s.rig.wire.Send(NumberedFrame(i, 100));
  s.rig.StepAll();
  CHECK(s.Woken());
  CHECK_FALSE(s.Woken());
  while (s.Receive() > 0) {
  }
  REQUIRE(s.rig.port->Arm(0));
  s.rig.wire.Send(NumberedFrame(9, 100));
  s.rig.StepAll();
  CHECK(s.Woken());
}

TEST_CASE("a frame that came before the arming is seen by it") {
  Sleeper s;
  REQUIRE(s.rig.port->Start().ok());
  CHECK(s.Receive() == 0);
  s.rig.wire.Send(NumberedFrame(1, 100));
  s.rig.StepAll();
  CHECK_FALSE(s.rig.port->Arm(0));
  CHECK(s.Receive() == 1);
}

TEST_CASE("a stopped port arms nothing, and Stop wakes who sleeps") {
  Sleeper s;
  CHECK_FALSE(s.rig.port->Arm(0));
  REQUIRE(s.rig.port->Start().ok());
  REQUIRE(s.rig.port->Arm(0));
  REQUIRE(s.rig.port->Stop().ok());
  CHECK(s.Woken());
  CHECK_FALSE(s.rig.port->Arm(0));
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kRaces = 10'000;
#else
constexpr uint32_t kRaces = 50'000;
#endif

// Offers the next frame when the one before was received, from another thread.
class OneAtATime final : public Wire {
 public:
  std::optional<std::span<const std::byte>> Peek() override {
    if (wanted.load() == taken.load()) return std::nullopt;
    return std::span<const std::byte>(frame_);
  }
  void Pop() override { taken.fetch_add(1); }
  bool exhausted() const override { return false; }
  void Accept(std::span<const std::byte>) override {}
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return {}; }
  std::atomic<uint32_t> wanted{0};
  std::atomic<uint32_t> taken{0};

 private:
  const Frame frame_ = NumberedFrame(1, 64);
};

TEST_CASE("the last frame races the arming, and no wake-up is lost") {
  Sleeper s(/*threaded=*/true);
  OneAtATime wire;
  s.rig.model.Plug(&wire);
  {
    std::jthread device([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        if (!s.rig.model.Step()) std::this_thread::yield();
      }
    });
    REQUIRE(s.rig.port->Start().ok());
    uint32_t received = 0;
    while (received < kRaces) {
      if (wire.wanted.load() == received) wire.wanted.fetch_add(1);
      if (s.Receive() > 0) {
        ++received;
        continue;
      }
      if (!s.rig.port->Arm(0)) continue;
      REQUIRE(s.notifier->Wait(dma::Nanos{20'000'000'000}));
    }
    REQUIRE(s.rig.port->Stop().ok());
  }
  s.rig.model.Plug(nullptr);
  s.rig.CheckClean();
}

}  // namespace
}  // namespace dmakit::nic::e1000e
