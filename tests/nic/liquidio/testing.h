// SPDX-License-Identifier: Apache-2.0
//
// What the tests of liquidio start from: the rig of tests/nic/nic_rig.h with a LiquidIO in it, as
// its model or played by hand.
#ifndef DMAKIT_TESTS_NIC_LIQUIDIO_TESTING_H_
#define DMAKIT_TESTS_NIC_LIQUIDIO_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dma/mmio.h"
#include "nic/frag_source.h"
#include "nic/liquidio/driver.h"
#include "nic/liquidio/model.h"
#include "nic/liquidio/port.h"
#include "nic/queue.h"
#include "tests/nic/liquidio/hand_device.h"
#include "tests/nic/nic_rig.h"
#include "tests/nic/tx_rig.h"

namespace dmakit::nic::liquidio {

// How a test drives its function.
struct DrivenAs {
  bool vf = false;
  ReceiveMode mode = ReceiveMode::kInfo;
  uint32_t counter_start = 0;
};
inline Function FunctionOf(const dma::MmioRegion& bar, const DrivenAs& as) {
  return {.bar0 = bar, .vf = as.vf, .mode = as.mode, .counter_start = as.counter_start};
}

struct CommonKit {
  using Port = liquidio::Port;
  using Extra = DrivenAs;
  using TxDriver = Driver<FragSource, CountingAddressing>;
  static constexpr const char* kName = "liquidio0";
  static Function Registers(const dma::MmioRegion& bar, const Extra& as) {
    return FunctionOf(bar, as);
  }
  static DriverOptions TxOptions(uint32_t ring, uint32_t mtu) {
    return {.ring_size = ring, .mtu = mtu};
  }
};

struct Kit : CommonKit {
  using Model = liquidio::Model;
  using ModelOptions = liquidio::ModelOptions;
  static constexpr size_t kBarBytes = size_t{kPfRings} * kRingStride;
};
using Rig = NicRig<Kit>;
using RigOptions = NicRigOptions<Kit>;

// Small enough for a thousand of them.
inline RigOptions Small(dma::Policy policy = dma::Policy::kPersistent) {
  RigOptions options;
  options.port = {.rx_queues = 2,
                  .tx_queues = 2,
                  .ring_size = 128,
                  .mtu = 9000,
                  .policy = policy,
                  .stop_deadline = dma::Nanos{2'000'000}};
  return options;
}

struct HandKit : CommonKit {
  using Model = HandDevice;
  using ModelOptions = HandOptions;
  static constexpr size_t kBarBytes = HandDevice::kBarBytes;
};
using HandRig = NicRig<HandKit>;
using HandRigOptions = NicRigOptions<HandKit>;

struct HandTxRig : NicTxRig<HandRig, HandKit> {
  explicit HandTxRig(uint32_t ring = 128, uint32_t mtu = 9000, HandRigOptions options = {})
      : NicTxRig(ring, mtu, std::move(options)) {}
  HandDevice::Ring& ring0() { return model.ring(0); }
};

inline constexpr ReceiveMode kModes[] = {ReceiveMode::kInfo, ReceiveMode::kBuffer};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_TESTS_NIC_LIQUIDIO_TESTING_H_
