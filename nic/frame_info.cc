// SPDX-License-Identifier: Apache-2.0

#include "nic/frame_info.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "nic/endian.h"

namespace dmakit::nic {
namespace {

constexpr uint16_t kEtherIpv4 = 0x0800;
constexpr uint16_t kEtherIpv6 = 0x86dd;
constexpr uint16_t kEtherVlan = 0x8100;
constexpr uint8_t kProtoHopByHop = 0;
constexpr uint8_t kProtoRouting = 43;
constexpr uint8_t kProtoDestination = 60;

using Frame = std::span<const std::byte>;

uint8_t ByteAt(Frame frame, size_t at) { return std::to_integer<uint8_t>(frame[at]); }

void ParseTransport(uint8_t protocol, size_t at, FrameInfo& info) {
  const size_t room = info.l3_end - at;
  info.tcp = protocol == kProtocolTcp && room >= kTcpHeader;
  info.udp = protocol == kProtocolUdp && room >= kUdpHeader;
  if (info.l4()) info.l4_offset = static_cast<uint16_t>(at);
}

void ParseIpv4(Frame frame, size_t at, FrameInfo& info) {
  if (frame.size() < at + kIpv4Header || ByteAt(frame, at) >> 4 != 4) return;
  const size_t header = (ByteAt(frame, at) & 0xfu) * 4;
  const size_t total = LoadBe<uint16_t>(frame, at + 2);
  if (header < kIpv4Header || total < header || at + total > frame.size()) return;
  info.ipv4 = true;
  info.l3_offset = static_cast<uint16_t>(at);
  info.l3_end = static_cast<uint16_t>(at + total);
  // More fragments, or an offset: without the "do not fragment" and the reserved bit.
  info.fragment = (LoadBe<uint16_t>(frame, at + 6) & 0x3fff) != 0;
  if (!info.fragment) ParseTransport(ByteAt(frame, at + 9), at + header, info);
}

void ParseIpv6(Frame frame, size_t at, FrameInfo& info) {
  if (frame.size() < at + kIpv6Header || ByteAt(frame, at) >> 4 != 6) return;
  const size_t end = at + kIpv6Header + LoadBe<uint16_t>(frame, at + 4);
  if (end > frame.size() || end > 0xffff) return;
  info.ipv6 = true;
  info.l3_offset = static_cast<uint16_t>(at);
  info.l3_end = static_cast<uint16_t>(end);
  uint8_t next = ByteAt(frame, at + 6);
  size_t cursor = at + kIpv6Header;
  while (next == kProtoHopByHop || next == kProtoRouting || next == kProtoDestination) {
    if (cursor + 8 > end) return;
    next = ByteAt(frame, cursor);
    cursor += 8 + size_t{ByteAt(frame, cursor + 1)} * 8;
    if (cursor > end) return;
  }
  if (next == kProtocolFragment) {
    info.fragment = true;
    return;
  }
  ParseTransport(next, cursor, info);
}

}  // namespace

FrameInfo ParseFrame(Frame frame) {
  FrameInfo info;
  if (frame.size() < kEthernetHeader) return info;
  size_t at = 12;
  uint16_t type = LoadBe<uint16_t>(frame, at);
  if (type == kEtherVlan && frame.size() >= kEthernetHeader + 4) {
    info.vlan = true;
    info.tci = LoadBe<uint16_t>(frame, 14);
    at += 4;
    type = LoadBe<uint16_t>(frame, at);
  }
  at += 2;
  // Beyond what offsets and lengths below can hold there is no Ethernet frame.
  const Frame head = frame.first(std::min<size_t>(frame.size(), 0xffff));
  if (type == kEtherIpv4) ParseIpv4(head, at, info);
  if (type == kEtherIpv6) ParseIpv6(head, at, info);
  return info;
}

// Four bytes at a time in the CPU's own order: the folded sum is the same up to the order of its
// two bytes.
uint64_t ChecksumAdd(Frame bytes, uint64_t sum) {
  uint64_t native = 0;
  size_t i = 0;
  for (; i + 4 <= bytes.size(); i += 4) {
    uint32_t word = 0;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    native += word;
  }
  while (native >> 16 != 0) native = (native & 0xffff) + (native >> 16);
  if constexpr (std::endian::native == std::endian::little) {
    native = (native & 0xff) << 8 | native >> 8;
  }
  sum += native;
  if (i + 2 <= bytes.size()) {
    sum += LoadBe<uint16_t>(bytes, i);
    i += 2;
  }
  if (i < bytes.size()) sum += uint64_t{ByteAt(bytes, i)} << 8;
  return sum;
}

uint64_t PseudoHeaderSum(Frame frame, const FrameInfo& info, size_t length) {
  const size_t addresses = info.l3_offset + (info.ipv4 ? 12u : 8u);
  const uint64_t sum = ChecksumAdd(frame.subspan(addresses, info.ipv4 ? 8 : 32));
  return sum + (info.tcp ? kProtocolTcp : kProtocolUdp) + length;
}

uint16_t ChecksumFinish(uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

ChecksumState Ipv4ChecksumState(Frame frame, const FrameInfo& info) {
  if (!info.ipv4) return ChecksumState::kNone;
  const size_t header = (ByteAt(frame, info.l3_offset) & 0xfu) * 4;
  const uint64_t sum = ChecksumAdd(frame.subspan(info.l3_offset, header));
  return ChecksumFinish(sum) == 0 ? ChecksumState::kGood : ChecksumState::kBad;
}

ChecksumState L4ChecksumState(Frame frame, const FrameInfo& info) {
  if (!info.l4()) return ChecksumState::kNone;
  if (info.udp) {
    if (info.ipv4 && LoadBe<uint16_t>(frame, info.l4_offset + 6) == 0) return ChecksumState::kNone;
    // A UDP length that contradicts IP's leaves nothing to sum up.
    if (LoadBe<uint16_t>(frame, info.l4_offset + 4) != info.l3_end - info.l4_offset) {
      return ChecksumState::kBad;
    }
  }
  const Frame segment = frame.subspan(info.l4_offset, info.l3_end - info.l4_offset);
  const uint64_t sum = ChecksumAdd(segment, PseudoHeaderSum(frame, info, segment.size()));
  return ChecksumFinish(sum) == 0 ? ChecksumState::kGood : ChecksumState::kBad;
}

HashInput HashInputOf(Frame frame, const FrameInfo& info) {
  HashInput input;
  if (!info.ip()) return input;
  input.addresses = info.ipv4 ? 8 : 32;
  const Frame addresses = frame.subspan(info.l3_offset + (info.ipv4 ? 12u : 8u), input.addresses);
  std::copy(addresses.begin(), addresses.end(), input.bytes.begin());
  if (info.l4()) {
    const Frame ports = frame.subspan(info.l4_offset, 4);
    std::copy(ports.begin(), ports.end(),
              input.bytes.begin() + static_cast<std::ptrdiff_t>(input.addresses));
    input.with_ports = input.addresses + 4;
  }
  return input;
}

uint32_t ToeplitzHash(std::span<const std::byte> key, std::span<const std::byte> input) {
  uint32_t hash = 0;
  uint32_t window = LoadBe<uint32_t>(key);
  for (size_t i = 0; i < input.size(); ++i) {
    const unsigned byte = std::to_integer<unsigned>(input[i]);
    const unsigned next = std::to_integer<unsigned>(key[i + 4]);
    for (int bit = 7; bit >= 0; --bit) {
      if (byte >> bit & 1) hash ^= window;
      window = window << 1 | (next >> bit & 1);
    }
  }
  return hash;
}

}  // namespace dmakit::nic
