// SPDX-License-Identifier: Apache-2.0
//
// The entries of an 82574L's rings as the words that CPU and device share. There is no valid bit:
// the device owns [head, tail), so plain stores are enough and the write of the tail publishes
// them. The device gives an entry back by its DD bit, which is read first, with acquire.
#ifndef DMAKIT_NIC_E1000E_RING_SLOTS_H_
#define DMAKIT_NIC_E1000E_RING_SLOTS_H_

#include <cstddef>
#include <cstdint>

#include "dma/shared.h"
#include "nic/e1000e/descriptors.h"

namespace dmakit::nic::e1000e {

// Extended receive entry (e1000e sheet 3.2): what the device writes back destroys the address.
struct RxSlot {
  dma::SharedLe64 low;
  dma::SharedLe32 status_error;
  dma::SharedLe32 length_vlan;

  // With the status zeroed: a DD left there would be seen at once.
  void Post(uint64_t address) {
    low.Store(address);
    status_error.Store(0);
    length_vlan.Store(0);
  }
  // For who has seen DD in `status`, read with LoadAcquire.
  Words LoadRest(uint32_t status) const {
    return {low.Load(), uint64_t{status} | uint64_t{length_vlan.Load()} << 32};
  }
};
static_assert(sizeof(RxSlot) == kDescriptorBytes);
static_assert(offsetof(RxSlot, status_error) == 8 && offsetof(RxSlot, length_vlan) == 12);

// Data or context entry (sheet 3.4, 3.5). The device writes back the last word only.
struct TxSlot {
  dma::SharedLe64 low;
  dma::SharedLe32 command;
  dma::SharedLe32 status;

  void Store(const Words& words) {
    low.Store(words.low);
    command.Store(static_cast<uint32_t>(words.high));
    status.Store(static_cast<uint32_t>(words.high >> 32));
  }
  bool Done() const { return (status.LoadAcquire() & kTxDone) != 0; }
};
static_assert(sizeof(TxSlot) == kDescriptorBytes);
static_assert(offsetof(TxSlot, command) == 8 && offsetof(TxSlot, status) == 12);

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_RING_SLOTS_H_
