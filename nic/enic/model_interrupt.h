// SPDX-License-Identifier: Apache-2.0
//
// One interrupt of the enic model (enic sheet 2.5). Completions give it credits; while it is not
// masked and has credits it asserts, after the time that coalescing asks for, and masks itself if
// told to. The driver gives credits back and unmasks in one write; what it did not give back
// asserts again at once, so that an event that came too late to be polled is not lost.
//
// Credit and Step: the stepping thread. Registers, Connect: any thread.
#ifndef DMAKIT_NIC_ENIC_MODEL_INTERRUPT_H_
#define DMAKIT_NIC_ENIC_MODEL_INTERRUPT_H_

#include <cstdint>
#include <mutex>

#include "dma/host/clock.h"
#include "dma/types.h"
#include "nic/enic/model_registers.h"
#include "nic/notifier.h"

namespace dmakit::nic::enic {

class ModelInterrupt {
 public:
  ModelInterrupt(RegisterBlock& block, dma::host::Clock& clock) : block_(block), clock_(clock) {}

  void Connect(Notifier* notifier);
  // Before the entry is published that it is for: a driver that has seen the entry may give the
  // credit back.
  void Credit();
  // Asserts if it is time to. True if it did.
  bool Step();

 private:
  bool Due(uint64_t timer);

  RegisterBlock& block_;
  dma::host::Clock& clock_;
  dma::Nanos first_{0};  // event since the timer was started
  dma::Nanos last_{0};
  bool waiting_ = false;  // for the time that began with first_

  std::mutex mutex_;  // held while notifying
  Notifier* notifier_ = nullptr;
};

// Enic sheet 2.6, INTR_COAL_CONVERT: units of the timer register, per microsecond, as a fraction.
inline constexpr uint64_t kCoalesceMultiplier = 2;
inline constexpr uint64_t kCoalesceDivisor = 3;

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_MODEL_INTERRUPT_H_
