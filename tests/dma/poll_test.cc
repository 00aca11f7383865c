// SPDX-License-Identifier: Apache-2.0
//
// PollUntil on a clock that the test owns: how often, until when, and once more after that.
#include "dma/poll.h"

#include "tests/catch.h"

namespace dmakit::dma {
namespace {

// Each pause is one step of a device and takes 10 ns.
class Steps final : public Waiter {
 public:
  Nanos Now() override { return now; }
  void Pause() override {
    now += Nanos{10};
    ++pauses;
  }
  Nanos now{1000};
  int pauses = 0;
};

TEST_CASE("poll: what is done already needs no pause") {
  Steps steps;
  CHECK(PollUntil(steps, Nanos{0}, [] { return true; }));
  CHECK(steps.pauses == 0);
}

TEST_CASE("poll: true as soon as the device is ready") {
  Steps steps;
  CHECK(PollUntil(steps, Nanos{1000}, [&] { return steps.pauses == 7; }));
  CHECK(steps.pauses == 7);
}

TEST_CASE("poll: false once the deadline has passed") {
  Steps steps;
  int tries = 0;
  CHECK_FALSE(PollUntil(steps, Nanos{50}, [&] {
    ++tries;
    return false;
  }));
  CHECK(steps.pauses == 5);
  CHECK(tries == 5 + 2);  // before each pause, at the deadline, and once more
}

TEST_CASE("poll: ready at the last moment is ready") {
  Steps steps;
  CHECK(PollUntil(steps, Nanos{50}, [&] { return steps.now >= Nanos{1050}; }));

  // The machine was slow: between the look at the device and the look at the clock an hour passed
  // and the device finished.
  int tries = 0;
  CHECK(PollUntil(steps, Nanos{50}, [&] {
    if (++tries == 2) return true;
    steps.now += std::chrono::hours(1);
    return false;
  }));
  CHECK(tries == 2);
}

TEST_CASE("poll: no time at all still means two looks") {
  Steps steps;
  for (const Nanos timeout : {Nanos{0}, Nanos{-5}}) {
    int tries = 0;
    CHECK_FALSE(PollUntil(steps, timeout, [&] {
      ++tries;
      return false;
    }));
    CHECK(tries == 2);
  }
  CHECK(steps.pauses == 0);
}

TEST_CASE("poll: the longest timeout does not overflow") {
  Steps steps;
  CHECK(PollUntil(steps, Nanos::max(), [&] { return steps.pauses == 3; }));
}

TEST_CASE("poll: the system's waiter lets time pass") {
  Waiter& waiter = SystemWaiter();
  const Nanos start = waiter.Now();
  CHECK_FALSE(PollUntil(waiter, std::chrono::milliseconds(2), [] { return false; }));
  CHECK(waiter.Now() - start >= std::chrono::milliseconds(2));
}

}  // namespace
}  // namespace dmakit::dma
