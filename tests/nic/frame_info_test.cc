// SPDX-License-Identifier: Apache-2.0
//
// Headers, checksums and the receive hash, against frames whose sums were computed elsewhere, the
// published verification values of the hash, and bytes that are no frame at all.
#include "nic/frame_info.h"

#include <array>
#include <random>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/nic/frames.h"

namespace dmakit::nic {
namespace {

using testing::FrameSpec;
using testing::MakeFrame;

Frame Hex(const std::string& text) {
  Frame bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST_CASE("headers are found, with and without a VLAN tag") {
  for (const bool vlan : {false, true}) {
    for (const bool ipv6 : {false, true}) {
      for (const bool tcp : {false, true}) {
        FrameSpec spec{.size = 120, .ipv6 = ipv6, .tcp = tcp};
        if (vlan) spec.vlan = 0x6064;
        const Frame frame = MakeFrame(spec);
        const FrameInfo info = ParseFrame(frame);
        CHECK(info.vlan == vlan);
        CHECK(info.tci == (vlan ? 0x6064 : 0));
        CHECK(info.ipv4 == !ipv6);
        CHECK(info.ipv6 == ipv6);
        CHECK(info.tcp == tcp);
        CHECK(info.udp == !tcp);
        CHECK_FALSE(info.fragment);
        CHECK(info.l3_offset == (vlan ? 18 : 14));
        CHECK(info.l4_offset == info.l3_offset + (ipv6 ? 40 : 20));
        CHECK(info.l3_end == 120);
        CHECK(Ipv4ChecksumState(frame, info) ==
              (ipv6 ? ChecksumState::kNone : ChecksumState::kGood));
        CHECK(L4ChecksumState(frame, info) == ChecksumState::kGood);
      }
    }
  }
}

TEST_CASE("a real captured header has a good checksum") {
  // The example of RFC 1071-style texts: 45 00 00 73 ... b861 ... 192.168.0.1 -> 192.168.0.199.
  Frame frame =
      Hex("0200000000090200000000010800"
          "45000073000040004011b861c0a80001c0a800c7");
  frame.resize(14 + 0x73);
  const FrameInfo info = ParseFrame(frame);
  REQUIRE(info.ipv4);
  CHECK(Ipv4ChecksumState(frame, info) == ChecksumState::kGood);
  CHECK(ChecksumFinish(ChecksumAdd(Hex("45000073000040004011"
                                       "0000"
                                       "c0a80001c0a800c7"))) == 0xb861);
}

TEST_CASE("checksums of every length and of odd pieces") {
  for (size_t size = 42; size < 200; ++size) {
    const Frame frame = MakeFrame({.size = size, .serial = static_cast<uint32_t>(size)});
    CHECK(L4ChecksumState(frame, ParseFrame(frame)) == ChecksumState::kGood);
  }
  CHECK(ChecksumFinish(ChecksumAdd(Hex("01"))) == 0xfeff);
  CHECK(ChecksumFinish(ChecksumAdd(Hex("010203"))) == static_cast<uint16_t>(~(0x0102 + 0x0300)));
  CHECK(ChecksumFinish(ChecksumAdd(Hex("ffffffffffffffff"))) == 0);
}

TEST_CASE("bad and absent checksums are told apart") {
  const auto states = [](const FrameSpec& spec) {
    const Frame frame = MakeFrame(spec);
    const FrameInfo info = ParseFrame(frame);
    return std::pair(Ipv4ChecksumState(frame, info), L4ChecksumState(frame, info));
  };
  using enum ChecksumState;
  CHECK(states({.bad_ip_checksum = true}) == std::pair(kBad, kGood));
  CHECK(states({.bad_l4_checksum = true}) == std::pair(kGood, kBad));
  CHECK(states({.tcp = true, .bad_l4_checksum = true}) == std::pair(kGood, kBad));
  CHECK(states({.no_udp_checksum = true}) == std::pair(kGood, kNone));
  CHECK(states({.fragment = true}) == std::pair(kGood, kNone));
  CHECK(states({.size = 80, .ipv6 = true, .bad_l4_checksum = true}) == std::pair(kNone, kBad));
}

TEST_CASE("padding behind the packet is not part of it") {
  Frame frame = MakeFrame({.size = 50});
  frame.resize(64, std::byte{0xaa});
  const FrameInfo info = ParseFrame(frame);
  CHECK(info.l3_end == 50);
  CHECK(L4ChecksumState(frame, info) == ChecksumState::kGood);
}

TEST_CASE("IPv6 extension headers are walked, fragments end the walk") {
  Frame frame = MakeFrame({.size = 100, .ipv6 = true});
  // A hop-by-hop header of 8 bytes in front of UDP.
  frame[14 + 6] = std::byte{0};
  const Frame extension = Hex("1100000000000000");
  frame.insert(frame.begin() + 54, extension.begin(), extension.end());
  testing::Put16(frame, 14 + 4, 100 - 54 + 8);
  FrameInfo info = ParseFrame(frame);
  CHECK(info.udp);
  CHECK(info.l4_offset == 62);
  CHECK(L4ChecksumState(frame, info) == ChecksumState::kGood);

  frame[14 + 6] = std::byte{44};
  info = ParseFrame(frame);
  CHECK(info.ipv6);
  CHECK(info.fragment);
  CHECK_FALSE(info.l4());
}

constexpr char kKey[] =
    "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa";

TEST_CASE("the Toeplitz hash gives the published values") {
  // source address, destination address, source port, destination port: hash without, with ports.
  struct Case {
    const char* addresses;
    const char* ports;
    uint32_t plain;
    uint32_t with_ports;
  };
  const Case cases[] = {
      {"420995bb"
       "a18e6450",
       "0aea"
       "06e6",
       0x323e8fc2, 0x51ccc178},
      {"c75c6f02"
       "41458c53",
       "3796"
       "1283",
       0xd718262a, 0xc626b0ea},
      {"3ffe25010200"
       "1fff0000000000000007"
       "3ffe2501020000030000000000000001",
       "0aea"
       "06e6",
       0x2cc18cd5, 0x40207d3d},
  };
  const Frame key = Hex(kKey);
  for (const Case& c : cases) {
    CHECK(ToeplitzHash(key, Hex(c.addresses)) == c.plain);
    CHECK(ToeplitzHash(key, Hex(std::string(c.addresses) + c.ports)) == c.with_ports);
  }
}

TEST_CASE("the hash input is addresses, then ports") {
  const Frame frame = MakeFrame({.source_port = 0x1234, .destination_port = 0x5678});
  const HashInput input = HashInputOf(frame, ParseFrame(frame));
  CHECK(input.addresses == 8);
  CHECK(input.with_ports == 12);
  CHECK(Frame(input.bytes.begin(), input.bytes.begin() + 12) == Hex("c6120001c613006312345678"));
  const Frame piece = MakeFrame({.fragment = true});
  CHECK(HashInputOf(piece, ParseFrame(piece)).with_ports == 0);
}

// Read out of bounds is found under AddressSanitizer: every frame is a block of its own.
TEST_CASE("nothing is read beyond a frame, whatever it says") {
  std::mt19937 random(1);
  const Frame models[] = {MakeFrame({.size = 90}), MakeFrame({.size = 90, .tcp = true}),
                          MakeFrame({.size = 120, .ipv6 = true, .vlan = 5})};
  uint64_t parsed = 0;
  for (int round = 0; round < 30000; ++round) {
    Frame frame = models[random() % 3];
    for (int flips = static_cast<int>(random() % 4); flips > 0; --flips) {
      frame[random() % frame.size()] = static_cast<std::byte>(random());
    }
    const size_t size = random() % (frame.size() + 1);
    const auto block = std::make_unique<std::byte[]>(size);
    std::copy_n(frame.begin(), size, block.get());
    const std::span<const std::byte> cut(block.get(), size);
    const FrameInfo info = ParseFrame(cut);
    Ipv4ChecksumState(cut, info);
    L4ChecksumState(cut, info);
    parsed += HashInputOf(cut, info).with_ports != 0;
  }
  CHECK(parsed > 100);  // some did get that far
}

}  // namespace
}  // namespace dmakit::nic
