// SPDX-License-Identifier: Apache-2.0
//
// The system's clock and threads.
#include "dma/host/clock.h"

#include <pthread.h>

#include <atomic>
#include <string>

#include "tests/catch.h"

namespace dmakit::dma::host {
namespace {

TEST_CASE("system clock: never goes back, and a sleep lasts") {
  SystemClock clock;
  const Nanos start = clock.Now();
  Nanos last = start;
  for (int i = 0; i < 1000; ++i) {
    const Nanos now = clock.Now();
    REQUIRE(now >= last);
    last = now;
  }
  clock.Sleep(std::chrono::milliseconds(2));
  CHECK(clock.Now() - start >= std::chrono::milliseconds(2));
}

TEST_CASE("system threads: run with a name until asked to stop") {
  SystemThreads threads;
  std::atomic<bool> running{false};
  std::atomic<bool> stopped{false};
  {
    auto thread = threads.Start("a-name-too-long-for-the-kernel", [&](std::stop_token stop) {
      running = true;
      while (!stop.stop_requested()) std::this_thread::yield();
      stopped = true;
    });
    REQUIRE(thread.ok());
    char name[32] = {};
    REQUIRE(pthread_getname_np(thread->native_handle(), name, sizeof(name)) == 0);
    CHECK(std::string(name) == "a-name-too-long");
    while (!running) std::this_thread::yield();
    CHECK_FALSE(stopped);
  }
  CHECK(stopped);
}

}  // namespace
}  // namespace dmakit::dma::host
