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

// The same with a clock that fails its k-th call.
class UnsteadySteps final : public Waiter {
 public:
  UnsteadySteps(int k, Nanos jump, int stuck) : k_(k), jump_(jump), stuck_(stuck) {}
  Nanos Now() override {
    if (++calls == k_) now_ += jump_;
    if (calls < k_ || calls >= k_ + stuck_) seen_ = now_;
    return seen_;
  }
  void Pause() override {
    now_ += Nanos{10};
    ++pauses;
  }
  int calls = 0;
  int pauses = 0;

 private:
  const int k_;
  const Nanos jump_;
  const int stuck_;
  Nanos now_{1000};
  Nanos seen_{1000};
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

TEST_CASE(
    "poll: a clock that jumps or stands still at its k-th call, for all k, makes no wait longer") {
  // Five pauses if time goes on as it should, and as many more as it stands still.
  struct Case {
    int64_t jump;  // ns, from the k-th call on
    int stuck;     // calls from the k-th on that see the same time
    int most;
  };
  for (const Case& c : {Case{1'000'000'000'000, 0, 5}, Case{25, 0, 5}, Case{-25, 0, 6},
                        Case{-1'000'000'000'000, 0, 6}, Case{0, 3, 8}}) {
    for (int k = 1; k <= 7; ++k) {
      INFO("jump " << c.jump << ", stuck " << c.stuck << ", call " << k);
      UnsteadySteps steps(k, Nanos{c.jump}, c.stuck);
      CHECK_FALSE(PollUntil(steps, Nanos{50}, [] { return false; }));
      CHECK(steps.pauses <= c.most);
      // What is ready when the time is up is ready.
      UnsteadySteps again(k, Nanos{c.jump}, c.stuck);
      CHECK(PollUntil(again, Nanos{50}, [&] { return again.calls >= k; }));
    }
  }
}

TEST_CASE("poll: the system's waiter lets time pass") {
  Waiter& waiter = SystemWaiter();
  const Nanos start = waiter.Now();
  CHECK_FALSE(PollUntil(waiter, std::chrono::milliseconds(2), [] { return false; }));
  CHECK(waiter.Now() - start >= std::chrono::milliseconds(2));
}

}  // namespace
}  // namespace dmakit::dma
