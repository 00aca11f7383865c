// SPDX-License-Identifier: Apache-2.0
//
// What a receive completion says about its frame, in the words of nic/packet.h. Pure function.
#ifndef DMAKIT_NIC_ENIC_RX_FLAGS_H_
#define DMAKIT_NIC_ENIC_RX_FLAGS_H_

#include "nic/enic/descriptors.h"
#include "nic/packet.h"

namespace dmakit::nic::enic {

// Enic sheet 1.5. A checksum is known only if it was calculated, and that of TCP or UDP means
// nothing unless the network header was good.
constexpr RxFlags RxFlagsOf(const CqEnetRqDesc& done) {
  RxFlags flags = RxFlags::kNone;
  if (done.vlan_stripped) flags = flags | RxFlags::kVlanStripped;
  if (done.rss_type != RssType::kNone && done.rss_hash != 0) flags = flags | RxFlags::kRssHash;
  if (done.csum_not_calc) return flags;
  if (done.ipv4) {
    flags = flags | (done.ipv4_csum_ok ? RxFlags::kIpv4ChecksumGood : RxFlags::kIpv4ChecksumBad);
  }
  if ((done.tcp || done.udp) && !done.ipv4_fragment) {
    if (!done.tcp_udp_csum_ok) return flags | RxFlags::kL4ChecksumBad;
    if (done.ipv4_csum_ok || done.ipv6) flags = flags | RxFlags::kL4ChecksumGood;
  }
  return flags;
}

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_RX_FLAGS_H_
