// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/model_offload.h"

#include <algorithm>

#include "nic/endian.h"
#include "nic/frame_info.h"

namespace dmakit::nic::enic {
namespace {

constexpr size_t kVlanTagAt = 12;
constexpr uint16_t kVlanType = 0x8100;
constexpr size_t kTagBytes = 4;

using Span = std::span<std::byte>;

size_t TagBytes(const WqEnetDesc& first) { return first.vlan_tag_insert ? kTagBytes : 0; }

size_t L4ChecksumAt(const FrameInfo& info) { return info.l4_offset + (info.tcp ? 16u : 6u); }

// Zero means "no checksum" in UDP.
uint16_t Finish(uint64_t sum, bool udp) {
  const uint16_t value = ChecksumFinish(sum);
  return udp && value == 0 ? 0xffff : value;
}

// The same value modulo 0xffff, in which these sums count.
bool SameSum(uint64_t a, uint64_t b) { return ChecksumFinish(a) == ChecksumFinish(b); }

void WriteIpv4Checksum(Span frame, const FrameInfo& info) {
  const size_t header = (std::to_integer<unsigned>(frame[info.l3_offset]) & 0xf) * 4;
  const size_t at = info.l3_offset + 10u;
  StoreBe<uint16_t>(frame, at, 0);
  StoreBe<uint16_t>(frame, at, ChecksumFinish(ChecksumAdd(frame.subspan(info.l3_offset, header))));
}

// Mode 0: the device finds the headers.
OffloadFault Parsed(Span frame, uint16_t what) {
  if ((what & ~(kCsumIpv4 | kCsumTcpUdp)) != 0) return OffloadFault::kUnknown;
  if (what == 0) return OffloadFault::kNone;
  const FrameInfo info = ParseFrame(frame);
  if ((what & kCsumIpv4) != 0) {
    if (!info.ipv4) return OffloadFault::kHeaders;
    WriteIpv4Checksum(frame, info);
  }
  if ((what & kCsumTcpUdp) != 0) {
    if (!info.l4()) return OffloadFault::kHeaders;
    const size_t length = info.l3_end - info.l4_offset;
    StoreBe<uint16_t>(frame, L4ChecksumAt(info), 0);
    const uint64_t sum =
        ChecksumAdd(frame.subspan(info.l4_offset, length), PseudoHeaderSum(frame, info, length));
    StoreBe<uint16_t>(frame, L4ChecksumAt(info), Finish(sum, info.udp));
  }
  return OffloadFault::kNone;
}

// Mode 2: from one offset to the end, into another, whatever is there.
OffloadFault AtOffsets(Span frame, const WqEnetDesc& first) {
  const size_t from = first.header_length;
  const size_t to = first.mss;
  if (from >= frame.size() || to < from || to + 2 > frame.size()) return OffloadFault::kHeaders;
  const FrameInfo info = ParseFrame(frame);
  const bool known = info.l4() && info.l4_offset == from && L4ChecksumAt(info) == to;
  if (known && !SameSum(LoadBe<uint16_t>(frame, to),
                        PseudoHeaderSum(frame, info, info.l3_end - info.l4_offset))) {
    return OffloadFault::kPreload;
  }
  StoreBe<uint16_t>(frame, to, Finish(ChecksumAdd(frame.subspan(from)), known && info.udp));
  return OffloadFault::kNone;
}

// The lengths in a packet to be segmented are those of the whole, which may say anything.
FrameInfo ParseTso(Span frame) {
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

OffloadFault CheckTso(Span frame, const WqEnetDesc& first) {
  const FrameInfo info = ParseTso(frame);
  if (!info.tcp || first.mss == 0) return OffloadFault::kHeaders;
  const size_t tcp = (std::to_integer<unsigned>(frame[info.l4_offset + 12u]) >> 4) * 4;
  if (tcp < kTcpHeader || info.l4_offset + tcp != first.header_length ||
      first.header_length >= frame.size()) {
    return OffloadFault::kHeaders;
  }
  if (size_t{first.header_length} + first.mss + TagBytes(first) > kMaxTxFrame) {
    return OffloadFault::kTooLong;
  }
  if (!SameSum(LoadBe<uint16_t>(frame, L4ChecksumAt(info)), PseudoHeaderSum(frame, info, 0))) {
    return OffloadFault::kPreload;
  }
  if (info.ipv4 && LoadBe<uint16_t>(frame, info.l3_offset + 10u) != 0) {
    return OffloadFault::kPreload;
  }
  return OffloadFault::kNone;
}

}  // namespace

OffloadFault TxFinisher::Prepare(std::vector<std::byte>& frame, const WqEnetDesc& first) {
  if (first.fcoe_encap || first.loopback) return OffloadFault::kUnknown;
  if (first.vlan_tag_insert && frame.size() < kEthernetHeader) return OffloadFault::kHeaders;
  switch (first.offload_mode) {
    case OffloadMode::kCsum:
      return frame.size() + TagBytes(first) > kMaxTxFrame ? OffloadFault::kTooLong
                                                          : Parsed(frame, first.mss);
    case OffloadMode::kCsumL4:
      return frame.size() + TagBytes(first) > kMaxTxFrame ? OffloadFault::kTooLong
                                                          : AtOffsets(frame, first);
    case OffloadMode::kTso:
      return CheckTso(frame, first);
    case OffloadMode::kReserved:
      break;
  }
  return OffloadFault::kUnknown;
}

void TxFinisher::InsertTag(std::vector<std::byte>& frame, const WqEnetDesc& first) {
  if (!first.vlan_tag_insert) return;
  std::byte tag[kTagBytes];
  StoreBe<uint16_t>(tag, 0, kVlanType);
  StoreBe<uint16_t>(tag, 2, first.vlan_tag);
  frame.insert(frame.begin() + kVlanTagAt, std::begin(tag), std::end(tag));
}

void TxFinisher::Cut(std::span<const std::byte> frame, const WqEnetDesc& first, size_t at) {
  const size_t header = first.header_length;
  const size_t payload = std::min<size_t>(first.mss, frame.size() - at);
  piece_.assign(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(header));
  piece_.insert(piece_.end(), frame.begin() + static_cast<std::ptrdiff_t>(at),
                frame.begin() + static_cast<std::ptrdiff_t>(at + payload));
  const FrameInfo whole = ParseFrame(frame);
  const size_t l3 = whole.l3_offset;
  const size_t l4 = whole.l4_offset;
  const size_t number = (at - header) / first.mss;
  if (whole.ipv4) {
    StoreBe<uint16_t>(piece_, l3 + 2, static_cast<uint16_t>(piece_.size() - l3));
    StoreBe<uint16_t>(piece_, l3 + 4,
                      static_cast<uint16_t>(LoadBe<uint16_t>(piece_, l3 + 4) + number));
    WriteIpv4Checksum(piece_, whole);
  } else {
    StoreBe<uint16_t>(piece_, l3 + 4, static_cast<uint16_t>(piece_.size() - l3 - kIpv6Header));
  }
  const uint32_t sequence = LoadBe<uint32_t>(piece_, l4 + 4);
  StoreBe<uint32_t>(piece_, l4 + 4, static_cast<uint32_t>(sequence + (at - header)));
  // FIN and PSH belong to the last piece, CWR to the first.
  std::byte& flags = piece_[l4 + 13];
  if (at + payload < frame.size()) flags &= ~std::byte{0x09};
  if (number != 0) flags &= ~std::byte{0x80};
  const size_t length = piece_.size() - l4;
  const uint64_t sum = ChecksumAdd(std::span<const std::byte>(piece_).subspan(l4), length);
  StoreBe<uint16_t>(piece_, l4 + 16, ChecksumFinish(sum));
}

}  // namespace dmakit::nic::enic
