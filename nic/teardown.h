// SPDX-License-Identifier: Apache-2.0
//
// What every driver's Stop needs: a clock for its deadline, a list of what went wrong, and a place
// for rings that the device does not let go of. Control thread of the driver.
#ifndef DMAKIT_NIC_TEARDOWN_H_
#define DMAKIT_NIC_TEARDOWN_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "dma/address_space.h"
#include "dma/device.h"
#include "dma/poll.h"
#include "dma/quarantine.h"
#include "dma/ring_pool.h"
#include "dma/types.h"

namespace dmakit::nic {

// One deadline for a whole Stop: half of it for packets that are still to be sent, all of it for
// the device to let go, and at least 10 ms for that. The waiter outlives it.
class StopDeadline {
 public:
  StopDeadline(dma::Waiter& waiter, dma::Nanos total);
  dma::Nanos ToDrain() const;
  dma::Nanos ToHalt() const;

 private:
  dma::Nanos Left(dma::Nanos total) const;
  dma::Waiter& waiter_;
  dma::Nanos start_;
  dma::Nanos total_;
};

// What did not end as it should, in words: "enic0 wq 0: 3 packets not sent; ...".
class StopProblems {
 public:
  void Add(std::string_view label, std::string_view what);
  void Add(const absl::Status& status);
  bool empty() const { return text_.empty(); }
  // DeadlineExceeded with all of them, or OK. `name`: the device's.
  absl::Status ToStatus(std::string_view name) const;

 private:
  std::string text_;
};

// A ring could not be filled. ResourceExhausted.
absl::Status NoRxBuffer(std::string_view label, std::string_view why);
// Why a source has no buffer, where it can tell.
template <typename Source>
std::string WhyNoRxBuffer(const Source& source) {
  if constexpr (requires { source.pool().LastFailure(); }) {
    return std::string(source.pool().LastFailure().message());
  } else {
    return "the buffer source is empty";
  }
}

// Holds what the device may still read or write, until it was reset.
template <typename T>
void QuarantineRing(dma::Device& device, std::string_view owner, std::string_view reason,
                    dma::RingPool<T> ring) {
  if (ring.empty()) return;
  const Range range{ring.iova(), ring.size()};
  // A std::function is copied; the ring has one owner.
  auto held = std::make_shared<dma::RingPool<T>>(std::move(ring));
  device.address_space().quarantine().Hold({.device = std::string(device.name()),
                                            .owner = std::string(owner),
                                            .reason = std::string(reason),
                                            .range = range,
                                            .bytes = range.size,
                                            .release = [held]() -> absl::Status {
                                              *held = {};
                                              return absl::OkStatus();
                                            }});
}

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_TEARDOWN_H_
