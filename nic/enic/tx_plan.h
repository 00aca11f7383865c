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

namespace dmakit::nic::enic {

struct TxPlan {
  uint32_t pieces = 0;  // descriptors
  OffloadMode mode = OffloadMode::kCsum;
  uint16_t mss = 0;
  uint16_t header_length = 0;
  bool insert_vlan = false;
  uint16_t vlan = 0;

  // Of the packet's first segment; address, length and flags are the queue's to fill in.
  WqEnetDesc First() const {
    WqEnetDesc d;
    d.mss = mss;
    d.header_length = header_length;
    d.offload_mode = mode;
    d.vlan_tag_insert = insert_vlan;
    d.vlan_tag = vlan;
    return d;
  }
};

enum class TxVerdict : uint8_t { kGood, kTooLong, kTooManyPieces, kDoesNotFit };

// For a packet with tx flags, of `total` bytes in plan.pieces descriptors. `max_frame`: bytes of a
// frame on the wire, an inserted tag included. `room`: descriptors of an empty ring.
//
// Of the two ways to ask for a transport checksum the one with offsets is used where it is enough;
// with IPv4's checksum, or bytes behind the IP packet, the device finds the headers itself.
TxVerdict PlanOffload(const Packet& packet, uint64_t total, uint32_t max_frame, uint32_t room,
                      TxPlan& plan);

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_TX_PLAN_H_
