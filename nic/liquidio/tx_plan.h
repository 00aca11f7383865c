// SPDX-License-Identifier: Apache-2.0
//
// TxPlan: what the instruction of one packet says beside where its bytes are (liquidio sheet 2),
// and whether an offload that it asks for can be done. Pure functions of the packet, but for the
// checksum fields that PrepareTxOffload writes. The thread of the queue.
#ifndef DMAKIT_NIC_LIQUIDIO_TX_PLAN_H_
#define DMAKIT_NIC_LIQUIDIO_TX_PLAN_H_

#include <cstdint>

#include "nic/liquidio/descriptors.h"
#include "nic/packet.h"
#include "nic/queue_counters.h"

namespace dmakit::nic::liquidio {

// The longest frame that is segmented (sheet 7).
inline constexpr uint32_t kMaxTsoFrame = 60000;

struct TxPlan {
  uint32_t pieces = 0;  // segments that have bytes
  uint32_t bytes = 0;   // of all of them
  // Added to what the words say of any packet; nothing for one without offloads.
  uint64_t irh = 0;
  uint64_t ossp0 = 0;
};

// For a packet with tx flags. `max_frame`: bytes of a frame on the wire, an inserted tag included.
TxVerdict PlanOffload(const Packet& packet, uint64_t total, uint32_t max_frame, TxPlan& plan);

// The same for any packet; also counts its pieces. A good one has at most kMaxTsoFrame bytes, so a
// piece fits an element of a gather list.
inline TxVerdict PlanTx(const Packet& packet, uint32_t max_frame, TxPlan& plan) {
  uint64_t total = 0;
  for (const Segment& segment : packet.parts()) {
    total += segment.length;
    plan.pieces += segment.length != 0;
  }
  if (total == 0) [[unlikely]]
    return TxVerdict::kEmpty;
  if (packet.tx != TxFlags::kNone) [[unlikely]]
    return PlanOffload(packet, total, max_frame, plan);
  if (total > max_frame) [[unlikely]]
    return TxVerdict::kTooLong;
  plan.bytes = static_cast<uint32_t>(total);
  return TxVerdict::kGood;
}

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_TX_PLAN_H_
