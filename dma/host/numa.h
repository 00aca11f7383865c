// SPDX-License-Identifier: Apache-2.0
//
// The NumaPlacer on libnuma, in a target of its own because nothing else here needs that library.
// Hand it to HostMemory::Options::numa. It places address space, it moves nothing. Stateless; any
// thread.
#ifndef DMAKIT_DMA_HOST_NUMA_H_
#define DMAKIT_DMA_HOST_NUMA_H_

#include <span>

#include "absl/status/status.h"
#include "dma/host/host_memory.h"

namespace dmakit::dma::host {

class SystemNuma final : public NumaPlacer {
 public:
  // How many nodes there are; 0 where the kernel knows no NUMA. Then kPrefer is accepted and
  // without effect, and kEnforce is accepted for node 0 alone.
  static int nodes();

  // InvalidArgument: a node that does not exist, enforced. ResourceExhausted: the node enforced has
  // less memory free than `memory` holds. A preferred node that does not exist counts as any.
  absl::Status Place(std::span<std::byte> memory, const NumaPolicy& policy) override;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_NUMA_H_
