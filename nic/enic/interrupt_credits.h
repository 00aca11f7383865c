// SPDX-License-Identifier: Apache-2.0
//
// InterruptCredits: what a queue owes to its interrupt (enic sheet 2.5). The device counts an event
// for every completion; a driver gives the events back that it has handled, and unmasks when it is
// about to sleep. Without an interrupt it counts for nobody. Thread: the queue's.
#ifndef DMAKIT_NIC_ENIC_INTERRUPT_CREDITS_H_
#define DMAKIT_NIC_ENIC_INTERRUPT_CREDITS_H_

#include <cstdint>
#include <optional>

#include "dma/mmio.h"
#include "nic/enic/registers.h"

namespace dmakit::nic::enic {

class InterruptCredits {
 public:
  InterruptCredits() = default;
  explicit InterruptCredits(const std::optional<dma::MmioRegion>& interrupt)
      : there_(interrupt.has_value()), block_(interrupt.value_or(dma::MmioRegion())) {}

  bool there() const { return there_; }
  // Gives back before the 16 bits of a credit return are full; a burst is a ring at most.
  void Add(uint32_t events) {
    owed_ += events;
    if (owed_ >= kMost) [[unlikely]]
      Return(false);
  }
  void Return(bool unmask) {
    const IntCreditReturn back{static_cast<uint16_t>(owed_), unmask, unmask};
    if (there_) block_.Write32(OffsetOf(IntrReg::kIntCreditReturn), Encode(back));
    owed_ = 0;
  }

 private:
  static constexpr uint32_t kMost = 32768;

  bool there_ = false;
  uint32_t owed_ = 0;
  dma::MmioRegion block_;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_INTERRUPT_CREDITS_H_
