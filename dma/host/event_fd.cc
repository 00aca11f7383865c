// SPDX-License-Identifier: Apache-2.0

#include "dma/host/event_fd.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dmakit::dma::host {

absl::StatusOr<EventFd> EventFd::Create() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd >= 0) return EventFd(fd);
  return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno),
                                                   "; raise the limit of open files (ulimit -n)"));
}

EventFd::EventFd(EventFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

EventFd& EventFd::operator=(EventFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

EventFd::~EventFd() {
  if (fd_ >= 0) close(fd_);
}

// A counter that is full is signalled already.
void EventFd::Signal() {
  const uint64_t one = 1;
  while (write(fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

bool EventFd::Wait(Nanos timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    uint64_t count = 0;
    if (read(fd_, &count, sizeof(count)) == sizeof(count)) return true;
    timespec left{};
    if (timeout >= Nanos{0}) {
      const Nanos rest = std::max(Nanos{end - std::chrono::steady_clock::now()}, Nanos{0});
      left.tv_sec = static_cast<time_t>(rest.count() / 1'000'000'000);
      left.tv_nsec = static_cast<long>(rest.count() % 1'000'000'000);
    }
    pollfd ready{fd_, POLLIN, 0};
    const int n = ppoll(&ready, 1, timeout < Nanos{0} ? nullptr : &left, nullptr);
    if (n == 0) return false;
    if (n < 0 && errno != EINTR) return false;
  }
}

}  // namespace dmakit::dma::host
