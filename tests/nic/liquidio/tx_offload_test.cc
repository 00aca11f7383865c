// SPDX-License-Identifier: Apache-2.0
//
// Checksums, tags and segmentation: what the instruction says, and what the model makes of it,
// which checks requests as strictly as it can. Sums are compared with those of frames.h.
#include <cstdint>
#include <vector>

#include "nic/endian.h"
#include "nic/frame_info.h"
#include "tests/nic/liquidio/testing.h"

namespace dmakit::nic::liquidio {
namespace {

using testing::MakeFrame;

struct TxRig : NicTxRig<Rig, Kit> {
  explicit TxRig(uint32_t mtu = 9000) : NicTxRig(128, mtu) {}
  // Sends it and what comes out.
  std::vector<Frame> Through(Packet& packet) {
    REQUIRE(Send(packet) == 1);
    StepAll();
    tx().Reap();
    return std::exchange(wire.from_nic, {});
  }
};

Packet Asking(TxRig& rig, const Frame& frame, TxFlags flags, bool cut = false) {
  const FrameInfo info = ParseFrame(frame);
  Packet packet = cut ? rig.Carry(frame, {info.l4_offset + 20u, 11}) : rig.Carry(frame);
  packet.tx = flags;
  packet.l3_offset = static_cast<uint8_t>(info.l3_offset);
  packet.l4_offset = info.l4_offset;
  return packet;
}

TEST_CASE("checksums are written as frames.h computes them, whatever was in their fields") {
  for (const bool ipv6 : {false, true}) {
    for (const bool tcp : {false, true}) {
      for (const bool cut : {false, true}) {
        TxRig rig;
        const Frame good = MakeFrame({.size = 301, .ipv6 = ipv6, .tcp = tcp});
        const Frame bad = MakeFrame({.size = 301,
                                     .ipv6 = ipv6,
                                     .tcp = tcp,
                                     .bad_ip_checksum = true,
                                     .bad_l4_checksum = true});
        TxFlags flags = TxFlags::kL4Checksum;
        if (!ipv6) flags = flags | TxFlags::kIpv4Checksum;
        Packet packet = Asking(rig, bad, flags, cut);
        CHECK(rig.Through(packet) == std::vector<Frame>{good});
        CHECK(rig.stats().dropped == 0);
        rig.CheckClean();
      }
    }
  }
}

TEST_CASE("a tag is inserted, with its priority; those an instruction cannot say are refused") {
  TxRig rig;
  const Frame plain = MakeFrame({.size = 100});
  for (const uint16_t tci : {0x0001, 0x0fff, 0xe064, 0x6001}) {
    Packet packet = rig.Carry(plain);
    packet.tx = TxFlags::kVlanInsert;
    packet.vlan = tci;
    const auto out = rig.Through(packet);
    REQUIRE(out.size() == 1);
    REQUIRE(out[0].size() == 104);
    CHECK(LoadBe<uint16_t>(out[0], 12) == 0x8100);
    CHECK(LoadBe<uint16_t>(out[0], 14) == tci);
  }
  for (const uint16_t tci : {0x0000, 0xe000, 0x1064}) {
    Packet packet = rig.Carry(plain);
    packet.tx = TxFlags::kVlanInsert;
    packet.vlan = tci;
    CHECK(rig.Through(packet).empty());
  }
  CHECK(rig.stats().unsupported_offload == 3);
  rig.CheckClean();
  rig.CheckAllReturned();
}

TEST_CASE("segmentation: each frame is what it would be if it had been sent alone") {
  for (const bool ipv6 : {false, true}) {
    for (const uint16_t mss : {1, 500, 1460, 8000}) {
      for (const size_t size : {size_t{600}, size_t{4000}, size_t{59996}}) {
        if (mss == 1 && size > 600) continue;
        TxRig rig;
        const Frame frame = MakeFrame({.size = size, .ipv6 = ipv6, .tcp = true});
        const FrameInfo info = ParseFrame(frame);
        Packet packet = rig.Carry(frame, {info.l4_offset + 20u, 100, 17000});
        packet.tx = TxFlags::kTso;
        packet.l3_offset = static_cast<uint8_t>(info.l3_offset);
        packet.l4_offset = info.l4_offset;
        packet.segment_size = mss;
        const auto out = rig.Through(packet);
        const size_t header = info.l4_offset + 20u;
        CHECK(out.size() == (size - header + mss - 1) / mss);
        std::vector<std::byte> payload;
        for (const Frame& f : out) {
          const FrameInfo piece = ParseFrame(f);
          REQUIRE(piece.tcp);
          if (!ipv6) REQUIRE(Ipv4ChecksumState(f, piece) == ChecksumState::kGood);
          REQUIRE(L4ChecksumState(f, piece) == ChecksumState::kGood);
          payload.insert(payload.end(), f.begin() + static_cast<std::ptrdiff_t>(header), f.end());
        }
        CHECK(payload == std::vector<std::byte>(frame.begin() + static_cast<std::ptrdiff_t>(header),
                                                frame.end()));
        rig.CheckClean();
        rig.CheckAllReturned();
      }
    }
  }
}

TEST_CASE("what is too long, or does not fit its frame, is dropped before the device sees it") {
  TxRig rig(1500);
  const Frame tcp = MakeFrame({.size = 1400, .tcp = true});
  Packet packet = Asking(rig, tcp, TxFlags::kTso);
  packet.segment_size = 1500;  // with its headers longer than a frame may be
  CHECK(rig.Through(packet).empty());
  CHECK(rig.stats().too_long == 1);
  Packet huge = Asking(rig, MakeFrame({.size = 60001, .tcp = true}), TxFlags::kTso);
  huge.segment_size = 1000;
  CHECK(rig.Through(huge).empty());
  CHECK(rig.stats().too_long == 2);
  Packet none = Asking(rig, tcp, TxFlags::kTso);
  none.segment_size = 0;
  CHECK(rig.Through(none).empty());
  Packet wrong = Asking(rig, tcp, TxFlags::kL4Checksum);
  wrong.l4_offset = 13;
  CHECK(rig.Through(wrong).empty());
  CHECK(rig.stats().unsupported_offload == 2);
  Packet tagged = rig.Carry(MakeFrame({.size = 1518}));
  tagged.tx = TxFlags::kVlanInsert;
  tagged.vlan = 1;
  CHECK(rig.Through(tagged).empty());
  CHECK(rig.stats().too_long == 3);
  rig.CheckClean();
  rig.CheckAllReturned();
}

TEST_CASE("one segment of more than a pointer can say goes by a list of one") {
  TxRig rig;
  const Frame frame = MakeFrame({.size = 40000, .tcp = true});
  Packet packet = Asking(rig, frame, TxFlags::kTso);
  packet.segment_size = 8000;
  REQUIRE(packet.segment_count == 1);
  CHECK(rig.Through(packet).size() == 5);
  rig.CheckClean();
  rig.CheckAllReturned();
}

}  // namespace
}  // namespace dmakit::nic::liquidio
