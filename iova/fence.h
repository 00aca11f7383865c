// SPDX-License-Identifier: Apache-2.0
//
// AsymmetricFence is the edge to the one thing the caches need from the system: a barrier paid for
// only by the rare side. After `HeavyBarrier` every other running thread of the process has passed
// a full memory barrier, so the frequent side gets by with plain stores and a compiler barrier. No
// implementation here: this folder makes no system calls. Any thread.

#ifndef DMAKIT_IOVA_FENCE_H_
#define DMAKIT_IOVA_FENCE_H_

namespace dmakit::iova {

class AsymmetricFence {
 public:
  virtual ~AsymmetricFence() = default;

  // Whether `HeavyBarrier` works here. Asked once per Space; the answer must hold from then on.
  virtual bool available() const = 0;

  // Returns only after every thread of the process that was running has executed a full barrier
  // since the call began. Called only when `available()`; it cannot fail then.
  virtual void HeavyBarrier() = 0;
};

}  // namespace dmakit::iova

#endif  // DMAKIT_IOVA_FENCE_H_
