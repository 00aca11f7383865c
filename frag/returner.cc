// SPDX-License-Identifier: Apache-2.0
#include "frag/returner.h"

#include "frag/pool_core.h"

namespace dmakit::frag {

void Returner::Return(Page* page) {
  if (page == nullptr) return;
  if (own_ != nullptr && page->pool == own_->core_.get()) return own_->Release(page);
  // Fragments of one page mostly come together.
  if (slots_[recent_].page == page) {
    ++slots_[recent_].count;
    return;
  }
  for (uint32_t i = 0; i < kSlots; ++i) {
    if (slots_[i].page == page) {
      ++slots_[i].count;
      recent_ = i;
      return;
    }
  }
  // The slot filled longest ago, which is empty after a Flush.
  GiveBack(slots_[next_]);
  slots_[next_] = {page, 1};
  recent_ = next_;
  next_ = (next_ + 1) % kSlots;
}

void Returner::Flush() {
  for (Slot& slot : slots_) GiveBack(slot);
}

void Returner::GiveBack(Slot& slot) {
  if (slot.page == nullptr) return;
  atomics_ += internal::PoolCore::GiveBack(slot.page, slot.count);
  slot = {};
}

}  // namespace dmakit::frag
