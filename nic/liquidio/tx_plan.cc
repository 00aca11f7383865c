// SPDX-License-Identifier: Apache-2.0

#include "nic/liquidio/tx_plan.h"

#include "nic/frame_info.h"
#include "nic/tx_offload.h"

namespace dmakit::nic::liquidio {
namespace {

constexpr uint32_t kTagBytes = 4;
// A TCI is priority (3 bits), drop eligible (1), identifier (12); an instruction has no room for
// the second, and identifier 0 means no tag.
constexpr uint16_t kTciDropEligible = 0x1000;
constexpr uint16_t kTciIdentifier = 0x0fff;

bool TagFits(uint16_t tci) { return (tci & kTciDropEligible) == 0 && (tci & kTciIdentifier) != 0; }

}  // namespace

TxVerdict PlanOffload(const Packet& packet, uint64_t total, uint32_t max_frame, TxPlan& plan) {
  const bool tag = Has(packet.tx, TxFlags::kVlanInsert);
  const bool tso = Has(packet.tx, TxFlags::kTso);
  const uint64_t added = tag ? kTagBytes : 0;
  if (total + added > (tso ? kMaxTsoFrame : max_frame)) return TxVerdict::kTooLong;
  if (tag && !TagFits(packet.vlan)) return TxVerdict::kDoesNotFit;
  TxHeaders headers;
  if (total < kEthernetHeader || total != packet.length || !PrepareTxOffload(packet, headers)) {
    return TxVerdict::kDoesNotFit;
  }
  PacketParams params;
  params.ip_csum = Has(packet.tx, TxFlags::kIpv4Checksum);
  params.transport_csum = Has(packet.tx, TxFlags::kL4Checksum);
  if (tso) {
    if (headers.payload + packet.segment_size + added > max_frame) return TxVerdict::kTooLong;
    params.ip_csum = !headers.ipv6;
    params.transport_csum = true;
    const uint64_t payload = total - headers.payload;
    const uint64_t frames = (payload + packet.segment_size - 1) / packet.segment_size;
    plan.ossp0 =
        Encode(TxInfo{.gso_size = packet.segment_size, .gso_segs = static_cast<uint16_t>(frames)});
  }
  Irh irh;
  irh.ossp = Encode(params);
  if (tag) {
    irh.vlan = packet.vlan & kTciIdentifier;
    irh.priority = static_cast<uint8_t>(packet.vlan >> 13);
  }
  plan.irh = Encode(irh);
  plan.bytes = static_cast<uint32_t>(total);
  return TxVerdict::kGood;
}

}  // namespace dmakit::nic::liquidio
