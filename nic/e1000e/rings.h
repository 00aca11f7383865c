// SPDX-License-Identifier: Apache-2.0
//
// A descriptor ring of the 82574L as memory, and the registers that describe it to the device
// (e1000e sheet 3). Set-up and stop only; one control thread. The datapaths are in rx_queue.h and
// tx_queue.h.
#ifndef DMAKIT_NIC_E1000E_RINGS_H_
#define DMAKIT_NIC_E1000E_RINGS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/mmio.h"
#include "dma/ring_pool.h"
#include "dma/shared.h"
#include "iova/types.h"
#include "nic/e1000e/descriptors.h"

namespace dmakit::nic::e1000e {

// Cut where the device's write-backs are: the status of a receive entry is `lower`, that of a
// transmit entry the low byte of `upper`.
struct DescriptorSlot {
  dma::SharedLe64 address;
  dma::SharedLe32 lower;
  dma::SharedLe32 upper;

  // Of a slot that the device does not own: the write of the tail publishes it.
  void Store(const Words& words) {
    address.Store(words.low);
    lower.Store(static_cast<uint32_t>(words.high));
    upper.Store(static_cast<uint32_t>(words.high >> 32));
  }
};
static_assert(sizeof(DescriptorSlot) == kDescriptorBytes);
static_assert(offsetof(DescriptorSlot, lower) == 8 && offsetof(DescriptorSlot, upper) == 12);

// Behind the entries there is one more, of zeros, that the device is never told of as an entry: it
// is what frames are padded from.
struct Ring {
  dma::RingPool<DescriptorSlot> slots;
  uint32_t entries = 0;

  DescriptorSlot* at(uint32_t index) const { return slots.at(index); }
  Iova zeros() const { return slots.iova(entries); }
};
inline constexpr uint32_t kPadBytes = kDescriptorBytes;

// The entries are poisoned: one that the device reads before it was filled is seen as nonsense.
absl::StatusOr<Ring> AllocateRing(dma::Device& device, uint32_t entries, std::string_view label);

// `queue`: the block of registers of one queue, which is not enabled. Both leave the ring empty;
// nullptr: without memory.
void ProgramRx(const dma::MmioRegion& queue, const Ring* ring);
void ProgramTx(const dma::MmioRegion& queue, const Ring* ring, uint32_t index);

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_RINGS_H_
