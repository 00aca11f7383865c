// SPDX-License-Identifier: Apache-2.0
//
// The system's clock and threads.
#include "dma/host/clock.h"

#include <pthread.h>

#include <chrono>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace dmakit::dma::host {

Nanos SystemClock::Now() {
  return std::chrono::duration_cast<Nanos>(std::chrono::steady_clock::now().time_since_epoch());
}

void SystemClock::Sleep(Nanos duration) { std::this_thread::sleep_for(duration); }

absl::StatusOr<std::jthread> SystemThreads::Start(std::string_view name,
                                                  std::function<void(std::stop_token)> body) {
  try {
    std::jthread thread(std::move(body));
    // The kernel keeps 15 characters; a name that cannot be set is no reason to fail.
    pthread_setname_np(thread.native_handle(), std::string(name.substr(0, 15)).c_str());
    return thread;
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("thread \"", std::string(name), "\": the system starts no more threads (",
                     error.what(), "); raise the limit (ulimit -u, pids cgroup) or use fewer"));
  }
}

}  // namespace dmakit::dma::host
