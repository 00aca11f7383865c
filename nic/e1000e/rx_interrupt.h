// SPDX-License-Identifier: Apache-2.0
//
// RxInterrupt: a receive queue's side of its interrupt. A message clears and masks its cause (see
// Chip::SetUpInterrupts); while it is masked, write-backs set the cause again and send nothing.
// Thread: the queue's.
#ifndef DMAKIT_NIC_E1000E_RX_INTERRUPT_H_
#define DMAKIT_NIC_E1000E_RX_INTERRUPT_H_

#include <cstdint>

#include "dma/mmio.h"
#include "nic/e1000e/registers.h"

namespace dmakit::nic::e1000e {

class RxInterrupt {
 public:
  RxInterrupt() = default;  // there is none
  RxInterrupt(const dma::MmioRegion& bar0, uint32_t queue)
      : bar_(bar0), cause_(icr::RxQueue(queue)) {}

  bool there() const { return cause_ != 0; }

  // Forgets the cause of what has been received, and unmasks. Who looks at the ring after it sees
  // every write-back whose cause was forgotten here: the register read at the end waits for both
  // writes to arrive, and for what the device wrote before. A later write-back sends a message.
  void Unmask() const {
    bar_.Write32(OffsetOf(Reg::kIcr), cause_);
    bar_.Write32(OffsetOf(Reg::kIms), cause_);
    (void)bar_.Read32(OffsetOf(Reg::kStatus));
  }

 private:
  dma::MmioRegion bar_;
  uint32_t cause_ = 0;
};

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_RX_INTERRUPT_H_
