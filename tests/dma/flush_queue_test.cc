// SPDX-License-Identifier: Apache-2.0
//
// FlushQueue: when a ticket is done, what forces a flush, how many invalidations one costs, and its
// end while a flush is running.
#include "dma/flush_queue.h"

#include <atomic>
#include <functional>
#include <thread>

#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Fixture;
using testing::Gate;
using testing::Has;
using testing::HookedDomain;
using State = FlushTicket::State;

constexpr Bytes kPage{4096};

Range Page(uint64_t n) { return {Iova(n * 4096), kPage}; }

struct Queue : Releaser {
  host::FakeClock clock;
  std::atomic<int> released{0};
  std::atomic<int> failed{0};
  std::unique_ptr<FlushQueue> queue;

  void Release(const Retired&, const absl::Status& flushed, iova::Cache*) override {
    flushed.ok() ? ++released : ++failed;
  }

  explicit Queue(DeferredLimits limits, host::ThreadStarter* threads = nullptr) {
    auto made = FlushQueue::Create({.limits = limits, .clock = &clock, .threads = threads});
    REQUIRE(made.ok());
    queue = *std::move(made);
  }
  FlushTicket Defer(Domain& domain, Range range, FlushLane* lane = nullptr) {
    Domain* const domains[] = {&domain};
    return queue->Defer({.range = range, .domains = domains, .releaser = this},
                        Local(nullptr, lane));
  }
  FlushLane NewLane() {
    auto lane = queue->NewLane("test");
    REQUIRE(lane.ok());
    return *std::move(lane);
  }
};

struct Calling : Releaser {
  std::function<void()> call;
  void Release(const Retired&, const absl::Status&, iova::Cache*) override { call(); }
};

TEST_CASE("A default ticket is done: what a strict unmap returns") { CHECK(FlushTicket().done()); }

TEST_CASE("A ticket is done only after a flush, and then its release has run") {
  FakeDomain domain;
  Queue q({});
  const FlushTicket ticket = q.Defer(domain, Page(1));
  CHECK(ticket.state() == State::kPending);
  CHECK(q.released == 0);
  REQUIRE(q.queue->Flush().ok());
  CHECK(ticket.done());
  CHECK(q.released == 1);
  CHECK(q.queue->stats().pending_ranges == 0);
  CHECK(q.queue->stats().pending_bytes == 0);
}

TEST_CASE("A flush that began before the unmap does not complete its ticket") {
  HookedDomain domain;
  Gate began, go_on;
  std::atomic<int> flushes{0};
  Queue q({});
  domain.before_invalidate = [&] {
    if (++flushes != 1) return;
    began.Open();
    go_on.Wait();
  };
  const FlushTicket early = q.Defer(domain, Page(1));
  std::thread flusher([&] { (void)q.queue->Flush(); });
  began.Wait();
  const FlushTicket late = q.Defer(domain, Page(2));  // the flush is running already
  go_on.Open();
  flusher.join();
  CHECK(early.done());
  CHECK(late.state() == State::kPending);
  CHECK(q.released == 1);
  REQUIRE(q.queue->Flush().ok());
  CHECK(late.done());
}

TEST_CASE("Flush waits for a flush in progress, releases included") {
  HookedDomain domain;
  Gate began, go_on;
  Queue q({});
  domain.before_invalidate = [&] {
    began.Open();
    go_on.Wait();
  };
  (void)q.Defer(domain, Page(1));
  std::thread flusher([&] { (void)q.queue->Flush(); });
  began.Wait();
  std::atomic<bool> returned{false};
  std::atomic<int> seen{-1};
  std::thread second([&] {
    (void)q.queue->Flush();
    seen = q.released.load();
    returned = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(returned);
  go_on.Open();
  flusher.join();
  second.join();
  CHECK(seen == 1);
}

TEST_CASE("One invalidation per domain and flush; of the range alone if it is the only one") {
  FakeDomain d0, d1, implied({.name = "vfio", .facts = {.unmap_invalidates = true}});
  Queue q({});
  Domain* const both[] = {&d0, &d1};
  Domain* const all[] = {&d0, &implied};
  (void)q.queue->Defer({Page(1), both});
  (void)q.queue->Defer({Page(2), all});
  (void)q.queue->Defer({Page(3), all});
  REQUIRE(q.queue->Flush().ok());
  CHECK(d0.log() == std::vector<std::string>{"invalidate all"});
  CHECK(d1.log() == std::vector<std::string>{"invalidate [0x1000, 0x1fff]"});
  CHECK(implied.log().empty());
  REQUIRE(q.queue->Flush().ok());  // nothing pending: no invalidation
  CHECK(d0.stats().invalidations == 1);
  CHECK(q.queue->stats().flushes == 1);
}

TEST_CASE("The bound in ranges holds for every caller and is reported") {
  FakeDomain domain;
  Queue q({.max_ranges = 8});
  FlushTicket last;
  for (uint64_t i = 1; i <= 20; ++i) last = q.Defer(domain, Page(i));
  const FlushQueue::Stats stats = q.queue->stats();
  CHECK(stats.deferred == 20);
  CHECK(stats.flushes == 2);
  CHECK(stats.forced_by_bound == 2);
  CHECK(stats.peak_pending_ranges == 8);
  CHECK(stats.pending_ranges == 4);
  CHECK(domain.stats().invalidations == 2);
  CHECK(last.state() == State::kPending);
}

TEST_CASE("The bound in bytes") {
  FakeDomain domain;
  Queue q({.max_ranges = 1000, .max_bytes = Bytes(16384)});
  (void)q.Defer(domain, {Iova(0x10000), Bytes(8192)});
  CHECK(q.queue->stats().flushes == 0);
  (void)q.Defer(domain, {Iova(0x20000), Bytes(12288)});  // would exceed: what is there goes first
  CHECK(q.queue->stats().flushes == 1);
  CHECK(q.queue->stats().pending_bytes == 12288);
  const FlushTicket huge = q.Defer(domain, {Iova(0x100000), Bytes(1 << 20)});
  CHECK(huge.done());
  CHECK(q.queue->stats().pending_bytes == 0);
}

TEST_CASE("Without a thread the next call enforces the age") {
  FakeDomain domain;
  Queue q({.max_age = Nanos{1000}});
  const FlushTicket first = q.Defer(domain, Page(1));
  q.clock.Advance(Nanos{999});
  REQUIRE(q.queue->FlushIfOld().ok());
  CHECK_FALSE(first.done());
  q.clock.Advance(Nanos{1});
  REQUIRE(q.queue->FlushIfOld().ok());
  CHECK(first.done());
  const FlushTicket second = q.Defer(domain, Page(2));
  q.clock.Advance(Nanos{1000});
  const FlushTicket third = q.Defer(domain, Page(3));
  CHECK(second.done());
  CHECK(third.done());  // it was in the open batch when the flush began
  CHECK(q.queue->stats().forced_by_age == 2);
}

TEST_CASE("The age counts from the batch's first range, not from an earlier batch") {
  FakeDomain domain;
  Queue q({.max_age = Nanos{1000}});
  (void)q.Defer(domain, Page(1));
  q.clock.Advance(Nanos{900});
  REQUIRE(q.queue->Flush().ok());
  const FlushTicket ticket = q.Defer(domain, Page(2));
  q.clock.Advance(Nanos{900});
  REQUIRE(q.queue->FlushIfOld().ok());
  CHECK_FALSE(ticket.done());
}

// A clock that jumps may only make a flush come early, never keep a range in the queue for longer
// than its age; and no ticket is done without its flush.
TEST_CASE(
    "A clock that jumps at its k-th call, for all k: flushed by then, and not reused before") {
  for (const Nanos jump : {Nanos{3'600'000'000'000}, Nanos{-3'600'000'000'000}, Nanos{-1}}) {
    for (uint64_t k = 1; k <= 8; ++k) {
      INFO("jump " << jump.count() << ", call " << k);
      host::FailPoint point;
      host::FakeClock clock({.fail = &point, .jump = jump});
      FakeDomain domain;
      uint64_t released = 0;
      Calling releaser;
      releaser.call = [&] { ++released; };
      auto queue = *FlushQueue::Create({.limits = {.max_age = Nanos{1000}}, .clock = &clock});
      std::vector<FlushTicket> tickets;
      point.FailAt(k);
      for (uint64_t i = 0; i < 4; ++i) {
        Domain* const domains[] = {&domain};
        tickets.push_back(
            queue->Defer({.range = Page(i), .domains = domains, .releaser = &releaser}));
        for (size_t t = 0; t < tickets.size(); ++t) CHECK(tickets[t].done() == (t < released));
        clock.Advance(Nanos{100});
        REQUIRE(queue->FlushIfOld().ok());
        CHECK(domain.stats().invalidations == queue->stats().flushes);
      }
      clock.Advance(Nanos{1000});
      REQUIRE(queue->FlushIfOld().ok());
      for (const FlushTicket& ticket : tickets) CHECK(ticket.done());
      CHECK(released == 4);
    }
  }
}

TEST_CASE("The longest age means never, and costs the thread nothing") {
  host::SystemThreads threads;
  host::FailPoint calls;  // counts, fails none
  host::FakeClock clock({.fail = &calls});
  clock.Advance(Nanos{1'000'000'000});
  FakeDomain domain;
  auto queue = *FlushQueue::Create(
      {.limits = {.max_age = Nanos::max()}, .clock = &clock, .threads = &threads});
  Domain* const domains[] = {&domain};
  const FlushTicket ticket = queue->Defer({Page(1), domains, {}});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(calls.calls() < 20);
  CHECK_FALSE(ticket.done());
  REQUIRE(queue->Flush().ok());
  CHECK(ticket.done());
}

TEST_CASE("The thread enforces the age by the injected clock") {
  host::SystemThreads threads;
  FakeDomain domain;
  Queue q({.max_age = Nanos{1'000'000}}, &threads);
  const FlushTicket ticket = q.Defer(domain, Page(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK_FALSE(ticket.done());  // much real time, no time by the clock
  q.clock.Advance(Nanos{1'000'000});
  for (int i = 0; i < 5000 && !ticket.done(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(ticket.done());
  CHECK(q.queue->stats().forced_by_age == 1);
}

TEST_CASE("Destroyed while its timer is inside a flush: it waits, then flushes the rest") {
  host::SystemThreads threads;
  HookedDomain domain;
  Gate began, go_on;
  std::atomic<int> calls{0};
  Queue q({.max_age = Nanos{1}}, &threads);
  domain.before_invalidate = [&] {
    if (++calls != 1) return;
    began.Open();
    go_on.Wait();
  };
  const FlushTicket first = q.Defer(domain, Page(1));
  q.clock.Advance(Nanos{10});
  began.Wait();  // the queue's thread is in the flush now
  const FlushTicket second = q.Defer(domain, Page(2));
  std::atomic<bool> gone{false};
  std::thread ender([&] {
    q.queue.reset();
    gone = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(gone);
  CHECK_FALSE(first.done());
  go_on.Open();
  ender.join();
  CHECK(first.done());
  CHECK(second.done());
  CHECK(q.released == 2);
}

TEST_CASE("A ticket outlives its queue") {
  FlushTicket ticket;
  {
    FakeDomain domain;
    Queue q({});
    ticket = q.Defer(domain, Page(1));
    q.queue.reset();
  }
  CHECK(ticket.done());
}

TEST_CASE(
    "A failed invalidation: every ticket of the flush is quarantined, releases get the error") {
  host::FailPoint fail;
  FakeDomain good, bad({.name = "bad", .fail_invalidate = &fail});
  Queue q({});
  const FlushTicket a = q.Defer(good, Page(1));
  const FlushTicket b = q.Defer(bad, Page(2));
  fail.FailAt(1);
  const absl::Status status = q.queue->Flush();
  CHECK_FALSE(status.ok());
  CHECK(Has(status, "bad"));
  CHECK(a.state() == State::kQuarantined);
  CHECK(b.state() == State::kQuarantined);
  CHECK(q.released == 0);
  CHECK(q.failed == 2);
  CHECK(good.stats().invalidations == 1);  // the others are still told
  CHECK(q.queue->stats().failed == 1);
  const FlushTicket c = q.Defer(bad, Page(3));
  REQUIRE(q.queue->Flush().ok());
  CHECK(c.done());
  CHECK(b.state() == State::kQuarantined);
}

TEST_CASE("Releasers may ask and defer, but not flush") {
  FakeDomain domain;
  Queue q({.max_ranges = 2});
  Domain* const domains[] = {&domain};
  absl::Status nested;
  FlushTicket later;
  uint64_t pending = 0;
  Calling calling;
  calling.call = [&] {
    pending = q.queue->stats().pending_ranges;
    nested = q.queue->Flush();
    later = q.queue->Defer({Page(9), domains});
  };
  (void)q.queue->Defer({.range = Page(1), .domains = domains, .releaser = &calling});
  REQUIRE(q.queue->Flush().ok());
  CHECK(pending == 1);
  CHECK(absl::IsFailedPrecondition(nested));
  CHECK(later.state() == State::kPending);
  REQUIRE(q.queue->Flush().ok());
  CHECK(later.done());
}

TEST_CASE("Create names what is wrong, and fails when the thread does") {
  host::FakeClock clock;
  host::FailPoint fail;
  host::FakeThreads threads(&fail);
  CHECK(absl::IsInvalidArgument(FlushQueue::Create({}).status()));
  CHECK(absl::IsInvalidArgument(
      FlushQueue::Create({.limits = {.max_ranges = 0}, .clock = &clock}).status()));
  CHECK(absl::IsInvalidArgument(
      FlushQueue::Create({.limits = {.max_bytes = Bytes(0)}, .clock = &clock}).status()));
  CHECK(absl::IsInvalidArgument(
      FlushQueue::Create({.limits = {.max_age = Nanos{-1}}, .clock = &clock}).status()));
  fail.FailAt(1);
  auto made = FlushQueue::Create({.clock = &clock, .threads = &threads});
  CHECK_FALSE(made.ok());
  CHECK(Has(made.status(), "thread"));
}

TEST_CASE("Many threads: bounds hold, every release runs once, every ticket ends") {
  host::SystemThreads starter;
  FakeDomain domain;
  Queue q({.max_ranges = 16, .max_age = Nanos{1}}, &starter);
  constexpr int kThreads = 4, kEach = 2000;
  std::vector<std::vector<FlushTicket>> tickets(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        tickets[t].push_back(q.Defer(domain, Page(1 + t * kEach + i)));
        if (i % 64 == 0) q.clock.Advance(Nanos{1});
        if (i % 256 == 0) (void)q.queue->Flush();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(q.queue->stats().peak_pending_ranges <= 16);
  REQUIRE(q.queue->Flush().ok());
  CHECK(q.released == kThreads * kEach);
  bool all = true;
  for (const auto& list : tickets) {
    for (const FlushTicket& ticket : list) all &= ticket.done();
  }
  CHECK(all);
  CHECK(q.queue->stats().pending_ranges == 0);
}

}  // namespace
}  // namespace dmakit::dma
