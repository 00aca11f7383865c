// SPDX-License-Identifier: Apache-2.0
//
// RingWatch: how a queue tells a checker (dma::Observer, for example dma::Audit) which buffers its
// ring has. Without one it costs one branch per burst: ask on() once, and call the rest only if it
// is true.
//
// Posted before the device can see the descriptor; Completed when the device has let go of the
// buffer and before anybody else gets it, whatever the reason. A buffer the device may still use
// when its ring is given up is not completed. Thread: the queue's.
#ifndef DMAKIT_NIC_RING_WATCH_H_
#define DMAKIT_NIC_RING_WATCH_H_

#include <cstdint>
#include <string>
#include <utility>

#include "dma/device.h"
#include "dma/observer.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::nic {

class RingWatch {
 public:
  RingWatch() = default;  // tells nobody
  // The device outlives it. `ring` is the owner in reports: "enic0 rq 0".
  RingWatch(const dma::Device& device, std::string ring)
      : device_(&device), ring_(std::move(ring)) {}

  bool on() const { return device_ != nullptr && device_->observer() != nullptr; }

  // `length`: what the descriptor lets the device use.
  void Posted(Iova base, uint32_t length, dma::Direction direction, dma::RedZones zones = {}) const;
  // `written`: what the device says it wrote; 0 for what it only read, or never used.
  void Completed(Iova base, uint32_t written) const;

 private:
  const dma::Device* device_ = nullptr;
  std::string ring_;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_RING_WATCH_H_
