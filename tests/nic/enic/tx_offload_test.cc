// SPDX-License-Identifier: Apache-2.0
//
// Transmit offloads, from flags on a packet to frames on the wire: checksums, segmentation, VLAN
// tags. Expected frames are put together here, with sums of their own; tcpdump is asked as well.
#include "nic/tx_offload.h"

#include <string>
#include <vector>

#include "nic/endian.h"
#include "tests/machine_code.h"
#include "tests/nic/enic/tx_rig.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic::enic {
namespace {

using testing::FrameSpec;
using testing::MakeFrame;
using testing::Put16;
using testing::Sum16;

constexpr TxFlags kIp = TxFlags::kIpv4Checksum;
constexpr TxFlags kL4 = TxFlags::kL4Checksum;

// Where things are in a frame of MakeFrame.
struct Layout {
  explicit Layout(const FrameSpec& spec)
      : l3(spec.vlan ? 18 : 14), l4(l3 + (spec.ipv6 ? 40 : 20)), sum(l4 + (spec.tcp ? 16 : 6)) {}
  size_t l3, l4, sum;
  size_t payload() const { return l4 + 20; }  // TCP
};

void Ask(Packet& packet, const FrameSpec& spec, TxFlags flags) {
  const Layout at(spec);
  packet.tx = flags;
  packet.l3_offset = static_cast<uint8_t>(at.l3);
  packet.l4_offset = static_cast<uint16_t>(at.l4);
}

// Makes lengths and checksums of a TCP frame right, whatever else was changed in it.
void Seal(Frame& frame, const FrameSpec& spec) {
  const Layout at(spec);
  if (spec.ipv6) {
    Put16(frame, at.l3 + 4, static_cast<unsigned>(frame.size() - at.l4));
  } else {
    Put16(frame, at.l3 + 2, static_cast<unsigned>(frame.size() - at.l3));
    Put16(frame, at.l3 + 10, 0);
    Put16(frame, at.l3 + 10, ~Sum16(frame, at.l3, at.l4) & 0xffff);
  }
  const size_t addresses = at.l3 + (spec.ipv6 ? 8 : 12);
  Put16(frame, at.sum, 0);
  const uint32_t pseudo =
      Sum16(frame, addresses, at.l4, 6 + static_cast<uint32_t>(frame.size() - at.l4));
  Put16(frame, at.sum, ~Sum16(frame, at.l4, frame.size(), pseudo) & 0xffff);
}

Frame Tagged(Frame frame, unsigned tci) {
  const std::byte tag[] = {std::byte{0x81}, std::byte{0}, static_cast<std::byte>(tci >> 8),
                           static_cast<std::byte>(tci)};
  frame.insert(frame.begin() + 12, std::begin(tag), std::end(tag));
  return frame;
}

// The frames that `whole` must become.
std::vector<Frame> Segments(const Frame& whole, const FrameSpec& spec, size_t mss) {
  const Layout at(spec);
  std::vector<Frame> frames;
  for (size_t from = at.payload(); from < whole.size(); from += mss) {
    const size_t to = std::min(from + mss, whole.size());
    Frame f(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(at.payload()));
    f.insert(f.end(), whole.begin() + static_cast<std::ptrdiff_t>(from),
             whole.begin() + static_cast<std::ptrdiff_t>(to));
    if (!spec.ipv6) Put16(f, at.l3 + 4, static_cast<unsigned>(1 + frames.size()));
    const size_t sequence = 1 + from - at.payload();
    Put16(f, at.l4 + 4, static_cast<unsigned>(sequence >> 16));
    Put16(f, at.l4 + 6, static_cast<unsigned>(sequence & 0xffff));
    if (to != whole.size()) f[at.l4 + 13] &= ~std::byte{0x09};
    if (!frames.empty()) f[at.l4 + 13] &= ~std::byte{0x80};
    Seal(f, spec);
    frames.push_back(std::move(f));
  }
  return frames;
}

TEST_CASE("checksums are those of the frame, whatever stood there before") {
  TxRig rig;
  std::vector<Frame> want;
  for (const bool ipv6 : {false, true}) {
    for (const bool tcp : {false, true}) {
      for (const bool vlan : {false, true}) {
        for (const size_t size : {82u, 83u, 121u, 1500u, 9018u}) {
          FrameSpec spec{.size = size, .ipv6 = ipv6, .tcp = tcp, .serial = 77};
          if (vlan) spec.vlan = 0x6123;
          const Frame frame = MakeFrame(spec);
          const Layout at(spec);
          for (const TxFlags flags : {kIp, kL4, kIp | kL4}) {
            if (ipv6 && Has(flags, kIp)) continue;
            Frame sent = frame;
            if (Has(flags, kL4)) Put16(sent, at.sum, 0xdead);
            if (Has(flags, kIp)) Put16(sent, at.l3 + 10, 0xbeef);
            for (const std::vector<uint32_t>& lengths :
                 {std::vector<uint32_t>{}, {80}, {80, 1}, {81, 1, 1, 3}}) {
              Packet packet = rig.Carry(sent, lengths);
              Ask(packet, spec, flags);
              REQUIRE(rig.Send(packet) == 1);
              want.push_back(frame);
              rig.StepAll();
              rig.tx().Reap();
            }
          }
        }
      }
    }
  }
  CHECK(want.size() > 200);
  CHECK(rig.wire.from_nic == want);
  CHECK(rig.stats().dropped == 0);
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("bytes behind the IP packet are not summed up") {
  TxRig rig;
  for (const bool tcp : {false, true}) {
    const FrameSpec spec{.size = 70, .tcp = tcp};
    Frame frame = MakeFrame(spec);
    frame.resize(90, std::byte{0x5a});
    Frame sent = frame;
    Put16(sent, Layout(spec).sum, 0);
    Packet packet = rig.Carry(sent);
    Ask(packet, spec, kL4);
    REQUIRE(rig.Send(packet) == 1);
    rig.StepAll();
    CHECK(rig.wire.from_nic.back() == frame);
  }
  rig.tx().Reap();
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("a UDP checksum that comes out as zero is sent as all ones") {
  TxRig rig;
  FrameSpec spec{.size = 60};
  Frame frame = MakeFrame(spec);
  const Layout at(spec);
  // The last word of the payload makes the sum what it takes.
  const unsigned sum =
      std::to_integer<unsigned>(frame[at.sum]) << 8 | std::to_integer<unsigned>(frame[at.sum + 1]);
  const unsigned old =
      std::to_integer<unsigned>(frame[58]) << 8 | std::to_integer<unsigned>(frame[59]);
  Put16(frame, 58, (old + sum) % 0xffff);
  for (const TxFlags flags : {kL4, kL4 | kIp}) {
    Packet packet = rig.Carry(frame);
    Ask(packet, spec, flags);
    REQUIRE(rig.Send(packet) == 1);
    rig.StepAll();
    const Frame& out = rig.wire.from_nic.back();
    CHECK(LoadBe<uint16_t>(std::span(out), at.sum) == 0xffff);
  }
  rig.tx().Reap();
  rig.CheckClean();
}

TEST_CASE("segmentation: every frame as if it had been made alone") {
  TxRig rig(128);
  uint64_t packets = 0;
  for (const bool ipv6 : {false, true}) {
    for (const bool vlan : {false, true}) {
      for (const size_t mss : {1u, 100u, 1448u, 8900u}) {
        for (const size_t payload : {size_t{1}, mss, mss + 1, 3 * mss, size_t{20000}}) {
          if (payload / mss > 3000) continue;
          FrameSpec spec{.size = 0, .ipv6 = ipv6, .tcp = true, .serial = 5};
          if (vlan) spec.vlan = 0x0042;
          const Layout at(spec);
          spec.size = at.payload() + payload;
          Frame whole = MakeFrame(spec);
          whole[at.l4 + 13] = std::byte{0x99};  // CWR, ACK, PSH, FIN
          Packet packet = rig.Carry(whole, {static_cast<uint32_t>(at.payload()), 500});
          Ask(packet, spec, TxFlags::kTso);
          packet.segment_size = static_cast<uint16_t>(mss);
          rig.wire.from_nic.clear();
          REQUIRE(rig.Send(packet) == 1);
          rig.StepAll();
          INFO("ipv6 " << ipv6 << " vlan " << vlan << " mss " << mss << " payload " << payload);
          REQUIRE(rig.wire.from_nic == Segments(whole, spec, mss));
          CHECK(rig.tx().Reap() == 1);
          ++packets;
        }
      }
    }
  }
  CHECK(rig.stats().frames == packets);
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("the largest packet to segment, in pieces beyond 16384 bytes") {
  for (const std::vector<uint32_t>& lengths :
       {std::vector<uint32_t>{65535}, {54, 65481}, {16384, 16385, 32766}, {54, 1, 16384, 40000}}) {
    TxRig rig(64);
    const FrameSpec spec{.size = 65535, .tcp = true};
    const Frame whole = MakeFrame(spec);
    for (int round = 0; round < 30; ++round) {  // over the ring's end
      Packet packet = rig.Carry(whole, lengths);
      Ask(packet, spec, TxFlags::kTso | kIp | kL4);
      packet.segment_size = 8960;
      rig.wire.from_nic.clear();
      REQUIRE(rig.Send(packet) == 1);
      rig.StepAll();
      REQUIRE(rig.wire.from_nic == Segments(whole, spec, 8960));
      REQUIRE(rig.tx().Reap() == 1);
    }
    rig.CheckAllReturned();
    rig.CheckClean();
  }
}

TEST_CASE("a tag is inserted, alone and with what else is asked for") {
  TxRig rig;
  const FrameSpec udp{.size = 100};
  Packet alone = rig.Carry(MakeFrame(udp), {20});
  alone.tx = TxFlags::kVlanInsert;
  alone.vlan = 0xefff;
  REQUIRE(rig.Send(alone) == 1);
  Packet summed = rig.Carry(MakeFrame({.size = 100, .bad_ip_checksum = true}));
  Ask(summed, udp, TxFlags::kVlanInsert | kIp | kL4);
  summed.vlan = 1;
  REQUIRE(rig.Send(summed) == 1);
  const FrameSpec tcp{.size = 3000, .tcp = true};
  Packet cut = rig.Carry(MakeFrame(tcp));
  Ask(cut, tcp, TxFlags::kVlanInsert | TxFlags::kTso);
  cut.vlan = 0x2007;
  cut.segment_size = 1000;
  REQUIRE(rig.Send(cut) == 1);
  rig.StepAll();
  std::vector<Frame> want = {Tagged(MakeFrame(udp), 0xefff), Tagged(MakeFrame(udp), 1)};
  for (Frame& f : Segments(MakeFrame(tcp), tcp, 1000)) want.push_back(Tagged(f, 0x2007));
  CHECK(rig.wire.from_nic == want);
  rig.tx().Reap();
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("a request that does not fit the frame is dropped, counted, and changes no byte") {
  TxRig rig(64, 1500);
  const FrameSpec udp{.size = 100}, tcp{.size = 1000, .tcp = true}, six{.size = 100, .ipv6 = true};
  struct Case {
    const char* name;
    FrameSpec spec;
    TxFlags flags;
    void (*change)(Packet&, Frame&);
  };
  const auto none = [](Packet&, Frame&) {};
  const Case cases[] = {
      {"TSO of UDP", udp, TxFlags::kTso, none},
      {"IPv4's checksum of IPv6", six, kIp, none},
      {"no IP at all", udp, kIp, [](Packet&, Frame& f) { f[14] = std::byte{0x15}; }},
      {"IP header too short", udp, kIp, [](Packet&, Frame& f) { f[14] = std::byte{0x44}; }},
      {"IP longer than the frame", udp, kL4, [](Packet&, Frame& f) { Put16(f, 16, 87); }},
      {"IP shorter than its headers", udp, kL4, [](Packet&, Frame& f) { Put16(f, 16, 27); }},
      {"a fragment", udp, kL4, [](Packet&, Frame& f) { Put16(f, 20, 0x2000); }},
      {"another protocol", udp, kL4, [](Packet&, Frame& f) { f[23] = std::byte{1}; }},
      {"l3 outside", udp, kIp, [](Packet& p, Frame&) { p.l3_offset = 100; }},
      {"l3 in the Ethernet header", udp, kIp, [](Packet& p, Frame&) { p.l3_offset = 13; }},
      {"l4 not behind IP", udp, kL4, [](Packet& p, Frame&) { p.l4_offset = 35; }},
      {"l4 outside", udp, kL4, [](Packet& p, Frame&) { p.l4_offset = 0xffff; }},
      {"TCP header too short", tcp, kL4, [](Packet&, Frame& f) { f[46] = std::byte{0x40}; }},
      {"TCP header outside", tcp, TxFlags::kTso,
       [](Packet&, Frame& f) { f[46] = std::byte{0xf0}; }},
      {"segments of 0", tcp, TxFlags::kTso, [](Packet& p, Frame&) { p.segment_size = 0; }},
      {"IPv6 of another kind", six, kL4, [](Packet&, Frame& f) { f[20] = std::byte{58}; }},
  };
  uint64_t dropped = 0;
  for (const Case& c : cases) {
    INFO(c.name);
    Frame frame = MakeFrame(c.spec);
    Packet packet;
    packet.segment_size = 500;
    Ask(packet, c.spec, c.flags);
    c.change(packet, frame);
    Packet sent = rig.Carry(frame, {60});
    sent.tx = packet.tx;
    sent.l3_offset = packet.l3_offset;
    sent.l4_offset = packet.l4_offset;
    sent.segment_size = packet.segment_size;
    const Packet copy = sent;  // its memory is still there
    TxHeaders headers;
    CHECK_FALSE(PrepareTxOffload(sent, headers));
    CHECK(BytesOf(copy) == frame);
    CHECK(rig.Send(sent) == 1);
    CHECK(rig.stats().unsupported_offload == ++dropped);
    CHECK(sent.segment_count == 0);
  }
  // Headers that go on in the second segment; only headers; frames above the MTU.
  Packet split = rig.Carry(MakeFrame(tcp), {50});
  Ask(split, tcp, kL4);
  CHECK(rig.Send(split) == 1);
  Packet header = rig.Carry(MakeFrame({.size = 54, .tcp = true}));
  Ask(header, tcp, TxFlags::kTso);
  header.segment_size = 100;
  CHECK(rig.Send(header) == 1);
  CHECK(rig.stats().unsupported_offload == dropped + 2);
  for (const TxFlags flags : {TxFlags::kTso, TxFlags::kTso | TxFlags::kVlanInsert}) {
    Packet large = rig.Carry(MakeFrame({.size = 4000, .tcp = true}));
    Ask(large, tcp, flags);
    large.segment_size = Has(flags, TxFlags::kVlanInsert) ? 1461 : 1465;
    CHECK(rig.Send(large) == 1);
  }
  CHECK(rig.stats().too_long == 2);
  rig.StepAll();
  CHECK(rig.wire.from_nic.empty());
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("IPv6 extension headers are walked to the transport header") {
  TxRig rig;
  const FrameSpec spec{.size = 200, .ipv6 = true, .tcp = true};
  Frame frame = MakeFrame(spec);
  // A destination options header of 16 bytes in between.
  frame[20] = std::byte{60};
  Frame options(16);
  options[0] = std::byte{6};
  options[1] = std::byte{1};
  frame.insert(frame.begin() + 54, options.begin(), options.end());
  Put16(frame, 18, static_cast<unsigned>(frame.size() - 54));
  // The transport checksum does not cover the options.
  Frame sent = frame;
  Put16(sent, 54 + 16 + 16, 0x1111);
  Packet packet = rig.Carry(sent, {100});
  packet.tx = kL4;
  packet.l3_offset = 14;
  packet.l4_offset = 70;
  REQUIRE(rig.Send(packet) == 1);
  rig.StepAll();
  REQUIRE(rig.wire.from_nic.size() == 1);
  CHECK(rig.wire.from_nic[0] == frame);
  rig.tx().Reap();
  rig.CheckClean();
}

// --- As others see it ----------------------------------------------------------------------------

size_t Count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

bool HasTcpdump() {
  if (!dmakit::testing::OutputOf("command -v tcpdump").empty()) return true;
  WARN("SKIPPED: tcpdump is not installed, so no other program judges the frames");
  return false;
}

std::string Judge(const std::vector<Frame>& frames) {
  return dmakit::testing::OutputOf("tcpdump $(test $(id -u) = 0 && echo -Z root) -envvv -r " +
                                   testing::WriteCapture("offload.pcap", frames) + " 2>&1");
}

TEST_CASE("tcpdump sees a stripped tag gone, and an inserted one there") {
  if (!HasTcpdump()) return;
  Rig rig({.port = {.ring_size = 64, .mtu = 1500, .vlan_strip = true}});
  rig.Start();
  for (const bool insert : {false, true}) {
    rig.wire.Send(MakeFrame({.size = 200, .tcp = true, .vlan = 0x0123}));
    rig.StepAll();
    Packet packet;
    REQUIRE(rig.port->Receive(0, {&packet, 1}) == 1);
    CHECK(Has(packet.rx, RxFlags::kVlanStripped));
    CHECK(packet.vlan == 0x0123);
    if (insert) packet.tx = TxFlags::kVlanInsert;  // of packet.vlan, as it came
    REQUIRE(rig.port->Transmit(0, {&packet, 1}) == 1);
    rig.StepAll();
  }
  REQUIRE(rig.wire.from_nic.size() == 2);
  CHECK(rig.wire.from_nic[1] == MakeFrame({.size = 200, .tcp = true, .vlan = 0x0123}));
  const std::string stripped = Judge({rig.wire.from_nic[0]});
  CHECK(Count(stripped, "vlan") == 0);
  CHECK(Count(stripped, "length 196: (tos") == 1);
  CHECK(Count(stripped, "(correct)") == 1);
  const std::string inserted = Judge({rig.wire.from_nic[1]});
  CHECK(Count(inserted, "vlan 291") == 1);
  CHECK(Count(inserted, "(correct)") == 1);
  REQUIRE(rig.port->Stop().ok());
  rig.CheckClean();
}

TEST_CASE("tcpdump finds every checksum, length and tag right") {
  if (!HasTcpdump()) return;
  TxRig rig;
  for (const bool ipv6 : {false, true}) {
    const FrameSpec udp{.size = 701, .ipv6 = ipv6};
    Frame frame = MakeFrame(udp);
    Put16(frame, Layout(udp).sum, 0);
    Packet summed = rig.Carry(frame, {100});
    Ask(summed, udp, kL4 | TxFlags::kVlanInsert);
    summed.vlan = 0x0123;
    REQUIRE(rig.Send(summed) == 1);
    // Where the device finds the headers itself.
    if (!ipv6) {
      Packet both = rig.Carry(MakeFrame({.size = 701, .bad_ip_checksum = true}));
      Ask(both, udp, kIp | kL4);
      REQUIRE(rig.Send(both) == 1);
    }
    const FrameSpec tcp{.size = 30000, .ipv6 = ipv6, .tcp = true};
    Packet cut = rig.Carry(MakeFrame(tcp), {100, 17000});
    Ask(cut, tcp, TxFlags::kTso);
    cut.segment_size = 1448;
    REQUIRE(rig.Send(cut) == 1);
  }
  rig.StepAll();
  const std::string said = Judge(rig.wire.from_nic);
  INFO(said.substr(0, 2000));
  CHECK(rig.wire.from_nic.size() == 2 * (1 + 21) + 1);
  CHECK(Count(said, "(correct)") == 42);
  CHECK(Count(said, "udp sum ok") == 3);
  CHECK(Count(said, "vlan 291") == 2);
  CHECK(Count(said, "length 1448") >= 40);
  CHECK(Count(said, "incorrect") + Count(said, "bad") == 0);
  // It would have seen one that is wrong.
  std::vector<Frame> wrong = {rig.wire.from_nic[2], MakeFrame({.bad_ip_checksum = true})};
  wrong[0][100] ^= std::byte{1};
  const std::string against = Judge(wrong);
  CHECK(Count(against, "incorrect") == 1);
  CHECK(Count(against, "bad cksum") == 1);
  rig.tx().Reap();
}

}  // namespace
}  // namespace dmakit::nic::enic
