// SPDX-License-Identifier: Apache-2.0
//
// The baselines are right before they are slow: no overlap, alignment, ceilings, exhaustion; and
// what 98,304 static mappings do to a search, by count, beside what they do to iova::Space.

#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "benchmarks/seeds/linear_tree.h"
#include "benchmarks/seeds/magazine_cache.h"
#include "iova/space.h"
#include "tests/catch.h"

namespace dmakit::seeds {
namespace {

TEST_CASE("the linear tree gives ranges that are aligned, below the ceiling and nobody else's") {
  std::mt19937 random(3);
  LinearTree tree(16);
  std::map<uint64_t, uint64_t> live;  // first -> last
  for (int i = 0; i < 20'000; ++i) {
    if (live.size() < 300 && random() % 2 == 0) {
      const uint32_t pages = 1 + random() % 9;
      const uint64_t highest = random() % 4 == 0 ? 4000 : LinearTree::kHighest32;
      const auto page = tree.Allocate(pages, highest);
      REQUIRE(page.has_value());
      REQUIRE(*page >= 16);
      REQUIRE(*page + pages - 1 <= highest);
      REQUIRE(*page % std::bit_ceil(uint64_t{pages}) == 0);
      const auto next = live.lower_bound(*page);
      if (next != live.end()) REQUIRE(*page + pages - 1 < next->first);
      if (next != live.begin()) REQUIRE(std::prev(next)->second < *page);
      live[*page] = *page + pages - 1;
    } else if (!live.empty()) {
      auto it = live.begin();
      std::advance(it, random() % live.size());
      REQUIRE(tree.Free(it->first));
      CHECK_FALSE(tree.Free(it->first));
      live.erase(it);
    }
  }
  CHECK(tree.size() == live.size());
}

TEST_CASE("the linear tree gives all there is, and then nothing") {
  LinearTree tree;
  for (uint64_t i = 0; i < 255; ++i) REQUIRE(tree.Allocate(1, 255) == 255 - i);
  CHECK_FALSE(tree.Allocate(1, 255).has_value());
  REQUIRE(tree.Free(100));
  CHECK_FALSE(tree.Allocate(2, 255).has_value());
  CHECK(tree.Allocate(1, 255) == 100);
}

TEST_CASE("magazines keep what is freed, and give all of it back at the end") {
  LinearTree tree;
  {
    MagazineCache cache(tree, 2);
    std::vector<uint64_t> pages;
    for (int i = 0; i < 20'000; ++i) pages.push_back(cache.Allocate(0, 1).value());
    for (const uint64_t page : pages) cache.Free(1, page, 1);
    // Two magazines and the depot; the rest has gone back.
    CHECK(tree.size() <= MagazineCache::kMagazine * (MagazineCache::kDepot + 2));
    const uint64_t visits = tree.visits_total();
    for (int i = 0; i < 100; ++i) cache.Free(0, cache.Allocate(0, 1).value(), 1);
    CHECK(tree.visits_total() == visits);
    const uint64_t large = cache.Allocate(0, 64).value();
    cache.Free(0, large, 64);
    const uint64_t three = cache.Allocate(0, 3).value();
    CHECK(three % 4 == 0);
    cache.Free(0, three, 3);
  }
  CHECK(tree.size() == 0);
}

TEST_CASE("two CPUs, each on its own magazines, with everything shared behind them") {
  LinearTree tree;
  {
    MagazineCache cache(tree, 2);
    std::vector<std::jthread> threads;
    for (size_t cpu = 0; cpu < 2; ++cpu) {
      threads.emplace_back([&cache, cpu] {
        std::vector<uint64_t> pages;
        for (int round = 0; round < 50; ++round) {
          for (int i = 0; i < 400; ++i) pages.push_back(cache.Allocate(cpu, 1).value());
          for (const uint64_t page : pages) cache.Free(cpu, page, 1);
          pages.clear();
        }
      });
    }
  }
  CHECK(tree.size() == 0);
}

// --- 98,304 static mappings
// -----------------------------------------------------------------------

constexpr uint32_t kStatic = 16 * 2048 * 3;  // gather lists, info buffers and receive buffers
constexpr uint32_t kHoles = 384;             // pages free beside the static ones
constexpr size_t kInFlight = 256;
constexpr int kPackets = 20'000;
constexpr int kRemapEvery = 250;

struct Visits {
  uint64_t most = 0;
  uint64_t total = 0;
  uint64_t calls = 0;
  void Add(uint64_t visits) {
    most = std::max(most, visits);
    total += visits;
    ++calls;
  }
  double mean() const { return static_cast<double>(total) / static_cast<double>(calls); }
};

// Packets of one and two pages on a window of 4 GiB that static mappings and a few large ones fill
// but for kHoles pages. They complete in no order, and every 250 packets an old static mapping is
// made anew: which is what makes the linear search degenerate. `allocate` returns a page, or
// nothing when there is no room now; `visits`, what that cost.
template <typename Allocate, typename Free, typename Cost>
Visits RunPackets(Allocate allocate, Free free, Cost cost) {
  std::vector<uint64_t> fixed;
  for (uint32_t i = 0; i < kStatic; ++i) fixed.push_back(*allocate(1));
  // The rest of the window but for the holes at its low end; 0 is nobody's.
  for (uint64_t left = LinearTree::kHighest32 - kStatic - kHoles; left > 0;) {
    const auto pages = static_cast<uint32_t>(std::bit_floor(std::min<uint64_t>(left, 1024)));
    const auto page = allocate(pages);
    if (!page) break;
    left -= pages;
  }
  std::mt19937 random(11);
  std::vector<std::pair<uint64_t, uint32_t>> flying;
  Visits visits;
  for (int packet = 0; packet < kPackets; ++packet) {
    if (packet % kRemapEvery == 0) {
      uint64_t& old = fixed[random() % fixed.size()];
      free(old, 1);
      old = *allocate(1);
      visits.Add(cost());
    }
    while (flying.size() >= kInFlight) {
      const size_t which = random() % flying.size();
      free(flying[which].first, flying[which].second);
      flying[which] = flying.back();
      flying.pop_back();
    }
    const uint32_t pages = 1 + random() % 2;
    const auto page = allocate(pages);
    visits.Add(cost());
    if (page) flying.emplace_back(*page, pages);
  }
  return visits;
}

TEST_CASE("98,304 static mappings: the linear search reads them all, dmakit's a few") {
  LinearTree tree;
  const Visits linear = RunPackets([&](uint32_t pages) { return tree.Allocate(pages); },
                                   [&](uint64_t page, uint32_t) { REQUIRE(tree.Free(page)); },
                                   [&] { return tree.visits_last(); });

  const auto space =
      iova::Space::Create({.usable = {{Iova(4096), Iova(0xffffffff)}}, .name = "seeds"}).value();
  const auto allocate = [&](uint32_t pages) -> std::optional<uint64_t> {
    const auto range = space->Allocate({.size = Bytes(uint64_t{pages} * 4096),
                                        .alignment = Bytes(std::bit_ceil(pages) * 4096ull)});
    if (!range.ok()) return std::nullopt;
    return range->base.value() / 4096;
  };
  const Visits own = RunPackets(
      allocate,
      [&](uint64_t page, uint32_t pages) {
        REQUIRE(space->Free({Iova(page * 4096), Bytes(uint64_t{pages} * 4096)}).ok());
      },
      [&] { return space->stats().visits_last; });

  std::printf(
      "98,304 static mappings in a nearly full window of 32 bits, packets of 1 and 2 pages "
      "completing\n"
      "in no order, an old static one remapped every %d packets; nodes visited per allocation:\n"
      "  %-28s mean %10.1f  most %8llu  (the source saw > 40,000)\n"
      "  %-28s mean %10.1f  most %8llu\n",
      kRemapEvery, "linear tree, first fit", linear.mean(),
      static_cast<unsigned long long>(linear.most), "dmakit", own.mean(),
      static_cast<unsigned long long>(own.most));
  CHECK(linear.most > 40'000);
  const double n = kStatic + 2'000;
  CHECK(static_cast<double>(own.most) <= 4 * std::log2(n) + 8);
}

}  // namespace
}  // namespace dmakit::seeds
