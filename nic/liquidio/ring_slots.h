// SPDX-License-Identifier: Apache-2.0
//
// What a CN23XX's rings are made of, as the words that CPU and device share (liquidio sheet 2, 3,
// 5). For drivers; a model reaches them by IOVA. No word says whose a slot is: doorbells, credits
// and counters do, so plain stores are enough and the register write behind them publishes.
#ifndef DMAKIT_NIC_LIQUIDIO_RING_SLOTS_H_
#define DMAKIT_NIC_LIQUIDIO_RING_SLOTS_H_

#include <cstddef>
#include <cstdint>

#include "dma/shared.h"
#include "nic/liquidio/descriptors.h"

namespace dmakit::nic::liquidio {

// Sheet 2: a 64-byte instruction of the CN23XX.
struct InstructionSlot {
  dma::SharedLe64 dptr;
  dma::SharedLe64 ih3;
  dma::SharedLe64 pki_ih3;
  dma::SharedLe64 irh;
  dma::SharedLe64 ossp0;
  dma::SharedLe64 ossp1;
  dma::SharedLe64 rdp;
  dma::SharedLe64 rptr;
};
static_assert(sizeof(InstructionSlot) == kInstructionBytes);
static_assert(offsetof(InstructionSlot, irh) == 24 && offsetof(InstructionSlot, rptr) == 56);

// Sheet 3: four elements of a gather list.
struct GatherEntrySlot {
  dma::SharedLe64 sizes;
  dma::SharedLe64 pointers[4];
};
static_assert(sizeof(GatherEntrySlot) == kGatherEntryBytes);

// Sheet 5.1.
struct BufferSlot {
  dma::SharedLe64 buffer;
  dma::SharedLe64 info;
};
static_assert(sizeof(BufferSlot) == kDroqDescriptorBytes);

// Sheet 5.2, mode A. The driver leaves both 0 before it gives the slot to the device.
struct InfoSlot {
  dma::SharedBe64 header;
  dma::SharedBe64 length;
};
static_assert(sizeof(InfoSlot) == kInfoBytes);

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_RING_SLOTS_H_
