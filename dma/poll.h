// SPDX-License-Identifier: Apache-2.0
//
// Waiting for a device. Every wait in the library is PollUntil: on a stepped software device it
// lets the device do a step and a fake clock advance, on silicon it pauses, and it always has a
// deadline.
#ifndef DMAKIT_DMA_POLL_H_
#define DMAKIT_DMA_POLL_H_

#include <utility>

#include "dma/types.h"

namespace dmakit::dma {

// How time passes for one device. Supplied when the device is attached; see Device::waiter().
class Waiter {
 public:
  virtual ~Waiter() = default;
  virtual Nanos Now() = 0;
  // Lets the device make progress: steps a model, or pauses the processor.
  virtual void Pause() = 0;
};

// Silicon, and models with a thread of their own: yields, on the system's clock. Stateless; usable
// by any thread.
Waiter& SystemWaiter();

// True as soon as `done()` is; false when `timeout` has passed without. `done` is tried at least
// once, and once more after the deadline, so a slow machine does not time out on a device that was
// ready. Time that goes back (a machine was suspended or moved) makes no wait longer.
template <typename Predicate>
[[nodiscard]] bool PollUntil(Waiter& waiter, Nanos timeout, Predicate&& done) {
  Nanos last = waiter.Now();
  Nanos passed{0};  // compared, never added to a timeout, which may be Nanos::max()
  while (!done()) {
    const Nanos now = waiter.Now();
    if (now > last) passed += now - last;
    last = now;
    if (passed >= timeout) return done();
    waiter.Pause();
  }
  return true;
}

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_POLL_H_
