// SPDX-License-Identifier: Apache-2.0
//
// Changes of a port that is at work: page order, ring size, MTU, queue counts. Every frame carries
// its number and flow; all of them must come out, once, unchanged, each flow in order, whatever was
// in the rings, in the application's hands or on the wire at the moment of a change.
#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "nic/endian.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {
namespace {

using testing::MakeFrame;

// A frame of flow `flow`; its size and bytes follow from its number.
Frame Numbered(uint32_t number, uint16_t flow) {
  return MakeFrame({.size = 64 + number * 37 % 450, .source_port = flow, .serial = number});
}
constexpr size_t kSerialAt = 42;  // of UDP over IPv4

uint32_t NumberOf(const Frame& frame) { return LoadLe<uint32_t>(std::span(frame), kSerialAt); }

// A port with traffic: offers frames, receives, holds some packets for a while, transmits them.
class Traffic {
 public:
  static constexpr uint16_t kFlows = 16;

  explicit Traffic(Rig& rig) : rig_(rig), packets_(24) {}

  // `rounds` of a little of everything; what is on the way stays on the way.
  void Run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (uint64_t n = random_() % 12; n > 0; --n) Offer();
      for (uint64_t n = random_() % 3; n > 0; --n) rig_.model.Step();
      const PortOptions& shape = rig_.port->options();
      const auto queue = static_cast<uint32_t>(random_() % shape.rx_queues);
      Receive(queue, 1 + random_() % packets_.size());
      Send(static_cast<uint32_t>(random_() % shape.tx_queues), random_() % 40);
    }
  }
  // What every queue has kept, before anything new: a flow may have moved to another queue.
  void Collect() {
    for (uint32_t q = 0; q < rig_.port->options().rx_queues; ++q) {
      while (rig_.rx(q).kept != 0) Receive(q, packets_.size());
    }
  }
  // Until nothing is on the way any more.
  void Finish() {
    for (int idle = 0; idle < 4;) {
      bool busy = rig_.model.Step();
      for (uint32_t q = 0; q < rig_.port->options().rx_queues; ++q) {
        busy |= Receive(q, packets_.size()) != 0;
      }
      busy |= Send(0, held_.size()) != 0 || !held_.empty();
      rig_.port->Reap(0);
      idle = busy ? 0 : idle + 1;
    }
  }
  void Check() {
    std::map<uint16_t, uint32_t> last;
    CHECK(rig_.wire.from_nic.size() == offered_);
    for (const Frame& frame : rig_.wire.from_nic) {
      const uint32_t number = NumberOf(frame);
      const auto flow = LoadBe<uint16_t>(std::span(frame), 34);
      REQUIRE(frame == Numbered(number, flow));
      // Each flow keeps to one transmit queue at a time, and order within it.
      REQUIRE(number > last[flow]);
      last[flow] = number;
    }
    uint64_t frames = 0;
    for (const QueueStats& q : rig_.port->stats().queues) {
      CHECK(q.rx.dropped == 0);
      CHECK(q.rx.left_at_stop == 0);
      CHECK(q.tx.dropped == 0);
      CHECK(q.pool.bad_releases == 0);
      frames += q.rx.frames;
    }
    CHECK(frames == offered_);
  }
  uint64_t offered() const { return offered_; }

 private:
  void Offer() {
    const uint32_t number = ++offered_;
    rig_.wire.Send(Numbered(number, static_cast<uint16_t>(1000 + number % kFlows)));
  }
  size_t Receive(uint32_t queue, size_t most) {
    const size_t got = rig_.port->Receive(queue, std::span(packets_).first(most));
    for (size_t i = 0; i < got; ++i) {
      held_.emplace_back();
      held_.back().ResetTo(packets_[i].segments[0]);
    }
    return got;
  }
  // Oldest first, so that flows keep their order; one transmit queue until it is empty.
  size_t Send(uint32_t queue, size_t most) {
    if (rig_.tx(last_queue_).in_flight != 0) queue = last_queue_;
    last_queue_ = queue;
    size_t sent = 0;
    while (sent < most && !held_.empty()) {
      if (rig_.port->Transmit(queue, {&held_.front(), 1}) == 0) break;
      held_.pop_front();
      ++sent;
    }
    if (sent == 0) rig_.port->Reap(queue);
    return sent;
  }

  Rig& rig_;
  std::vector<Packet> packets_;
  std::deque<Packet> held_;
  std::mt19937_64 random_{7};
  uint32_t offered_ = 0;
  uint32_t last_queue_ = 0;
};

constexpr PortOptions kBase = {
    .rx_queues = 2, .tx_queues = 2, .ring_size = 128, .mtu = 1500, .headroom = 64};

// What a receive queue's pool may have when nothing of an earlier ring is left.
Bytes RxPoolBytes(const PortOptions& options) {
  return PlanRxPool(options, options.ring_size - 1)->max_bytes;
}

// `moves`: flows may go to another queue.
void ChangeUnderTraffic(const PortOptions& base, int changes, bool moves,
                        void (*next)(PortOptions&, int)) {
  Rig rig({.port = base});
  rig.Start();
  Traffic traffic(rig);
  PortOptions options = rig.port->options();
  Bytes largest = RxPoolBytes(options);
  for (int change = 0; change < changes; ++change) {
    traffic.Run(4);
    next(options, change);
    const absl::Status changed = rig.port->Reconfigure(options);
    INFO(changed);
    REQUIRE(changed.ok());
    CHECK(rig.port->options().ring_size == options.ring_size);
    largest = std::max(largest, RxPoolBytes(options));
    if (moves) traffic.Collect();
  }
  traffic.Run(4);
  traffic.Finish();
  traffic.Check();
  CHECK(traffic.offered() > 10u * static_cast<unsigned>(changes));
  // Memory does not add up over the changes: a ring's, and what of the one before was still held.
  for (const QueueStats& queue : rig.port->stats().queues) {
    CHECK(queue.pool.bytes_peak <= 2 * largest.value());
  }
  REQUIRE(rig.port->Stop().ok());
  rig.CheckClean();
  CHECK(rig.iommu->stats().live_mappings == 0);
}

TEST_CASE("1,000 changes of the ring size under traffic") {
  ChangeUnderTraffic(kBase, 1000, false, [](PortOptions& o, int n) {
    o.ring_size = 64 + 32 * static_cast<uint32_t>(n * 7 % 6);
  });
}

TEST_CASE("1,000 changes of the MTU under traffic") {
  ChangeUnderTraffic(kBase, 1000, false, [](PortOptions& o, int n) {
    o.mtu = (n % 2 == 0 ? 600 : 1500) + static_cast<uint32_t>(n * 131 % 7500);
  });
}

TEST_CASE("1,000 changes of the queue counts under traffic") {
  ChangeUnderTraffic(kBase, 1000, true, [](PortOptions& o, int n) {
    o.rx_queues = 1 + static_cast<uint32_t>(n * 5 % 7);
    o.tx_queues = 1 + static_cast<uint32_t>(n * 3 % 5);
  });
}

TEST_CASE("1,000 changes of everything at once, strict and deferred") {
  for (const dma::Policy policy : {dma::Policy::kStrict, dma::Policy::kDeferred}) {
    PortOptions base = kBase;
    base.policy = policy;
    ChangeUnderTraffic(base, 500, true, [](PortOptions& o, int n) {
      o.ring_size = 64 + 32 * static_cast<uint32_t>(n * 3 % 9);
      o.mtu = 600 + static_cast<uint32_t>(n * 877 % 8400);
      o.headroom = static_cast<uint32_t>(n % 3 * 64);
      o.rx_queues = 1 + static_cast<uint32_t>(n % 3);
      o.tx_queues = 1 + static_cast<uint32_t>(n % 2);
      o.page_order = n % 4 == 0 ? std::nullopt : std::optional<unsigned>(2 + n % 5);
      if (o.page_order && (4096u << *o.page_order) < RxBufferSize(o.mtu, o.headroom)) {
        o.page_order = 4;
      }
    });
  }
}

TEST_CASE("1,000 changes of the page order, while queues are at work") {
  PortOptions options = kBase;
  options.policy = GENERATE(dma::Policy::kPersistent, dma::Policy::kStrict, dma::Policy::kDeferred);
  Rig rig({.port = options});
  rig.Start();
  Traffic traffic(rig);
  uint64_t orders_seen = 0;
  Bytes largest = RxPoolBytes(options);
  for (int change = 0; change < 1000; ++change) {
    traffic.Run(4);
    const auto order = static_cast<unsigned>(change * 3 % 8);
    REQUIRE(rig.port->SetPageOrder(order).ok());
    CHECK(rig.port->options().page_order == order);
    CHECK(rig.port->rx_pool(0).order() == order);
    largest = std::max(largest, RxPoolBytes(rig.port->options()));
    CHECK(rig.port->rx_pool(0).max_bytes().value() <= 2 * largest.value());
    orders_seen |= uint64_t{1} << order;
  }
  CHECK(orders_seen == 0xff);
  traffic.Finish();
  traffic.Check();
  const frag::PagePoolStats pool = rig.pool();
  CHECK(pool.alloc_slow > 0);             // pages of 4 KiB were made
  CHECK(pool.alloc_slow_high_order > 0);  // and others
  CHECK(pool.alloc_waive > 0);
  REQUIRE(rig.port->Stop().ok());
  rig.CheckClean();
}

TEST_CASE("queue threads at work, changes by a control thread, the device on its own") {
  Rig rig(
      {.port = {.rx_queues = 2, .tx_queues = 2, .ring_size = 64, .mtu = 1500}, .threaded = true});
  // A queue thread holds it shared for a burst; a change takes it alone.
  std::shared_mutex gate;
  std::atomic<bool> done{false};
  std::atomic<uint64_t> forwarded{0};
  std::mutex wire;  // of the test: the device and who offers frames
  uint32_t offered = 0;
  std::jthread device([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      {
        std::lock_guard<std::mutex> lock(wire);
        rig.model.Step();
      }
      std::this_thread::yield();
    }
  });
  rig.Start();
  const auto work = [&](uint32_t queue) {
    std::vector<Packet> packets(16);
    while (!done) {
      std::shared_lock<std::shared_mutex> lock(gate);
      const size_t got = rig.port->Receive(queue, packets);
      for (size_t sent = 0; sent < got;) {
        sent += rig.port->Transmit(queue, std::span(packets).subspan(sent, got - sent));
      }
      rig.port->Reap(queue);
      forwarded += got;
      lock.unlock();
      std::this_thread::yield();
    }
  };
  std::vector<std::jthread> queues;
  for (uint32_t q = 0; q < 2; ++q) queues.emplace_back(work, q);
  for (int change = 0; change < 200; ++change) {
    {
      std::lock_guard<std::mutex> lock(wire);
      for (int i = 0; i < 20; ++i) {
        const uint32_t number = ++offered;
        rig.wire.Send(Numbered(number, static_cast<uint16_t>(1000 + number % 16)));
      }
    }
    if (change % 4 == 3) {
      REQUIRE(rig.port->SetPageOrder(static_cast<unsigned>(2 + change % 5)).ok());
      continue;
    }
    std::lock_guard<std::shared_mutex> lock(gate);
    PortOptions options = rig.port->options();
    options.ring_size = 64 + 32 * static_cast<uint32_t>(change % 3);
    options.mtu = change % 2 == 0 ? 1500 : 3000;
    const absl::Status changed = rig.port->Reconfigure(options);
    INFO(changed);
    REQUIRE(changed.ok());
  }
  for (int i = 0; i < 20000 && forwarded < offered; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  done = true;
  queues.clear();
  REQUIRE(rig.port->Stop().ok());
  device.request_stop();
  device.join();
  CHECK(forwarded == offered);
  CHECK(rig.wire.from_nic.size() == offered);
  std::vector<bool> seen(offered + 1);
  for (const Frame& frame : rig.wire.from_nic) {
    const uint32_t number = NumberOf(frame);
    REQUIRE((number <= offered && !seen[number]));
    seen[number] = true;
    REQUIRE(frame == Numbered(number, static_cast<uint16_t>(1000 + number % 16)));
  }
  rig.CheckClean();
}

// --- What a change finds -------------------------------------------------------------------------

TEST_CASE("frames that were completed and not asked for come first, on whatever queue is left") {
  Rig rig({.port = {.rx_queues = 3, .tx_queues = 1, .ring_size = 64, .mtu = 1500}});
  rig.Start();
  for (uint32_t i = 1; i <= 60; ++i) rig.wire.Send(Numbered(i, static_cast<uint16_t>(i)));
  rig.StepAll();  // into the rings
  PortOptions options = rig.port->options();
  options.rx_queues = 1;
  options.ring_size = 96;
  REQUIRE(rig.port->Reconfigure(options).ok());
  CHECK(rig.rx(0).kept == 60);
  CHECK(rig.rx(2).kept == 0);
  rig.wire.Send(Numbered(61, 1));
  rig.StepAll();
  std::vector<Packet> packets(7);
  std::vector<bool> seen(62);
  uint32_t got = 0;
  for (size_t n; (n = rig.port->Receive(0, packets)) != 0;) {
    for (const Packet& p : std::span(packets).first(n)) {
      const Frame frame = BytesOf(p);
      const uint32_t number = NumberOf(frame);
      REQUIRE((number <= 61 && !seen[number]));
      seen[number] = true;
      ++got;
      if (number == 61) CHECK(got == 61);  // after all that came before
    }
    Release(std::span(packets).first(n), &rig.port->rx_pool(0));
  }
  CHECK(got == 61);
  const PortStats stats = rig.port->stats();
  CHECK(stats.queues.size() == 3);  // their counters do not go
  CHECK(stats.queues[0].rx.frames == 61);
  REQUIRE(rig.port->Stop().ok());
  rig.CheckClean();
  CHECK(rig.iommu->stats().live_mappings == 0);
}

TEST_CASE("frames that a change kept and nobody received are counted at Stop, and lose no page") {
  for (const bool start_again : {false, true}) {
    Rig rig({.port = {.ring_size = 64, .mtu = 1500}});
    rig.Start();
    for (uint32_t i = 1; i <= 10; ++i) rig.wire.Send(Numbered(i, 1));
    rig.StepAll();
    PortOptions options = rig.port->options();
    options.ring_size = 128;
    REQUIRE(rig.port->Reconfigure(options).ok());
    Packet packet;
    REQUIRE(rig.port->Receive(0, {&packet, 1}) == 1);
    Release({&packet, 1}, &rig.port->rx_pool(0));
    rig.wire.Send(Numbered(11, 1));
    rig.StepAll();
    REQUIRE(rig.port->Stop().ok());
    CHECK(rig.rx().left_at_stop == 10);
    CHECK(rig.port->rx_pool(0).pages_in_use() == 0);
    CHECK(rig.iommu->stats().live_mappings == 0);
    if (!start_again) continue;
    REQUIRE(rig.port->Start().ok());
    CHECK(rig.port->Receive(0, {&packet, 1}) == 0);
  }
}

TEST_CASE("what was kept for another queue goes back to the pool it is from") {
  Rig rig({.port = {.rx_queues = 4, .tx_queues = 1, .ring_size = 64, .mtu = 1500}});
  rig.Start();
  for (uint32_t i = 1; i <= 40; ++i) rig.wire.Send(Numbered(i, static_cast<uint16_t>(i)));
  rig.StepAll();
  PortOptions options = rig.port->options();
  options.rx_queues = 1;
  REQUIRE(rig.port->Reconfigure(options).ok());
  REQUIRE(rig.rx(0).kept == 40);
  REQUIRE(rig.port->Stop().ok());
  CHECK(rig.rx(0).left_at_stop == 40);
  for (uint32_t q = 0; q < 4; ++q) {
    CHECK(rig.pool(q).bad_releases == 0);
    CHECK(rig.port->rx_pool(q).pages_in_use() == 0);
  }
  CHECK(rig.iommu->stats().live_mappings == 0);
  rig.CheckClean();
}

TEST_CASE("a port at rest is changed at rest, and packets outlive every change") {
  Rig rig({.port = {.ring_size = 64, .mtu = 1500}});
  rig.Start();
  rig.wire.Send(Numbered(1, 5));
  rig.StepAll();
  Packet held;
  REQUIRE(rig.port->Receive(0, {&held, 1}) == 1);
  PortOptions options = rig.port->options();
  for (const uint32_t mtu : {9000u, 100u, 4000u}) {
    options.mtu = mtu;
    REQUIRE(rig.port->Reconfigure(options).ok());
    CHECK(BytesOf(held) == Numbered(1, 5));
    CHECK(rig.port->max_frame() == mtu + 18);
  }
  REQUIRE(rig.port->Transmit(0, {&held, 1}) == 1);
  rig.StepAll();
  CHECK(rig.wire.from_nic.back() == Numbered(1, 5));
  REQUIRE(rig.port->Stop().ok());
  REQUIRE(rig.port->Stop().ok());
  options.ring_size = 4096;
  options.rx_queues = 4;
  REQUIRE(rig.port->Reconfigure(options).ok());
  CHECK(rig.iommu->stats().live_mappings == 0);  // it was not started
  REQUIRE(rig.port->Start().ok());
  CHECK(rig.rx(3).posted == 4095);
  REQUIRE(rig.port->Stop().ok());
  rig.CheckClean();
}

TEST_CASE("a change that is refused changes nothing, not even for a moment") {
  Rig rig({.port = {.ring_size = 64, .mtu = 1500}});
  rig.Start();
  const uint64_t maps = rig.iommu->stats().maps;
  struct Case {
    void (*change)(PortOptions&);
    const char* words;
  };
  const Case cases[] = {
      {[](PortOptions& o) { o.ring_size = 48; }, "ring size 48: must be a multiple of 32"},
      {[](PortOptions& o) { o.ring_size = 8192; }, "ring size 8192"},
      {[](PortOptions& o) { o.mtu = 67; }, "mtu 67: must be between 68 and 9000"},
      {[](PortOptions& o) { o.mtu = 9001; }, "mtu 9001"},
      {[](PortOptions& o) { o.rx_queues = o.tx_queues = 0; }, "queues 0"},
      {[](PortOptions& o) { o.rx_queues = 65; }, "receive queues 65: this device has 64"},
      {[](PortOptions& o) { o.page_order = 10; }, "page order 10"},
      {[](PortOptions& o) { o.page_order = 0, o.mtu = 9000; }, "page order 0"},
      {[](PortOptions& o) { o.headroom = 20000; }, "headroom 20000"},
      {[](PortOptions& o) { o.policy = dma::Policy::kStrict; }, "policy cannot be changed"},
      {[](PortOptions& o) { o.interrupts = true; }, "interrupts cannot be changed"},
      {[](PortOptions& o) { o.vlan_strip = true; }, "vlan_strip cannot be changed"},
      {[](PortOptions& o) { o.extra_pages = 9; }, "extra_pages cannot be changed"},
  };
  for (const Case& c : cases) {
    PortOptions options = rig.port->options();
    c.change(options);
    const absl::Status refused = rig.port->Reconfigure(options);
    INFO(c.words << " against " << refused);
    CHECK((absl::IsInvalidArgument(refused) || absl::IsFailedPrecondition(refused)));
    CHECK(refused.message().find(c.words) != std::string::npos);
  }
  CHECK(absl::IsInvalidArgument(rig.port->SetPageOrder(10)));
  CHECK(rig.iommu->stats().maps == maps);
  rig.wire.Send(Numbered(1, 1));
  CHECK(Loop(rig) == 1);
  REQUIRE(rig.port->Stop().ok());
  rig.CheckClean();
}

TEST_CASE("a change that fails at its k-th step leaves the port as it was, for all k") {
  uint64_t failures = 0;
  for (uint64_t k = 1;; ++k) {
    FailPoint fail;
    Rig rig(
        {.port = {.rx_queues = 1, .tx_queues = 1, .ring_size = 64, .mtu = 1500}, .fail = &fail});
    rig.Start();
    for (uint32_t i = 1; i <= 5; ++i) rig.wire.Send(Numbered(i, 1));
    rig.StepAll();
    PortOptions options = rig.port->options();
    options.rx_queues = 3;
    options.tx_queues = 3;
    options.ring_size = 128;
    options.mtu = 9000;
    fail.FailAt(k);
    const absl::Status changed = rig.port->Reconfigure(options);
    const bool triggered = fail.triggered();
    fail.FailAt(0);
    if (!triggered) {
      CHECK(changed.ok());
      break;
    }
    ++failures;
    INFO("k " << k << ": " << changed);
    if (!changed.ok()) {
      CHECK(absl::IsAborted(changed));
      CHECK(changed.message().find("the port is as before") != std::string::npos);
      CHECK(rig.port->options().rx_queues == 1);
    }
    // All that had come is there, and more can come.
    for (uint32_t i = 6; i <= 10; ++i) rig.wire.Send(Numbered(i, 1));
    CHECK(Loop(rig, rig.port->options().rx_queues) == 10);
    REQUIRE(rig.wire.from_nic.size() == 10);
    REQUIRE(rig.port->Reconfigure(options).ok());
    REQUIRE(rig.port->Stop().ok());
    CHECK(rig.iommu->stats().live_mappings == 0);
    rig.CheckClean();
  }
  CHECK(failures > 10);
}

TEST_CASE("when the way back is closed too the port is stopped, and can be started later") {
  FailPoint fail;
  Rig rig({.port = {.ring_size = 64, .mtu = 1500}, .fail = &fail});
  rig.Start();
  PortOptions options = rig.port->options();
  options.ring_size = 128;
  fail.FailAt(1, /*forever=*/true);
  const absl::Status changed = rig.port->Reconfigure(options);
  CHECK(absl::IsAborted(changed));
  CHECK(changed.message().find("the port is stopped") != std::string::npos);
  CHECK(rig.iommu->stats().live_mappings == 0);
  fail.FailAt(0);
  CHECK(rig.port->options().ring_size == 64);
  REQUIRE(rig.port->Start().ok());
  rig.wire.Send(Numbered(1, 1));
  CHECK(Loop(rig) == 1);
  REQUIRE(rig.port->Stop().ok());
  rig.CheckClean();
}

}  // namespace
}  // namespace dmakit::nic::enic
