// SPDX-License-Identifier: Apache-2.0

#include "nic/frame_edit.h"

#include <algorithm>

#include "nic/endian.h"

namespace dmakit::nic {
namespace {

constexpr size_t kVlanTagAt = 12;
constexpr uint16_t kVlanType = 0x8100;
constexpr size_t kTagBytes = 4;

}  // namespace

size_t L4ChecksumAt(const FrameInfo& info) { return info.l4_offset + (info.tcp ? 16u : 6u); }

uint16_t FinishL4Checksum(uint64_t sum, bool udp) {
  const uint16_t value = ChecksumFinish(sum);
  return udp && value == 0 ? 0xffff : value;
}

bool SameChecksum(uint64_t a, uint64_t b) { return ChecksumFinish(a) == ChecksumFinish(b); }

void WriteIpv4Checksum(std::span<std::byte> frame, const FrameInfo& info) {
  const size_t header = (std::to_integer<unsigned>(frame[info.l3_offset]) & 0xf) * 4;
  const size_t at = info.l3_offset + 10u;
  StoreBe<uint16_t>(frame, at, 0);
  StoreBe<uint16_t>(frame, at, ChecksumFinish(ChecksumAdd(frame.subspan(info.l3_offset, header))));
}

void WriteL4Checksum(std::span<std::byte> frame, const FrameInfo& info) {
  const size_t length = info.l3_end - info.l4_offset;
  StoreBe<uint16_t>(frame, L4ChecksumAt(info), 0);
  const uint64_t sum =
      ChecksumAdd(frame.subspan(info.l4_offset, length), PseudoHeaderSum(frame, info, length));
  StoreBe<uint16_t>(frame, L4ChecksumAt(info), FinishL4Checksum(sum, info.udp));
}

void InsertVlanTag(std::vector<std::byte>& frame, uint16_t tci) {
  std::byte tag[kTagBytes];
  StoreBe<uint16_t>(tag, 0, kVlanType);
  StoreBe<uint16_t>(tag, 2, tci);
  frame.insert(frame.begin() + kVlanTagAt, std::begin(tag), std::end(tag));
}

FrameInfo ParseTsoFrame(std::span<std::byte> frame) {
  FrameInfo info = ParseFrame(frame);
  if (info.tcp) return info;
  const size_t l3 = info.vlan ? kEthernetHeader + kTagBytes : kEthernetHeader;
  if (frame.size() < l3 + kIpv4Header || frame.size() - l3 > 0xffff) return info;
  const unsigned version = std::to_integer<unsigned>(frame[l3]) >> 4;
  if (version == 4) {
    StoreBe<uint16_t>(frame, l3 + 2, static_cast<uint16_t>(frame.size() - l3));
  } else if (version == 6 && frame.size() >= l3 + kIpv6Header) {
    StoreBe<uint16_t>(frame, l3 + 4, static_cast<uint16_t>(frame.size() - l3 - kIpv6Header));
  }
  return ParseFrame(frame);
}

void CutTcpSegment(std::span<const std::byte> frame, size_t header, size_t mss, size_t at,
                   std::vector<std::byte>& piece) {
  const size_t payload = std::min<size_t>(mss, frame.size() - at);
  piece.assign(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(header));
  piece.insert(piece.end(), frame.begin() + static_cast<std::ptrdiff_t>(at),
               frame.begin() + static_cast<std::ptrdiff_t>(at + payload));
  const FrameInfo whole = ParseFrame(frame);
  const size_t l3 = whole.l3_offset;
  const size_t l4 = whole.l4_offset;
  const size_t number = (at - header) / mss;
  if (whole.ipv4) {
    StoreBe<uint16_t>(piece, l3 + 2, static_cast<uint16_t>(piece.size() - l3));
    StoreBe<uint16_t>(piece, l3 + 4,
                      static_cast<uint16_t>(LoadBe<uint16_t>(piece, l3 + 4) + number));
    WriteIpv4Checksum(piece, whole);
  } else {
    StoreBe<uint16_t>(piece, l3 + 4, static_cast<uint16_t>(piece.size() - l3 - kIpv6Header));
  }
  const uint32_t sequence = LoadBe<uint32_t>(piece, l4 + 4);
  StoreBe<uint32_t>(piece, l4 + 4, static_cast<uint32_t>(sequence + (at - header)));
  // FIN and PSH belong to the last piece, CWR to the first.
  std::byte& flags = piece[l4 + 13];
  if (at + payload < frame.size()) flags &= ~std::byte{0x09};
  if (number != 0) flags &= ~std::byte{0x80};
  const size_t length = piece.size() - l4;
  const uint64_t sum = ChecksumAdd(std::span<const std::byte>(piece).subspan(l4), length);
  StoreBe<uint16_t>(piece, l4 + 16, ChecksumFinish(sum));
}

}  // namespace dmakit::nic
