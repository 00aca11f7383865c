// SPDX-License-Identifier: Apache-2.0
//
// Owners and thieves on threads, with the kernel's barrier (locked where the kernel refuses it).
// Run under TSan as well. Threads only collect; the main thread asserts.

#include <atomic>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "iova/cache.h"
#include "iova/space.h"
#include "tests/catch.h"
#include "tests/iova/testing.h"

namespace dmakit::iova {
namespace {

using testing::Membarrier;
using testing::Piece;
using testing::Random;

constexpr Bytes kPage = KiB(4);
constexpr int kScale = testing::kSanitized ? 10 : 1;

struct Fixture {
  Fixture(bool fenced, Space::Options options) {
    options.fence = fenced ? &fence : nullptr;
    auto made = Space::Create(std::move(options));
    REQUIRE(made.ok());
    space = *std::move(made);
  }
  std::unique_ptr<Cache> NewCache() {
    auto cache = Cache::Create(space.get(), {});
    REQUIRE(cache.ok());
    return *std::move(cache);
  }

  Membarrier fence;
  std::unique_ptr<Space> space;
};

bool Fenced() { return GENERATE(true, false); }

// Who holds each page: a range handed out twice is seen by whoever comes second.
class Holders {
 public:
  explicit Holders(size_t pages) : held_(pages) {}
  bool Take(const Range& range) { return Set(range, 0, 1); }
  bool Give(const Range& range) { return Set(range, 1, 0); }

 private:
  bool Set(const Range& range, int from, int to) {
    bool good = true;
    const uint64_t first = (range.base - Iova(0)) / kPage;
    for (uint64_t page = first; page < first + range.size / kPage; ++page) {
      good &= held_[page].exchange(to, std::memory_order_relaxed) == from;
    }
    return good;
  }

  std::vector<std::atomic<int>> held_;
};

TEST_CASE("Exhaustion finds what an ended thread parked (per-thread cache of an ended thread)") {
  Fixture f(Fenced(), {.usable = {Piece(0, 0xFFFFF)}});
  auto cache = f.NewCache();
  std::atomic<int> failed{0};
  std::thread([&] {
    std::vector<Range> ranges;
    for (int i = 0; i < 250; ++i) {
      const auto range = cache->Allocate(kPage);
      range.ok() ? ranges.push_back(*range) : void(++failed);
    }
    for (const Range& range : ranges) failed += cache->Free(range).ok() ? 0 : 1;
  }).join();
  REQUIRE(failed == 0);
  CHECK(f.space->largest_free() < kPage * 255);
  CHECK(f.space->Allocate({.size = kPage * 255}).ok());
}

TEST_CASE("Exhaustion finds what an idle owner parked, and does not wait for it") {
  Fixture f(Fenced(), {.usable = {Piece(0, 0xFFFFF)}});
  auto cache = f.NewCache();
  std::atomic<bool> parked{false};
  std::atomic<bool> stop{false};
  std::jthread owner([&] {
    for (int i = 0; i < 100; ++i) (void)cache->Free(cache->Allocate(kPage).value());
    parked.store(true, std::memory_order_release);
    parked.notify_one();
    stop.wait(false);
  });
  parked.wait(false, std::memory_order_acquire);
  CHECK(f.space->Allocate({.size = kPage * 255}).ok());
  CHECK(cache->stats().stolen == 1);
  stop = true;
  stop.notify_one();
}

// Each of T threads holds at most K pages of exactly T * K, so a single page is always free
// somewhere, mostly in another thread's cache and often in a larger size class, and no request for
// one may fail. Larger ones may, for want of two pages side by side. Every thread is owner and
// thief.
TEST_CASE("No allocation fails while a page is free anywhere (false exhaustion, steal deadlock)") {
  const bool fenced = Fenced();
  constexpr int kThreads = 4;
  constexpr uint64_t kEach = 8;
  Fixture f(fenced, {.usable = {Piece(0x1000, (kThreads * kEach + 1) * 4096 - 1)},
                     .magazine_size = 3,
                     .depot_magazines = 2});
  Holders holders(kThreads * kEach + 1);
  std::vector<std::unique_ptr<Cache>> caches;
  for (int t = 0; t < kThreads; ++t) caches.push_back(f.NewCache());
  std::atomic<int> failed{0};
  std::atomic<int> twice{0};
  {
    std::barrier start(kThreads);
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Random random(static_cast<uint64_t>(t) + 1);
        std::vector<Range> mine;
        uint64_t held = 0;  // pages
        Cache* cache = caches[static_cast<size_t>(t)].get();
        start.arrive_and_wait();
        for (int i = 0; i < 200000 / kScale; ++i) {
          const uint64_t pages = random.Below(4) != 0 ? 1 : uint64_t{2} << random.Below(2);
          if (held + pages <= kEach && (mine.empty() || random.Below(5) < 3)) {
            const auto range = cache->Allocate(kPage * pages);
            if (!range.ok()) {
              if (pages == 1) ++failed;
              continue;
            }
            if (!holders.Take(*range)) ++twice;
            mine.push_back(*range);
            held += pages;
          } else if (!mine.empty()) {
            const size_t victim = random.Below(mine.size());
            held -= mine[victim].size / kPage;
            if (!holders.Give(mine[victim])) ++twice;
            if (!cache->Free(mine[victim]).ok()) ++failed;
            mine[victim] = mine.back();
            mine.pop_back();
          }
          if (random.OneIn(64)) std::this_thread::yield();
        }
        for (const Range& range : mine) {
          if (!holders.Give(range) || !cache->Free(range).ok()) ++failed;
        }
      });
    }
  }
  CHECK(failed == 0);
  CHECK(twice == 0);
  CHECK(f.space->stats().reclaims > 100);
  CHECK(f.space->stats().rejected_drains == 0);
  f.space->ReclaimAll();
  CHECK(f.space->stats().live_ranges == 0);
  CHECK(f.space->stats().free_ranges == 1);
  CHECK(f.space->Validate() == "");
}

TEST_CASE("Owners at work while a thief empties their caches over and over") {
  const bool fenced = Fenced();
  constexpr int kThreads = 3;
  Fixture f(fenced, {.usable = {Piece(0, 0xFFFFFFF)}, .magazine_size = 8, .depot_magazines = 2});
  Holders holders(0x10000);
  std::vector<std::unique_ptr<Cache>> caches;
  for (int t = 0; t < kThreads; ++t) caches.push_back(f.NewCache());
  std::atomic<int> failed{0};
  std::atomic<int> running{kThreads};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Random random(static_cast<uint64_t>(t) + 1);
        Cache* cache = caches[static_cast<size_t>(t)].get();
        std::vector<Range> mine;
        for (int i = 0; i < 300000 / kScale; ++i) {
          if (mine.size() < 40 && random.OneIn(2)) {
            const auto range = cache->Allocate(kPage * (uint64_t{1} << random.Below(4)));
            if (!range.ok() || !holders.Take(*range)) {
              ++failed;
            } else {
              mine.push_back(*range);
            }
          } else if (!mine.empty()) {
            if (!holders.Give(mine.back()) || !cache->Free(mine.back()).ok()) ++failed;
            mine.pop_back();
          }
        }
        for (const Range& range : mine) {
          if (!holders.Give(range) || !cache->Free(range).ok()) ++failed;
        }
        --running;
      });
    }
    while (running > 0) {
      f.space->ReclaimAll();
      for (const auto& cache : caches) {
        if (cache->stats().parked > cache->stats().parked_bound) ++failed;
      }
      std::this_thread::yield();
    }
  }
  CHECK(failed == 0);
  CHECK(f.space->stats().rejected_drains == 0);
  f.space->ReclaimAll();
  CHECK(f.space->stats().live_ranges == 0);
  CHECK(f.space->Validate() == "");
}

TEST_CASE("Ranges allocated on one thread and freed on another: bounded, nothing lost") {
  Fixture f(Fenced(), {.usable = {Piece(0, 0xFFFFFFF)}, .magazine_size = 8, .depot_magazines = 2});
  auto producer = f.NewCache();
  auto consumer = f.NewCache();
  constexpr size_t kRing = 64;
  std::vector<Range> ring(kRing);
  std::atomic<uint64_t> head{0};
  std::atomic<uint64_t> tail{0};
  std::atomic<int> failed{0};
  const uint64_t count = 100000 / kScale;
  {
    std::jthread thread([&] {
      for (uint64_t i = 0; i < count; ++i) {
        while (head.load(std::memory_order_acquire) == i) std::this_thread::yield();
        if (!consumer->Free(ring[i % kRing]).ok()) ++failed;
        tail.store(i + 1, std::memory_order_release);
      }
    });
    for (uint64_t i = 0; i < count; ++i) {
      while (i - tail.load(std::memory_order_acquire) == kRing) std::this_thread::yield();
      const auto range = producer->Allocate(kPage);
      if (range.ok()) ring[i % kRing] = *range;
      failed += range.ok() ? 0 : 1;
      head.store(i + 1, std::memory_order_release);
    }
  }
  CHECK(failed == 0);
  // Ring, two caches, depot.
  const Space::Stats stats = f.space->stats();
  CHECK(stats.live_ranges <= kRing + 2 * 16 + f.space->depot_bound());
  CHECK(stats.depot_puts > 0);
  producer.reset();
  consumer.reset();
  CHECK(f.space->stats().live_ranges == 0);
}

// The largest cached size, and one granule more: the cliff is one operation on the tree per call,
// not a walk, and no batch of them under one lock.
TEST_CASE("Sixteen threads at 128 KiB and at 132 KiB: locks and nodes per call (size cliff)") {
  const bool fenced = Fenced();
  const Bytes size = GENERATE(KiB(128), KiB(132));
  constexpr int kThreads = 16;
  constexpr int kHeld = 16;
  const int rounds = 400 / kScale;
  Fixture f(fenced, {.usable = {Piece(0, 0xFFFFFFFFFF)}, .max_cached = PageCount(32)});
  std::vector<std::unique_ptr<Cache>> caches;
  for (int t = 0; t < kThreads; ++t) caches.push_back(f.NewCache());
  REQUIRE(caches[0]->max_cached_size() == KiB(128));  // the limit can be asked for
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < rounds; ++round) {
          std::vector<Range> mine;
          for (int i = 0; i < kHeld; ++i) {
            const auto range = caches[t]->Allocate(size);
            range.ok() ? mine.push_back(*range) : void(++failed);
          }
          for (const Range& range : mine) failed += caches[t]->Free(range).ok() ? 0 : 1;
        }
      });
    }
  }
  CHECK(failed == 0);
  const uint64_t calls = uint64_t{2} * kThreads * kHeld * rounds;
  uint64_t locks = 0;  // of the tree and of the shared level
  for (const auto& cache : caches) {
    const Cache::Stats stats = cache->stats();
    locks += stats.tree_calls + stats.depot_gets + stats.depot_puts;
  }
  const Space::Stats stats = f.space->stats();
  CHECK(stats.visits_max <= testing::Bound(2 * kThreads * kHeld + 64, kThreads * kHeld));
  if (size == KiB(128)) {
    CHECK(locks == uint64_t{kThreads} * kHeld);  // the first round's; then magazines do
  } else {
    CHECK(locks == calls);
  }
  CHECK(stats.operations <= calls);
  caches.clear();
  CHECK(f.space->stats().live_ranges == 0);
}

TEST_CASE("Caches come and go while others run dry (registry race)") {
  Fixture f(Fenced(), {.usable = {Piece(0, 0x3FFFF)}, .magazine_size = 4, .depot_magazines = 1});
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < 2000 / kScale; ++round) {
          auto cache = Cache::Create(f.space.get(), {});
          if (!cache.ok()) {
            ++failed;
            continue;
          }
          std::vector<Range> mine;
          // 3 x 21 pages are all there are.
          for (int i = 0; i < 21; ++i) {
            const auto range = (*cache)->Allocate(kPage);
            range.ok() ? mine.push_back(*range) : void(++failed);
          }
          for (const Range& range : mine) failed += (*cache)->Free(range).ok() ? 0 : 1;
          if (t == 0 && round % 8 == 0) f.space->ReclaimAll();
        }
      });
    }
  }
  CHECK(failed == 0);
  CHECK(f.space->stats().caches == 0);
  CHECK(f.space->stats().live_ranges == 0);
  CHECK(f.space->stats().depot_parked == 0);
}

}  // namespace
}  // namespace dmakit::iova
