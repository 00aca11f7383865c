// SPDX-License-Identifier: Apache-2.0
//
// TxPlan: what the descriptors of one packet say beside where its bytes are (enic sheet 1.1), and
// whether an offload that it asks for can be done. Pure functions of the packet, but for the
// checksum fields that PrepareTxOffload writes. The thread of the queue.
#ifndef DMAKIT_NIC_ENIC_TX_PLAN_H_
#define DMAKIT_NIC_ENIC_TX_PLAN_H_

#include <cstdint>

#include "nic/enic/descriptors.h"
#include "nic/packet.h"
#include "nic/queue_counters.h"

namespace dmakit::nic::enic {

struct TxPlan {
  uint32_t pieces = 0;  // descriptors
  // What the descriptors of the first segment say beside address, length and flags; nothing for a
  // packet without offloads, so that its descriptors are one addition.
  uint64_t first_high = 0;
};

// For a packet with tx flags, of `total` bytes in plan.pieces descriptors. `max_frame`: bytes of a
// frame on the wire, an inserted tag included. `room`: descriptors of an empty ring.
//
// Of the two ways to ask for a transport checksum the one with offsets is used where it is enough;
// with IPv4's checksum, or bytes behind the IP packet, the device finds the headers itself.
TxVerdict PlanOffload(const Packet& packet, uint64_t total, uint32_t max_frame, uint32_t room,
                      TxPlan& plan);

// The same for any packet; also counts its descriptors.
inline TxVerdict PlanTx(const Packet& packet, uint32_t max_frame, uint32_t room, TxPlan& plan) {
  uint64_t total = 0;
  for (const Segment& segment : packet.parts()) {
    total += segment.length;
    plan.pieces += (segment.length + kMaxPiece - 1) / kMaxPiece;
  }
  if (total == 0) [[unlikely]]
    return TxVerdict::kEmpty;
  if (packet.tx != TxFlags::kNone) [[unlikely]]
    return PlanOffload(packet, total, max_frame, room, plan);
  if (total > max_frame) [[unlikely]]
    return TxVerdict::kTooLong;
  if (plan.pieces > kMaxTxDescriptors) [[unlikely]]
    return TxVerdict::kTooManyPieces;
  return TxVerdict::kGood;
}

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_TX_PLAN_H_
