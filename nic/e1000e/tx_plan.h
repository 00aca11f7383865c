// SPDX-License-Identifier: Apache-2.0
//
// TxPlan: what the entries of one packet say beside where its bytes are (e1000e sheet 3.4, 3.5),
// and whether an offload that it asks for can be done. Pure functions of the packet, but for the
// header fields that the device wants preloaded. The thread of the queue.
#ifndef DMAKIT_NIC_E1000E_TX_PLAN_H_
#define DMAKIT_NIC_E1000E_TX_PLAN_H_

#include <cstdint>

#include "nic/e1000e/descriptors.h"
#include "nic/packet.h"
#include "nic/queue_counters.h"

namespace dmakit::nic::e1000e {

// No entry crosses a multiple of this. The chip could take 20,384 bytes at a time (sheet 3.3);
// QEMU's maps an entry's bytes in one go, which behind an IOMMU works within a page, and else only
// where the next page happens to be next in memory too: it then loses the packet without a word.
inline constexpr uint32_t kPieceBoundary = 4096;
// Of one packet. Not the chip's limit: it bounds what one packet keeps others waiting.
inline constexpr uint32_t kMaxPieces = 60;
static_assert(kMaxPieces + 2 < kMinRing, "a packet, its context and padding fit any empty ring");

// The chip pads short frames (TCTL.PSP), but must not be given less than this.
inline constexpr uint32_t kMinTxFrame = 17;
static_assert(kMinTxFrame - 1 <= kDescriptorBytes, "the zeros behind the ring are enough");

struct TxPlan {
  uint32_t pieces = 0;   // entries with data, at most
  uint32_t padding = 0;  // bytes of zeros, in the last of them
  uint64_t bytes = 0;    // of the packet, without padding
  bool offload = false;  // `context` must be in force
  Words context{};
  // What the data entries say beside address, length and end.
  uint64_t high = Encode(TxData{.ifcs = true, .dext = true}).high;
};

struct TxLimits {
  uint32_t max_frame = 0;  // bytes of a frame on the wire, an inserted tag included
  bool vlan = false;       // the device inserts tags: see DriverOptions::vlan_strip
};

// For a packet with tx flags, of `total` bytes in plan.pieces entries.
TxVerdict PlanOffload(const Packet& packet, uint64_t total, const TxLimits& limits, TxPlan& plan);

// The same for any packet; also counts its entries.
inline TxVerdict PlanTx(const Packet& packet, const TxLimits& limits, TxPlan& plan) {
  for (const Segment& segment : packet.parts()) {
    if (segment.length == 0) continue;
    plan.bytes += segment.length;
    plan.pieces += (segment.length + kPieceBoundary - 2) / kPieceBoundary + 1;
  }
  const uint64_t total = plan.bytes;
  if (total == 0) [[unlikely]]
    return TxVerdict::kEmpty;
  if (plan.pieces > kMaxPieces) [[unlikely]]
    return TxVerdict::kTooManyPieces;
  if (total < kMinTxFrame) [[unlikely]] {
    plan.padding = kMinTxFrame - static_cast<uint32_t>(total);
    ++plan.pieces;
  }
  if (packet.tx != TxFlags::kNone) [[unlikely]]
    return PlanOffload(packet, total, limits, plan);
  if (total > limits.max_frame) [[unlikely]]
    return TxVerdict::kTooLong;
  return TxVerdict::kGood;
}

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_TX_PLAN_H_
