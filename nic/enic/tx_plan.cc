// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/tx_plan.h"

#include "nic/tx_offload.h"

namespace dmakit::nic::enic {
namespace {

constexpr uint32_t kEthernetBytes = 14;
constexpr uint32_t kVlanTagBytes = 4;

}  // namespace

TxVerdict PlanOffload(const Packet& packet, uint64_t total, uint32_t max_frame, uint32_t room,
                      TxPlan& plan) {
  const uint32_t tag = Has(packet.tx, TxFlags::kVlanInsert) ? kVlanTagBytes : 0;
  const bool tso = Has(packet.tx, TxFlags::kTso);
  if (!tso && total + tag > max_frame) return TxVerdict::kTooLong;
  if (plan.pieces > (tso ? kMaxTsoDescriptors : kMaxTxDescriptors) || plan.pieces > room) {
    return TxVerdict::kTooManyPieces;
  }
  TxHeaders headers;
  if (total < kEthernetBytes || total != packet.length || !PrepareTxOffload(packet, headers)) {
    return TxVerdict::kDoesNotFit;
  }
  WqEnetDesc first;
  if (tag != 0) {
    first.vlan_tag_insert = true;
    first.vlan_tag = packet.vlan;
  }
  if (tso) {
    if (headers.payload > kMaxHeaderLength) return TxVerdict::kDoesNotFit;
    if (uint32_t{headers.payload} + packet.segment_size + tag > max_frame) {
      return TxVerdict::kTooLong;
    }
    first.offload_mode = OffloadMode::kTso;
    first.mss = packet.segment_size;
    first.header_length = headers.payload;
    plan.first_high = Encode(first).high;
    return TxVerdict::kGood;
  }
  const bool ipv4 = Has(packet.tx, TxFlags::kIpv4Checksum);
  const bool l4 = Has(packet.tx, TxFlags::kL4Checksum);
  if (l4 && !ipv4 && !headers.padded && headers.l4 <= kMaxHeaderLength) {
    first.offload_mode = OffloadMode::kCsumL4;
    first.header_length = headers.l4;
    first.mss = static_cast<uint16_t>(headers.l4 + (headers.tcp ? 16 : 6));
  } else {
    first.mss = static_cast<uint16_t>((ipv4 ? kCsumIpv4 : 0) | (l4 ? kCsumTcpUdp : 0));
  }
  plan.first_high = Encode(first).high;
  return TxVerdict::kGood;
}

}  // namespace dmakit::nic::enic
