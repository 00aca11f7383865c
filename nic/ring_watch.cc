// SPDX-License-Identifier: Apache-2.0

#include "nic/ring_watch.h"

namespace dmakit::nic {

void RingWatch::Posted(Iova base, uint32_t length, dma::Direction direction,
                       dma::RedZones zones) const {
  dma::Observer* const observer = device_->observer();
  if (observer == nullptr) return;
  observer->OnPosted(*device_, {{base, Bytes{length}}, direction, ring_, zones});
}

void RingWatch::Completed(Iova base, uint32_t written) const {
  dma::Observer* const observer = device_->observer();
  if (observer != nullptr) observer->OnCompleted(*device_, base, Bytes{written});
}

}  // namespace dmakit::nic
