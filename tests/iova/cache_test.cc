// SPDX-License-Identifier: Apache-2.0

#include "iova/cache.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/iova/testing.h"

namespace dmakit::iova {
namespace {

using testing::CountingFence;
using testing::Piece;

constexpr Bytes kPage = KiB(4);

// One space with a fence, one without; every test that takes a mode runs in both.
struct Fixture {
  explicit Fixture(Cache::Mode mode, Space::Options options) : fence(true) {
    options.fence = mode == Cache::Mode::kAsymmetric ? &fence : nullptr;
    auto made = Space::Create(std::move(options));
    REQUIRE(made.ok());
    space = *std::move(made);
  }
  std::unique_ptr<Cache> NewCache(Cache::Options options = {}) {
    auto cache = Cache::Create(space.get(), options);
    REQUIRE(cache.ok());
    return *std::move(cache);
  }
  uint64_t Operations() const { return space->stats().operations; }
  uint64_t Parked() const { return space->stats().depot_parked; }

  CountingFence fence;
  std::unique_ptr<Space> space;
};

Cache::Mode AnyMode() { return GENERATE(Cache::Mode::kAsymmetric, Cache::Mode::kLocked); }

std::vector<Range> Take(Cache* cache, Bytes size, int count) {
  std::vector<Range> ranges;
  for (int i = 0; i < count; ++i) ranges.push_back(cache->Allocate(size).value());
  return ranges;
}

void Give(Cache* cache, const std::vector<Range>& ranges) {
  for (const Range& range : ranges) REQUIRE(cache->Free(range).ok());
}

TEST_CASE("A freed range comes back from the cache without touching the tree") {
  Fixture f(AnyMode(), {.usable = {Piece(0, 0xFFFFFFFF)}});
  auto cache = f.NewCache();
  for (uint64_t granules = 1; granules <= 64; granules *= 2) {
    const Bytes size = kPage * granules;
    const Range first = cache->Allocate(size).value();
    const Range second = cache->Allocate(size).value();
    CHECK(first.size == size);
    CHECK(IsAligned(first.base, size));
    CHECK(IsAligned(second.base, size));
    Give(cache.get(), {first, second});
    const uint64_t operations = f.Operations();
    for (int i = 0; i < 100; ++i) {
      CHECK(cache->Allocate(size).value() == second);  // the warm one
      CHECK(cache->Allocate(size - Bytes(1)).value() == first);
      CHECK(cache->TryFree(first));
      CHECK(cache->TryFree(second));
      CHECK(cache->TryAllocate(size) == second);
      CHECK(cache->TryFree(second));
    }
    CHECK(f.Operations() == operations);
  }
  const Cache::Stats stats = cache->stats();
  CHECK(stats.misses == 14);
  CHECK(stats.hits == 7 * 300);
  CHECK(stats.parks == 7 * 302);
  CHECK(stats.parked == 14);
  CHECK(stats.tree_calls == 14);
}

TEST_CASE("The mode is asymmetric only with a fence that works, and is reported") {
  CountingFence working(true);
  CountingFence refused(false);
  const auto mode = [](AsymmetricFence* fence) {
    auto space = Space::Create({.usable = {Piece(0, 0xFFFFFF)}, .fence = fence}).value();
    auto cache = Cache::Create(space.get(), {}).value();
    CHECK(cache->Free(cache->Allocate(kPage).value()).ok());
    space->ReclaimAll();
    return cache->mode();
  };
  CHECK(mode(&working) == Cache::Mode::kAsymmetric);
  CHECK(working.barriers == 1);
  CHECK(mode(&refused) == Cache::Mode::kLocked);
  CHECK(refused.barriers == 0);
  CHECK(mode(nullptr) == Cache::Mode::kLocked);
}

TEST_CASE("Both sides of the largest cached size cost at most one tree operation (size cliff)") {
  const Cache::Mode mode = AnyMode();
  const uint64_t limit = GENERATE(0, 1, 32, 64, 1024);
  Fixture f(mode, {.usable = {Piece(0, 0xFFFFFFFFFF)}, .max_cached = PageCount(limit)});
  auto cache = f.NewCache();
  REQUIRE(cache->max_cached_size() == kPage * limit);
  for (const Bytes size : {kPage * std::max<uint64_t>(limit, 1), kPage * (limit + 1), KiB(128),
                           KiB(132), kPage * 2048}) {
    std::vector<Range> live;
    for (int i = 0; i < 300; ++i) {
      const uint64_t before = f.Operations();
      live.push_back(cache->Allocate(size).value());
      CHECK(f.Operations() - before <= 1);
      CHECK(f.space->stats().visits_last <= testing::VisitBound(f.space->stats()));
    }
    for (const Range& range : live) {
      const uint64_t before = f.Operations();
      CHECK(cache->Free(range).ok());
      CHECK(f.Operations() - before <= 1);
      CHECK(f.space->stats().visits_last <= testing::VisitBound(f.space->stats()));
    }
  }
}

TEST_CASE("What fits no class goes to the space, and back") {
  Fixture f(AnyMode(), {.usable = {Piece(0, 0xFFFFFFFF)}});
  auto cache = f.NewCache();
  const Range three = cache->Allocate(kPage * 3).value();
  CHECK(three.size == kPage * 3);
  const Range large = cache->Allocate(kPage * 65).value();
  const Range aligned = cache->Allocate(kPage, kPage * 16).value();
  CHECK(IsAligned(aligned.base, kPage * 16));
  const Range gig = cache->Allocate(MiB(1), GiB(1)).value();
  CHECK(IsAligned(gig.base, GiB(1)));
  CHECK(cache->stats().bypasses == 4);
  Give(cache.get(), {three, large, gig});
  CHECK(cache->stats().bypasses == 7);
  CHECK(cache->stats().parked == 0);
  Give(cache.get(), {aligned});  // one page: can be parked
  CHECK(cache->stats().parked == 1);
  // Bad arguments get the space's message.
  CHECK(cache->Allocate(Bytes(0)).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(cache->Allocate(kPage, Bytes(3)).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(!cache->TryAllocate(Bytes(0)));
  CHECK(!cache->TryAllocate(kPage, Bytes(3)));
  for (const uint64_t less : {0, 1, 2, 63, 64, 127, 4095}) {
    for (uint64_t alignment = 0; alignment <= 1u << 30; alignment = std::max(1ul, alignment * 2)) {
      CHECK(!cache->Allocate(Bytes(~uint64_t{0} - less), Bytes(alignment)).ok());
      CHECK(!cache->TryAllocate(Bytes(~uint64_t{0} - less), Bytes(alignment)));
    }
    CHECK(!cache->Free({Iova(0x1000), Bytes(~uint64_t{0} - less)}).ok());
  }
}

TEST_CASE("Rounding up to a class says the true size and falls back to the exact one") {
  Fixture f(AnyMode(), {.usable = {Piece(0, 0xFFFF)}});
  auto cache = f.NewCache({.round_up = true});
  const Range four = cache->Allocate(kPage * 3).value();
  CHECK(four.size == kPage * 4);
  CHECK(cache->Free(four).ok());
  CHECK(cache->stats().parked == 1);
  CHECK(cache->Allocate(kPage * 3).value() == four);
  // Pages 1 to 11 are left; a block of 16 can not be had, nor a second aligned 8.
  const Range nine = cache->Allocate(kPage * 9).value();
  CHECK(nine.size == kPage * 9);
  CHECK(cache->stats().exact_fallbacks == 1);
  CHECK(f.space->stats().reclaims == 0);
  CHECK(cache->Free(nine).ok());
  CHECK(cache->Free(four).ok());
}

TEST_CASE("A class request falls back to the exact request before it fails (false exhaustion)") {
  Fixture f(AnyMode(), {.usable = {Piece(0x1000, 0x8FFF)}});
  auto cache = f.NewCache();
  // Pages 1 to 8: eight pages, and no naturally aligned block of eight.
  const Range all = cache->Allocate(kPage * 8).value();
  CHECK(all == Range{Iova(0x1000), kPage * 8});
  CHECK(cache->stats().exact_fallbacks == 1);
  CHECK(f.space->stats().reclaims == 0);
  CHECK(cache->Free(all).ok());
  CHECK(cache->stats().parked == 0);  // not naturally aligned, so not kept
  CHECK(f.space->free_bytes() == kPage * 8);
  CHECK(!cache->Allocate(kPage * 8, kPage * 8).ok());
}

TEST_CASE("A ceiling holds for every range, also for those other caches freed (stricter ceiling)") {
  Fixture f(AnyMode(), {.usable = {Piece(0, 0xFFFFFFFFFF)}, .magazine_size = 4});
  const Iova low(0xFFFFFFFF);
  auto narrow = f.NewCache({.highest = low});
  auto wide = f.NewCache();
  auto same = f.NewCache({.highest = Iova(0xFFFFFFFFFF)});  // as wide as the space: one depot
  // Fill the wide depot and magazines with high ranges.
  Give(wide.get(), Take(wide.get(), kPage, 40));
  CHECK(f.Parked() > 0);
  for (const Range& range : Take(narrow.get(), kPage, 40)) {
    CHECK(range.last() <= low);
    CHECK(wide->Free(range).ok());
  }
  CHECK(wide->stats().depot_gets == 0);
  (void)Take(same.get(), kPage, 20);
  CHECK(same->stats().depot_gets > 0);
  // High ranges freed into the narrow cache do not stay there.
  const std::vector<Range> high = Take(same.get(), kPage, 100);
  const uint64_t parked = narrow->stats().parked;
  for (const Range& range : high) {
    if (range.last() > low) CHECK(!narrow->TryFree(range));
    CHECK(narrow->Free(range).ok());
  }
  for (const Range& range : Take(narrow.get(), kPage, 300)) CHECK(range.last() <= low);
  CHECK(parked <= narrow->stats().parked_bound);
  CHECK(Cache::Create(f.space.get(), {.highest = Iova(0xFFF)}).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("Allocating here and freeing there plateaus, one tree operation a call (cache growth)") {
  const Cache::Mode mode = AnyMode();
  const size_t depot = GENERATE(0, 1, 4);
  Fixture f(mode,
            {.usable = {Piece(0, 0xFFFFFFFFFF)}, .magazine_size = 8, .depot_magazines = depot});
  auto producer = f.NewCache();
  auto consumer = f.NewCache();
  std::vector<Range> queue;
  size_t next = 0;
  uint64_t live_after_warmup = 0;
  const int rounds = testing::kSanitized ? 20000 : 200000;
  for (int i = 0; i < rounds; ++i) {
    uint64_t before = f.Operations();
    queue.push_back(producer->Allocate(kPage).value());
    uint64_t calls = f.Operations() - before;
    if (queue.size() - next > 500) {
      before = f.Operations();
      REQUIRE(consumer->Free(queue[next++]).ok());
      calls = std::max(calls, f.Operations() - before);
    }
    if (calls > 1) FAIL("one call did " << calls << " tree operations");
    if (i == 5000) live_after_warmup = f.space->stats().live_ranges;
  }
  const Space::Stats stats = f.space->stats();
  CHECK(stats.live_ranges == live_after_warmup);
  CHECK(stats.depot_parked <= f.space->depot_bound());
  CHECK(consumer->stats().parked <= consumer->stats().parked_bound);
  if (depot != 0) {
    // In balance every range travels in a full magazine: one trip each way for 8 ranges, no tree.
    CHECK(stats.depot_puts >= static_cast<uint64_t>(rounds) / 8 - 200);
    CHECK(stats.allocations < 1000);
  }
}

TEST_CASE("A full depot sends frees to the tree one by one (bursty slow path)") {
  Fixture f(AnyMode(),
            {.usable = {Piece(0, 0xFFFFFFFF)}, .magazine_size = 16, .depot_magazines = 2});
  auto cache = f.NewCache();
  const std::vector<Range> ranges = Take(cache.get(), kPage, 1000);
  for (const Range& range : ranges) {
    const uint64_t frees = f.space->stats().frees;
    REQUIRE(cache->Free(range).ok());
    REQUIRE(f.space->stats().frees - frees <= 1);
  }
  CHECK(cache->stats().parked == 32);
  CHECK(f.Parked() == 32);
  CHECK(f.space->depot_bound() == 32);
  CHECK(cache->stats().depot_puts == 2);
  CHECK(cache->stats().overflows == 1000 - 64);
  CHECK(f.space->stats().live_ranges == 64);
  // And back: the depot's before new ones.
  (void)Take(cache.get(), kPage, 64);
  CHECK(cache->stats().depot_gets == 2);
  CHECK(f.Parked() == 0);
  CHECK(f.space->stats().live_ranges == 64);
}

TEST_CASE("Exhaustion empties the shared depot too (incomplete flush)") {
  Fixture f(AnyMode(), {.usable = {Piece(0, 0xFFFFF)}, .magazine_size = 8, .depot_magazines = 32});
  auto cache = f.NewCache();
  Give(cache.get(), Take(cache.get(), kPage, 200));
  REQUIRE(f.Parked() > 100);
  REQUIRE(f.space->largest_free() < kPage * 100);
  CHECK(cache->Allocate(kPage * 255).ok());
  CHECK(f.Parked() == 0);
  CHECK(cache->stats().parked == 0);
  CHECK(cache->stats().stolen == 16);
  CHECK(f.space->stats().reclaims == 1);
  CHECK(f.space->stats().reclaimed_ranges == 200);
  CHECK(f.space->stats().exhaustions == 0);
}

TEST_CASE("One barrier serves all caches of a reclaim; their owners go on afterwards") {
  Fixture f(Cache::Mode::kAsymmetric, {.usable = {Piece(0, 0xFFFFF)}});
  std::vector<std::unique_ptr<Cache>> caches;
  for (int i = 0; i < 5; ++i) {
    caches.push_back(f.NewCache());
    Give(caches.back().get(), Take(caches.back().get(), kPage, 20));
  }
  const Range all = f.space->Allocate({.size = kPage * 255}).value();
  CHECK(f.fence.barriers == 1);
  for (auto& cache : caches) {
    CHECK(cache->stats().parked == 0);
    CHECK(!cache->Allocate(kPage).ok());
  }
  REQUIRE(f.space->Free(all).ok());
  for (auto& cache : caches) {
    Give(cache.get(), Take(cache.get(), kPage, 20));
    CHECK(cache->stats().parked == 20);
  }
}

TEST_CASE("A fixed range parked in a cache is given, a live one is not") {
  Fixture f(AnyMode(), {.usable = {Piece(0, 0xFFFF)}});
  auto cache = f.NewCache();
  const Range a = cache->Allocate(kPage).value();
  const Range b = cache->Allocate(kPage).value();
  CHECK(cache->Free(a).ok());
  CHECK(f.space->AllocateFixed(a).ok());
  CHECK(f.space->AllocateFixed(b).code() == absl::StatusCode::kAlreadyExists);
}

TEST_CASE("A failed allocation leaves nothing in the cache, address 0 least of all (sentinels)") {
  Fixture f(AnyMode(), {.usable = {Piece(0, 0xFFFF)}});
  auto cache = f.NewCache();
  const std::vector<Range> all = Take(cache.get(), kPage, 15);
  for (int i = 0; i < 3; ++i) {
    const auto range = cache->Allocate(kPage);
    CHECK(range.status().code() == absl::StatusCode::kResourceExhausted);
    CHECK(cache->stats().parked == 0);
    CHECK(!cache->Free({Iova(0), kPage}).ok());
    CHECK(!cache->Free({Iova::Max(), kPage}).ok());
    CHECK(cache->stats().parked == 0);
  }
  Give(cache.get(), all);
}

TEST_CASE("Bad frees: at once where it is cheap, when drained at the latest (wrong handle)") {
  Fixture f(AnyMode(), {.usable = {Piece(0x1000, 0xFFFFFF)}});
  auto cache = f.NewCache();
  const Range block = cache->Allocate(kPage * 4).value();
  // At once: misaligned for its size, no size class, out of bounds, twice in a row.
  CHECK(!cache->Free({block.base + kPage, kPage * 2}).ok());
  CHECK(!cache->Free({block.base, kPage * 3}).ok());
  CHECK(!cache->Free({block.base, Bytes(0)}).ok());
  CHECK(!cache->Free({block.base, Bytes(5)}).ok());
  CHECK(!cache->Free({block.base + Bytes(1), kPage * 4}).ok());
  CHECK(!cache->Free({Iova(0x1000000), kPage}).ok());
  CHECK(cache->Free(block).ok());
  const absl::Status twice = cache->Free(block);
  CHECK(twice.code() == absl::StatusCode::kNotFound);
  CHECK(std::string(twice.message()).find(ToString(block)) != std::string::npos);
  CHECK(cache->stats().parked == 1);

  // When drained: parts of a live range, and one that was never handed out.
  const Range other = cache->Allocate(kPage * 8).value();
  CHECK(cache->Free({other.base, kPage * 4}).ok());
  CHECK(cache->Free({Iova(0x10000), kPage}).ok());
  CHECK(cache->Free({other.base + kPage * 4, kPage * 4}).ok());
  f.space->ReclaimAll();
  CHECK(f.space->stats().rejected_drains == 3);
  CHECK(f.space->FindLive(other.base) == other);
  CHECK(!f.space->FindLive(block.base));
  CHECK(f.space->Validate() == "");
}

TEST_CASE("A destroyed cache gives everything back, and the last one its depot") {
  testing::AccountingResource memory;
  const Cache::Mode mode = AnyMode();
  Fixture f(mode, {.usable = {Piece(0, 0xFFFFFFFF)}, .memory = &memory, .magazine_size = 8});
  const size_t blocks = memory.blocks();
  auto first = f.NewCache();
  auto second = f.NewCache();
  auto narrow = f.NewCache({.highest = Iova(0xFFFFFF)});
  CHECK(f.space->stats().caches == 3);
  for (Cache* cache : {first.get(), second.get(), narrow.get()}) {
    Give(cache, Take(cache, kPage, 100));
    Give(cache, Take(cache, kPage * 16, 20));
  }
  const std::vector<Range> live = Take(first.get(), kPage, 3);
  first.reset();
  CHECK(f.Parked() > 0);
  narrow.reset();
  second.reset();
  CHECK(f.Parked() == 0);
  CHECK(f.space->stats().caches == 0);
  CHECK(f.space->stats().live_ranges == 3);
  for (const Range& range : live) CHECK(f.space->Free(range).ok());
  CHECK(f.space->stats().free_ranges == 1);
  CHECK(memory.blocks() == blocks);
  CHECK(memory.wrong_returns == 0);
}

TEST_CASE("A space whose top is 2^64 - 1 caches its last page (exclusive-end overflow)") {
  Fixture f(AnyMode(), {.usable = {Interval::All()}});
  auto cache = f.NewCache();
  const Range last = cache->Allocate(kPage).value();
  REQUIRE(last.last() == Iova::Max());
  CHECK(cache->TryFree(last));
  CHECK(cache->TryAllocate(kPage) == last);
  const Range large = cache->Allocate(kPage * 64).value();
  CHECK(cache->TryFree(large));
  CHECK(cache->TryFree(last));
  f.space->ReclaimAll();
  CHECK(f.space->stats().live_ranges == 0);
}

}  // namespace
}  // namespace dmakit::iova
