// SPDX-License-Identifier: Apache-2.0
//
// What a write-back says about its frame, in the words of nic/packet.h (e1000e sheet 3.2). A
// checksum is known only if the device looked at it, and that of TCP or UDP is not known to be good
// behind a bad IP header. Pure function.
#ifndef DMAKIT_NIC_E1000E_RX_FLAGS_H_
#define DMAKIT_NIC_E1000E_RX_FLAGS_H_

#include "nic/e1000e/descriptors.h"
#include "nic/packet.h"

namespace dmakit::nic::e1000e {

// `strip`: tags are taken out; else the device may say no more than that there is one.
constexpr RxFlags RxFlagsOf(const RxWriteBack& done, RxForm form, bool strip) {
  const uint32_t status = done.status_error;
  RxFlags flags = RxFlags::kNone;
  if (strip && (status & kRxVlan) != 0) flags = flags | RxFlags::kVlanStripped;
  if (form == RxForm::kHash && done.rss_type != 0) flags = flags | RxFlags::kRssHash;
  if ((status & kRxIgnoreChecksum) != 0) return flags;
  if ((status & kRxIpChecksum) != 0) {
    flags = flags | ((status & kRxErrorIpChecksum) != 0 ? RxFlags::kIpv4ChecksumBad
                                                        : RxFlags::kIpv4ChecksumGood);
  }
  if ((status & (kRxTcpChecksum | kRxUdpChecksum)) == 0) return flags;
  if ((status & kRxErrorL4Checksum) != 0) return flags | RxFlags::kL4ChecksumBad;
  return Has(flags, RxFlags::kIpv4ChecksumBad) ? flags : flags | RxFlags::kL4ChecksumGood;
}

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_RX_FLAGS_H_
