// SPDX-License-Identifier: Apache-2.0
//
// Receive: frames in one entry and in several, rings of all sizes, what entries say, and devices
// that lie about it.
#include <set>
#include <string>
#include <vector>

#include "tests/nic/e1000e/testing.h"

namespace dmakit::nic::e1000e {
namespace {

using testing::FrameSpec;
using testing::MakeFrame;
using testing::NumberedFrame;

RigOptions One(uint32_t ring = 64, uint32_t mtu = 9000) {
  RigOptions options = Small();
  options.port.rx_queues = options.port.tx_queues = 1;
  options.port.ring_size = ring;
  options.port.mtu = mtu;
  return options;
}

// Receives one packet, and gives it back.
Frame TakeOne(Rig& rig, Packet* seen = nullptr) {
  Packet packet;
  REQUIRE(rig.port->Receive(0, {&packet, 1}) == 1);
  const Frame frame = BytesOf(packet);
  CHECK(packet.length == frame.size());
  if (seen != nullptr) {
    seen->rx = packet.rx;
    seen->vlan = packet.vlan;
    seen->segment_count = packet.segment_count;
  }
  Release({&packet, 1}, &rig.port->rx_pool(0));
  return frame;
}

TEST_CASE("a frame takes as many segments as it fills buffers, at every size around the edges") {
  Rig rig(One());
  rig.Start();
  for (const size_t size : {size_t{60}, size_t{2047}, size_t{2048}, size_t{2049}, size_t{4095},
                            size_t{4096}, size_t{4097}, size_t{8192}, size_t{8193}, size_t{9018}}) {
    INFO(size << " bytes");
    const Frame frame = NumberedFrame(static_cast<uint32_t>(size), size);
    rig.wire.Send(frame);
    rig.StepAll();
    Packet seen;
    CHECK(TakeOne(rig, &seen) == frame);
    CHECK(seen.segment_count == (size + 2047) / 2048);
  }
  rig.wire.Send(NumberedFrame(1, 9019));
  rig.wire.Send(NumberedFrame(2, 64));
  rig.StepAll();
  CHECK(TakeOne(rig) == NumberedFrame(2, 64));
  CHECK(rig.rx().truncated == 1);
  rig.CheckClean();
}

TEST_CASE("a short MTU keeps longer frames out, and needs no long packets from the device") {
  Rig rig(One(64, 500));
  rig.Start();
  CHECK((rig.model.Get(Reg::kRctl) & kRctlLongPackets) == 0);
  rig.wire.Send(NumberedFrame(1, 518));
  rig.wire.Send(NumberedFrame(2, 519));
  rig.StepAll();
  CHECK(TakeOne(rig).size() == 518);
  Packet packet;
  CHECK(rig.port->Receive(0, {&packet, 1}) == 0);
  CHECK(rig.rx().truncated == 1);
}

TEST_CASE("rings of every kind of size wrap") {
  for (const uint32_t ring : {64u, 72u, 256u, 4096u}) {
    INFO("ring " << ring);
    Rig rig(One(ring));
    rig.Start();
    CHECK(rig.rx().posted == ring - 1);
    uint32_t sent = 0;
    for (int lap = 0; lap < 3; ++lap) {
      for (uint32_t i = 0; i < ring; ++i, ++sent)
        rig.wire.Send(NumberedFrame(sent, 100 + sent % 3000));
      CHECK(Loop(rig) == ring);
    }
    REQUIRE(rig.wire.from_nic.size() == sent);
    for (uint32_t i = 0; i < sent; ++i) {
      REQUIRE(rig.wire.from_nic[i] == NumberedFrame(i, 100 + i % 3000));
    }
    REQUIRE(rig.port->Stop().ok());
    rig.CheckClean();
  }
}

TEST_CASE("a burst smaller than what is there leaves the rest for the next") {
  Rig rig(One());
  rig.Start();
  for (uint32_t i = 0; i < 20; ++i) rig.wire.Send(NumberedFrame(i, 5000));
  rig.StepAll();
  std::vector<Packet> burst(3);
  uint32_t next = 0;
  while (next < 20) {
    const size_t got = rig.port->Receive(0, burst);
    REQUIRE(got > 0);
    for (size_t i = 0; i < got; ++i) CHECK(BytesOf(burst[i]) == NumberedFrame(next++, 5000));
    Release(std::span(burst).first(got), &rig.port->rx_pool(0));
    rig.StepAll();
  }
  CHECK(rig.port->Receive(0, {}) == 0);
}

TEST_CASE("checksums, tags and errors are told as the entries tell them") {
  RigOptions options = One();
  options.port.vlan_strip = true;
  Rig rig(options);
  rig.Start();
  Packet seen;
  const auto send = [&](const FrameSpec& spec) {
    rig.wire.Send(MakeFrame(spec));
    rig.StepAll();
    TakeOne(rig, &seen);
    return seen.rx;
  };
  RxFlags flags = send({.size = 200, .tcp = true});
  CHECK(Has(flags, RxFlags::kIpv4ChecksumGood));
  CHECK(Has(flags, RxFlags::kL4ChecksumGood));
  flags = send({.size = 200, .bad_ip_checksum = true});
  CHECK(Has(flags, RxFlags::kIpv4ChecksumBad));
  flags = send({.size = 200, .bad_l4_checksum = true});
  CHECK(Has(flags, RxFlags::kL4ChecksumBad));
  CHECK_FALSE(Has(flags, RxFlags::kL4ChecksumGood));
  flags = send({.size = 200, .no_udp_checksum = true});
  CHECK_FALSE(Has(flags, RxFlags::kL4ChecksumGood));
  CHECK_FALSE(Has(flags, RxFlags::kL4ChecksumBad));
  flags = send({.size = 204, .vlan = uint16_t{0x2345}});
  CHECK(Has(flags, RxFlags::kVlanStripped));
  CHECK(seen.vlan == 0x2345);

  for (const uint32_t error :
       {kRxErrorCrc, kRxErrorSymbol, kRxErrorSequence, kRxErrorCarrier, kRxErrorData}) {
    for (const size_t size : {size_t{100}, size_t{5000}}) {
      const uint64_t before = rig.rx().bad_fcs;
      rig.model.rx_errors = error;
      rig.wire.Send(NumberedFrame(1, size));
      rig.StepAll();
      Packet packet;
      CHECK(rig.port->Receive(0, {&packet, 1}) == 0);
      CHECK(rig.rx().bad_fcs == before + 1);
    }
  }
  rig.CheckClean();
}

TEST_CASE("a tag is only called stripped where tags are taken out") {
  constexpr RxWriteBack kTagged = {.status_error = kRxDone | kRxEndOfPacket | kRxVlan};
  CHECK(RxFlagsOf(kTagged, RxForm::kIpId, true) == RxFlags::kVlanStripped);
  CHECK(RxFlagsOf(kTagged, RxForm::kIpId, false) == RxFlags::kNone);
}

TEST_CASE("behind a bad IP header no TCP or UDP checksum is good") {
  RxWriteBack done = {.status_error = kRxIpChecksum | kRxTcpChecksum | kRxErrorIpChecksum};
  CHECK(RxFlagsOf(done, RxForm::kIpId, false) == RxFlags::kIpv4ChecksumBad);
  done.status_error |= kRxErrorL4Checksum;
  CHECK(RxFlagsOf(done, RxForm::kIpId, false) ==
        (RxFlags::kIpv4ChecksumBad | RxFlags::kL4ChecksumBad));
  done.status_error |= kRxIgnoreChecksum;
  CHECK(RxFlagsOf(done, RxForm::kIpId, false) == RxFlags::kNone);
}

TEST_CASE("buffers are the smallest that the chip has for a frame of the MTU") {
  struct Case {
    uint32_t mtu, bytes, bsize;
  };
  for (const Case& c : {Case{68, 256, 3}, Case{238, 256, 3}, Case{239, 512, 2}, Case{494, 512, 2},
                        Case{495, 1024, 1}, Case{1006, 1024, 1}, Case{1007, 2048, 0},
                        Case{1500, 2048, 0}, Case{9000, 2048, 0}}) {
    INFO("mtu " << c.mtu);
    CHECK(RxBufferBytes(c.mtu + 18) == c.bytes);
    Rig rig(One(64, c.mtu));
    rig.Start();
    CHECK((rig.model.Get(Reg::kRctl) >> 16 & 3) == c.bsize);
    CHECK((rig.model.Get(Reg::kRctl) & 1u << 25) == 0);
    // One of several buffers in between: too long for the MTU, and not for the chip.
    const Frame whole = NumberedFrame(1, std::max(c.mtu + 18u, 60u));
    rig.wire.Send(whole);
    if (c.mtu < 1500) rig.wire.Send(NumberedFrame(2, 1518));
    rig.wire.Send(NumberedFrame(3, 60));
    rig.StepAll();
    CHECK(TakeOne(rig) == whole);
    CHECK(TakeOne(rig) == NumberedFrame(3, 60));
    CHECK(rig.rx().truncated == (c.mtu < 1500 ? 1 : 0));
    rig.CheckClean();
  }
}

TEST_CASE("a buffer smaller than what the device writes is not posted") {
  Rig rig(One());
  REQUIRE(rig.MakeSpace().ok());
  auto device =
      rig.space->Attach({.name = "e1000e0", .domain = &rig.domain, .waiter = &rig.waiter}).value();
  for (const uint32_t capacity : {2047u, 2048u}) {
    auto pool =
        frag::PagePool::Create(*rig.space, {.label = "buffers", .waiter = &rig.waiter}).value();
    std::vector<FragSource> sources;
    sources.push_back(FragSource::Create(*pool, {.size = capacity, .capacity = capacity}).value());
    auto driver =
        Driver<>::Create(*device, rig.registers(), {.ring_size = 64}, std::move(sources), {})
            .value();
    const absl::Status started = driver->Start();
    CHECK(started.ok() == (capacity == 2048));
    CHECK(driver->rx_stats(0).posted == (capacity == 2048 ? 63 : 0));
    CHECK(driver->rx_stats(0).refill_failed == (capacity == 2048 ? 0 : 1));
    REQUIRE(driver->Stop().ok());
    driver->rx(0).source().Rest();
    CHECK(pool->pages_in_use() == 0);
  }
  device.reset();
}

TEST_CASE("two queues: flows are spread, and each stays in one") {
  RigOptions options = Small();
  Rig rig(options);
  rig.Start();
  for (uint32_t i = 0; i < 60; ++i) {
    rig.wire.Send(MakeFrame({.size = 200, .source_port = static_cast<uint16_t>(1000 + i % 12)}));
  }
  rig.StepAll();
  std::set<uint32_t> ports[2];
  for (uint32_t q = 0; q < 2; ++q) {
    std::vector<Packet> burst(64);
    const size_t got = rig.port->Receive(q, burst);
    for (size_t i = 0; i < got; ++i) {
      const Frame frame = BytesOf(burst[i]);
      ports[q].insert(std::to_integer<uint32_t>(frame[35]));
    }
    Release(std::span(burst).first(got), &rig.port->rx_pool(q));
  }
  CHECK(ports[0].size() + ports[1].size() == 12);
  CHECK_FALSE(ports[0].empty());
  CHECK_FALSE(ports[1].empty());
  rig.CheckClean();
}

TEST_CASE("while packets are held the ring runs short, and recovers") {
  RigOptions options = One();
  options.port.extra_pages = 1;
  Rig rig(options);
  rig.Start();
  std::vector<Packet> held;
  for (int round = 0; round < 40; ++round) {
    for (uint32_t i = 0; i < 8; ++i) rig.wire.Send(NumberedFrame(i, 100));
    rig.StepAll();
    std::vector<Packet> burst(8);
    const size_t got = rig.port->Receive(0, burst);
    for (size_t i = 0; i < got; ++i) held.push_back(burst[i]);
  }
  CHECK(rig.rx().refill_failed > 0);
  CHECK(rig.rx().posted < 63);
  Release(held, &rig.port->rx_pool(0));
  // The pages of those still posted come back as they are used.
  std::vector<Packet> burst(64);
  for (uint32_t i = 0; i < 40; ++i) {
    rig.wire.Send(NumberedFrame(i, 100));
    rig.StepAll();
    const size_t got = rig.port->Receive(0, burst);
    Release(std::span(burst).first(got), &rig.port->rx_pool(0));
  }
  CHECK(rig.rx().posted == 63);
  REQUIRE(rig.port->Stop().ok());
  rig.CheckClean();
}

// --- Devices that lie ----------------------------------------------------------------------------

// Writes an entry back by hand, at the head.
void WriteBack(Rig& rig, uint32_t index, uint32_t status, uint16_t length) {
  const auto port = rig.iommu->NewPort("liar");
  const Iova entry{rig.model.Get(Reg::kRdbal) | uint64_t{rig.model.Get(Reg::kRdbah)} << 32};
  const Iova at = entry + Bytes{16 * uint64_t{index}};
  REQUIRE(port->Publish(at + Bytes{12}, length, 4));
  REQUIRE(port->Publish(at + Bytes{8}, status, 4));
}

TEST_CASE(
    "entries that cannot be are counted, dropped to the end of their packet, and cost nothing") {
  struct Case {
    const char* what;
    std::vector<std::pair<uint32_t, uint16_t>> entries;  // status and length
    uint64_t RxQueueStats::*counter;
  };
  constexpr uint32_t kMore = kRxDone;
  constexpr uint32_t kEnd = kRxDone | kRxEndOfPacket;
  const std::vector<std::pair<uint32_t, uint16_t>> endless(19, {kMore, uint16_t{2048}});
  std::vector<std::pair<uint32_t, uint16_t>> chain = endless;
  chain.emplace_back(kEnd, uint16_t{10});
  const Case cases[] = {
      {"no bytes", {{kEnd, 0}}, &RxQueueStats::bad_completions},
      {"more than the buffer", {{kEnd, 2049}}, &RxQueueStats::bad_completions},
      {"all ones", {{kEnd, 0xffff}}, &RxQueueStats::bad_completions},
      {"a part that is not full", {{kMore, 100}, {kEnd, 100}}, &RxQueueStats::bad_completions},
      {"an empty part", {{kMore, 0}, {kMore, 2048}, {kEnd, 5}}, &RxQueueStats::bad_completions},
      {"a last part that is too long",
       {{kMore, 2048}, {kEnd, 3000}},
       &RxQueueStats::bad_completions},
      {"longer than the MTU", chain, &RxQueueStats::truncated},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    Rig rig(One());
    rig.Start();
    uint32_t index = 0;
    for (const auto& [status, length] : c.entries) WriteBack(rig, index++, status, length);
    WriteBack(rig, index++, kEnd, 77);  // a good one behind it
    std::vector<Packet> burst(8);
    REQUIRE(rig.port->Receive(0, burst) == 1);
    CHECK(burst[0].length == 77);
    CHECK(rig.rx().*c.counter == 1);
    CHECK(rig.rx().dropped == 1);
    Release({burst.data(), 1}, &rig.port->rx_pool(0));
    CHECK(rig.rx().posted == 63);
    REQUIRE(rig.port->Stop().ok());
    CHECK(rig.iommu->stats().live_mappings == 0);
  }
}

TEST_CASE("a last entry without bytes ends its packet: its CRC was all there was") {
  Rig rig(One());
  rig.Start();
  WriteBack(rig, 0, kRxDone, 2048);
  WriteBack(rig, 1, kRxDone | kRxEndOfPacket, 0);
  Packet packet;
  REQUIRE(rig.port->Receive(0, {&packet, 1}) == 1);
  CHECK(packet.length == 2048);
  CHECK(packet.segment_count == 1);
  Release({&packet, 1}, &rig.port->rx_pool(0));
}

TEST_CASE("a chain that has no end when the port stops is released") {
  Rig rig(One());
  rig.Start();
  WriteBack(rig, 0, kRxDone, 2048);
  WriteBack(rig, 1, kRxDone, 2048);
  Packet packet;
  CHECK(rig.port->Receive(0, {&packet, 1}) == 0);
  REQUIRE(rig.port->Stop().ok());
  CHECK(rig.iommu->stats().live_mappings == 0);
  CHECK(rig.pool().bad_releases == 0);
}

TEST_CASE("a device that completes everything at once holds no call longer than a lap") {
  Rig rig(One());
  rig.Start();
  for (uint32_t i = 0; i < 64; ++i) WriteBack(rig, i, kRxDone | kRxEndOfPacket, 64);
  std::vector<Packet> burst(512);
  const size_t got = rig.port->Receive(0, burst);
  CHECK(got <= 64);
  Release(std::span(burst).first(got), &rig.port->rx_pool(0));
}

}  // namespace
}  // namespace dmakit::nic::e1000e
