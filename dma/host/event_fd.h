// SPDX-License-Identifier: Apache-2.0
//
// EventFd: a flag that one thread, or the kernel on behalf of a device's interrupt, raises and
// another sleeps for. Linux's eventfd. Any thread; move-only.
#ifndef DMAKIT_DMA_HOST_EVENT_FD_H_
#define DMAKIT_DMA_HOST_EVENT_FD_H_

#include "absl/status/statusor.h"
#include "dma/types.h"

namespace dmakit::dma::host {

class EventFd {
 public:
  // ResourceExhausted when the process has no descriptor left.
  static absl::StatusOr<EventFd> Create();
  EventFd(EventFd&& other) noexcept;
  EventFd& operator=(EventFd&& other) noexcept;
  ~EventFd();

  // Never blocks.
  void Signal();
  // True: signalled since the last Wait that said so, which is hereby forgotten. False: the time is
  // up. A timeout below zero waits without end.
  bool Wait(Nanos timeout);
  // Readable while signalled, for poll and epoll, and for the kernel to write to. Stays owned.
  int fd() const { return fd_; }

 private:
  explicit EventFd(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_EVENT_FD_H_
