// SPDX-License-Identifier: Apache-2.0
//
// Port: an enic behind the type-erased nic::Port; nic/frag_port.h has what it is made of. Create
// touches nothing of the device but its resource table.
#ifndef DMAKIT_NIC_ENIC_PORT_H_
#define DMAKIT_NIC_ENIC_PORT_H_

#include <cstddef>

#include "absl/status/status.h"
#include "dma/mmio.h"
#include "nic/enic/driver.h"
#include "nic/frag_port.h"
#include "nic/port.h"

namespace dmakit::nic::enic {

struct PortTraits {
  using Driver = enic::Driver<>;
  using DriverOptions = enic::DriverOptions;
  using Registers = dma::MmioRegion;  // BAR 0

  static DriverOptions OptionsOf(const PortOptions& options) {
    return {.ring_size = options.ring_size,
            .mtu = options.mtu,
            .vlan_strip = options.vlan_strip,
            .interrupts = options.interrupts,
            .coalescing = options.coalescing,
            .stop_deadline = options.stop_deadline};
  }
  static absl::Status Check(const DriverOptions& options, size_t rx_queues, size_t tx_queues) {
    return DriverBase::CheckOptions(options, rx_queues, tx_queues);
  }
  static RxBuffers BuffersOf(const PortOptions& options) { return {options.ring_size - 1}; }
};

using Port = FragPort<PortTraits>;

}  // namespace dmakit::nic::enic

namespace dmakit::nic {
extern template class FragPort<enic::PortTraits>;
}

#endif  // DMAKIT_NIC_ENIC_PORT_H_
