// SPDX-License-Identifier: Apache-2.0
//
// What has to be right in a frame before a device can finish it: the offsets an application gave,
// and the fields that devices of this kind want preloaded. One function for all backends, called by
// their transmit queues for packets that ask for an offload. No state; the thread of the queue.
#ifndef DMAKIT_NIC_TX_OFFLOAD_H_
#define DMAKIT_NIC_TX_OFFLOAD_H_

#include <cstdint>

#include "nic/packet.h"

namespace dmakit::nic {

// The headers of a packet that asks for a checksum or for segmentation.
struct TxHeaders {
  uint16_t l3 = 0;       // where the IP header starts
  uint16_t l4 = 0;       // the TCP or UDP header; 0: only IPv4's own checksum was asked for
  uint16_t payload = 0;  // behind the TCP or UDP header
  bool ipv6 = false;
  bool tcp = false;
  bool padded = false;  // the frame goes on behind the IP packet
};

// Checks what packet.tx asks for (kVlanInsert is not looked at) against the headers, which must lie
// in the first segment: offsets, versions, lengths; kTso: TCP, not a fragment, something to send,
// `segment_size` not 0, at most 65535 bytes in all. Then it writes into the first segment: with
// kL4Checksum or kTso the pseudo header's sum into the TCP or UDP checksum (kTso: without the
// length, which differs for each frame), with kIpv4Checksum or kTso zero into IPv4's.
//
// kTso implies the checksums of every frame that is sent. False: the request does not fit the
// frame; nothing is written.
[[nodiscard]] bool PrepareTxOffload(const Packet& packet, TxHeaders& headers);

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_TX_OFFLOAD_H_
