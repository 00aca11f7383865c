// SPDX-License-Identifier: Apache-2.0
//
// Time and threads as injected services, so that a test owns both. Interfaces here; the real ones
// are SystemClock and SystemThreads, the fakes are in fakes.h.
#ifndef DMAKIT_DMA_HOST_CLOCK_H_
#define DMAKIT_DMA_HOST_CLOCK_H_

#include <functional>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "dma/types.h"

namespace dmakit::dma::host {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic, since an arbitrary start. Any thread.
  virtual Nanos Now() = 0;
  // Gives the processor away for about `duration` (a fake clock just advances).
  virtual void Sleep(Nanos duration) = 0;
};

class SystemClock final : public Clock {
 public:
  Nanos Now() override;
  void Sleep(Nanos duration) override;
};

// Starts threads; a failure is a value, not an exception. The thread asks its stop_token to end,
// and is joined by the jthread's owner.
class ThreadStarter {
 public:
  virtual ~ThreadStarter() = default;
  virtual absl::StatusOr<std::jthread> Start(std::string_view name,
                                             std::function<void(std::stop_token)> body) = 0;
};

class SystemThreads final : public ThreadStarter {
 public:
  absl::StatusOr<std::jthread> Start(std::string_view name,
                                     std::function<void(std::stop_token)> body) override;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_CLOCK_H_
