// SPDX-License-Identifier: Apache-2.0
//
// What the write-back of a packet's last entry says about it, in the words of nic/packet.h. Pure
// function.
#ifndef DMAKIT_NIC_E1000E_RX_FLAGS_H_
#define DMAKIT_NIC_E1000E_RX_FLAGS_H_

#include <cstdint>

#include "nic/e1000e/descriptors.h"
#include "nic/packet.h"

namespace dmakit::nic::e1000e {

// E1000e sheet 3.1, 3.2. A checksum is known only if it was looked at, and that of TCP or UDP means
// nothing behind a bad IP header. `strip`: tags are taken out.
constexpr RxFlags RxFlagsOf(uint32_t status, bool strip) {
  RxFlags flags = RxFlags::kNone;
  if (strip && (status & kRxVlan) != 0) flags = flags | RxFlags::kVlanStripped;
  if ((status & kRxIgnoreChecksum) != 0) return flags;
  if ((status & kRxIpChecksum) != 0) {
    if ((status & kRxErrorIpChecksum) != 0) return flags | RxFlags::kIpv4ChecksumBad;
    flags = flags | RxFlags::kIpv4ChecksumGood;
  }
  if ((status & (kRxTcpChecksum | kRxUdpChecksum)) != 0) {
    const bool bad = (status & kRxErrorL4Checksum) != 0;
    flags = flags | (bad ? RxFlags::kL4ChecksumBad : RxFlags::kL4ChecksumGood);
  }
  return flags;
}

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_RX_FLAGS_H_
