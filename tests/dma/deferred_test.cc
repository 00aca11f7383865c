// SPDX-License-Identifier: Apache-2.0
//
// Deferred invalidation through an address space: nothing is reused early, what waits is bounded,
// exhaustion forces a flush, and where the queue cannot be set up everything is strict.
#include <array>
#include <thread>

#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::Fixture;
using testing::Gate;
using testing::Has;
using testing::HookedDomain;
using State = FlushTicket::State;

AddressSpace::Options Deferred(Fixture& f, DeferredLimits limits = {},
                               host::ThreadStarter* threads = nullptr) {
  AddressSpace::Options options = f.Options();
  options.policy = Policy::kDeferred;
  options.deferred = limits;
  options.threads = threads;
  return options;
}

TEST_CASE("An IOVA is not reused before a flush that began after its unmap") {
  Fixture f;
  f.NewSpace(Deferred(f));
  FakeDomain& domain = f.NewDomain({.width = AddressBits(20)});
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(4096);
  auto m = nic->Map(buffer.all(), Direction::kToDevice);
  REQUIRE(m.ok());
  const Iova first = m->iova();
  auto ticket = nic->Unmap(*std::move(m));
  REQUIRE(ticket.ok());
  CHECK(ticket->state() == State::kPending);
  CHECK(domain.live().empty());
  CHECK(domain.stats().invalidations == 0);
  CHECK(nic->stats().live_mappings == 0);
  CHECK(f.space->iova_space().stats().live_ranges == 1);
  CHECK(nic->Map(buffer.all(), Direction::kToDevice)->iova() != first);
  REQUIRE(f.space->flush_queue()->Flush().ok());
  CHECK(ticket->done());
  CHECK(f.space->iova_space().stats().live_ranges == 0);
  CHECK(domain.stale_reuses() == 0);
}

TEST_CASE("Many unmaps cost one invalidation") {
  Fixture f;
  f.NewSpace(Deferred(f, {.max_ranges = 64}));
  FakeDomain& domain = f.NewDomain();
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(4096);
  for (int i = 0; i < 640; ++i) {
    REQUIRE(nic->Unmap(*nic->Map(buffer.all(), Direction::kToDevice)).ok());
  }
  CHECK(domain.stats().unmaps == 640);
  CHECK(domain.stats().invalidations == 10);
  CHECK(domain.stale_reuses() == 0);
}

TEST_CASE("Destructors are strict: without a ticket memory must be reusable at once") {
  Fixture f;
  f.NewSpace(Deferred(f));
  FakeDomain& domain = f.NewDomain();
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(4096);
  { auto m = nic->Map(buffer.all(), Direction::kToDevice); }
  CHECK(domain.stale().empty());
  CHECK(f.space->iova_space().stats().live_ranges == 0);
}

TEST_CASE("Where an unmap implies the invalidation nothing is deferred") {
  Fixture f;
  f.NewSpace(Deferred(f));
  auto nic = f.Attach("nic0", f.NewDomain({.unmap_invalidates = true}));
  Buffer buffer(4096);
  CHECK(nic->Unmap(*nic->Map(buffer.all(), Direction::kToDevice))->done());
  CHECK(f.space->flush_queue()->stats().deferred == 0);
}

TEST_CASE("Exhaustion forces a flush: a space of 15 pages serves any number of pairs") {
  Fixture f;
  f.NewSpace(Deferred(f, {.max_ranges = 1000}));
  FakeDomain& domain = f.NewDomain({.width = AddressBits(16)});
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(4096);
  for (int i = 0; i < 100; ++i) {
    auto m = nic->Map(buffer.all(), Direction::kToDevice);
    REQUIRE(m.ok());
    REQUIRE(nic->Unmap(*std::move(m)).ok());
  }
  CHECK(f.space->flush_queue()->stats().forced_by_exhaustion >= 6);
  CHECK(domain.stale_reuses() == 0);
}

TEST_CASE("Page ranges find what is deferred, too") {
  Fixture f;
  f.NewSpace(Deferred(f, {.max_ranges = 1000}));
  FakeDomain& domain = f.NewDomain({.width = AddressBits(16)});
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(15 * 4096);
  REQUIRE(nic->Unmap(*nic->Map(buffer.all(), Direction::kToDevice)).ok());
  auto range = f.space->Reserve(Bytes(14 * 4096), Bytes(0), "pool");
  REQUIRE(range.ok());
  CHECK(f.space->flush_queue()->stats().forced_by_exhaustion == 1);
}

TEST_CASE("The queue's thread cannot start: strict, correct, and said") {
  Fixture f;
  f.faults.threads.FailAt(1);
  AddressSpace& space = f.NewSpace(Deferred(f, {}, &f.threads));
  FakeDomain& domain = f.NewDomain();
  auto nic = f.Attach("nic0", domain);
  CHECK(space.flush_queue() == nullptr);
  CHECK(space.stats().policy == Policy::kStrict);
  CHECK(space.stats().fallback.find("thread") != std::string::npos);
  Buffer buffer(4096);
  for (int i = 0; i < 10; ++i) {
    CHECK(nic->Unmap(*nic->Map(buffer.all(), Direction::kToDevice))->done());
  }
  CHECK(domain.stats().invalidations == 10);
  auto range = space.Reserve(Bytes(4096), Bytes(0), "pool");
  REQUIRE(range->Map(buffer.view(0, 4096)).ok());
  CHECK(range->Unmap(Policy::kDeferred)->done());
  CHECK(domain.stale().empty());
}

TEST_CASE("A failed flush quarantines its ranges; the reset brings them back") {
  Fixture f;
  f.NewSpace(Deferred(f));
  FakeDomain& domain = f.NewDomain();
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(3 * 4096);
  std::vector<FlushTicket> tickets;
  for (int i = 0; i < 3; ++i) {
    tickets.push_back(*nic->Unmap(
        *nic->Map(buffer.part(4096 * i, 10), Direction::kFromDevice, {.owner = "rx0"})));
  }
  f.faults.invalidate.FailAt(1);
  CHECK_FALSE(f.space->flush_queue()->Flush().ok());
  for (const FlushTicket& t : tickets) CHECK(t.state() == State::kQuarantined);
  CHECK(f.space->quarantine().count() == 3);
  CHECK(f.space->quarantine().Describe()[0].find("rx0") != std::string::npos);
  CHECK(f.space->iova_space().stats().live_ranges == 3);
  REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(f.space->iova_space().stats().live_ranges == 0);
  CHECK(domain.stale().empty());
}

TEST_CASE("A short unmap is not deferred but quarantined") {
  Fixture f;
  f.NewSpace(Deferred(f));
  auto nic = f.Attach("nic0", f.NewDomain());
  Buffer buffer(8192);
  auto m = nic->Map(buffer.all(), Direction::kFromDevice);
  f.faults.short_unmap.FailAt(1);
  CHECK_FALSE(nic->Unmap(*std::move(m)).ok());
  CHECK(f.space->flush_queue()->stats().deferred == 0);
  CHECK(f.space->quarantine().count() == 1);
}

TEST_CASE("Detach completes what its device has deferred") {
  Fixture f;
  f.NewSpace(Deferred(f));
  FakeDomain& domain = f.NewDomain();
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(4096);
  auto ticket = nic->Unmap(*nic->Map(buffer.all(), Direction::kToDevice));
  nic.reset();
  CHECK(ticket->done());
  CHECK(domain.stale().empty());
}

TEST_CASE("The space ends while the queue's thread is inside a flush") {
  Fixture f;
  host::SystemThreads threads;
  HookedDomain domain;
  Gate began, go_on;
  std::atomic<int> calls{0};
  domain.before_invalidate = [&] {
    if (++calls != 1) return;
    began.Open();
    go_on.Wait();
  };
  f.NewSpace(Deferred(f, {.max_age = Nanos{1}}, &threads));
  auto made = f.space->Attach({.name = "nic0", .domain = &domain});
  REQUIRE(made.ok());
  std::unique_ptr<Device> nic = *std::move(made);
  Buffer buffer(4096);
  auto ticket = nic->Unmap(*nic->Map(buffer.all(), Direction::kToDevice));
  REQUIRE(ticket.ok());
  f.clock.Advance(Nanos{10});
  began.Wait();
  std::atomic<bool> gone{false};
  std::thread ender([&] {
    nic.reset();
    f.space.reset();
    gone = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(gone);
  go_on.Open();
  ender.join();
  CHECK(ticket->done());
  CHECK(domain.fake.stale().empty());
}

// Scaled; what must not grow is what waits.
TEST_CASE(
    "Two threads, 2 x 10^5 pairs: pending is bounded, live returns to zero, nothing is stale") {
  Fixture f;
  host::SystemThreads threads;
  constexpr size_t kBound = 128;
  AddressSpace& space =
      f.NewSpace(Deferred(f, {.max_ranges = kBound, .max_age = Nanos{1'000'000}}, &threads));
  FakeDomain& d0 = f.NewDomain();
  FakeDomain& d1 = f.NewDomain();
  auto nic0 = f.Attach("nic0", d0);
  auto nic1 = f.Attach("nic1", d1);
  Buffer buffer(16 * 4096);
  constexpr int kPairs = 100'000;
  std::atomic<int> failures{0};
  std::atomic<uint64_t> peak_live{0};
  auto work = [&](Device& nic, size_t first) {
    constexpr size_t kWindow = 4;  // the memory of a slot is reused when its ticket is done
    std::array<FlushTicket, kWindow> tickets;
    auto cache = space.NewCache(nic.name());
    if (!cache.ok()) ++failures;
    uint64_t peak = 0;
    for (int i = 0; i < kPairs; ++i) {
      FlushTicket& ticket = tickets[i % kWindow];
      if (!ticket.done() && !space.flush_queue()->Flush().ok()) ++failures;
      if (!ticket.done()) ++failures;
      auto m = nic.Map(buffer.part(4096 * (first + i % kWindow), 1500), Direction::kFromDevice,
                       {.owner = "rx", .cache = cache->get()});
      if (!m.ok()) {
        ++failures;
        continue;
      }
      auto done = nic.Unmap(*std::move(m));
      if (!done.ok()) ++failures;
      if (done.ok()) ticket = *done;
      if (i % 1024 == 0) {
        f.clock.Advance(Nanos{500'000});
        peak = std::max(peak, space.iova_space().stats().live_ranges);
      }
    }
    uint64_t seen = peak_live.load();
    while (peak > seen && !peak_live.compare_exchange_weak(seen, peak)) {
    }
  };
  std::thread a([&] { work(*nic0, 0); });
  std::thread b([&] { work(*nic1, 8); });
  a.join();
  b.join();
  CHECK(failures == 0);
  const FlushQueue::Stats stats = space.flush_queue()->stats();
  CHECK(stats.deferred == 2 * kPairs);
  CHECK(stats.peak_pending_ranges <= kBound);
  CHECK(peak_live <= kBound + 2 + 4 * 64 * 2);  // pending, live, and two caches' magazines
  REQUIRE(space.flush_queue()->Flush().ok());
  CHECK(space.flush_queue()->stats().pending_ranges == 0);
  CHECK(nic0->stats().live_mappings == 0);
  CHECK(space.stats().live_mappings == 0);
  CHECK(space.iova_space().stats().live_ranges == 0);
  CHECK(d0.stale_reuses() + d1.stale_reuses() == 0);
  CHECK(space.quarantine().total_held() == 0);
}

}  // namespace
}  // namespace dmakit::dma
