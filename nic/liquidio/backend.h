// SPDX-License-Identifier: Apache-2.0
//
// The backend "liquidio": a Cavium CN23XX, physical or virtual function, as a software model behind
// a software IOMMU. For programs that choose their NIC by name; nothing else of liquidio needs it.
#ifndef DMAKIT_NIC_LIQUIDIO_BACKEND_H_
#define DMAKIT_NIC_LIQUIDIO_BACKEND_H_

#include <memory>

#include "nic/backend.h"

namespace dmakit::nic::liquidio {

// Keys:
//   function=pf|vf     pf (default): 64 rings; vf: 8.
//   mode=info|buffer   info (default): what is said of a received packet stands in an info buffer
//                      beside the ring; buffer: in front of its bytes.
//   lossless=1|0       1 (default): a frame waits on the wire until its queue has buffers. 0: it is
//                      dropped, as on a real wire.
//   hostile=SEED       1 to 2^64-1: the device misbehaves at random, the same way for the same
//                      seed. It must be stepped: not with a thread of its own.
//   counters=N         0 (default) to 4294967295: what the rings' counters start at, for tests of
//                      their wrap.
std::unique_ptr<nic::Backend> NewBackend();

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_BACKEND_H_
