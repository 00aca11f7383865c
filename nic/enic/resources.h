// SPDX-License-Identifier: Apache-2.0
//
// The resource table at the start of BAR 0 (enic sheet 2.1): where this NIC has its queues and its
// command region, and how many. Set-up only; one control thread.
#ifndef DMAKIT_NIC_ENIC_RESOURCES_H_
#define DMAKIT_NIC_ENIC_RESOURCES_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "dma/mmio.h"

namespace dmakit::nic::enic {

// `count` control blocks, the first at `offset`.
struct ResourceWindow {
  uint32_t offset = 0;
  uint32_t count = 0;
};

struct ResourceMap {
  ResourceWindow wq;
  ResourceWindow rq;
  ResourceWindow cq;
  ResourceWindow intr;  // may be empty: a polling driver needs none
  ResourceWindow devcmd;
};

// The table comes from the device and is believed only as far as it can be checked: everything used
// later lies inside the BAR, is aligned, and is listed once. Errors name the device and the entry.
absl::StatusOr<ResourceMap> ReadResources(const dma::MmioRegion& bar0, std::string_view device);

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_RESOURCES_H_
