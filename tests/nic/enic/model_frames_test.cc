// SPDX-License-Identifier: Apache-2.0
//
// Frames through the model alone, both ways: limits, errors and what stops a queue, completions,
// what it says about the frames it receives, and where it steers them.
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "nic/endian.h"
#include "tests/nic/enic/model_bench.h"

namespace dmakit::nic::enic {
namespace {

// --- Transmit ------------------------------------------------------------------------------------

WqEnetDesc Piece(uint64_t address, uint32_t length, bool end) {
  WqEnetDesc d;
  d.address = address;
  d.length = LengthField(length);
  d.eop = d.cq_entry = end;
  return d;
}

TEST_CASE("a packet of 16 descriptors is sent, one of 17 stops the queue") {
  for (const uint32_t pieces : {1u, 16u, 17u}) {
    Bench b;
    b.Run();
    for (uint32_t i = 0; i < pieces; ++i) b.PutTx(i, Piece(b.kData + 100 * i, 50, i + 1 == pieces));
    b.SetWq(WqReg::kPostedIndex, pieces);
    b.Step();
    if (pieces <= 16) {
      REQUIRE(b.wire.from_nic.size() == 1);
      CHECK(b.wire.from_nic[0].size() == 50 * pieces);
      CHECK(b.TxDone(0).completed_index == pieces - 1);
      CHECK(b.TxDone(0).color);
      CHECK(b.Get(ResourceType::kWq, 0, WqReg::kFetchIndex) == pieces);
      CHECK(b.model.violation_count() == 0);
    } else {
      CHECK(b.wire.from_nic.empty());
      CHECK_ONE_VIOLATION(b, "wq 0: packet of more descriptors than the limit: 17 (limit 16)");
      CHECK(b.Get(ResourceType::kWq, 0, WqReg::kErrorStatus) ==
            static_cast<uint64_t>(QueueError::kTooManyDescriptors));
    }
  }
}

TEST_CASE("a frame of 9208 bytes is sent, one of 9209 stops the queue; length 0 is 16384") {
  for (const uint32_t length : {9208u, 9209u, 16384u}) {
    Bench b;
    b.Run();
    b.PutTx(0, Piece(b.kData, length, true));
    b.SetWq(WqReg::kPostedIndex, 1);
    b.Step();
    CHECK(b.wire.from_nic.size() == (length == 9208 ? 1 : 0));
    if (length != 9208) {
      CHECK_ONE_VIOLATION(b, "wq 0: frame longer than the limit: " + std::to_string(length));
      CHECK(b.Get(ResourceType::kWq, 0, WqReg::kRunning) == 0);
      CHECK(b.TxDone(0).color == false);
    }
  }
}

TEST_CASE("an offload that is not there, or does not fit the packet, stops the queue, loudly") {
  struct Case {
    void (*set)(WqEnetDesc&);
    const char* words;
  };
  const Case cases[] = {
      {[](WqEnetDesc& d) { d.offload_mode = OffloadMode::kReserved; }, "reserved offload mode"},
      {[](WqEnetDesc& d) { d.offload_mode = OffloadMode::kTso; }, "does not fit"},
      {[](WqEnetDesc& d) { d.mss = kCsumIpv4; }, "does not fit"},
      {[](WqEnetDesc& d) { d.mss = kCsumTcpUdp; }, "does not fit"},
      {[](WqEnetDesc& d) { d.mss = kCsumEncapsulated; }, "offload this model"},
      {[](WqEnetDesc& d) {
         d.offload_mode = OffloadMode::kCsumL4;
         d.header_length = 60;
         d.mss = 60;
       },
       "does not fit"},
      {[](WqEnetDesc& d) {
         d.offload_mode = OffloadMode::kCsumL4;
         d.header_length = 34;
         d.mss = 59;
       },
       "does not fit"},
      {[](WqEnetDesc& d) {
         d.offload_mode = OffloadMode::kCsumL4;
         d.header_length = 34;
         d.mss = 30;
       },
       "does not fit"},
      {[](WqEnetDesc& d) { d.loopback = true; }, "offload this model"},
      {[](WqEnetDesc& d) { d.fcoe_encap = true; }, "offload this model"},
  };
  for (const Case& c : cases) {
    Bench b;
    b.Run();
    WqEnetDesc d = Piece(b.kData, 60, true);
    c.set(d);
    b.PutTx(0, d);
    b.SetWq(WqReg::kPostedIndex, 1);
    b.Step();
    CHECK_ONE_VIOLATION(b, c.words);
    CHECK(b.wire.from_nic.empty());
    CHECK(b.Get(ResourceType::kWq, 0, WqReg::kErrorStatus) ==
          static_cast<uint64_t>(QueueError::kOffloadMode));
  }
}

TEST_CASE("checksum fields must hold what the mode wants preloaded") {
  struct Case {
    bool tso;
    size_t at;  // of the byte that is changed
    bool good;
  };
  for (const Case& c : {Case{false, 60, true}, Case{false, 51, false}, Case{true, 60, true},
                        Case{true, 51, false}, Case{true, 25, false}}) {
    Bench b;
    b.Run();
    Frame frame = testing::MakeFrame({.size = 90, .tcp = true});
    // The pseudo header's sum, without the length for TSO.
    const uint32_t length = c.tso ? 0 : 90 - 34;
    testing::Put16(frame, 50, testing::Sum16(frame, 26, 34, 6 + length));
    if (c.tso) testing::Put16(frame, 24, 0);
    frame[c.at] ^= std::byte{1};
    std::copy(frame.begin(), frame.end(), b.memory + b.kData);
    WqEnetDesc d = Piece(b.kData, 90, true);
    d.offload_mode = c.tso ? OffloadMode::kTso : OffloadMode::kCsumL4;
    d.header_length = c.tso ? 54 : 34;
    d.mss = c.tso ? 20 : 50;
    b.PutTx(0, d);
    b.SetWq(WqReg::kPostedIndex, 1);
    b.Step();
    INFO(c.tso << " " << c.at);
    CHECK(b.wire.from_nic.size() == (c.good ? (c.tso ? 2 : 1) : 0));
    if (!c.good) CHECK_ONE_VIOLATION(b, "preloaded");
  }
}

TEST_CASE("reserved bits and CQ_ENTRY without EOP are noticed") {
  Bench bits;
  bits.Run();
  Words words = Encode(Piece(bits.kData, 60, true));
  words.high |= 0x8000;
  bits.PutTxWords(0, words);
  bits.SetWq(WqReg::kPostedIndex, 1);
  bits.Step();
  CHECK_ONE_VIOLATION(bits, "wq 0: reserved descriptor bits set");

  Bench entry;
  entry.Run();
  WqEnetDesc first = Piece(entry.kData, 30, false);
  first.cq_entry = true;
  entry.PutTx(0, first);
  entry.PutTx(1, Piece(entry.kData, 30, true));
  entry.SetWq(WqReg::kPostedIndex, 2);
  entry.Step();
  CHECK_ONE_VIOLATION(entry, "wq 0: CQ_ENTRY on a descriptor without EOP");
}

TEST_CASE("completions only where asked for; an unfinished packet waits") {
  Bench b;
  b.Run();
  for (uint32_t i = 0; i < 3; ++i) {
    WqEnetDesc d = Piece(b.kData, 60, true);
    d.cq_entry = i == 2;
    b.PutTx(i, d);
  }
  b.PutTx(3, Piece(b.kData, 30, false));
  b.SetWq(WqReg::kPostedIndex, 4);
  b.Step();
  CHECK(b.wire.from_nic.size() == 3);
  CHECK(b.TxDone(0).completed_index == 2);
  CHECK_FALSE(b.TxDone(1).color);
  CHECK(b.Get(ResourceType::kWq, 0, WqReg::kFetchIndex) == 3);
  b.PutTx(4, Piece(b.kData, 30, true));
  b.SetWq(WqReg::kPostedIndex, 5);
  b.Step();
  CHECK(b.wire.from_nic.size() == 4);
  CHECK(b.model.violation_count() == 0);
}

TEST_CASE("an address nobody mapped stops the queue with the fault on record") {
  for (const uint64_t address : {uint64_t{0x10000000}, uint64_t{1} << 50}) {
    Bench b;
    b.Run();
    b.PutTx(0, Piece(address, 60, true));
    b.SetWq(WqReg::kPostedIndex, 1);
    b.Step();
    CHECK(b.iommu->walk_stats().faults == 1);
    CHECK(b.Get(ResourceType::kWq, 0, WqReg::kErrorStatus) ==
          static_cast<uint64_t>(QueueError::kAddressFault));
    CHECK(b.Get(ResourceType::kWq, 0, WqReg::kRunning) == 0);
  }
}

TEST_CASE("a completion ring that is too small overflows, and it is noticed") {
  Bench b;
  b.BringUp();
  b.SetUpQueues();
  b.SetWq(WqReg::kRingSize, 128);
  b.SetWq(WqReg::kEnable, 1);
  b.model.Step();
  for (uint32_t i = 0; i < 100; ++i) b.PutTx(i, Piece(b.kData, 60, true));
  b.SetWq(WqReg::kPostedIndex, 64);
  b.Step();
  CHECK(b.model.violation_count() == 0);
  b.SetWq(WqReg::kPostedIndex, 65);
  b.Step();
  CHECK_ONE_VIOLATION(b, "cq 1: completion queue overflows");
}

// --- Receive -------------------------------------------------------------------------------------

TEST_CASE("a frame that does not fit its buffer is truncated, one that just fits is not") {
  Bench b;
  b.Run();
  b.PutRx(0, b.kData, 100);
  b.PutRx(1, b.kData + 4096, 100);
  b.SetRq(RqReg::kPostedIndex, 2);
  b.wire.Send(testing::NumberedFrame(1, 101));
  b.wire.Send(testing::NumberedFrame(2, 100));
  b.Step();
  CHECK(b.RxDone(0).truncated);
  CHECK(b.RxDone(0).bytes_written == 0);
  CHECK_FALSE(b.RxDone(0).fcs_ok);
  CHECK(b.memory[b.kData] == std::byte{0});  // nothing was written
  CHECK_FALSE(b.RxDone(1).truncated);
  CHECK(b.RxDone(1).bytes_written == 100);
  CHECK(b.RxDone(1).completed_index == 1);
  CHECK(b.RxDone(1).fcs_ok);
  CHECK((b.RxDone(1).sop && b.RxDone(1).eop));
}

TEST_CASE("buffers of the wrong type are skipped, reserved types stop the queue") {
  Bench b;
  b.Run();
  b.PutRx(0, b.kData, 2048, RqType::kNotSop);
  b.PutRx(1, b.kData, 2048, RqType::kNotSop);
  b.PutRx(2, b.kData, 2048);
  b.SetRq(RqReg::kPostedIndex, 3);
  b.wire.Send(testing::NumberedFrame(1, 60));
  b.Step();
  CHECK(b.RxDone(0).completed_index == 2);
  CHECK(b.model.violation_count() == 0);
  b.PutRx(3, b.kData, 2048, RqType::kReserved2);
  b.SetRq(RqReg::kPostedIndex, 4);
  b.wire.Send(testing::NumberedFrame(1, 60));
  b.Step();
  CHECK_ONE_VIOLATION(b, "rq 0: reserved receive descriptor type: 2");
  CHECK(b.Get(ResourceType::kRq, 0, RqReg::kErrorStatus) ==
        static_cast<uint64_t>(QueueError::kDescriptorType));
}

TEST_CASE("frames wait for a buffer, or are dropped and counted if the model is told to") {
  Bench waits;
  waits.Run();
  waits.wire.Send(testing::NumberedFrame(1, 60));
  waits.Step();
  CHECK(waits.wire.waiting() == 1);
  CHECK(waits.Get(ResourceType::kRq, 0, RqReg::kDroppedPacketCount) == 0);

  Bench drops({.lossless = false});
  drops.Run();
  for (int i = 0; i < 3; ++i) drops.wire.Send(testing::NumberedFrame(1, 60));
  drops.Step();
  CHECK(drops.wire.waiting() == 0);
  CHECK(drops.Get(ResourceType::kRq, 0, RqReg::kDroppedPacketCount) == 3);
  CHECK(drops.Get(ResourceType::kRq, 0, RqReg::kDroppedPacketCountRc) == 3);
  CHECK(drops.Get(ResourceType::kRq, 0, RqReg::kDroppedPacketCountRc) == 0);  // cleared by reading
  CHECK(drops.Get(ResourceType::kRq, 0, RqReg::kDroppedPacketCount) == 3);
}

TEST_CASE("what the headers say is in the completion, truthfully") {
  using testing::FrameSpec;
  struct Case {
    FrameSpec spec;
    CqEnetRqDesc want;
  };
  const auto want = [](auto set) {
    CqEnetRqDesc d;
    set(d);
    return d;
  };
  using D = CqEnetRqDesc;
  const Case cases[] = {
      {{.tcp = true},
       want([](D& d) { d.ipv4 = d.ipv4_csum_ok = d.tcp = d.tcp_udp_csum_ok = true; })},
      {{}, want([](D& d) { d.ipv4 = d.ipv4_csum_ok = d.udp = d.tcp_udp_csum_ok = true; })},
      {{.size = 100, .ipv6 = true}, want([](D& d) { d.ipv6 = d.udp = d.tcp_udp_csum_ok = true; })},
      {{.size = 100, .ipv6 = true, .tcp = true},
       want([](D& d) { d.ipv6 = d.tcp = d.tcp_udp_csum_ok = true; })},
      {{.vlan = 7}, want([](D& d) { d.ipv4 = d.ipv4_csum_ok = d.udp = d.tcp_udp_csum_ok = true; })},
      {{.bad_ip_checksum = true}, want([](D& d) { d.ipv4 = d.udp = d.tcp_udp_csum_ok = true; })},
      {{.bad_l4_checksum = true}, want([](D& d) { d.ipv4 = d.ipv4_csum_ok = d.udp = true; })},
      {{.fragment = true}, want([](D& d) { d.ipv4 = d.ipv4_csum_ok = d.ipv4_fragment = true; })},
      {{.no_udp_checksum = true},
       want([](D& d) { d.ipv4 = d.ipv4_csum_ok = d.udp = d.csum_not_calc = true; })},
  };
  Bench b;
  b.Run();
  for (uint32_t i = 0; i < std::size(cases); ++i) {
    b.PutRx(i, b.kData + 4096 * i, 2048);
    b.wire.Send(testing::MakeFrame(cases[i].spec));
  }
  Frame arp(60, std::byte{0});
  StoreBe<uint16_t>(arp, 12, 0x0806);
  b.PutRx(std::size(cases), b.kData, 2048);
  b.wire.Send(arp);
  b.SetRq(RqReg::kPostedIndex, std::size(cases) + 1);
  b.Step();
  const auto facts = [](const D& d) {
    return std::vector<bool>{d.ipv4,          d.ipv6,         d.tcp,
                             d.udp,           d.ipv4_csum_ok, d.tcp_udp_csum_ok,
                             d.ipv4_fragment, d.csum_not_calc};
  };
  for (uint32_t i = 0; i < std::size(cases); ++i) {
    INFO("case " << i);
    CHECK(facts(b.RxDone(i)) == facts(cases[i].want));
    CHECK_FALSE(b.RxDone(i).vlan_stripped);
  }
  CHECK(facts(b.RxDone(std::size(cases))) == facts(want([](D& d) { d.csum_not_calc = true; })));
}

TEST_CASE("VLAN tags are stripped when NIC_CFG says so") {
  Bench b;
  b.Run();
  b.Command(Devcmd::kNicCfg, {Encode(NicCfg{.vlan_strip = true})});
  const Frame tagged = testing::MakeFrame({.size = 80, .vlan = 0x6064});
  const Frame plain = testing::MakeFrame({.size = 80});
  b.PutRx(0, b.kData, 2048);
  b.PutRx(1, b.kData + 4096, 2048);
  b.SetRq(RqReg::kPostedIndex, 2);
  b.wire.Send(tagged);
  b.wire.Send(plain);
  b.Step();
  CHECK(b.RxDone(0).vlan_stripped);
  CHECK(b.RxDone(0).vlan == 0x6064);
  CHECK(b.RxDone(0).bytes_written == 76);
  CHECK(b.RxDone(0).tcp_udp_csum_ok);
  Frame without = tagged;
  without.erase(without.begin() + 12, without.begin() + 16);
  CHECK(std::equal(without.begin(), without.end(), b.memory + b.kData));
  CHECK_FALSE(b.RxDone(1).vlan_stripped);
  CHECK(b.RxDone(1).bytes_written == 80);
}

TEST_CASE("the packet filter lets through what it was told to") {
  const auto passes = [](uint32_t bits, std::array<uint8_t, 6> to) {
    Bench b;
    b.Run();
    b.Command(Devcmd::kPacketFilter, {bits});
    Frame frame = testing::NumberedFrame(1, 60);
    for (size_t i = 0; i < 6; ++i) frame[i] = std::byte{to[i]};
    b.PutRx(0, b.kData, 2048);
    b.SetRq(RqReg::kPostedIndex, 1);
    b.wire.Send(frame);
    b.Step();
    CHECK(b.wire.waiting() == 0);
    return b.RxDone(0).bytes_written == 60;
  };
  const std::array<uint8_t, 6> own = {2, 0, 0, 0, 0, 1}, other = {2, 0, 0, 0, 0, 2},
                               multicast = {1, 0, 0x5e, 0, 0, 1},
                               broadcast = {255, 255, 255, 255, 255, 255};
  CHECK(passes(kFilterDirected, own));
  CHECK_FALSE(passes(kFilterDirected, other));
  CHECK_FALSE(passes(kFilterDirected, broadcast));
  CHECK(passes(kFilterBroadcast, broadcast));
  CHECK_FALSE(passes(kFilterBroadcast, multicast));
  CHECK(passes(kFilterAllMulticast, multicast));
  CHECK(passes(kFilterPromiscuous, other));
  CHECK_FALSE(passes(0, own));
}

TEST_CASE("frames are spread by hash, type by type, through the table") {
  // All 64 queues with rings of their own would be a lot of memory here: read where a frame goes.
  Steering steering;
  const std::array<uint8_t, 40> key = {0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
                                       0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
                                       0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
                                       0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};
  for (size_t i = 0; i < key.size(); ++i) steering.key[i] = std::byte{key[i]};
  for (size_t i = 0; i < 128; ++i) steering.table[i] = static_cast<uint8_t>(i % 8);
  steering.config = {.rss_default_cpu = 5, .rss_hash_bits = 7, .rss_enable = true};
  const auto route = [&](const testing::FrameSpec& spec, uint8_t types) {
    steering.config.rss_hash_type = types;
    const Frame frame = testing::MakeFrame(spec);
    Arrival arrival{.frame = frame, .info = ParseFrame(frame)};
    steering.Hash(arrival);
    return std::pair(arrival.hash_type, steering.Queue(arrival));
  };
  CHECK(route({.tcp = true}, kHashTcpIpv4).first == RssType::kTcpIpv4);
  CHECK(route({.tcp = true}, kHashIpv4).first == RssType::kIpv4);
  CHECK(route({}, kHashTcpIpv4) == std::pair(RssType::kNone, 5u));
  CHECK(route({}, kHashUdpIpv4).first == RssType::kIpv4);
  CHECK(route({.size = 99, .ipv6 = true, .tcp = true}, kHashTcpIpv6).first == RssType::kTcpIpv6);
  CHECK(route({.size = 99, .ipv6 = true}, kHashIpv6).first == RssType::kIpv6);
  CHECK(route({.fragment = true}, kHashUdpIpv4 | kHashIpv4).first == RssType::kIpv4);
  std::set<uint32_t> queues;
  for (uint16_t port = 0; port < 200; ++port) {
    const testing::FrameSpec spec{.source_port = port};
    CHECK(route(spec, kHashUdpIpv4) == route(spec, kHashUdpIpv4));  // a flow stays on its queue
    queues.insert(route(spec, kHashUdpIpv4).second);
    CHECK(route(spec, kHashIpv4).second == route({}, kHashIpv4).second);
  }
  CHECK(queues.size() == 8);
}

}  // namespace
}  // namespace dmakit::nic::enic
