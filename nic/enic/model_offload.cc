// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/model_offload.h"

#include "nic/endian.h"
#include "nic/frame_edit.h"
#include "nic/frame_info.h"

namespace dmakit::nic::enic {
namespace {

constexpr size_t kTagBytes = 4;

using Span = std::span<std::byte>;

size_t TagBytes(const WqEnetDesc& first) { return first.vlan_tag_insert ? kTagBytes : 0; }

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
    WriteL4Checksum(frame, info);
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
  if (known && !SameChecksum(LoadBe<uint16_t>(frame, to),
                             PseudoHeaderSum(frame, info, info.l3_end - info.l4_offset))) {
    return OffloadFault::kPreload;
  }
  StoreBe<uint16_t>(frame, to,
                    FinishL4Checksum(ChecksumAdd(frame.subspan(from)), known && info.udp));
  return OffloadFault::kNone;
}

OffloadFault CheckTso(Span frame, const WqEnetDesc& first) {
  const FrameInfo info = ParseTsoFrame(frame);
  if (!info.tcp || first.mss == 0) return OffloadFault::kHeaders;
  const size_t tcp = (std::to_integer<unsigned>(frame[info.l4_offset + 12u]) >> 4) * 4;
  if (tcp < kTcpHeader || info.l4_offset + tcp != first.header_length ||
      first.header_length >= frame.size()) {
    return OffloadFault::kHeaders;
  }
  if (size_t{first.header_length} + first.mss + TagBytes(first) > kMaxTxFrame) {
    return OffloadFault::kTooLong;
  }
  if (!SameChecksum(LoadBe<uint16_t>(frame, L4ChecksumAt(info)), PseudoHeaderSum(frame, info, 0))) {
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
  if (first.vlan_tag_insert) InsertVlanTag(frame, first.vlan_tag);
}

void TxFinisher::Cut(std::span<const std::byte> frame, const WqEnetDesc& first, size_t at) {
  CutTcpSegment(frame, first.header_length, first.mss, at, piece_);
}

}  // namespace dmakit::nic::enic
