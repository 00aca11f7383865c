// SPDX-License-Identifier: Apache-2.0

#include "nic/notifier.h"

#include <utility>

#include "dma/host/event_fd.h"

namespace dmakit::nic {
namespace {

class EventFdNotifier final : public Notifier {
 public:
  explicit EventFdNotifier(dma::host::EventFd event) : event_(std::move(event)) {}
  void Notify() override { event_.Signal(); }
  bool Wait(dma::Nanos timeout) override { return event_.Wait(timeout); }
  int fd() const override { return event_.fd(); }

 private:
  dma::host::EventFd event_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Notifier>> NewEventFdNotifier() {
  absl::StatusOr<dma::host::EventFd> event = dma::host::EventFd::Create();
  if (!event.ok()) return event.status();
  return std::make_unique<EventFdNotifier>(*std::move(event));
}

bool SteppedNotifier::Wait(dma::Nanos timeout) {
  return dma::PollUntil(waiter_, timeout,
                        [this] { return notified_.exchange(false, std::memory_order_acq_rel); });
}

}  // namespace dmakit::nic
