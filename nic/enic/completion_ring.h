// SPDX-License-Identifier: Apache-2.0
//
// Where a driver stands in a completion ring (enic sheet 1.3, 3.5). An entry is new when the color
// in its last byte is not the color of the lap before; the device writes that byte last, so it is
// read first, once, with acquire, and the rest after it. One thread. Datapath.
#ifndef DMAKIT_NIC_ENIC_COMPLETION_RING_H_
#define DMAKIT_NIC_ENIC_COMPLETION_RING_H_

#include <cstdint>

#include "nic/enic/descriptors.h"
#include "nic/enic/ring_slots.h"

namespace dmakit::nic::enic {

class CompletionRing {
 public:
  CompletionRing() = default;
  // The first lap over zeroed memory. The memory outlives the ring.
  CompletionRing(const CqSlot* slots, uint32_t count) : slots_(slots), count_(count) {}

  // Gives the next entry, if it is there, and moves on. Not on a default-constructed ring.
  bool Next(Words& entry) {
    const CqSlot& slot = slots_[next_];
    const uint8_t seen = slot.type_color.LoadAcquire();
    if (ColorOf(seen) == last_color_) return false;
    entry = slot.LoadRest(seen);
    if (++next_ == count_) {
      next_ = 0;
      last_color_ = !last_color_;
    }
    __builtin_prefetch(&slots_[next_]);
    return true;
  }

  // Whether Next would give one.
  bool Ready() const { return ColorOf(slots_[next_].type_color.LoadAcquire()) != last_color_; }

 private:
  const CqSlot* slots_ = nullptr;
  uint32_t count_ = 0;
  uint32_t next_ = 0;
  bool last_color_ = false;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_COMPLETION_RING_H_
