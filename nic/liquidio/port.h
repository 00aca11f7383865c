// SPDX-License-Identifier: Apache-2.0
//
// Port: a LiquidIO behind the type-erased nic::Port; nic/frag_port.h has what it is made of. Create
// touches nothing of the device.
#ifndef DMAKIT_NIC_LIQUIDIO_PORT_H_
#define DMAKIT_NIC_LIQUIDIO_PORT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "nic/frag_port.h"
#include "nic/liquidio/driver.h"
#include "nic/port.h"
#include "nic/rx_pool.h"

namespace dmakit::nic::liquidio {

struct PortTraits {
  using Driver = liquidio::Driver<>;
  using DriverOptions = liquidio::DriverOptions;
  using Registers = Function;

  static DriverOptions OptionsOf(const PortOptions& options) {
    return {.ring_size = options.ring_size,
            .mtu = options.mtu,
            .buffer_bytes = BufferBytes(options.mtu),
            .vlan_strip = options.vlan_strip,
            .interrupts = options.interrupts,
            .coalescing = options.coalescing,
            .stop_deadline = options.stop_deadline};
  }
  static absl::Status Check(const DriverOptions& options, size_t rx_queues, size_t tx_queues) {
    return DriverBase::CheckOptions(options, rx_queues, tx_queues);
  }
  static RxBuffers BuffersOf(const PortOptions& options) {
    return {options.ring_size, BufferBytes(options.mtu)};
  }

  // A whole frame with what the device puts in front of it in either mode, as long as that is no
  // more than the hardware's drivers use; longer frames take several buffers.
  static uint32_t BufferBytes(uint32_t mtu) {
    const uint32_t whole = mtu + kFrameOverhead + kUsualSkip;
    return std::clamp((whole + 7) / 8 * 8, kMinBuffer, kBufferModeBuffer);
  }
  static constexpr uint32_t kUsualSkip = 24;  // length, header, hash
};

using Port = FragPort<PortTraits>;

}  // namespace dmakit::nic::liquidio

namespace dmakit::nic {
extern template class FragPort<liquidio::PortTraits>;
}

#endif  // DMAKIT_NIC_LIQUIDIO_PORT_H_
