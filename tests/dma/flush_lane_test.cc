// SPDX-License-Identifier: Apache-2.0
//
// Lanes: each owner's own bounds, one flush for all, late release into the owner's cache, owners
// that end, exhaustion and age that look into every lane, and what happens without one.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::Fixture;
using testing::Gate;
using testing::Has;
using testing::HookedDomain;
using State = FlushTicket::State;

Range Page(uint64_t n) { return {Iova(n * 4096), Bytes(4096)}; }

struct Queue : Releaser {
  host::FakeClock clock;
  std::atomic<int> released{0}, failed{0};
  std::unique_ptr<FlushQueue> queue;

  explicit Queue(DeferredLimits limits, host::ThreadStarter* threads = nullptr) {
    auto made = FlushQueue::Create({.limits = limits, .clock = &clock, .threads = threads});
    REQUIRE(made.ok());
    queue = *std::move(made);
  }
  void Release(const Retired&, const absl::Status& flushed, iova::Cache*) override {
    flushed.ok() ? ++released : ++failed;
  }
  FlushTicket Defer(Domain& domain, Range range, FlushLane* lane) {
    Domain* const domains[] = {&domain};
    return queue->Defer({.range = range, .domains = domains, .releaser = this},
                        Local(nullptr, lane));
  }
  // Asked for by threads too, where Catch2 must not be asked: without a lane the test ends here.
  FlushLane NewLane() { return queue->NewLane("test").value(); }
};

TEST_CASE("One flush with one invalidation serves all lanes; each has its own bound") {
  FakeDomain domain;
  Queue q({.max_ranges = 8});
  FlushLane a = q.NewLane(), b = q.NewLane();
  std::vector<FlushTicket> others;
  for (uint64_t i = 0; i < 5; ++i) others.push_back(q.Defer(domain, Page(100 + i), &b));
  others.push_back(q.Defer(domain, Page(200), nullptr));
  FlushTicket last;
  for (uint64_t i = 0; i < 8; ++i) last = q.Defer(domain, Page(1 + i), &a);
  CHECK(last.done());
  for (const FlushTicket& ticket : others) CHECK(ticket.done());
  CHECK(domain.stats().invalidations == 1);
  const FlushQueue::Stats stats = q.queue->stats();
  CHECK(stats.flushes == 1);
  CHECK(stats.lanes == 2);
  CHECK(stats.common == 1);
  CHECK(stats.deferred == 14);
  CHECK(stats.pending_ranges == 0);
  CHECK(stats.pending_bytes == 0);
  // b's own wait for its owner, the rest is back.
  CHECK(stats.parked_ranges == 5);
  CHECK(q.released == 9);
  (void)q.Defer(domain, Page(300), &b);
  CHECK(q.released == 14);
  CHECK(q.queue->stats().parked_ranges == 0);
}

TEST_CASE("What a lane holds, parked ranges included, is within its bound") {
  FakeDomain domain;
  Queue q({.max_ranges = 6});  // not a power of two
  FlushLane a = q.NewLane(), b = q.NewLane();
  uint64_t most = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    FlushLane& lane = i % 7 < 5 ? a : b;
    (void)q.Defer(domain, Page(1 + i), &lane);
    const FlushQueue::Stats stats = q.queue->stats();
    most = std::max(most, stats.pending_ranges + stats.parked_ranges);
  }
  CHECK(most <= 12);
  REQUIRE(q.queue->Flush().ok());
  CHECK(q.released == 500);
  CHECK(q.queue->stats().parked_ranges == 0);
}

TEST_CASE("The bound in bytes is each lane's own") {
  FakeDomain domain;
  Queue q({.max_ranges = 100, .max_bytes = Bytes(16384)});
  FlushLane a = q.NewLane(), b = q.NewLane();
  (void)q.Defer(domain, {Iova(0x10000), Bytes(12288)}, &a);
  (void)q.Defer(domain, {Iova(0x20000), Bytes(12288)}, &b);
  CHECK(q.queue->stats().flushes == 0);
  (void)q.Defer(domain, {Iova(0x30000), Bytes(8192)}, &b);  // would exceed
  CHECK(q.queue->stats().flushes == 1);
  CHECK(q.queue->stats().pending_bytes == 8192);
}

TEST_CASE("An owner that ends loses nothing: the next flush serves its lane, which then goes") {
  FakeDomain domain;
  Queue q({});
  FlushTicket ticket;
  std::thread([&] {
    FlushLane lane = q.NewLane();
    ticket = q.Defer(domain, Page(1), &lane);
  }).join();
  CHECK(ticket.state() == State::kPending);
  CHECK(q.queue->stats().lanes == 1);
  CHECK(q.queue->stats().pending_ranges == 1);
  REQUIRE(q.queue->Flush().ok());
  CHECK(ticket.done());
  CHECK(q.released == 1);
  FlushLane next = q.NewLane();
  CHECK(q.queue->stats().lanes == 1);
  CHECK(q.queue->stats().deferred == 1);  // counts outlive their lane
  CHECK(q.queue->stats().peak_pending_ranges == 1);
}

TEST_CASE("A thread that ended with its lane alive: bound, age and exhaustion of others serve it") {
  for (const int how : {0, 1, 2}) {
    FakeDomain domain;
    Queue q({.max_ranges = 4, .max_age = Nanos{1000}});
    FlushLane left = q.NewLane(), other = q.NewLane();
    FlushTicket ticket;
    std::thread([&] { ticket = q.Defer(domain, Page(1), &left); }).join();
    if (how == 0) {
      for (uint64_t i = 0; i < 4; ++i) (void)q.Defer(domain, Page(10 + i), &other);
      CHECK(q.queue->stats().parked_ranges == 1);  // its IOVA; a reclaim brings it back
      q.queue->Reclaim();
    } else if (how == 1) {
      q.clock.Advance(Nanos{1000});
      REQUIRE(q.queue->FlushIfOld().ok());
    } else {
      q.queue->Reclaim();
    }
    CHECK(ticket.done());
    CHECK(q.released == (how == 0 ? 5 : 1));
    CHECK(q.queue->stats().parked_ranges == 0);
    CHECK(domain.stats().invalidations == 1);
  }
}

TEST_CASE("Lanes are bounded in number; ended ones make room, once flushed if need be") {
  FakeDomain domain;
  Queue q({.max_lanes = 2});
  FlushLane a = q.NewLane(), b = q.NewLane();
  const absl::Status full = q.queue->NewLane("tx7").status();
  CHECK(absl::IsResourceExhausted(full));
  CHECK(Has(full, "tx7"));
  CHECK(Has(full, "max_lanes"));
  const FlushTicket ticket = q.Defer(domain, Page(1), &a);
  a = FlushLane();
  a = q.NewLane();
  CHECK(ticket.done());
  CHECK(q.queue->stats().lanes == 2);
}

TEST_CASE("Another queue's lane counts as none; a lane and its tickets outlive their queue") {
  FakeDomain domain;
  FlushLane lane;
  FlushTicket ticket;
  Queue other({});
  {
    Queue q({});
    lane = q.NewLane();
    ticket = q.Defer(domain, Page(1), &lane);
    q.queue.reset();
    CHECK(q.released == 1);
  }
  CHECK(ticket.done());
  (void)other.Defer(domain, Page(2), &lane);
  CHECK(other.queue->stats().common == 1);
  CHECK(FlushLane().empty());
}

TEST_CASE("A lane of a queue that is gone counts as none in the one that lies there now") {
  FakeDomain domain;
  for (int i = 0; i < 50; ++i) {
    FlushLane old;
    {
      Queue gone({});
      old = gone.NewLane();
    }
    Queue now({});
    const FlushTicket ticket = now.Defer(domain, Page(1), &old);
    CHECK(now.queue->stats().common == 1);
    REQUIRE(now.queue->Flush().ok());
    CHECK(ticket.done());
    CHECK(now.released == 1);
  }
}

TEST_CASE("A flush that began before the unmap does not complete its ticket, in any lane") {
  HookedDomain domain;
  Gate began, go_on;
  std::atomic<int> flushes{0};
  Queue q({});
  FlushLane a = q.NewLane(), b = q.NewLane();
  domain.before_invalidate = [&] {
    if (++flushes != 1) return;
    began.Open();
    go_on.Wait();
  };
  const FlushTicket early_a = q.Defer(domain, Page(1), &a);
  const FlushTicket early_b = q.Defer(domain, Page(2), &b);
  std::thread flusher([&] { (void)q.queue->Flush(); });
  began.Wait();
  const FlushTicket late_a = q.Defer(domain, Page(3), &a);  // and neither waits for the flush
  const FlushTicket late_b = q.Defer(domain, Page(4), &b);
  CHECK(early_a.state() == State::kPending);
  go_on.Open();
  flusher.join();
  CHECK(early_a.done());
  CHECK(early_b.done());
  CHECK(late_a.state() == State::kPending);
  CHECK(late_b.state() == State::kPending);
  REQUIRE(q.queue->Flush().ok());
  CHECK(late_a.done());
  CHECK(late_b.done());
  CHECK(q.queue->stats().flush_waits == 0);
}

TEST_CASE("An owner whose lane is full while another flush runs waits for it, and is counted") {
  HookedDomain domain;
  Gate began, go_on;
  std::atomic<int> flushes{0};
  Queue q({.max_ranges = 2});
  FlushLane a = q.NewLane();
  domain.before_invalidate = [&] {
    if (++flushes != 1) return;
    began.Open();
    go_on.Wait();
  };
  (void)q.Defer(domain, Page(1), &a);
  std::thread flusher([&] { (void)q.queue->Flush(); });
  began.Wait();
  std::thread owner([&] { (void)q.Defer(domain, Page(2), &a); });
  for (int i = 0; i < 5000 && q.queue->stats().flush_waits == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  go_on.Open();
  flusher.join();
  owner.join();
  CHECK(q.queue->stats().flush_waits == 1);
  CHECK(flushes == 1);  // the running one had made room
  CHECK(q.queue->stats().pending_ranges == 1);
}

TEST_CASE("A failed flush quarantines in all lanes at once, and only what it served") {
  host::FailPoint fail;
  FakeDomain domain({.fail_invalidate = &fail});
  Queue q({.max_ranges = 4});
  FlushLane a = q.NewLane(), b = q.NewLane();
  const FlushTicket before = q.Defer(domain, Page(1), &b);
  for (uint64_t i = 0; i < 4; ++i) (void)q.Defer(domain, Page(10 + i), &a);
  REQUIRE(before.done());
  REQUIRE(q.released == 4);  // b's waits for its owner
  fail.FailAt(1);
  const FlushTicket bad = q.Defer(domain, Page(2), &b);
  for (uint64_t i = 0; i < 4; ++i) (void)q.Defer(domain, Page(20 + i), &a);
  CHECK(bad.state() == State::kQuarantined);
  CHECK(q.failed == 5);
  CHECK(q.released == 5);
  CHECK(before.done());
  const FlushTicket after = q.Defer(domain, Page(3), &b);
  REQUIRE(q.queue->Flush().ok());
  CHECK(after.done());
  CHECK(bad.state() == State::kQuarantined);
  CHECK(q.queue->stats().failed == 1);
}

TEST_CASE("Destroyed while its timer is inside a flush: lanes are completed, ended ones too") {
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
  FlushLane a = q.NewLane(), b = q.NewLane();
  const FlushTicket first = q.Defer(domain, Page(1), &a);
  q.clock.Advance(Nanos{10});
  began.Wait();  // the queue's thread is in the flush now
  const FlushTicket second = q.Defer(domain, Page(2), &a);
  const FlushTicket third = q.Defer(domain, Page(3), &b);
  b = FlushLane();
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
  CHECK(third.done());
  CHECK(q.released == 3);
}

TEST_CASE("The age thread hears of every lane, whenever it went to sleep") {
  host::SystemThreads threads;
  FakeDomain domain;
  Queue q({.max_age = Nanos{1}}, &threads);
  FlushLane a = q.NewLane(), b = q.NewLane();
  for (uint64_t i = 0; i < 200; ++i) {
    const FlushTicket ticket = q.Defer(domain, Page(1 + i), i % 2 == 0 ? &a : &b);
    q.clock.Advance(Nanos{10});
    for (int n = 0; n < 5000 && !ticket.done(); ++n) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    REQUIRE(ticket.done());
    if (i % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // let it sleep
  }
  CHECK(q.queue->stats().forced_by_age == 200);
}

TEST_CASE("Exhaustion brings back what lanes hold, also of a thread that ended with its lane") {
  Fixture f;
  AddressSpace::Options options = f.Options();
  options.policy = Policy::kDeferred;
  options.deferred = {.max_ranges = 1000};
  f.NewSpace(std::move(options));
  FakeDomain& domain = f.NewDomain({.width = AddressBits(16)});  // 15 pages
  auto nic = f.Attach("nic0", domain);
  auto left = f.space->NewFlushLane("gone");
  auto lane = f.space->NewFlushLane("here");
  REQUIRE(left.ok());
  REQUIRE(lane.ok());
  Buffer buffer(4096);
  const auto pair = [&](FlushLane& in) {
    auto m = nic->Map(buffer.all(), Direction::kToDevice);
    return m.ok() && nic->Unmap(*std::move(m), {nullptr, &in}).ok();
  };
  std::atomic<int> failures{0};
  std::thread([&] {
    for (int i = 0; i < 14; ++i) failures += pair(*left) ? 0 : 1;
  }).join();
  for (int i = 0; i < 100; ++i) failures += pair(*lane) ? 0 : 1;
  CHECK(failures == 0);
  CHECK(f.space->flush_queue()->stats().forced_by_exhaustion >= 7);
  CHECK(f.space->flush_queue()->stats().common == 0);
  CHECK(domain.stale_reuses() == 0);
  nic.reset();
  CHECK(f.space->iova_space().stats().live_ranges == 0);
}

TEST_CASE("Under strict the lane is the empty one, and every call takes it") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain();
  auto nic = f.Attach("nic0", domain);
  auto lane = f.space->NewFlushLane("tx0");
  REQUIRE(lane.ok());
  CHECK(lane->empty());
  Buffer buffer(4096);
  CHECK(nic->Unmap(*nic->Map(buffer.all(), Direction::kToDevice), {.lane = &*lane})->done());
  CHECK(domain.stale().empty());
}

TEST_CASE("Page ranges through a lane: usable when the ticket is done, though not yet released") {
  Fixture f;
  AddressSpace::Options options = f.Options();
  options.policy = Policy::kDeferred;
  options.deferred = {.max_ranges = 4};
  f.NewSpace(std::move(options));
  FakeDomain& domain = f.NewDomain();
  auto nic = f.Attach("nic0", domain);
  auto pool = f.space->NewFlushLane("pool");
  auto other = f.space->NewFlushLane("other");
  REQUIRE(pool.ok());
  REQUIRE(other.ok());
  Buffer buffer(8 * 4096);
  auto page = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
  auto second = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
  REQUIRE(page.ok());
  REQUIRE(second.ok());
  const auto fill = [&] {
    for (int i = 0; i < 4; ++i) {
      REQUIRE(nic->Unmap(*nic->Map(buffer.part(4096, 10), Direction::kToDevice), {nullptr, &*other})
                  .ok());
    }
  };
  for (int round = 0; round < 10; ++round) {
    REQUIRE(page->Map(buffer.view(0, 4096)).ok());
    auto ticket = page->Unmap(Policy::kDeferred, {nullptr, &*pool});
    REQUIRE(ticket.ok());
    CHECK(absl::IsFailedPrecondition(page->Map(buffer.view(0, 4096))));
    fill();  // the other lane's bound serves this one too
    CHECK(ticket->done());
  }
  // A handle that goes with its ticket done, and one that goes with it pending.
  REQUIRE(second->Map(buffer.view(8192, 4096)).ok());
  REQUIRE(second->Unmap(Policy::kDeferred, {nullptr, &*pool}).ok());
  page = SharedRange();
  second = SharedRange();
  CHECK(domain.stale_reuses() == 0);
  REQUIRE(f.space->flush_queue()->Flush().ok());
  CHECK(f.space->iova_space().stats().live_ranges == 0);
  CHECK(f.space->flush_queue()->stats().parked_ranges == 0);
}

TEST_CASE("Many owners, each with a lane: every release once, nobody in the common lane") {
  host::SystemThreads starter;
  FakeDomain domain;
  Queue q({.max_ranges = 16, .max_age = Nanos{1}}, &starter);
  constexpr int kThreads = 4, kEach = 4000;
  std::atomic<int> pending{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<FlushTicket> tickets;
      for (int life = 0; life < 4; ++life) {
        FlushLane lane = q.NewLane();
        for (int i = 0; i < kEach / 4; ++i) {
          tickets.push_back(q.Defer(domain, Page(1 + (t * 4 + life) * kEach + i), &lane));
          if (i % 64 == 0) q.clock.Advance(Nanos{1});
          if (i % 256 == 0) (void)q.queue->Flush();
          if (i % 512 == 0) q.queue->Reclaim();
        }
      }
      (void)q.queue->Flush();
      for (const FlushTicket& ticket : tickets) pending += ticket.done() ? 0 : 1;
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(pending == 0);
  CHECK(q.released == kThreads * kEach);
  const FlushQueue::Stats stats = q.queue->stats();
  CHECK(stats.deferred == kThreads * kEach);
  CHECK(stats.common == 0);
  CHECK(stats.pending_ranges == 0);
  CHECK(stats.parked_ranges == 0);
  CHECK(stats.peak_pending_ranges <= 16 * (4 * kThreads));
}

}  // namespace
}  // namespace dmakit::dma
