// SPDX-License-Identifier: Apache-2.0
//
// TxPlan: what the entries of one packet say beside where its bytes are (e1000e sheet 3.4, 3.5),
// and whether an offload that it asks for can be done. Pure functions of the packet, but for the
// header fields that an offload wants preloaded. The thread of the queue.
#ifndef DMAKIT_NIC_E1000E_TX_PLAN_H_
#define DMAKIT_NIC_E1000E_TX_PLAN_H_

#include <cstdint>

#include "nic/e1000e/descriptors.h"
#include "nic/packet.h"
#include "nic/queue_counters.h"

namespace dmakit::nic::e1000e {

// Of one data entry, in bytes. The limit of the silicon is not public; this is below all that
// drivers use, and less than half of the smallest packet buffer that transmit has.
inline constexpr uint32_t kMaxPiece = 8192;
// A shorter frame must not be given to a device that pads (TCTL.PSP); it is padded up to this.
inline constexpr uint32_t kMinTxFrame = 17;
inline constexpr uint32_t kMaxTsoPacket = 65535;  // bytes, headers included
// Every segment ends in a piece of its own; padding and a context entry.
inline constexpr uint32_t kMaxTxEntries = Packet::kMaxSegments + kMaxTsoPacket / kMaxPiece + 2;
static_assert(kMaxTxEntries < kMinRing, "any packet fits an empty ring");

struct TxLimits {
  uint32_t max_frame = 1518;  // bytes on the wire without FCS, an inserted tag included
  bool vlan_insert = false;
};

struct TxPlan {
  uint32_t pieces = 0;  // data entries
  uint32_t pad = 0;     // bytes, in the last piece; 0: that one is not there
  // What every data entry says beside address, length and the last one's flags.
  uint64_t every = Encode(TxData{.ifcs = true, .dext = true}).high;
  bool needs_context = false;
  Words context;
};

// For a packet with tx flags, of `total` bytes.
TxVerdict PlanOffload(const Packet& packet, uint64_t total, const TxLimits& limits, TxPlan& plan);

// The same for any packet; also counts its entries.
inline TxVerdict PlanTx(const Packet& packet, const TxLimits& limits, TxPlan& plan) {
  uint64_t total = 0;
  for (const Segment& segment : packet.parts()) {
    total += segment.length;
    plan.pieces += (segment.length + kMaxPiece - 1) / kMaxPiece;
  }
  if (total == 0) [[unlikely]]
    return TxVerdict::kEmpty;
  if (total < kMinTxFrame) [[unlikely]] {
    plan.pad = kMinTxFrame - static_cast<uint32_t>(total);
    ++plan.pieces;
  }
  if (packet.tx != TxFlags::kNone) [[unlikely]]
    return PlanOffload(packet, total, limits, plan);
  return total > limits.max_frame ? TxVerdict::kTooLong : TxVerdict::kGood;
}

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_TX_PLAN_H_
