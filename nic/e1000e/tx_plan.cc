// SPDX-License-Identifier: Apache-2.0

#include "nic/e1000e/tx_plan.h"

#include "nic/endian.h"
#include "nic/tx_offload.h"

namespace dmakit::nic::e1000e {
namespace {

constexpr uint32_t kEthernetBytes = 14;
constexpr uint32_t kVlanTagBytes = 4;
constexpr uint32_t kIpv6Bytes = 40;

constexpr uint32_t kTcpChecksumAt = 16;
constexpr uint32_t kUdpChecksumAt = 6;
constexpr uint32_t kIpChecksumAt = 10;

// Where the length is in the IP header, and what it does not count.
struct IpLength {
  size_t at;
  uint32_t uncounted;
};
IpLength LengthOfIp(const TxHeaders& headers) {
  return headers.ipv6 ? IpLength{headers.l3 + 4u, kIpv6Bytes} : IpLength{headers.l3 + 2u, 0};
}

// The offsets; false: one does not fit its field.
bool DescribeChecksums(const Packet& packet, const TxHeaders& headers, bool ip, bool l4,
                       TxContext& context) {
  const std::span<std::byte> head = packet.segments[0].bytes();
  if (headers.l3 + kIpChecksumAt > 0xff) return false;
  if (ip) {
    const uint32_t bytes = (std::to_integer<uint32_t>(head[headers.l3]) & 0xf) * 4;
    context.ip = true;
    context.ipcss = static_cast<uint8_t>(headers.l3);
    context.ipcso = static_cast<uint8_t>(headers.l3 + kIpChecksumAt);
    context.ipcse = static_cast<uint16_t>(headers.l3 + bytes - 1);
  }
  if (!l4) return true;
  const uint32_t at = headers.l4 + (headers.tcp ? kTcpChecksumAt : kUdpChecksumAt);
  if (at > 0xff) return false;
  context.tcp = headers.tcp;
  context.tucss = static_cast<uint8_t>(headers.l4);
  context.tucso = static_cast<uint8_t>(at);
  // 0 is the end of the frame, which may be behind that of the IP packet.
  if (headers.padded) {
    const IpLength length = LengthOfIp(headers);
    context.tucse = static_cast<uint16_t>(headers.l3 + LoadBe<uint16_t>(head, length.at) +
                                          length.uncounted - 1);
  }
  return true;
}

// The device writes the length of each frame, over a zero.
void ClearIpLength(const Packet& packet, const TxHeaders& headers) {
  StoreBe<uint16_t>(packet.segments[0].bytes(), LengthOfIp(headers).at, 0);
}

}  // namespace

TxVerdict PlanOffload(const Packet& packet, uint64_t total, const TxLimits& limits, TxPlan& plan) {
  const bool tag = Has(packet.tx, TxFlags::kVlanInsert);
  const bool tso = Has(packet.tx, TxFlags::kTso);
  const uint32_t tag_bytes = tag ? kVlanTagBytes : 0;
  if (!tso && total + tag_bytes > limits.max_frame) return TxVerdict::kTooLong;
  TxHeaders headers;
  if (tag && !limits.vlan_insert) return TxVerdict::kDoesNotFit;
  if (total < kEthernetBytes || total > kMaxTsoPacket || total != packet.length ||
      !PrepareTxOffload(packet, headers)) {
    return TxVerdict::kDoesNotFit;
  }
  TxData every{.tse = tso, .dext = true};
  every.ifcs = true;
  every.vle = tag;
  if (tag) every.special = packet.vlan;
  every.ixsm = !headers.ipv6 && (tso || Has(packet.tx, TxFlags::kIpv4Checksum));
  every.txsm = tso || Has(packet.tx, TxFlags::kL4Checksum);
  plan.every = Encode(every).high;
  if (!every.ixsm && !every.txsm) return TxVerdict::kGood;

  TxContext context{.tse = tso, .dext = true};
  if (!DescribeChecksums(packet, headers, every.ixsm, every.txsm, context)) {
    return TxVerdict::kDoesNotFit;
  }
  if (tso) {
    if (headers.payload > 0xff) return TxVerdict::kDoesNotFit;
    if (uint32_t{headers.payload} + packet.segment_size + tag_bytes > limits.max_frame) {
      return TxVerdict::kTooLong;
    }
    context.header_length = static_cast<uint8_t>(headers.payload);
    context.mss = packet.segment_size;
    context.payload_length = static_cast<uint32_t>(total) - headers.payload;
    ClearIpLength(packet, headers);
  }
  plan.needs_context = true;
  plan.context = Encode(context);
  return TxVerdict::kGood;
}

}  // namespace dmakit::nic::e1000e
