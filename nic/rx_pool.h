// SPDX-License-Identifier: Apache-2.0
//
// The page pool of one receive ring: how large its pages are, and how much memory it may use.
// Shared by all backends whose buffers are page fragments. Set-up only; one control thread.
#ifndef DMAKIT_NIC_RX_POOL_H_
#define DMAKIT_NIC_RX_POOL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/address_space.h"
#include "dma/poll.h"
#include "frag/page_pool.h"
#include "iova/types.h"
#include "nic/port.h"

namespace dmakit::nic {

inline constexpr uint32_t kMinMtu = 68;
inline constexpr uint32_t kMaxMtu = 9000;
inline constexpr uint32_t kFrameOverhead = 18;   // Ethernet header and one VLAN tag
inline constexpr uint32_t kMaxHeadroom = 16384;  // four pages

// What a port's options mean for the memory of one receive ring.
struct RxPoolPlan {
  uint32_t capacity = 0;     // of a buffer: bytes the device may write
  uint32_t buffer_size = 0;  // what fragments are cut to: headroom and capacity, rounded up to 64
  unsigned order = 0;        // of its pages: the one asked for, or the one that fits buffers best
  unsigned min_order = 0;    // the smallest page that holds a buffer
  uint32_t fill_pages = 0;   // pages of `order` that fill the ring
  // Beyond fill_pages: extra_pages, and under the deferred policy as many again as fill the ring
  // (16 to 256), which is what waits for a common flush.
  uint32_t spare_pages = 0;
  Bytes max_bytes{0};
};

// `buffers` is the most the ring has posted. `capacity`: 0 for one that holds a whole frame.
// InvalidArgument for mtu, headroom and page order names value, rule and remedy.
absl::StatusOr<RxPoolPlan> PlanRxPool(const PortOptions& options, uint32_t buffers,
                                      uint32_t capacity = 0);

// Makes the pool. It takes no memory before the ring is filled.
absl::StatusOr<std::unique_ptr<frag::PagePool>> NewRxPool(dma::AddressSpace& space,
                                                          const PortOptions& options,
                                                          const RxPoolPlan& plan, std::string label,
                                                          dma::Waiter& waiter);

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_RX_POOL_H_
