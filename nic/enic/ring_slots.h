// SPDX-License-Identifier: Apache-2.0
//
// The slots of an enic's rings as the words that CPU and device share. For drivers; a model reaches
// them by IOVA.
#ifndef DMAKIT_NIC_ENIC_RING_SLOTS_H_
#define DMAKIT_NIC_ENIC_RING_SLOTS_H_

#include <cstddef>
#include <cstdint>

#include "dma/shared.h"
#include "nic/enic/descriptors.h"

namespace dmakit::nic::enic {

// A slot of a WQ or RQ. There is no valid bit: the device owns [fetch_index, posted_index), so a
// plain store is enough and the write of posted_index publishes it.
struct DescriptorSlot {
  dma::SharedLe64 low;
  dma::SharedLe64 high;

  void Store(const Words& words) {
    low.Store(words.low);
    high.Store(words.high);
  }
  Words Load() const { return {low.Load(), high.Load()}; }
};
static_assert(sizeof(DescriptorSlot) == kDescriptorBytes);
static_assert(offsetof(DescriptorSlot, high) == 8);

// A slot of a CQ, cut so that byte 15 is a word of its own.
struct CqSlot {
  dma::SharedLe64 index_queue_hash;
  dma::SharedLe32 bytes_vlan;
  dma::SharedLe16 checksum_fcoe;
  dma::SharedU8 flags;
  dma::SharedU8 type_color;

  // For who has seen the color of the entry with LoadAcquire: `seen` is the byte as it was read.
  Words LoadRest(uint8_t seen) const {
    return {index_queue_hash.Load(), uint64_t{bytes_vlan.Load()} |
                                         uint64_t{checksum_fcoe.Load()} << 32 |
                                         uint64_t{flags.Load()} << 48 | uint64_t{seen} << 56};
  }
};
static_assert(sizeof(CqSlot) == kDescriptorBytes);
static_assert(offsetof(CqSlot, bytes_vlan) == 8 && offsetof(CqSlot, checksum_fcoe) == 12);
static_assert(offsetof(CqSlot, flags) == 14 && offsetof(CqSlot, type_color) == 15);
static_assert(offsetof(CqSlot, type_color) == kColorByte);

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_RING_SLOTS_H_
