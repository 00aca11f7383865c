// SPDX-License-Identifier: Apache-2.0

#include "nic/e1000e/tx_plan.h"

#include <span>

#include "nic/endian.h"
#include "nic/frame_info.h"
#include "nic/tx_offload.h"

namespace dmakit::nic::e1000e {
namespace {

constexpr uint32_t kVlanTagBytes = 4;

// Where the IP packet ends, inclusive, for a frame that goes on behind it; 0: where the frame does.
uint16_t EndOfIp(const Packet& packet, const TxHeaders& headers) {
  if (!headers.padded) return 0;
  const std::span<const std::byte> head = packet.segments[0].bytes();
  const size_t length = headers.ipv6 ? kIpv6Header + LoadBe<uint16_t>(head, headers.l3 + 4u)
                                     : size_t{LoadBe<uint16_t>(head, headers.l3 + 2u)};
  return static_cast<uint16_t>(headers.l3 + length - 1);
}

// The device writes each frame's own (sheet 3.5).
void ZeroIpLength(const Packet& packet, const TxHeaders& headers) {
  StoreBe<uint16_t>(packet.segments[0].bytes(), headers.l3 + (headers.ipv6 ? 4u : 2u), 0);
}

TxContext ContextOf(const Packet& packet, const TxHeaders& headers) {
  TxContext context{.ip = !headers.ipv6, .dext = true};
  if (!headers.ipv6) {
    const std::span<const std::byte> head = packet.segments[0].bytes();
    const auto words = std::to_integer<uint32_t>(head[headers.l3] & std::byte{0xf});
    context.ipcss = static_cast<uint8_t>(headers.l3);
    context.ipcso = static_cast<uint8_t>(headers.l3 + 10);
    context.ipcse = static_cast<uint16_t>(headers.l3 + words * 4 - 1);
  }
  if (headers.l4 != 0) {
    context.tcp = headers.tcp;
    context.tucss = static_cast<uint8_t>(headers.l4);
    context.tucso = static_cast<uint8_t>(headers.l4 + (headers.tcp ? 16 : 6));
    context.tucse = EndOfIp(packet, headers);
  }
  return context;
}

}  // namespace

TxVerdict PlanOffload(const Packet& packet, uint64_t total, const TxLimits& limits, TxPlan& plan) {
  const uint32_t tag = Has(packet.tx, TxFlags::kVlanInsert) ? kVlanTagBytes : 0;
  const uint32_t max_frame = limits.max_frame;
  if (tag != 0 && !limits.vlan) return TxVerdict::kDoesNotFit;
  const bool tso = Has(packet.tx, TxFlags::kTso);
  if (!tso && total + tag > max_frame) return TxVerdict::kTooLong;
  TxHeaders headers;
  if (total < kEthernetHeader || total != packet.length || !PrepareTxOffload(packet, headers)) {
    return TxVerdict::kDoesNotFit;
  }
  // Offsets in a context have 8 bits.
  if (headers.l3 + 10 > 255 || headers.l4 + 16 > 255 || headers.payload > 255) {
    return TxVerdict::kDoesNotFit;
  }
  TxData data{.ifcs = true, .dext = true};
  if (tag != 0) {
    data.vle = true;
    data.special = packet.vlan;
  }
  const bool l4 = tso || Has(packet.tx, TxFlags::kL4Checksum);
  const bool ipv4 = tso ? !headers.ipv6 : Has(packet.tx, TxFlags::kIpv4Checksum);
  if (l4 || ipv4) {
    plan.offload = true;
    data.ixsm = ipv4;
    data.txsm = l4;
    TxContext context = ContextOf(packet, headers);
    if (tso) {
      if (uint32_t{headers.payload} + packet.segment_size + tag > max_frame) {
        return TxVerdict::kTooLong;
      }
      data.tse = true;
      context.tse = true;
      context.header_length = static_cast<uint8_t>(headers.payload);
      context.mss = packet.segment_size;
      context.payload_length = static_cast<uint32_t>(total - headers.payload);
      ZeroIpLength(packet, headers);
    }
    plan.context = Encode(context);
  }
  plan.high = Encode(data).high;
  return TxVerdict::kGood;
}

}  // namespace dmakit::nic::e1000e
