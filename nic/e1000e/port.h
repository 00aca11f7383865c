// SPDX-License-Identifier: Apache-2.0
//
// Port: an 82574L behind the type-erased nic::Port; nic/frag_port.h has what it is made of. Bus
// mastering must be on before Start.
#ifndef DMAKIT_NIC_E1000E_PORT_H_
#define DMAKIT_NIC_E1000E_PORT_H_

#include <cstddef>

#include "absl/status/status.h"
#include "dma/mmio.h"
#include "nic/e1000e/driver.h"
#include "nic/frag_port.h"
#include "nic/port.h"

namespace dmakit::nic::e1000e {

struct PortTraits {
  using Driver = e1000e::Driver<>;
  using DriverOptions = e1000e::DriverOptions;
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
  // The device writes as much as fits a buffer of its own size, however long a frame may be.
  static RxBuffers BuffersOf(const PortOptions& options) {
    return {.count = options.ring_size - 1,
            .capacity = RxBufferBytes(options.mtu + kFrameOverhead)};
  }
};

using Port = FragPort<PortTraits>;

}  // namespace dmakit::nic::e1000e

namespace dmakit::nic {
extern template class FragPort<e1000e::PortTraits>;
}

#endif  // DMAKIT_NIC_E1000E_PORT_H_
