// SPDX-License-Identifier: Apache-2.0
//
// The model on a thread of its own and the driver on others: for ThreadSanitizer, and to show that
// nothing depends on stepping. Threads collect, the main thread asserts.
#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "nic/endian.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{120};

// Offers `count` numbered frames of several flows and checks what comes back, flow by flow. On the
// model's thread; the counters are read by others.
class NumberingWire final : public Wire {
 public:
  NumberingWire(uint64_t count, uint32_t flows) : count_(count), flows_(flows), next_(flows) {}

  std::optional<std::span<const std::byte>> Peek() override {
    if (sent_ == count_) return std::nullopt;
    if (frame_.empty()) {
      const uint16_t flow = static_cast<uint16_t>(sent_ % flows_);
      frame_ = testing::MakeFrame({.size = 64 + sent_ % 200, .source_port = flow});
      StoreBe<uint64_t>(frame_, frame_.size() - 8, sent_ / flows_);
    }
    return std::span<const std::byte>(frame_);
  }
  void Pop() override {
    ++sent_;
    frame_.clear();
  }
  bool exhausted() const override { return false; }
  void Accept(std::span<const std::byte> frame) override {
    const uint16_t flow = LoadBe<uint16_t>(frame, 34);
    const uint64_t number = LoadBe<uint64_t>(frame, frame.size() - 8);
    if (flow >= flows_ || number != next_[flow]++) wrong_.fetch_add(1);
    received_.fetch_add(1);
  }
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return {}; }

  uint64_t received() const { return received_.load(); }
  uint64_t wrong() const { return wrong_.load(); }

 private:
  const uint64_t count_;
  const uint32_t flows_;
  uint64_t sent_ = 0;
  Frame frame_;
  std::vector<uint64_t> next_;
  std::atomic<uint64_t> received_{0};
  std::atomic<uint64_t> wrong_{0};
};

// One queue's loop, until `done`.
void ForwardUntil(Port& port, uint32_t queue, const std::function<bool()>& done) {
  std::vector<Packet> packets(32);
  const auto deadline = Clock::now() + kPatience;
  while (!done() && Clock::now() < deadline) {
    const size_t got = port.Receive(queue, packets);
    for (size_t sent = 0; sent < got && Clock::now() < deadline;) {
      sent += port.Transmit(queue, std::span(packets).subspan(sent, got - sent));
    }
    if (port.Reap(queue) == 0 && got == 0) std::this_thread::yield();
  }
}

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
