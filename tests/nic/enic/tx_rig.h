// SPDX-License-Identifier: Apache-2.0
//
// One transmit queue of enic on a model (tests/nic/tx_rig.h).
#ifndef DMAKIT_TESTS_NIC_ENIC_TX_RIG_H_
#define DMAKIT_TESTS_NIC_ENIC_TX_RIG_H_

#include <cstdint>

#include "nic/enic/driver.h"
#include "nic/frag_source.h"
#include "tests/nic/enic/testing.h"
#include "tests/nic/tx_rig.h"

namespace dmakit::nic::enic {

struct TxKit : Kit {
  using TxDriver = Driver<FragSource, CountingAddressing>;
  static DriverOptions TxOptions(uint32_t ring, uint32_t mtu) {
    return {.ring_size = ring, .mtu = mtu};
  }
};

struct TxRig : NicTxRig<Rig, TxKit> {
  explicit TxRig(uint32_t ring = 64, uint32_t mtu = 9000) : NicTxRig(ring, mtu) {}
  TxQueue<CountingAddressing>& tx() { return driver->tx(0); }
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_TESTS_NIC_ENIC_TX_RIG_H_
