// SPDX-License-Identifier: Apache-2.0
//
// The e1000e backend: a real 82574L, by VFIO, or QEMU's. See nic/backend.h. A program registers it
// by a call:
//
//   registry.Register(dmakit::nic::e1000e::NewBackend());
#ifndef DMAKIT_NIC_E1000E_BACKEND_H_
#define DMAKIT_NIC_E1000E_BACKEND_H_

#include <memory>

#include "dma/host/vfio_kernel.h"
#include "nic/backend.h"

namespace dmakit::nic::e1000e {

// `kernel` outlives the backend; nullptr: the system's, one of the backend's own.
std::unique_ptr<nic::Backend> NewBackend(dma::host::VfioKernel* kernel = nullptr);

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_BACKEND_H_
