// SPDX-License-Identifier: Apache-2.0
//
// Deferred invalidation over a long run: what waits and what is parked stays within its bounds, an
// unmap allocates nothing and touches nobody else's queue, and no device access happens through an
// old translation once its ticket is done.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "dma/host/fence.h"
#include "dma/software_iommu.h"
#include "tests/dma/light_domain.h"
#include "tests/dma/space_fixture.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define DMAKIT_SANITIZED 1
#else
#define DMAKIT_SANITIZED 0
#endif

namespace {
thread_local uint64_t allocations = 0;
}

#if !DMAKIT_SANITIZED  // whose operators these would replace
void* operator new(size_t size) {
  ++allocations;
  if (void* block = std::malloc(size)) return block;
  std::abort();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
#endif

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::LightDomain;

constexpr size_t kBound = 256;
// A pair through a device costs some 20 times as much there.
constexpr uint64_t kScale = DMAKIT_SANITIZED ? 50 : 1;

// The same domain behind two devices, each driven by a thread with a cache and a lane of its own.
struct Rig {
  explicit Rig(Domain& domain, DeferredLimits limits = {.max_ranges = kBound},
               host::ThreadStarter* threads = nullptr, Policy policy = Policy::kDeferred) {
    AddressSpace::Options options;
    options.memory = &memory;
    options.fence = &fence;
    options.policy = policy;
    options.deferred = limits;
    options.threads = threads;
    auto made = AddressSpace::Create(std::move(options));
    REQUIRE(made.ok());
    space = *std::move(made);
    for (size_t i = 0; i < 2; ++i) {
      auto device = space->Attach({.name = "nic" + std::to_string(i), .domain = &domain});
      REQUIRE(device.ok());
      devices[i] = *std::move(device);
      auto cache = space->NewCache(devices[i]->name());
      REQUIRE(cache.ok());
      caches[i] = *std::move(cache);
      auto lane = space->NewFlushLane(devices[i]->name());
      REQUIRE(lane.ok());
      lanes[i] = *std::move(lane);
    }
  }
  UnmapOptions local(size_t i) { return {.cache = caches[i].get(), .lane = &lanes[i]}; }
  absl::StatusOr<Mapping> Map(size_t i, std::span<std::byte> bytes) {
    return devices[i]->Map(bytes, Direction::kFromDevice,
                           {.owner = "rx", .cache = caches[i].get()});
  }
  // One map and unmap.
  bool Pair(size_t i, std::span<std::byte> bytes) {
    auto mapping = Map(i, bytes);
    return mapping.ok() && devices[i]->Unmap(*std::move(mapping), local(i)).ok();
  }
  FlushQueue& queue() { return *space->flush_queue(); }

  host::MembarrierFence fence;
  host::FakeMemory memory{};
  std::unique_ptr<AddressSpace> space;
  std::array<FlushLane, 2> lanes;
  std::array<std::unique_ptr<Device>, 2> devices;
  std::array<std::unique_ptr<iova::Cache>, 2> caches;
};

TEST_CASE("In the steady state an unmap allocates nothing and takes nobody else's lock") {
  LightDomain domain(AddressBits(28));
  Rig rig(domain, {.max_ranges = kBound, .max_age = Nanos{1'000'000'000'000}});
  Buffer buffer(2 * 4096);
  uint64_t mapping = 0, unmapping = 0;
  const auto run = [&](int pairs) {
    mapping = unmapping = 0;
    for (int i = 0; i < pairs; ++i) {
      const size_t who = i % 2;
      const uint64_t start = allocations;
      auto m = rig.Map(who, buffer.part(4096 * who, 1500));
      REQUIRE(m.ok());
      const uint64_t mapped = allocations;
      REQUIRE(rig.devices[who]->Unmap(*std::move(m), rig.local(who)).ok());
      mapping += mapped - start;
      unmapping += allocations - mapped;
    }
  };
  run(8 * kBound);
  const FlushQueue::Stats before = rig.queue().stats();
  CHECK((allocations != 0) == !DMAKIT_SANITIZED);  // they are counted
  const uint64_t operations = rig.space->iova_space().stats().operations;
  constexpr int kPairs = 64 * kBound;
  run(kPairs);
  const FlushQueue::Stats after = rig.queue().stats();
  CHECK(mapping == 0);
  CHECK(unmapping == 0);
  CHECK(after.deferred - before.deferred == kPairs);
  CHECK(after.common == 0);
  CHECK(after.lock_waits == 0);
  CHECK(after.flush_waits == 0);
  // One flush serves both lanes, one lock per lane gives its ranges back, and into the caches.
  CHECK(after.flushes - before.flushes == kPairs / (2 * kBound));
  CHECK(after.releases - before.releases == 2 * (after.flushes - before.flushes));
  CHECK(rig.space->iova_space().stats().operations == operations);
  CHECK(domain.wrong() == 0);
}

// What one thread saw, by quarters of its run.
struct Seen {
  uint64_t failures = 0;
  std::array<uint64_t, 4> waiting{}, live{};

  void Sample(uint64_t done, uint64_t of, const FlushQueue& queue, const iova::Space& space) {
    const FlushQueue::Stats stats = queue.stats();
    const size_t quarter = done * 4 / of;
    waiting[quarter] = std::max(waiting[quarter], stats.pending_ranges + stats.parked_ranges);
    live[quarter] = std::max(live[quarter], space.stats().live_ranges);
  }
  // Both within what the bounds allow, and no higher after the first quarter than in it.
  void Check(uint64_t parked_bound) const {
    CHECK(failures == 0);
    for (size_t quarter = 0; quarter < 4; ++quarter) {
      CHECK(waiting[quarter] <= 2 * kBound);
      CHECK(live[quarter] <= 2 * kBound + parked_bound);
      CHECK(live[quarter] <= live[0] + 2 * kBound);
    }
  }
};

uint64_t ParkedBound(const iova::Space& space, const iova::Cache& a, const iova::Cache& b) {
  constexpr uint64_t kMapped = 16;  // at a time, at most
  return a.stats().parked_bound + b.stats().parked_bound + space.depot_bound() + kMapped;
}

void Report(const char* what, const Seen& seen, const FlushQueue& queue, const iova::Space& space) {
  const FlushQueue::Stats stats = queue.stats();
  WARN(what << ": live at most " << seen.live[0] << ", then " << seen.live[3] << "; waiting "
            << seen.waiting[0] << ", then " << seen.waiting[3] << "; flushes " << stats.flushes
            << " (" << stats.forced_by_age << " by age), lock waits " << stats.lock_waits
            << ", flush waits " << stats.flush_waits << ", tree operations "
            << space.stats().operations);
}

Seen Churn(Rig& rig, size_t who, Buffer& buffer, uint64_t pairs) {
  Seen seen;
  for (uint64_t i = 0; i < pairs; ++i) {
    if (!rig.Pair(who, buffer.part(4096 * (4 * who + i % 4), 1500))) ++seen.failures;
    if (i % 4096 == 0) seen.Sample(i, pairs, rig.queue(), rig.space->iova_space());
  }
  return seen;
}

TEST_CASE("Two threads and devices, 10^7 pairs: what waits and what is parked has a plateau") {
  constexpr uint64_t kPairs = 5'000'000 / kScale;  // of each thread
  LightDomain domain(AddressBits(28));
  host::SystemThreads threads;
  Rig rig(domain, {.max_ranges = kBound}, &threads);
  Buffer buffer(8 * 4096);
  std::array<Seen, 2> seen;
  std::thread other([&] { seen[1] = Churn(rig, 1, buffer, kPairs); });
  seen[0] = Churn(rig, 0, buffer, kPairs);
  other.join();

  iova::Space& space = rig.space->iova_space();
  for (const Seen& s : seen) s.Check(ParkedBound(space, *rig.caches[0], *rig.caches[1]));
  Report("devices", seen[0], rig.queue(), space);
  const FlushQueue::Stats stats = rig.queue().stats();
  CHECK(stats.deferred == 2 * kPairs);
  CHECK(stats.peak_pending_ranges <= 2 * kBound);
  CHECK(stats.common == 0);
  CHECK(stats.flushes <= 2 * kPairs / kBound + stats.forced_by_age);
  CHECK(domain.wrong() == 0);
  CHECK(rig.space->quarantine().total_held() == 0);
  REQUIRE(rig.queue().Flush().ok());
  space.ReclaimAll();
  CHECK(space.stats().live_ranges == 0);
  CHECK(domain.stats().live_mappings == 0);
}

// One owner driving the parts themselves: cache, domain, lane.
struct Parts final : Releaser {
  Parts(iova::Space& space_in, FlushQueue& queue_in, LightDomain& domain_in)
      : space(space_in), queue(queue_in), domain(domain_in) {
    auto made = iova::Cache::Create(&space, {});
    REQUIRE(made.ok());
    cache = *std::move(made);
    auto lane_made = queue.NewLane("parts");
    REQUIRE(lane_made.ok());
    lane = *std::move(lane_made);
  }
  void Release(const Retired& retired, const absl::Status& flushed, iova::Cache* own) override {
    const bool ok = flushed.ok() &&
                    (own != nullptr ? own->Free(retired.iova).ok() : space.Free(retired.iova).ok());
    if (!ok) ++failures;
  }
  Seen Churn(uint64_t pairs) {
    Seen seen;
    Domain* const domains[] = {&domain};
    for (uint64_t i = 0; i < pairs; ++i) {
      const auto range = cache->Allocate(Bytes(4096));
      if (!range.ok() || !domain.Map(*range, {}, Access::kWrite).ok() ||
          !domain.Unmap(*range).ok()) {
        ++seen.failures;
        continue;
      }
      FlushTicket& ticket = tickets[i % tickets.size()];
      if (!ticket.done()) ++seen.failures;  // of so long ago
      ticket = queue.Defer({.range = *range, .domains = domains, .releaser = this, .iova = *range},
                           Local(cache.get(), &lane));
      if (i % 8192 == 0) seen.Sample(i, pairs, queue, space);
    }
    return seen;
  }

  iova::Space& space;
  FlushQueue& queue;
  LightDomain& domain;
  std::unique_ptr<iova::Cache> cache;
  FlushLane lane;
  std::array<FlushTicket, kBound> tickets;
  std::atomic<uint64_t> failures{0};
};

TEST_CASE("Two threads, 10^7 pairs, cache, domain and lane alone: the full count in every build") {
  constexpr uint64_t kPairs = 5'000'000;  // of each thread
  host::MembarrierFence fence;
  host::SystemThreads threads;
  host::SystemClock clock;
  LightDomain domain(AddressBits(28));
  auto space = *iova::Space::Create(
      {.usable = {{Iova(0), Iova(0xfff'ffff)}}, .fence = fence.available() ? &fence : nullptr});
  auto queue =
      *FlushQueue::Create({.limits = {.max_ranges = kBound}, .clock = &clock, .threads = &threads});
  space->Register(queue.get());
  std::array<Seen, 2> seen;
  {
    Parts a(*space, *queue, domain), b(*space, *queue, domain);
    std::thread other([&] { seen[1] = b.Churn(kPairs); });
    seen[0] = a.Churn(kPairs);
    other.join();
    for (const Seen& s : seen) s.Check(ParkedBound(*space, *a.cache, *b.cache));
    Report("parts", seen[0], *queue, *space);
    REQUIRE(queue->Flush().ok());
    CHECK(a.failures + b.failures == 0);
  }
  const FlushQueue::Stats stats = queue->stats();
  CHECK(stats.deferred == 2 * kPairs);
  CHECK(stats.peak_pending_ranges <= 2 * kBound);
  CHECK(stats.common == 0);
  CHECK(domain.wrong() == 0);
  CHECK(domain.stats().live_mappings == 0);
  CHECK(space->stats().live_ranges == 0);
  space->Unregister(queue.get());
}

// Receive here, transmit there: addresses go one way through the caches, the flush brings them
// back.
TEST_CASE("Mapped on one thread, unmapped on another: bounded all the same") {
  constexpr uint64_t kPairs = 1'000'000 / kScale;
  constexpr size_t kRing = 16;
  LightDomain domain(AddressBits(28));
  host::SystemThreads threads;
  Rig rig(domain, {.max_ranges = kBound}, &threads);
  Buffer buffer(kRing * 4096);
  std::array<Mapping, kRing> ring;
  std::atomic<uint64_t> head{0}, tail{0}, failures{0};
  std::thread consumer([&] {
    for (uint64_t i = 0; i < kPairs; ++i) {
      while (head.load(std::memory_order_acquire) == i) std::this_thread::yield();
      if (!rig.devices[0]->Unmap(std::move(ring[i % kRing]), rig.local(1)).ok()) ++failures;
      tail.store(i + 1, std::memory_order_release);
    }
  });
  Seen seen;
  for (uint64_t i = 0; i < kPairs; ++i) {
    while (i - tail.load(std::memory_order_acquire) == kRing) std::this_thread::yield();
    auto mapping = rig.Map(0, buffer.part(4096 * (i % kRing), 1500));
    if (mapping.ok()) ring[i % kRing] = *std::move(mapping);
    if (!mapping.ok()) ++seen.failures;
    head.store(i + 1, std::memory_order_release);
    if (i % 4096 == 0) seen.Sample(i, kPairs, rig.queue(), rig.space->iova_space());
  }
  consumer.join();
  CHECK(failures == 0);
  iova::Space& space = rig.space->iova_space();
  seen.Check(ParkedBound(space, *rig.caches[0], *rig.caches[1]));
  Report("there and back", seen, rig.queue(), space);
  CHECK(rig.queue().stats().common == 0);
  CHECK(domain.wrong() == 0);
}

// The device writes to the last addresses it was given, over and over, asked or not.
struct Rogue {
  explicit Rogue(SoftwareIommu& iommu) : port(iommu.NewPort("rogue")) {}
  void Run() {
    const uint64_t word = 0xdeadbeef;
    while (!stop.load(std::memory_order_relaxed)) {
      for (std::atomic<uint64_t>& target : targets) {
        const uint64_t iova = target.load(std::memory_order_relaxed);
        if (iova == 0) continue;
        if (port->Write(Iova(iova), std::as_bytes(std::span(&word, 1)))) ++writes;
      }
      ++rounds;
    }
  }

  // Until it has used every target once more.
  void Await() const {
    const uint64_t start = rounds;
    while (rounds < start + 2) std::this_thread::yield();
  }

  std::unique_ptr<DevicePort> port;
  std::array<std::atomic<uint64_t>, 8> targets{};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> writes{0}, rounds{0};
};

TEST_CASE("A device that goes on writing: never after the ticket is done") {
  auto iommu = *SoftwareIommu::Create({.width = AddressBits(39)});
  host::SystemThreads threads;
  Rig rig(*iommu, {.max_ranges = 32, .max_age = Nanos{200'000}}, &threads);
  Rogue rogue(*iommu);
  std::thread device([&] { rogue.Run(); });
  constexpr size_t kSlots = 64;  // more than can be pending: a slot's ticket is done when it is due
  constexpr int kPairs = 20'000 / (kScale == 1 ? 1 : 4);
  Buffer buffer(kSlots * 4096);
  std::array<FlushTicket, kSlots> tickets;
  std::array<bool, kSlots> marked{};
  uint64_t overwritten = 0, unfinished = 0;
  const auto word = [&](size_t slot) {
    return reinterpret_cast<uint64_t*>(buffer.data() + 4096 * slot);
  };
  for (int i = 0; i < kPairs; ++i) {
    const size_t slot = i % kSlots;
    // Ours since the ticket was done: plain memory, with which the device must not meddle.
    if (marked[slot] && *word(slot) != slot) ++overwritten;
    auto mapping = rig.Map(0, buffer.part(4096 * slot, 64));
    REQUIRE(mapping.ok());
    rogue.targets[i % 8].store(mapping->iova().value(), std::memory_order_relaxed);
    if (i % 16 == 0) rogue.Await();  // so that its translation cache holds it
    auto ticket = rig.devices[0]->Unmap(*std::move(mapping), rig.local(0));
    REQUIRE(ticket.ok());
    tickets[slot] = *ticket;
    const size_t done = (i + 1 + kSlots / 2) % kSlots;  // unmapped half a round ago
    if (i < static_cast<int>(kSlots)) continue;
    if (!tickets[done].done()) ++unfinished;
    *word(done) = done;
    marked[done] = true;
  }
  rogue.stop = true;
  device.join();
  CHECK(overwritten == 0);
  CHECK(unfinished == 0);
  // It did use translations while their unmaps were pending, so the test looked where it matters.
  CHECK(iommu->walk_stats().stale_uses > 0);
  CHECK(rogue.writes > 0);
  WARN("writes " << rogue.writes << ", of them stale while pending "
                 << iommu->walk_stats().stale_uses);
}

}  // namespace
}  // namespace dmakit::dma
