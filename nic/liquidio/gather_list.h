// SPDX-License-Identifier: Apache-2.0
//
// A gather list as it is written and read back: element i of a packet is pointer i & 3 of entry
// i >> 2, its size 16 bits of that entry's first word, the first of them the highest (liquidio
// sheet 3). Thread: the queue's.
#ifndef DMAKIT_NIC_LIQUIDIO_GATHER_LIST_H_
#define DMAKIT_NIC_LIQUIDIO_GATHER_LIST_H_

#include <cstdint>

#include "iova/types.h"
#include "nic/liquidio/descriptors.h"
#include "nic/liquidio/ring_slots.h"
#include "nic/packet.h"

namespace dmakit::nic::liquidio {

// Room for one list of `elements`.
constexpr uint32_t GatherListBytes(uint32_t elements) {
  const uint32_t entries = (elements + 3) / 4;
  return (entries * kGatherEntryBytes + 7) / 8 * 8;
}
inline constexpr uint32_t kListBytes = GatherListBytes(Packet::kMaxSegments);
static_assert(kListBytes == 200);

// Writes elements one after another, at most Packet::kMaxSegments. What is behind them in the list
// stays: the device reads no further than the instruction says.
class GatherWriter {
 public:
  explicit GatherWriter(GatherEntrySlot* list) : entry_(list) {}

  // `length` is 1 to 65535.
  void Add(Iova at, uint32_t length) {
    if (next_ == 4) {
      ++entry_;
      next_ = 0;
      sizes_ = 0;
    }
    entry_->pointers[next_].Store(at.value());
    sizes_ |= uint64_t{length} << (48 - 16 * next_);
    entry_->sizes.Store(sizes_);
    ++next_;
  }

 private:
  GatherEntrySlot* entry_;
  uint32_t next_ = 0;
  uint64_t sizes_ = 0;
};

inline uint64_t PointerOf(const GatherEntrySlot* list, uint32_t element) {
  return list[element / 4].pointers[element % 4].Load();
}

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_GATHER_LIST_H_
