// SPDX-License-Identifier: Apache-2.0
//
// The backend "enic": a Cisco VIC's vNIC, as a software model behind a software IOMMU. For programs
// that choose their NIC by name; nothing else of enic needs it.
#ifndef DMAKIT_NIC_ENIC_BACKEND_H_
#define DMAKIT_NIC_ENIC_BACKEND_H_

#include <memory>

#include "nic/backend.h"

namespace dmakit::nic::enic {

// Keys:
//   lossless=1|0   1 (default): a frame waits on the wire until its queue has a buffer. 0: it is
//                  dropped and counted as device_no_buffer, as on a real wire.
//   hostile=SEED   1 to 2^64-1: the device misbehaves at random, the same way for the same seed. It
//                  must be stepped: not with a thread of its own.
std::unique_ptr<nic::Backend> NewBackend();

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_BACKEND_H_
