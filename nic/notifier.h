// SPDX-License-Identifier: Apache-2.0
//
// Interrupts, as a program meets them: a Notifier per receive queue, which a device raises and a
// thread sleeps for. The loop that loses no wake-up:
//
//   for (;;) {
//     while (port.Receive(q, burst) > 0) { ... }
//     if (!port.Arm(q)) continue;              // something came in the meantime
//     port.notifier(q)->Wait(timeout);
//   }
//
// A wake-up without a packet is possible, a packet without a wake-up is not.
#ifndef DMAKIT_NIC_NOTIFIER_H_
#define DMAKIT_NIC_NOTIFIER_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/poll.h"
#include "dma/types.h"

namespace dmakit::nic {

class Notifier {
 public:
  virtual ~Notifier() = default;
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // The device's side. Any thread; never blocks.
  virtual void Notify() = 0;
  // True: notified since the last Wait that said so. False: the time is up. One thread.
  virtual bool Wait(dma::Nanos timeout) = 0;
  // Readable while notified, for epoll or for VFIO; -1: there is none.
  virtual int fd() const = 0;

 protected:
  Notifier() = default;
};

// An eventfd: for devices that run by themselves.
absl::StatusOr<std::unique_ptr<Notifier>> NewEventFdNotifier();

// For a stepped model: waiting steps it, and takes the time of its Waiter, which outlives it.
class SteppedNotifier final : public Notifier {
 public:
  explicit SteppedNotifier(dma::Waiter& waiter) : waiter_(waiter) {}
  void Notify() override { notified_.store(true, std::memory_order_release); }
  bool Wait(dma::Nanos timeout) override;
  int fd() const override { return -1; }

 private:
  dma::Waiter& waiter_;
  std::atomic<bool> notified_{false};
};

// Where a device's interrupts come out: VFIO, or a model.
class InterruptSource {
 public:
  virtual ~InterruptSource() = default;
  virtual uint32_t vectors() const = 0;
  // From now on `vector` notifies that one; nullptr: nobody. When it returns, the one before is not
  // being notified any more. The notifier outlives the connection. Control thread.
  virtual absl::Status Connect(uint32_t vector, Notifier* notifier) = 0;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_NOTIFIER_H_
