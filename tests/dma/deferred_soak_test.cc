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

namespace {
thread_local uint64_t allocations = 0;
}

void* operator new(size_t size) {
  ++allocations;
  if (void* block = std::malloc(size)) return block;
  std::abort();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::LightDomain;

constexpr size_t kBound = 256;

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
  Local local(size_t i) { return {caches[i].get(), &lanes[i]}; }
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

// What one thread saw; the peaks of the first and the last quarter of its run.
struct Seen {
  uint64_t failures = 0;
  std::array<uint64_t, 4> pending{}, live{};
};

Seen Churn(Rig& rig, size_t who, Buffer& buffer, uint64_t pairs) {
  Seen seen;
  for (uint64_t i = 0; i < pairs; ++i) {
    if (!rig.Pair(who, buffer.part(4096 * (4 * who + i % 4), 1500))) ++seen.failures;
    if (i % 4096 != 0) continue;
    const FlushQueue::Stats stats = rig.queue().stats();
    const size_t quarter = i * 4 / pairs;
    seen.pending[quarter] =
        std::max(seen.pending[quarter], stats.pending_ranges + stats.parked_ranges);
    seen.live[quarter] = std::max(seen.live[quarter], rig.space->iova_space().stats().live_ranges);
  }
  return seen;
}

TEST_CASE("Two threads, 10^7 pairs: what waits and what is parked has a plateau") {
  constexpr uint64_t kPairs = 5'000'000;  // of each thread
  LightDomain domain(AddressBits(28));
  host::SystemThreads threads;
  Rig rig(domain, {.max_ranges = kBound}, &threads);
  Buffer buffer(8 * 4096);
  std::array<Seen, 2> seen;
  std::thread other([&] { seen[1] = Churn(rig, 1, buffer, kPairs); });
  seen[0] = Churn(rig, 0, buffer, kPairs);
  other.join();

  const uint64_t parked = rig.caches[0]->stats().parked_bound + rig.caches[1]->stats().parked_bound;
  const uint64_t depot = rig.space->iova_space().depot_bound();
  for (const Seen& s : seen) {
    CHECK(s.failures == 0);
    for (size_t quarter = 0; quarter < 4; ++quarter) {
      CHECK(s.pending[quarter] <= 2 * kBound);
      CHECK(s.live[quarter] <= 2 * kBound + 2 + parked + depot);
      CHECK(s.live[quarter] <= s.live[0] + 2 * kBound);
    }
  }
  const FlushQueue::Stats stats = rig.queue().stats();
  WARN("live at most " << seen[0].live[0] << " then " << seen[0].live[3] << ", flushes "
                       << stats.flushes << " (" << stats.forced_by_age << " by age), lock waits "
                       << stats.lock_waits << ", flush waits " << stats.flush_waits
                       << ", tree operations " << rig.space->iova_space().stats().operations);
  CHECK(stats.deferred == 2 * kPairs);
  CHECK(stats.peak_pending_ranges <= 2 * kBound);
  CHECK(stats.common == 0);
  CHECK(stats.flushes <= 2 * kPairs / kBound + stats.forced_by_age);
  CHECK(domain.wrong() == 0);
  CHECK(rig.space->quarantine().total_held() == 0);
  REQUIRE(rig.queue().Flush().ok());
  rig.space->iova_space().ReclaimAll();
  CHECK(rig.space->iova_space().stats().live_ranges == 0);
  CHECK(domain.stats().live_mappings == 0);
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
  constexpr int kPairs = 20'000;
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
