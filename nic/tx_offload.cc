// SPDX-License-Identifier: Apache-2.0

#include "nic/tx_offload.h"

#include <cstddef>
#include <span>

#include "nic/endian.h"
#include "nic/frame_info.h"

namespace dmakit::nic {
namespace {

constexpr size_t kMaxPacket = 65535;  // Ethernet header included

using Head = std::span<std::byte>;

unsigned ByteAt(Head head, size_t at) { return std::to_integer<unsigned>(head[at]); }

// What the IP header says, or that it is none.
struct Ip {
  uint8_t protocol = 0;
  size_t header = 0;  // bytes up to l4
  size_t length = 0;  // of the IP packet
  bool fragment = false;
};

bool ReadIpv4(Head head, size_t at, Ip& ip) {
  if (head.size() < at + kIpv4Header || ByteAt(head, at) >> 4 != 4) return false;
  ip.header = (ByteAt(head, at) & 0xf) * 4;
  ip.length = LoadBe<uint16_t>(head, at + 2);
  ip.fragment = (LoadBe<uint16_t>(head, at + 6) & 0x3fff) != 0;
  ip.protocol = static_cast<uint8_t>(ByteAt(head, at + 9));
  return ip.header >= kIpv4Header && head.size() >= at + ip.header;
}

// Walks extension headers up to `l4`.
bool ReadIpv6(Head head, size_t at, size_t l4, Ip& ip) {
  if (head.size() < at + kIpv6Header || ByteAt(head, at) >> 4 != 6) return false;
  ip.length = kIpv6Header + LoadBe<uint16_t>(head, at + 4);
  ip.protocol = static_cast<uint8_t>(ByteAt(head, at + 6));
  size_t cursor = at + kIpv6Header;
  while (cursor < l4) {
    if (cursor + 8 > head.size() || ip.protocol == kProtocolTcp || ip.protocol == kProtocolUdp)
      return false;
    ip.fragment = ip.fragment || ip.protocol == kProtocolFragment;
    ip.protocol = static_cast<uint8_t>(ByteAt(head, cursor));
    cursor += 8 + size_t{ByteAt(head, cursor + 1)} * 8;
  }
  ip.header = cursor - at;
  return cursor == l4;
}

// The transport header, if it is one that the request fits.
bool ReadTransport(Head head, const Packet& packet, const Ip& ip, TxHeaders& headers) {
  headers.tcp = ip.protocol == kProtocolTcp;
  if (ip.fragment || (!headers.tcp && ip.protocol != kProtocolUdp)) return false;
  if (packet.l4_offset != packet.l3_offset + ip.header) return false;
  const size_t least = headers.tcp ? kTcpHeader : kUdpHeader;
  if (head.size() < packet.l4_offset + least || ip.length < ip.header + least) return false;
  const size_t size = headers.tcp ? (ByteAt(head, packet.l4_offset + 12u) >> 4) * 4 : kUdpHeader;
  if (size < least || head.size() < packet.l4_offset + size) return false;
  headers.l4 = packet.l4_offset;
  headers.payload = static_cast<uint16_t>(packet.l4_offset + size);
  return true;
}

}  // namespace

bool PrepareTxOffload(const Packet& packet, TxHeaders& headers) {
  const bool tso = Has(packet.tx, TxFlags::kTso);
  const bool l4 = tso || Has(packet.tx, TxFlags::kL4Checksum);
  if (!l4 && !Has(packet.tx, TxFlags::kIpv4Checksum)) return true;
  const Head head = packet.segments[0].bytes();
  const size_t at = packet.l3_offset;
  if (at < kEthernetHeader || head.size() <= at || packet.length < head.size()) return false;
  headers.l3 = packet.l3_offset;
  headers.ipv6 = ByteAt(head, at) >> 4 == 6;
  Ip ip;
  if (headers.ipv6) {
    if (!l4 || Has(packet.tx, TxFlags::kIpv4Checksum)) return false;
    if (!ReadIpv6(head, at, packet.l4_offset, ip)) return false;
  } else if (!ReadIpv4(head, at, ip)) {
    return false;
  }
  const size_t there = packet.length - at;
  // With kTso the length is that of all frames together, or anything: the device writes its own.
  if (tso) ip.length = there;
  if (ip.length < ip.header || ip.length > there || packet.length > kMaxPacket) return false;
  headers.padded = ip.length < there;
  if (l4 && !ReadTransport(head, packet, ip, headers)) return false;
  if (tso && (!headers.tcp || packet.segment_size == 0 || packet.length <= headers.payload)) {
    return false;
  }
  if (l4) {
    const FrameInfo info = {.ipv4 = !headers.ipv6,
                            .ipv6 = headers.ipv6,
                            .tcp = headers.tcp,
                            .udp = !headers.tcp,
                            .l3_offset = headers.l3};
    const uint64_t sum = PseudoHeaderSum(head, info, tso ? 0 : ip.length - ip.header);
    // Folded, and not inverted.
    StoreBe<uint16_t>(head, headers.l4 + (headers.tcp ? 16u : 6u),
                      static_cast<uint16_t>(~ChecksumFinish(sum)));
  }
  if (!headers.ipv6 && (tso || Has(packet.tx, TxFlags::kIpv4Checksum))) {
    StoreBe<uint16_t>(head, at + 10, 0);
  }
  return true;
}

}  // namespace dmakit::nic
