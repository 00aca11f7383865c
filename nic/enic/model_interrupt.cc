// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/model_interrupt.h"

namespace dmakit::nic::enic {

void ModelInterrupt::Connect(Notifier* notifier) {
  std::lock_guard<std::mutex> lock(mutex_);
  notifier_ = notifier;
}

void ModelInterrupt::Credit() {
  const dma::Nanos now = clock_.Now();
  if (block_.word(OffsetOf(IntrReg::kIntCredits)).fetch_add(1, std::memory_order_acq_rel) == 0) {
    first_ = now;
    waiting_ = true;
  }
  last_ = now;
}

bool ModelInterrupt::Step() {
  if (block_.Get(IntrReg::kIntCredits) == 0 || block_.Get(IntrReg::kMask) != 0) return false;
  if (!Due(block_.Get(IntrReg::kCoalescingTimer))) return false;
  waiting_ = false;
  // Masked first: an unmask that comes in between finds the notification on its way.
  if (block_.Get(IntrReg::kMaskOnAssertion) != 0) block_.Set(IntrReg::kMask, 1);
  std::lock_guard<std::mutex> lock(mutex_);
  if (notifier_ != nullptr) notifier_->Notify();
  return true;
}

// Absolute: so long after the first event. Quiet: after the last.
bool ModelInterrupt::Due(uint64_t timer) {
  if (block_.timer_reset.exchange(false, std::memory_order_acq_rel)) {
    first_ = clock_.Now();
    waiting_ = true;
  }
  if (timer == 0 || !waiting_) return true;
  const auto length =
      dma::Nanos{static_cast<int64_t>(timer * kCoalesceDivisor * 1000 / kCoalesceMultiplier)};
  const bool quiet = block_.Get(IntrReg::kCoalescingType) == 1;
  return clock_.Now() - (quiet ? last_ : first_) >= length;
}

}  // namespace dmakit::nic::enic
