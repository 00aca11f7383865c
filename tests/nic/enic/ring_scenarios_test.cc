// SPDX-License-Identifier: Apache-2.0
//
// Faults that drivers have had with rings, completions and refill, each as a test named after its
// class. What other files of this folder test already is not repeated here.
#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "nic/enic/completion_ring.h"
#include "tests/nic/enic/forger.h"
#include "tests/nic/enic/tx_rig.h"

namespace dmakit::nic::enic {
namespace {

// --- Refill starvation ---------------------------------------------------------------------------

// Takes everything there is until the pool and the ring are empty, by bursts of `burst`.
std::vector<Packet> TakeAll(Rig& rig, size_t burst) {
  std::vector<Packet> kept;
  std::vector<Packet> packets(burst);
  while (rig.rx().posted > 0) {
    rig.wire.Send(testing::NumberedFrame(1, 60));
    if (rig.wire.waiting() < burst) continue;
    rig.StepAll();
    const size_t got = rig.port->Receive(0, packets);
    REQUIRE(got > 0);
    kept.insert(kept.end(), packets.begin(), packets.begin() + static_cast<std::ptrdiff_t>(got));
  }
  return kept;
}

TEST_CASE("refill starvation: an empty ring refills on the next poll, with no packet arriving") {
  for (const dma::Policy policy :
       {dma::Policy::kPersistent, dma::Policy::kStrict, dma::Policy::kDeferred}) {
    for (const size_t burst : {size_t{1}, size_t{32}, size_t{63}, size_t{64}, size_t{200}}) {
      for (const bool by_owner : {true, false}) {
        INFO(dma::Name(policy) << ", burst " << burst << (by_owner ? ", owner" : ", other thread"));
        Rig rig({.port = {.ring_size = 64, .mtu = 1500, .policy = policy}});
        rig.Start();
        std::vector<Packet> kept = TakeAll(rig, burst);
        CHECK(kept.size() >= 63);
        CHECK(rig.rx().posted == 0);
        CHECK(rig.rx().refill_failed > 0);
        CHECK(rig.port->Receive(0, {}) == 0);
        CHECK(rig.rx().posted == 0);  // there is still nothing
        const size_t waiting = rig.wire.waiting();
        rig.StepAll();
        CHECK(rig.wire.waiting() == waiting);  // nor anybody who could take a frame

        Release(kept, by_owner ? &rig.port->rx_pool(0) : nullptr);
        CHECK(rig.port->Receive(0, {}) == 0);
        CHECK(rig.rx().posted == 63);
        rig.wire.Send(testing::NumberedFrame(1, 60));
        CHECK(Loop(rig) == waiting + 1);
        REQUIRE(rig.port->Stop().ok());
        rig.CheckClean();
      }
    }
  }
}

TEST_CASE("refill starvation: memory or mappings that fail for a while stop no queue for good") {
  for (const bool forever : {false, true}) {
    FailPoint fail;
    RigOptions options;
    options.port = {.ring_size = 64, .mtu = 1500, .policy = dma::Policy::kStrict};
    options.fail = &fail;
    Rig rig(options);
    rig.Start();
    fail.FailAt(1, forever);
    std::vector<Packet> packets(64);
    std::vector<Packet> kept;
    for (int i = 0; i < 10; ++i) {
      for (int n = 0; n < 20; ++n) rig.wire.Send(testing::NumberedFrame(1, 60));
      rig.StepAll();
      const size_t got = rig.port->Receive(0, packets);
      Release(std::span(packets).first(got), &rig.port->rx_pool(0));
    }
    CHECK(fail.triggered());
    fail.FailAt(0);
    CHECK(rig.port->Receive(0, {}) == 0);
    CHECK(rig.rx().posted == 63);
    const size_t left = rig.wire.waiting();
    CHECK(Loop(rig) == left);
    REQUIRE(rig.port->Stop().ok());
    rig.CheckClean();
  }
}

// --- The ring's own driver, with a source that is told how much it has ---------------------------

// Every buffer is one of its own, and every hand-over is on record.
struct CountedSource {
  struct State {
    std::set<uint64_t> out;
    uint32_t allowed = 0;
    uint32_t doubles = 0;
  };
  State* state;
  FragSource real;

  bool Take(RxBuffer& out) {
    if (state->allowed == 0 || !real.Take(out)) return false;
    --state->allowed;
    if (!state->out.insert(out.iova.value()).second) ++state->doubles;
    return true;
  }
  void OnReceived(const RxBuffer& b, uint32_t) { Gone(b); }
  void Put(const RxBuffer& b) {
    Gone(b);
    real.Put(b);
  }
  void Gone(const RxBuffer& b) {
    if (state->out.erase(b.iova.value()) != 1) ++state->doubles;
  }
  void Rest() { real.Rest(); }
};

struct CountedRx : Rig {
  explicit CountedRx(uint32_t allowed, uint32_t ring = 64) : Rig({.port = {.mtu = 1500}}) {
    state.allowed = allowed;
    REQUIRE(MakeSpace().ok());
    device = space->Attach({.name = "enic0", .domain = &domain, .waiter = &waiter}).value();
    const RxPoolPlan plan = PlanRxPool({.mtu = 1500}, ring * 4).value();
    pool = NewRxPool(*space, {}, plan, "test", waiter).value();
    std::vector<CountedSource> sources;
    sources.push_back(
        {&state,
         FragSource::Create(*pool, {.size = plan.buffer_size, .headroom = 64, .capacity = 1518})
             .value()});
    driver = Driver<CountedSource>::Create(
                 *device, model.bar0(),
                 {.ring_size = ring, .mtu = 1500, .stop_deadline = dma::Nanos{1'000'000}},
                 std::move(sources), {})
                 .value();
    started = driver->Start();
  }
  ~CountedRx() {
    driver.reset();
    pool.reset();
    device.reset();
  }
  size_t Receive(size_t most = 64) {
    packets.resize(most);
    const size_t got = driver->rx(0).Receive(packets);
    Release(std::span(packets).first(got), pool.get());
    return got;
  }

  CountedSource::State state;
  std::unique_ptr<dma::Device> device;
  std::unique_ptr<frag::PagePool> pool;
  std::unique_ptr<Driver<CountedSource>> driver;
  absl::Status started;
  std::vector<Packet> packets;
};

TEST_CASE(
    "consumer overruns producer: completions for slots that were not refilled change nothing") {
  for (uint32_t ready = 0; ready <= 67; ++ready) {
    INFO(ready << " buffers ready");
    CountedRx rx(ready);
    if (ready == 0) {
      CHECK_FALSE(rx.started.ok());
      CHECK(rx.state.out.empty());
      continue;
    }
    REQUIRE(rx.started.ok());
    const uint32_t posted = std::min(ready, 63u);
    const uint32_t later = ready - posted;
    Forger forger(rx, 0);
    for (uint32_t i = 0; i < 64; ++i) forger.Write(GoodRx(i, 60));
    CHECK(rx.Receive() == posted);
    CHECK(rx.driver->rx_stats(0).bad_completions == 64 - posted);
    CHECK(rx.state.out.size() == later);
    CHECK(rx.Receive() == 0);
    CHECK(rx.state.doubles == 0);
    CHECK(rx.driver->Stop().ok());
    CHECK(rx.state.out.empty());
  }
}

TEST_CASE("double free while the device owns: a refill that fails at buffer k frees none of them") {
  for (uint32_t k = 0; k <= 63; ++k) {
    INFO("k = " << k);
    CountedRx rx(63);
    REQUIRE(rx.started.ok());
    for (uint32_t i = 0; i < 63; ++i) rx.wire.Send(testing::NumberedFrame(i, 60));
    rx.StepAll();
    rx.state.allowed = k;
    CHECK(rx.Receive() == 63);
    // The k that were had are the device's, each once, and all of them good for a frame.
    CHECK(rx.state.out.size() == k);
    CHECK(rx.driver->rx_stats(0).posted == k);
    for (uint32_t i = 0; i < k; ++i) rx.wire.Send(testing::NumberedFrame(i, 60));
    rx.StepAll();
    CHECK(rx.Receive() == k);
    CHECK(rx.state.out.empty());
    rx.state.allowed = 1000;
    CHECK(rx.Receive() == 0);
    CHECK(rx.state.out.size() == 63);
    CHECK(rx.driver->Stop().ok());
    CHECK(rx.state.out.empty());
    CHECK(rx.state.doubles == 0);
    CHECK(rx.pool->stats().bad_releases == 0);
    rx.CheckClean();
  }
}

// --- Completions ---------------------------------------------------------------------------------

// The driver keeps nothing it needs in memory that an application may write to.
TEST_CASE("metadata in untrusted buffer: delivered packets are scribbled over between polls") {
  Rig rig({.port = {.ring_size = 64, .mtu = 1500}});
  rig.Start();
  std::vector<Packet> packets(7);
  uint64_t got = 0;
  for (uint32_t i = 0; i < 40; ++i) rig.wire.Send(testing::NumberedFrame(i, 60 + i));
  rig.StepAll();
  for (size_t n = 0; (n = rig.port->Receive(0, packets)) > 0;) {
    for (size_t i = 0; i < n; ++i) {
      CHECK(BytesOf(packets[i]) ==
            testing::NumberedFrame(static_cast<uint32_t>(got), 60 + static_cast<uint32_t>(got)));
      ++got;
      const Segment& s = packets[i].segments[0];
      // Everything that is this packet's: headroom, frame, and the room behind it.
      std::fill(s.data() - 64, s.data() + 1518, std::byte{0xff});
    }
    Release(std::span(packets).first(n), &rig.port->rx_pool(0));
  }
  CHECK(got == 40);
  CHECK(rig.rx().dropped == 0);
  REQUIRE(rig.port->Stop().ok());
  rig.CheckClean();
}

TEST_CASE(
    "completion format: an entry in error is as long as any other, what follows is read right") {
  for (uint32_t bad = 0; bad < 64; ++bad) {
    Rig rig({.port = {.ring_size = 64, .mtu = 1500}});
    rig.Start();
    {
      // At every place of the ring, also the last, and of every kind of error.
      Forger forger(rig, 0);
      for (uint32_t i = 0; i < 63; ++i) {
        CqEnetRqDesc done = GoodRx(i, 60);
        if (i == bad) {
          done.truncated = true;
          done.fcs_ok = bad % 2 == 0;
          done.bytes_written = bad % 3 == 0 ? 0 : 60;
        }
        forger.Write(done);
      }
    }
    std::vector<Packet> packets(64);
    const size_t got = rig.port->Receive(0, packets);
    CHECK(got == (bad < 63 ? 62 : 63));
    CHECK(rig.rx().dropped == (bad < 63 ? 1 : 0));
    Release(std::span(packets).first(got), &rig.port->rx_pool(0));
  }
}

// Each packet asks for one completion, on its last descriptor.
TEST_CASE("completion accounting: one of eight is asked for, and entries come for the others too") {
  for (uint32_t extra = 0; extra < 7; ++extra) {
    TxRig rig;
    for (int i = 0; i < 3; ++i) {
      Packet packet = rig.Make(std::vector<uint32_t>(8, 20));
      REQUIRE(rig.Send(packet) == 1);
    }
    Forger forger(rig, 0);
    forger.Write(DoneTx(extra));
    forger.Write(DoneTx(7));
    CHECK(rig.tx().Reap() == 1);
    CHECK(rig.stats().bad_completions == 1);
    CHECK(rig.state.done == 8);
    forger.Write(DoneTx(8 + extra));
    forger.Write(DoneTx(23));
    CHECK(rig.tx().Reap() == 2);
    CHECK(rig.stats().bad_completions == 2);
    CHECK(rig.stats().in_flight == 0);
    rig.CheckAllReturned();
  }
}

// --- Read barrier --------------------------------------------------------------------------------

TEST_CASE("missing read barrier: what is read behind the color is what was written before it") {
  constexpr uint32_t kSlots = 64;
  constexpr uint64_t kEntries = 200'000;
  std::vector<CqSlot> slots(kSlots);
  // The reader's progress, so that the writer does not overrun it.
  std::atomic<uint64_t> read{0};
  std::jthread writer([&] {
    for (uint64_t n = 0; n < kEntries; ++n) {
      while (n - read.load(std::memory_order_acquire) >= kSlots) std::this_thread::yield();
      CqSlot& slot = slots[n % kSlots];
      slot.index_queue_hash.Store(n * 0x9e3779b97f4a7c15);
      slot.bytes_vlan.Store(static_cast<uint32_t>(n));
      slot.checksum_fcoe.Store(static_cast<uint16_t>(n));
      slot.flags.Store(static_cast<uint8_t>(n));
      slot.type_color.StoreRelease(TypeColor(CqType::kRqEnet, n / kSlots % 2 == 0));
    }
  });
  CompletionRing ring(slots.data(), kSlots);
  uint64_t torn = 0;
  for (uint64_t n = 0; n < kEntries;) {
    Words words;
    if (!ring.Next(words)) {
      std::this_thread::yield();
      continue;
    }
    torn += words.low != n * 0x9e3779b97f4a7c15;
    torn += (words.high & 0x00ff'ffff'ffff'ffff) !=
            (uint64_t{static_cast<uint32_t>(n)} | uint64_t{static_cast<uint16_t>(n)} << 32 |
             uint64_t{static_cast<uint8_t>(n)} << 48);
    read.store(++n, std::memory_order_release);
  }
  CHECK(torn == 0);
}

// --- Shift width ---------------------------------------------------------------------------------

TEST_CASE("shift width: 1, 63 and 64 queues each receive and send, and stop whole") {
  for (const uint32_t queues : {1u, 63u, 64u}) {
    INFO(queues << " queues");
    Rig rig({.port = {.rx_queues = queues, .tx_queues = queues, .ring_size = 64, .mtu = 68}});
    rig.Start();
    // Straight to each queue: the device's choice by hash would leave some out.
    std::vector<Packet> packets(1);
    for (uint32_t q = 0; q < queues; ++q) {
      {
        Forger forger(rig, q);
        forger.Write(GoodRx(0, 60, q));
      }
      REQUIRE(rig.port->Receive(q, packets) == 1);
      REQUIRE(rig.port->Transmit(q, packets) == 1);
      CHECK(rig.rx(q).frames == 1);
    }
    rig.StepAll();
    for (uint32_t q = 0; q < queues; ++q) {
      CHECK(rig.port->Reap(q) == 1);
      CHECK(rig.tx(q).frames == 1);
      CHECK(rig.rx(q).bad_completions + rig.tx(q).bad_completions == 0);
    }
    CHECK(rig.wire.from_nic.size() == queues);
    REQUIRE(rig.port->Stop().ok());
    CHECK(rig.iommu->stats().live_mappings == 0);
    CHECK(rig.iommu->walk_stats().faults == 0);
  }
}

}  // namespace
}  // namespace dmakit::nic::enic
