// SPDX-License-Identifier: Apache-2.0
//
// How much memory can still be filled before somebody is killed for it. The pages of a memfd are
// not under the kernel's overcommit check: filling more of them than there are does not fail, it
// brings the out-of-memory killer. So HostMemory asks first. An estimate, good for refusing what is
// out of the question; other processes may take the memory meanwhile. Stateless; any thread.
#ifndef DMAKIT_DMA_HOST_AVAILABLE_MEMORY_H_
#define DMAKIT_DMA_HOST_AVAILABLE_MEMORY_H_

#include <string>

#include "iova/types.h"

namespace dmakit::dma::host {

// The least of what the machine has (MemAvailable) and what the memory limits of this process's
// control group and its parents leave, in either version of control groups. 2^64 - 1 where nothing
// is known. The paths are a test's to change.
Bytes AvailableMemory(const std::string& proc = "/proc",
                      const std::string& groups = "/sys/fs/cgroup");

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_AVAILABLE_MEMORY_H_
