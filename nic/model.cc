// SPDX-License-Identifier: Apache-2.0

#include "nic/model.h"

#include <chrono>
#include <utility>

namespace dmakit::nic {

absl::StatusOr<ModelThread> ModelThread::Start(Model& model, dma::host::ThreadStarter& threads) {
  absl::StatusOr<std::jthread> thread =
      threads.Start("dmakit-model", [&model](const std::stop_token& stop) {
        // Idle turns before the first sleep: long enough to answer a polling driver at once, short
        // enough not to take its processor away.
        constexpr int kSpins = 64;
        int idle = 0;
        while (!stop.stop_requested()) {
          if (model.Step()) {
            idle = 0;
          } else if (++idle < kSpins) {
            std::this_thread::yield();
          } else {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
          }
        }
      });
  if (!thread.ok()) return thread.status();
  return ModelThread(*std::move(thread));
}

}  // namespace dmakit::nic
