// SPDX-License-Identifier: Apache-2.0
//
// The receive queue against a device that the tests play themselves, by writing completions: good,
// in error, skipping buffers, and impossible. And against an empty pool.
#include "nic/enic/rx_queue.h"

#include <set>
#include <string>
#include <vector>

#include "tests/nic/enic/forger.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {
namespace {

// A started port of one ring, whose model is not stepped any more.
struct ForgedRx : Rig {
  explicit ForgedRx(uint32_t ring = 64, uint32_t mtu = 1500)
      : Rig({.port = {.ring_size = ring, .mtu = mtu, .stop_deadline = dma::Nanos{1'000'000}}}),
        packets(ring) {
    Start();
    forger = std::make_unique<Forger>(*this, 0);
  }
  std::span<Packet> Receive(size_t most = 4096) {
    const std::span<Packet> all(packets);
    return all.first(port->Receive(0, all.first(std::min(most, all.size()))));
  }
  // Where the device writes the buffer at `index`.
  Iova BufferAt(uint32_t index) {
    std::array<std::byte, 16> bytes{};
    const Iova ring{ReadReg(ResourceType::kRq, 0, RqReg::kRingBase, 8)};
    REQUIRE(forger->port().Read(ring + Bytes{16 * uint64_t{index}}, bytes));
    return Iova{DecodeRq(FromBytes(bytes)).address};
  }
  uint64_t Posted() { return ReadReg(ResourceType::kRq, 0, RqReg::kPostedIndex); }

  std::vector<Packet> packets;
  std::unique_ptr<Forger> forger;
};

TEST_CASE("a frame is what the device wrote, behind the headroom") {
  ForgedRx rx;
  const Frame frame = testing::NumberedFrame(7, 300);
  REQUIRE(rx.forger->port().Write(rx.BufferAt(0), frame));
  CqEnetRqDesc done = GoodRx(0, 300);
  done.rss_hash = 0xdeadbeef;
  done.rss_type = RssType::kTcpIpv4;
  done.vlan_stripped = true;
  done.vlan = 0x6064;
  rx.forger->Write(done);
  const std::span<Packet> got = rx.Receive();
  REQUIRE(got.size() == 1);
  CHECK(BytesOf(got[0]) == frame);
  CHECK(got[0].segments[0].offset >= 64);
  CHECK(got[0].hash == 0xdeadbeef);
  CHECK(got[0].hash_type == 2);
  CHECK(got[0].vlan == 0x6064);
  CHECK(got[0].rx == (RxFlags::kRssHash | RxFlags::kVlanStripped));
  Release(got, &rx.port->rx_pool(0));
  CHECK(rx.Posted() == 0);  // 63 filled, one more: index 64 is 0
}

TEST_CASE("checksum status follows the sheet") {
  const auto flags = [](void (*set)(CqEnetRqDesc&)) {
    CqEnetRqDesc done;
    set(done);
    return RxFlagsOf(done);
  };
  using D = CqEnetRqDesc;
  constexpr RxFlags kIpGood = RxFlags::kIpv4ChecksumGood;
  constexpr RxFlags kIpBad = RxFlags::kIpv4ChecksumBad;
  constexpr RxFlags kL4Good = RxFlags::kL4ChecksumGood;
  constexpr RxFlags kL4Bad = RxFlags::kL4ChecksumBad;
  CHECK(flags([](D& d) { d.ipv4 = d.tcp = d.ipv4_csum_ok = d.tcp_udp_csum_ok = true; }) ==
        (kIpGood | kL4Good));
  CHECK(flags([](D& d) { d.ipv6 = d.udp = d.tcp_udp_csum_ok = true; }) == kL4Good);
  CHECK(flags([](D& d) { d.ipv6 = d.udp = true; }) == kL4Bad);
  CHECK(flags([](D& d) { d.ipv4 = d.udp = d.ipv4_csum_ok = true; }) == (kIpGood | kL4Bad));
  // A good L4 sum behind a bad network header verifies nothing.
  CHECK(flags([](D& d) { d.ipv4 = d.tcp = d.tcp_udp_csum_ok = true; }) == kIpBad);
  CHECK(flags([](D& d) { d.ipv4 = d.tcp = d.ipv4_csum_ok = d.ipv4_fragment = true; }) == kIpGood);
  CHECK(flags([](D& d) {
          d.ipv4 = d.tcp = d.ipv4_csum_ok = d.tcp_udp_csum_ok = d.csum_not_calc = true;
        }) == RxFlags::kNone);
  CHECK(flags([](D& d) { d.rss_hash = 5; }) == RxFlags::kNone);  // no type, no hash
}

TEST_CASE("errors consume their buffer, are counted by kind, and deliver nothing") {
  struct Case {
    void (*set)(CqEnetRqDesc&);
    uint64_t RxQueueStats::*counter;
  };
  const Case cases[] = {
      {[](CqEnetRqDesc& d) { d.truncated = true, d.fcs_ok = false; }, &RxQueueStats::bad_fcs},
      {[](CqEnetRqDesc& d) { d.truncated = true, d.fcs_ok = false, d.bytes_written = 0; },
       &RxQueueStats::truncated},
      {[](CqEnetRqDesc& d) { d.truncated = true; }, &RxQueueStats::bad_completions},
      {[](CqEnetRqDesc& d) { d.bytes_written = 0; }, &RxQueueStats::bad_completions},
      {[](CqEnetRqDesc& d) { d.eop = false; }, &RxQueueStats::bad_completions},
      {[](CqEnetRqDesc& d) { d.sop = false; }, &RxQueueStats::bad_completions},
      // One byte more than the buffer has; and what 14 bits can say at most.
      {[](CqEnetRqDesc& d) { d.bytes_written = 1519; }, &RxQueueStats::bad_completions},
      {[](CqEnetRqDesc& d) { d.bytes_written = 0x3fff; }, &RxQueueStats::bad_completions},
  };
  for (const Case& c : cases) {
    ForgedRx rx;
    CqEnetRqDesc done = GoodRx(0, 100);
    c.set(done);
    if (done.bytes_written > 1518) rx.audit.Expect(dma::AuditCode::kWroteOutside);
    rx.forger->Write(done);
    rx.forger->Write(GoodRx(1, 1518));
    const std::span<Packet> got = rx.Receive();
    REQUIRE(got.size() == 1);
    CHECK(got[0].length == 1518);
    const RxQueueStats stats = rx.rx();
    CHECK(stats.*c.counter == 1);
    CHECK(stats.dropped == 1);
    CHECK(stats.frames == 1);
    CHECK(stats.posted == 63);  // both buffers were replaced
    CHECK(rx.Posted() == 1);    // 63 + 2, on 64 slots
    Release(got, &rx.port->rx_pool(0));
    rx.forger.reset();
    CHECK(rx.port->Stop().ok());  // no buffer is missing
    CHECK(rx.iommu->stats().live_mappings == 0);
  }
}

TEST_CASE("skipped buffers come back unused, and are replaced") {
  for (const uint32_t index : {0u, 1u, 5u, 62u}) {
    ForgedRx rx;
    rx.forger->Write(GoodRx(index, 60));
    const std::span<Packet> got = rx.Receive();
    REQUIRE(got.size() == 1);
    CHECK(rx.rx().skipped == index);
    CHECK(rx.rx().posted == 63);
    CHECK(rx.Posted() == (63 + index + 1) % 64);
    Release(got, &rx.port->rx_pool(0));
    // Nothing is lost: with the rest released at stop, no page is in use.
    rx.forger.reset();
    CHECK(rx.port->Stop().ok());
    CHECK(rx.pool().bad_releases == 0);
    CHECK(rx.iommu->stats().live_mappings == 0);
  }
}

TEST_CASE("impossible completions change nothing but a counter") {
  struct Case {
    const char* what;
    void (*set)(CqEnetRqDesc&);
  };
  const Case cases[] = {
      {"the unused slot", [](CqEnetRqDesc& d) { d.completed_index = 63; }},
      {"beyond the ring", [](CqEnetRqDesc& d) { d.completed_index = 64; }},
      {"far beyond", [](CqEnetRqDesc& d) { d.completed_index = 4095; }},
      {"another queue", [](CqEnetRqDesc& d) { d.q_number = 1; }},
      {"the last queue number", [](CqEnetRqDesc& d) { d.q_number = 1023; }},
      {"a transmit completion", [](CqEnetRqDesc& d) { d.type = CqType::kWqEnet; }},
      {"a type nobody knows", [](CqEnetRqDesc& d) { d.type = static_cast<CqType>(15); }},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    ForgedRx rx;
    CqEnetRqDesc done = GoodRx(0, 60);
    c.set(done);
    rx.forger->Write(done);
    CHECK(rx.Receive().empty());
    CHECK(rx.rx().bad_completions == 1);
    CHECK(rx.rx().posted == 63);
    CHECK(rx.rx().skipped == 0);
    CHECK(rx.Posted() == 63);
    // The queue goes on.
    rx.forger->Write(GoodRx(0, 60));
    const std::span<Packet> got = rx.Receive();
    CHECK(got.size() == 1);
    Release(got, &rx.port->rx_pool(0));
  }
}

TEST_CASE("a completion that comes twice is not believed twice") {
  ForgedRx rx;
  rx.forger->Write(GoodRx(3, 60));
  rx.forger->Write(GoodRx(3, 60));  // now behind to_clean: 63 posted before, index 3 is the newest
  rx.forger->Write(GoodRx(2, 60));
  const std::span<Packet> got = rx.Receive();
  CHECK(got.size() == 1);
  CHECK(rx.rx().bad_completions == 2);
  Release(got, &rx.port->rx_pool(0));
}

TEST_CASE("more completions than a ring has entries do not hold Receive") {
  ForgedRx rx;
  // Every entry is impossible, and of the right color for this lap: 64 of them, then the color
  // flips and the same memory is new again.
  for (int i = 0; i < 64; ++i) rx.forger->Write(GoodRx(4000, 60));
  CHECK(rx.Receive().empty());
  CHECK(rx.rx().bad_completions == 64);
  for (int i = 0; i < 64; ++i) rx.forger->Write(GoodRx(4000, 60));
  CHECK(rx.Receive().empty());
  CHECK(rx.rx().bad_completions == 128);
}

TEST_CASE("impossible completions that nobody received are counted at Stop") {
  ForgedRx rx;
  rx.forger->Write(GoodRx(0, 60));
  rx.forger->Write(GoodRx(63, 60));    // the unused slot
  rx.forger->Write(GoodRx(1, 60, 7));  // another queue
  rx.forger->Write(DoneTx(1));         // another type
  rx.forger.reset();
  CHECK(rx.port->Stop().ok());
  CHECK(rx.rx().left_at_stop == 1);
  CHECK(rx.rx().bad_completions == 3);
  CHECK(rx.rx().dropped == 3);
  CHECK(rx.iommu->stats().live_mappings == 0);
}

TEST_CASE("the burst bounds what is taken, the rest stays for later") {
  ForgedRx rx;
  for (uint32_t i = 0; i < 40; ++i) rx.forger->Write(GoodRx(i, 60));
  std::vector<size_t> sizes;
  for (const size_t most : {size_t{0}, size_t{1}, size_t{7}, size_t{64}}) {
    const std::span<Packet> got = rx.Receive(most);
    sizes.push_back(got.size());
    Release(got, &rx.port->rx_pool(0));
  }
  CHECK(sizes == std::vector<size_t>{0, 1, 7, 32});
  CHECK(rx.rx().posted == 63);
}

// --- Refill --------------------------------------------------------------------------------------

TEST_CASE("an empty pool does not stop the queue: it refills with no frame arriving") {
  ForgedRx rx;
  // The application keeps everything it gets until the pool is empty and the ring too.
  std::vector<Packet> kept;
  uint32_t index = 0;
  while (rx.rx().posted > 0) {
    rx.forger->Write(GoodRx(index, 60));
    index = (index + 1) % 64;
    for (Packet& p : rx.Receive()) kept.push_back(p);
  }
  CHECK(kept.size() >= 64);
  CHECK(rx.rx().refill_failed > 0);
  const uint64_t doorbells = rx.rx().doorbells;
  CHECK(rx.Receive().empty());
  CHECK(rx.rx().doorbells == doorbells);  // nothing to post, nothing written

  Release(kept, &rx.port->rx_pool(0));
  CHECK(rx.Receive().empty());
  CHECK(rx.rx().posted == 63);
  CHECK(rx.rx().doorbells == doorbells + 1);
  CHECK(rx.Posted() == (index + 63) % 64);
}

TEST_CASE("the same with a burst as large as the ring, and through other threads' returners") {
  ForgedRx rx;
  std::vector<Packet> kept;
  uint32_t index = 0;
  for (bool more = true; more;) {
    const uint64_t posted = rx.rx().posted;
    for (uint64_t i = 0; i < posted; ++i, index = (index + 1) % 64) {
      rx.forger->Write(GoodRx(index, 60));
    }
    const std::span<Packet> got = rx.Receive(64);
    CHECK(got.size() == posted);
    kept.insert(kept.end(), got.begin(), got.end());
    more = rx.rx().posted > 0;
  }
  Release(kept, nullptr);
  CHECK(rx.Receive(0).empty());
  CHECK(rx.rx().posted == 63);
}

// A source whose buffers can be counted, and taken away.
struct CountingSource {
  struct State {
    explicit State(frag::PagePool& pool) : pool(pool) {}
    frag::PagePool& pool;
    std::multiset<uint64_t> out;
    uint64_t received = 0;
    uint32_t allowed = ~0u;
    uint32_t doubles = 0;
  };
  State* state;
  FragSource real;

  bool Take(RxBuffer& out) {
    if (state->allowed == 0 || !real.Take(out)) return false;
    --state->allowed;
    out.token = out.iova.value() * 3;
    state->out.insert(out.iova.value());
    return true;
  }
  void OnReceived(const RxBuffer& b, uint32_t length) {
    state->received += length;
    if (b.token != b.iova.value() * 3) ++state->doubles;
    Gone(b);
  }
  void Put(const RxBuffer& b) {
    Gone(b);
    real.Put(b);
  }
  void Gone(const RxBuffer& b) {
    const auto at = state->out.find(b.iova.value());
    if (at == state->out.end()) {
      ++state->doubles;
    } else {
      state->out.erase(at);
    }
  }
  void Rest() { real.Rest(); }
};

TEST_CASE("r ready buffers for every r: what cannot be filled is not posted") {
  Rig rig({.port = {.mtu = 1500}});
  REQUIRE(rig.MakeSpace().ok());
  auto device = rig.space->Attach({.name = "enic0", .domain = &rig.domain, .waiter = &rig.waiter});
  REQUIRE(device.ok());
  const RxPoolPlan plan = PlanRxPool({.mtu = 1500}, 63 * 3).value();
  const auto pool = NewRxPool(*rig.space, {}, plan, "test", rig.waiter).value();
  for (uint32_t ready = 1; ready <= 67; ++ready) {
    CountingSource::State state(*pool);
    state.allowed = ready;
    std::vector<CountingSource> sources;
    sources.push_back(
        {&state,
         FragSource::Create(*pool, {.size = plan.buffer_size, .headroom = 64, .capacity = 1518})
             .value()});
    auto driver = Driver<CountingSource>::Create(
        **device, rig.model.bar0(), {.ring_size = 64, .mtu = 1500}, std::move(sources), {});
    REQUIRE(driver.ok());
    REQUIRE((*driver)->Start().ok());
    const uint32_t posted = std::min(ready, 63u);
    CHECK((*driver)->rx_stats(0).posted == posted);
    CHECK(state.out.size() == posted);
    CHECK(rig.ReadReg(ResourceType::kRq, 0, RqReg::kPostedIndex) == posted);
    // Frames for all of them: exactly those arrive, more would find no buffer.
    for (uint32_t i = 0; i < 67; ++i) rig.wire.Send(testing::NumberedFrame(i, 60));
    rig.StepAll();
    std::vector<Packet> packets(67);
    const size_t got = (*driver)->rx(0).Receive(packets);
    CHECK(got == posted);
    CHECK(state.received == 60 * got);
    Release(std::span(packets).first(got), pool.get());
    REQUIRE((*driver)->Stop().ok());
    CHECK(state.out.empty());
    CHECK(state.doubles == 0);
    while (rig.wire.Peek()) rig.wire.Pop();
  }
  CHECK(pool->stats().bad_releases == 0);
  rig.CheckClean();
  device->reset();
}

TEST_CASE(
    "the device gets at most size - 1 buffers, and a completion ring of the ring's size holds") {
  for (const uint32_t ring : {64u, 96u, 4096u}) {
    RigOptions options;
    options.port = {.ring_size = ring, .mtu = 68};
    Rig rig(options);
    rig.Start();
    CHECK(rig.ReadReg(ResourceType::kCq, 0, CqReg::kRingSize) == ring);
    // All that the ring can take before the driver looks, three times over.
    std::vector<Packet> packets(ring);
    for (int lap = 0; lap < 3; ++lap) {
      for (uint32_t i = 0; i < ring + 5; ++i) rig.wire.Send(testing::NumberedFrame(i, 60));
      rig.StepAll();
      CHECK(rig.wire.waiting() == 6);  // they found no buffer and wait
      size_t got = rig.port->Receive(0, packets);
      CHECK(got == ring - 1);
      Release(std::span(packets).first(got), &rig.port->rx_pool(0));
      rig.StepAll();
      rig.port->Receive(0, {});
      rig.StepAll();
      got = rig.port->Receive(0, packets);
      CHECK(got == 6);
      Release(std::span(packets).first(got), &rig.port->rx_pool(0));
    }
    REQUIRE(rig.port->Stop().ok());
    rig.CheckClean();
  }
}

TEST_CASE("a page the device may not write to: a fault, the queue stops, nothing is lost") {
  RigOptions options;
  options.port = {.ring_size = 64, .mtu = 1500};
  options.page_access = dma::Access::kRead;
  Rig rig(options);
  rig.Start();
  for (int i = 0; i < 3; ++i) rig.wire.Send(testing::NumberedFrame(1, 100));
  rig.StepAll();
  std::vector<Packet> packets(32);
  CHECK(rig.port->Receive(0, packets) == 0);
  REQUIRE(rig.iommu->faults().size() == 1);
  CHECK(rig.iommu->faults()[0].access == dma::Access::kWrite);
  CHECK(rig.iommu->faults()[0].reason == dma::SoftwareIommu::Fault::Reason::kNoPermission);
  CHECK(rig.rx().device_error == static_cast<uint64_t>(QueueError::kAddressFault));
  CHECK(rig.rx().device_no_buffer == 3);
  CHECK(rig.rx().dropped == 3);
  CHECK(rig.port->Stop().ok());
  CHECK(rig.rx().dropped == 3);
  CHECK(rig.iommu->stats().live_mappings == 0);
  CHECK(rig.model.violation_count() == 0);
}

}  // namespace
}  // namespace dmakit::nic::enic
