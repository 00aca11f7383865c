// SPDX-License-Identifier: Apache-2.0
//
// Frames for tests of NICs, with right checksums unless asked otherwise. The sums are computed here
// and not with the code under test.
#ifndef DMAKIT_TESTS_NIC_FRAMES_H_
#define DMAKIT_TESTS_NIC_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

namespace dmakit::nic {

using Frame = std::vector<std::byte>;

namespace testing {

inline void Append(Frame& frame, std::initializer_list<unsigned> bytes) {
  for (const unsigned b : bytes) frame.push_back(static_cast<std::byte>(b));
}
inline void Append16(Frame& frame, unsigned v) { Append(frame, {v >> 8 & 0xff, v & 0xff}); }
inline void Put16(Frame& frame, size_t at, unsigned v) {
  frame[at] = static_cast<std::byte>(v >> 8);
  frame[at + 1] = static_cast<std::byte>(v);
}

// One's complement sum of big-endian words in [from, to), plus `sum`.
inline uint32_t Sum16(const Frame& frame, size_t from, size_t to, uint32_t sum = 0) {
  for (size_t i = from; i < to; i += 2) {
    sum += std::to_integer<uint32_t>(frame[i]) << 8;
    if (i + 1 < to) sum += std::to_integer<uint32_t>(frame[i + 1]);
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return sum;
}

struct FrameSpec {
  size_t size = 64;  // of the frame, at least its headers
  bool ipv6 = false;
  bool tcp = false;
  std::optional<uint16_t> vlan{};
  uint16_t source_port = 1000;
  uint16_t destination_port = 2000;
  uint8_t source_host = 1;
  uint32_t serial = 0;  // the payload's pattern
  bool bad_ip_checksum = false;
  bool bad_l4_checksum = false;
  bool no_udp_checksum = false;
  bool fragment = false;  // IPv4: a first fragment
};

inline Frame MakeFrame(const FrameSpec& spec) {
  Frame f;
  Append(f, {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, spec.source_host});
  if (spec.vlan) {
    Append16(f, 0x8100);
    Append16(f, *spec.vlan);
  }
  Append16(f, spec.ipv6 ? 0x86dd : 0x0800);
  const size_t ip = f.size();
  const size_t l4 = ip + (spec.ipv6 ? 40 : 20);
  const unsigned protocol = spec.tcp ? 6 : 17;
  if (spec.ipv6) {
    Append(f, {0x60, 0, 0, 0});
    Append16(f, static_cast<unsigned>(spec.size - l4));
    Append(f, {protocol, 64});
    Append(f, {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, spec.source_host});
    Append(f, {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 99});
  } else {
    Append(f, {0x45, 0});
    Append16(f, static_cast<unsigned>(spec.size - ip));
    Append(f, {0, 1, spec.fragment ? 0x20u : 0x40u, 0, 64, protocol, 0, 0});
    Append(f, {198, 18, 0, spec.source_host, 198, 19, 0, 99});
    Put16(f, ip + 10, ~Sum16(f, ip, l4) & 0xffff);
    if (spec.bad_ip_checksum) f[ip + 10] ^= std::byte{1};
  }
  Append16(f, spec.source_port);
  Append16(f, spec.destination_port);
  if (spec.tcp) {
    Append(f, {0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0});
  } else {
    Append16(f, static_cast<unsigned>(spec.size - l4));
    Append16(f, 0);
  }
  for (uint32_t i = 0; f.size() < spec.size; ++i) {
    f.push_back(static_cast<std::byte>((spec.serial >> (i % 4 * 8)) + i / 4));
  }
  const uint32_t pseudo =
      Sum16(f, ip + (spec.ipv6 ? 8 : 12), l4, protocol + static_cast<uint32_t>(spec.size - l4));
  unsigned sum = ~Sum16(f, l4, f.size(), pseudo) & 0xffff;
  if (!spec.tcp && sum == 0) sum = 0xffff;
  const size_t at = l4 + (spec.tcp ? 16 : 6);
  if (!spec.no_udp_checksum) Put16(f, at, spec.bad_l4_checksum ? sum ^ 0x0100 : sum);
  return f;
}

inline Frame NumberedFrame(uint32_t serial, size_t size) {
  return MakeFrame({.size = size, .serial = serial});
}

}  // namespace testing
}  // namespace dmakit::nic

#endif  // DMAKIT_TESTS_NIC_FRAMES_H_
