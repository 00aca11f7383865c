// SPDX-License-Identifier: Apache-2.0
//
// The waiter of silicon and of models that run by themselves: the system's monotonic clock, and the
// processor given away between two looks.
#include "dma/poll.h"

#include <chrono>
#include <thread>

namespace dmakit::dma {
namespace {

class Yielding final : public Waiter {
 public:
  Nanos Now() override {
    return std::chrono::duration_cast<Nanos>(std::chrono::steady_clock::now().time_since_epoch());
  }
  void Pause() override { std::this_thread::yield(); }
};

}  // namespace

Waiter& SystemWaiter() {
  static Yielding waiter;
  return waiter;
}

}  // namespace dmakit::dma
