// SPDX-License-Identifier: Apache-2.0
//
// What the tests of e1000e start from: the rig of tests/nic/nic_rig.h with a FakeNic in it.
#ifndef DMAKIT_TESTS_NIC_E1000E_TESTING_H_
#define DMAKIT_TESTS_NIC_E1000E_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "dma/mmio.h"
#include "nic/e1000e/driver.h"
#include "nic/e1000e/port.h"
#include "tests/nic/e1000e/fake_nic.h"
#include "tests/nic/nic_rig.h"
#include "tests/nic/tx_rig.h"

namespace dmakit::nic::e1000e {

struct Kit {
  using Model = FakeNic;
  using ModelOptions = FakeNicOptions;
  using Port = e1000e::Port;
  struct Extra {};
  using TxDriver = Driver<FragSource, CountingAddressing>;
  static constexpr const char* kName = "e1000e0";
  static constexpr size_t kBarBytes = e1000e::kBarBytes;
  static dma::MmioRegion Registers(const dma::MmioRegion& bar, const Extra&) { return bar; }
  static DriverOptions TxOptions(uint32_t ring, uint32_t mtu) {
    return {.ring_size = ring, .mtu = mtu, .vlan_strip = true};
  }
};
using Rig = NicRig<Kit>;
using RigOptions = NicRigOptions<Kit>;

struct TxRig : NicTxRig<Rig, Kit> {
  explicit TxRig(uint32_t ring = 64, uint32_t mtu = 9000, RigOptions options = {})
      : NicTxRig(ring, mtu, std::move(options)) {}
};

// Small enough for a thousand of them.
inline RigOptions Small(dma::Policy policy = dma::Policy::kPersistent) {
  RigOptions options;
  options.port = {.rx_queues = 2,
                  .tx_queues = 2,
                  .ring_size = 64,
                  .mtu = 9000,
                  .policy = policy,
                  .stop_deadline = dma::Nanos{2'000'000}};
  return options;
}

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_TESTS_NIC_E1000E_TESTING_H_
