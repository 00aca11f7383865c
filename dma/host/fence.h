// SPDX-License-Identifier: Apache-2.0
//
// The real asymmetric fence: Linux's membarrier(2), private expedited. Its fast side costs a
// compiler barrier, its heavy side interrupts every processor that runs a thread of this process.
#ifndef DMAKIT_DMA_HOST_FENCE_H_
#define DMAKIT_DMA_HOST_FENCE_H_

#include "iova/fence.h"

namespace dmakit::dma::host {

// Registers the process when constructed. Where the kernel refuses (old kernel, seccomp)
// available() is false and stays so: whoever needs the fence then locks instead, and says so.
class MembarrierFence final : public iova::AsymmetricFence {
 public:
  MembarrierFence();
  bool available() const override { return available_; }
  void HeavyBarrier() override;

 private:
  bool available_ = false;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_FENCE_H_
