// SPDX-License-Identifier: Apache-2.0
//
// Interrupts: credits, masks and coalescing as the model keeps them, and a driver that arms, sleeps
// and loses no wake-up.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "nic/enic/backend.h"
#include "nic/enic/registers.h"
#include "nic/notifier.h"
#include "tests/nic/enic/model_bench.h"

namespace dmakit::nic::enic {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

using testing::MakeFrame;

class CountingNotifier final : public Notifier {
 public:
  void Notify() override { ++count; }
  bool Wait(dma::Nanos) override { return false; }
  int fd() const override { return -1; }
  int count = 0;
};

// --- The model -----------------------------------------------------------------------------------

// A receive queue that completes into CQ 0, which raises interrupt 2.
struct InterruptBench : Bench {
  InterruptBench() : Bench({.clock = &clock}) {
    REQUIRE(model.Connect(2, &notifier).ok());
    SetUpCq(0, kRqCq);
    Set(ResourceType::kCq, 0, CqReg::kInterruptEnable, 1);
    Set(ResourceType::kCq, 0, CqReg::kInterruptOffset, 2);
    BringUp();
    SetRq(RqReg::kRingBase, kRq);
    SetRq(RqReg::kRingSize, kRing);
    SetRq(RqReg::kCqIndex, 0);
    SetRq(RqReg::kEnable, 1);
    model.Step();
    for (uint32_t i = 0; i < kRing - 1; ++i) PutRx(i, kData, 2048);
    SetRq(RqReg::kPostedIndex, kRing - 1);
    SetIntr(IntrReg::kMaskOnAssertion, 1);
  }
  void SetIntr(IntrReg reg, uint32_t value) {
    bar.Write32(BlockAt(bar, ResourceType::kIntrCtrl, 2) + OffsetOf(reg), value);
  }
  uint64_t GetIntr(IntrReg reg) { return Get(ResourceType::kIntrCtrl, 2, reg); }
  void Return(uint16_t credits, bool unmask, bool reset = false) {
    SetIntr(IntrReg::kIntCreditReturn, Encode(IntCreditReturn{credits, unmask, reset}));
  }
  void Arrive(int frames = 1) {
    for (int i = 0; i < frames; ++i) wire.Send(MakeFrame({}));
    model.Step();
  }

  dma::host::FakeClock clock;
  CountingNotifier notifier;
};

TEST_CASE("an interrupt is masked at first, counts its events, and asserts when it is unmasked") {
  InterruptBench b;
  b.Arrive(3);
  CHECK(b.notifier.count == 0);
  CHECK(b.GetIntr(IntrReg::kIntCredits) == 3);
  b.Return(0, true);
  CHECK(b.notifier.count == 0);  // a register write only latches
  b.model.Step();
  CHECK(b.notifier.count == 1);
  CHECK(b.GetIntr(IntrReg::kMask) == 1);  // mask_on_assertion
  b.Arrive();
  CHECK(b.notifier.count == 1);
  CHECK(b.GetIntr(IntrReg::kIntCredits) == 4);
  CHECK(b.model.violation_count() == 0);
}

TEST_CASE("credits that are not returned assert again at once; all of them returned do not") {
  InterruptBench b;
  b.Arrive(3);
  b.Return(2, true);
  b.model.Step();
  CHECK(b.notifier.count == 1);
  b.Return(1, true);
  b.model.Step();
  CHECK(b.notifier.count == 1);
  CHECK(b.GetIntr(IntrReg::kMask) == 0);
  b.Arrive();
  CHECK(b.notifier.count == 2);
  // Returned while it stays masked.
  b.Return(1, false);
  b.Arrive();
  CHECK(b.notifier.count == 2);
  CHECK(b.GetIntr(IntrReg::kIntCredits) == 1);
  CHECK(b.model.violation_count() == 0);
  b.Return(2, true);
  CHECK(b.GetIntr(IntrReg::kIntCredits) == 0);
  CHECK_ONE_VIOLATION(b, "more interrupt credits returned");
}

TEST_CASE("without mask_on_assertion it asserts for as long as there are credits") {
  InterruptBench b;
  b.SetIntr(IntrReg::kMaskOnAssertion, 0);
  b.SetIntr(IntrReg::kMask, 0);
  b.Arrive();
  b.model.Step();
  b.model.Step();
  CHECK(b.notifier.count == 3);
  b.Return(1, false);
  b.model.Step();
  CHECK(b.notifier.count == 3);
}

TEST_CASE("coalescing: absolute from the first event, quiet from the last") {
  for (const bool quiet : {false, true}) {
    INFO("quiet " << quiet);
    InterruptBench b;
    b.SetIntr(IntrReg::kCoalescingTimer, 20);  // of 1.5 us: 30 us
    b.SetIntr(IntrReg::kCoalescingType, quiet);
    b.Return(0, true);
    b.Arrive();
    b.clock.Advance(dma::Nanos{20000});
    b.Arrive();
    CHECK(b.notifier.count == 0);
    b.clock.Advance(dma::Nanos{9999});
    b.model.Step();
    CHECK(b.notifier.count == 0);
    b.clock.Advance(dma::Nanos{1});
    b.model.Step();
    CHECK(b.notifier.count == (quiet ? 0 : 1));
    b.clock.Advance(dma::Nanos{20000});
    b.model.Step();
    CHECK(b.notifier.count == 1);
    // What is left asserts at once, or, with the timer reset, after its time.
    b.Return(1, true);
    b.model.Step();
    CHECK(b.notifier.count == 2);
    if (quiet) continue;
    b.Return(0, true, true);
    b.model.Step();
    CHECK(b.notifier.count == 2);
    b.clock.Advance(dma::Nanos{30000});
    b.model.Step();
    CHECK(b.notifier.count == 3);
  }
}

TEST_CASE("a completion queue that raises no interrupt there is does not run") {
  Bench b({.receive_queues = 4});
  b.BringUp();
  b.SetUpQueues();
  b.Set(ResourceType::kCq, 0, CqReg::kInterruptEnable, 1);
  b.Set(ResourceType::kCq, 0, CqReg::kInterruptOffset, 4);
  b.SetRq(RqReg::kEnable, 1);
  b.Step();
  CHECK(b.Get(ResourceType::kRq, 0, RqReg::kRunning) == 0);
  CHECK_ONE_VIOLATION(b, "interrupt_offset");
  CHECK(b.model.vectors() == 4);
  CHECK(absl::IsInvalidArgument(b.model.Connect(4, nullptr)));
}

// --- The driver ----------------------------------------------------------------------------------

// A NIC whose model is stepped by waiting, or runs by itself.
struct Sleeper {
  explicit Sleeper(bool threaded, PortOptions options = {}) {
    nic = NewBackend()->Create({.name = "enic0", .keys = {}, .threaded = threaded}).value();
    space = dma::AddressSpace::Create({.memory = &memory}).value();
    options.interrupts = true;
    options.tx_queues = 0;
    options.ring_size = 64;
    options.mtu = 1500;
    auto made = nic->Open(*space, options);
    INFO(made.status());
    REQUIRE(made.ok());
    port = *std::move(made);
  }
  ~Sleeper() {
    port.reset();
    space.reset();
  }
  size_t Drain(uint32_t queue = 0) {
    size_t got = 0;
    std::vector<Packet> packets(32);
    while (const size_t n = port->Receive(queue, packets)) {
      Release(std::span(packets).first(n), &port->rx_pool(queue));
      got += n;
    }
    return got;
  }

  dma::host::FakeMemory memory;
  std::unique_ptr<Nic> nic;
  std::unique_ptr<dma::AddressSpace> space;
  std::unique_ptr<nic::Port> port;
};

TEST_CASE("a stepped model wakes who waits, each queue its own") {
  Sleeper s(false, {.rx_queues = 3});
  TestWire wire;
  s.nic->model()->Plug(&wire);
  REQUIRE(s.port->Start().ok());
  for (uint32_t q = 0; q < 3; ++q) {
    CHECK(s.Drain(q) == 0);
    CHECK(s.port->Arm(q));
    CHECK_FALSE(s.port->notifier(q)->Wait(dma::Nanos{1'000'000}));
  }
  CHECK(s.port->notifier(3) == nullptr);
  uint64_t woken = 0;
  for (uint16_t flow = 0; flow < 60; ++flow) {
    wire.Send(MakeFrame({.source_port = flow}));
    size_t got = 0;
    for (uint32_t q = 0; q < 3; ++q) {
      if (!s.port->notifier(q)->Wait(dma::Nanos{1'000'000})) continue;
      ++woken;
      got += s.Drain(q);
      CHECK(s.port->Arm(q));
    }
    REQUIRE(got == 1);
  }
  CHECK(woken == 60);
  REQUIRE(s.port->Stop().ok());
  CHECK(s.nic->model()->violation_count() == 0);
  s.nic->model()->Plug(nullptr);
}

TEST_CASE("Arm sees what came while it armed") {
  Sleeper s(false);
  TestWire wire;
  s.nic->model()->Plug(&wire);
  REQUIRE(s.port->Start().ok());
  CHECK(s.Drain() == 0);
  wire.Send(MakeFrame({}));
  s.nic->model()->Step();
  CHECK_FALSE(s.port->Arm(0));
  CHECK(s.Drain() == 1);
  CHECK(s.port->Arm(0));
  CHECK_FALSE(s.port->notifier(0)->Wait(dma::Nanos{1'000'000}));
  REQUIRE(s.port->Stop().ok());
  s.nic->model()->Plug(nullptr);
}

TEST_CASE("polled without end, credits go back before they overflow; a restart begins at none") {
  Sleeper s(false);
  TestWire wire;
  s.nic->model()->Plug(&wire);
  auto* const source = dynamic_cast<InterruptSource*>(s.nic->model());
  REQUIRE(source != nullptr);
  for (int round = 0; round < 2; ++round) {
    REQUIRE(s.port->Start().ok());
    size_t got = 0;
    const size_t frames = kSanitized ? 40000 : 150000;
    for (size_t sent = 0; sent < frames; ++sent) {
      wire.Send(MakeFrame({}));
      s.nic->model()->Step();
      got += s.Drain();
    }
    CHECK(got == frames);
    CHECK(s.port->Arm(0));
    CHECK_FALSE(s.port->notifier(0)->Wait(dma::Nanos{1'000'000}));
    wire.Send(MakeFrame({}));
    CHECK(s.port->notifier(0)->Wait(dma::Nanos{1'000'000}));
    REQUIRE(s.port->Stop().ok());                     // with a frame and a credit left
    CHECK(s.port->notifier(0)->Wait(dma::Nanos{0}));  // Stop's own, once
    CHECK_FALSE(s.port->notifier(0)->Wait(dma::Nanos{0}));
  }
  CHECK(s.nic->model()->violation_count() == 0);
  s.nic->model()->Plug(nullptr);
}

TEST_CASE("who sleeps is woken by a change and by Stop") {
  Sleeper s(false, {.rx_queues = 2});
  TestWire wire;
  s.nic->model()->Plug(&wire);
  REQUIRE(s.port->Start().ok());
  CHECK(s.Drain() == 0);
  CHECK(s.port->Arm(0));
  CHECK_FALSE(s.port->notifier(0)->Wait(dma::Nanos{0}));
  PortOptions options = s.port->options();
  options.rx_queues = 1;
  options.ring_size = 128;
  REQUIRE(s.port->Reconfigure(options).ok());
  CHECK(s.port->notifier(0)->Wait(dma::Nanos{0}));
  CHECK(s.port->Arm(0));
  wire.Send(MakeFrame({}));
  CHECK(s.port->notifier(0)->Wait(dma::Nanos{1'000'000}));
  CHECK(s.Drain() == 1);
  CHECK(s.port->Arm(0));
  CHECK_FALSE(s.port->notifier(0)->Wait(dma::Nanos{0}));
  REQUIRE(s.port->Stop().ok());
  CHECK(s.port->notifier(0)->Wait(dma::Nanos{0}));
  CHECK_FALSE(s.port->Arm(0));  // a stopped port has nothing to wait for
  CHECK(s.nic->model()->violation_count() == 0);
  s.nic->model()->Plug(nullptr);
}

TEST_CASE("frames that a change kept are more to receive, for Arm too") {
  Sleeper s(false);
  TestWire wire;
  s.nic->model()->Plug(&wire);
  REQUIRE(s.port->Start().ok());
  for (int i = 0; i < 5; ++i) wire.Send(MakeFrame({}));
  s.nic->model()->Step();
  PortOptions options = s.port->options();
  options.ring_size = 128;
  REQUIRE(s.port->Reconfigure(options).ok());
  REQUIRE(s.port->stats().queues[0].rx.kept == 5);
  CHECK_FALSE(s.port->Arm(0));
  CHECK(s.Drain() == 5);
  CHECK(s.port->Arm(0));
  REQUIRE(s.port->Stop().ok());
  s.nic->model()->Plug(nullptr);
}

TEST_CASE("interrupts need a source, and a timer that goes as far") {
  Rig rig({.port = {.interrupts = true}});
  REQUIRE(rig.MakeSpace().ok());
  const absl::Status none = rig.Open();
  CHECK(absl::IsFailedPrecondition(none));
  CHECK(none.message().find("0 notifiers for 1 receive queues, and no source") !=
        std::string::npos);
  Sleeper slow(false, {.interrupts = true, .coalescing = dma::Nanos{1'000'000'000}});
  const absl::Status started = slow.port->Start();
  CHECK(absl::IsInvalidArgument(started));
  CHECK(started.message() == "enic0: coalescing 1000000 us: this device allows at most 98302");
  CHECK(slow.nic->domain().stats().live_mappings == 0);
  Rig polled;
  polled.Start();
  CHECK_FALSE(polled.port->Arm(0));
  CHECK(polled.port->notifier(0) == nullptr);
}

// One frame each time it is allowed, after a delay that differs.
class OneByOne final : public Wire {
 public:
  std::optional<std::span<const std::byte>> Peek() override {
    if (sent_ == allowed.load(std::memory_order_acquire)) return std::nullopt;
    for (uint64_t spin = sent_ * 2654435761u % 4096; spin > 0; --spin) {
      asm volatile("" ::: "memory");
    }
    return std::span<const std::byte>(frame_);
  }
  void Pop() override { ++sent_; }
  bool exhausted() const override { return false; }
  void Accept(std::span<const std::byte>) override {}
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return {}; }

  std::atomic<uint64_t> allowed{0};

 private:
  const Frame frame_ = MakeFrame({});
  uint64_t sent_ = 0;
};

TEST_CASE("the last packet races against arming: no wake-up is lost") {
  Sleeper s(true);
  OneByOne wire;
  s.nic->model()->Plug(&wire);
  {
    // Without ModelThread's pauses: the race is wanted.
    std::jthread device([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) s.nic->model()->Step();
    });
    REQUIRE(s.port->Start().ok());
    const uint64_t rounds = kSanitized ? 20000 : 100000;
    uint64_t got = 0, slept = 0, lost = 0;
    for (uint64_t round = 1; round <= rounds && lost == 0; ++round) {
      wire.allowed.store(round, std::memory_order_release);
      for (uint64_t spin = round * 40503u % 4096; spin > 0; --spin) {
        asm volatile("" ::: "memory");
      }
      while (got < round) {
        if (const size_t n = s.Drain(); n != 0) {
          got += n;
          continue;
        }
        if (!s.port->Arm(0)) continue;
        ++slept;
        if (!s.port->notifier(0)->Wait(dma::Nanos{20'000'000'000})) {
          lost += s.Drain() != 0;
          break;
        }
      }
    }
    CHECK(got == rounds);
    CHECK(lost == 0);
    CHECK(slept > 0);
    REQUIRE(s.port->Stop().ok());
  }
  CHECK(s.nic->model()->violation_count() == 0);
  s.nic->model()->Plug(nullptr);
}

}  // namespace
}  // namespace dmakit::nic::enic
