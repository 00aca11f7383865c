// SPDX-License-Identifier: Apache-2.0
//
// The cost of a call in distinct tree nodes, against the bound 4 * log2(n) + 8.

#include <vector>

#include "iova/cache.h"
#include "iova/space.h"
#include "tests/catch.h"
#include "tests/iova/testing.h"

namespace dmakit::iova {
namespace {

using testing::CountingFence;
using testing::Piece;
using testing::Random;
using testing::VisitBound;

constexpr Bytes kPage = KiB(4);
constexpr int kScale = testing::kSanitized ? 10 : 1;

// Fails on the first call over the bound; keeps the largest share of the bound that was used.
class Watch {
 public:
  explicit Watch(const Space* space) : space_(space) {}
  void Check() {
    const Space::Stats stats = space_->stats();
    const uint64_t bound = VisitBound(stats);
    if (stats.visits_last > bound) {
      FAIL("visited " << stats.visits_last << " nodes, bound " << bound << ", nodes "
                      << stats.tree_nodes << ", live " << stats.live_ranges);
    }
    most_ = std::max(most_, stats.visits_last);
    total_ += stats.visits_last;
    ++calls_;
  }
  uint64_t most() const { return most_; }
  double mean() const { return static_cast<double>(total_) / static_cast<double>(calls_); }

 private:
  const Space* space_;
  uint64_t most_ = 0;
  uint64_t total_ = 0;
  uint64_t calls_ = 0;
};

std::unique_ptr<Space> Make(Space::Options options) {
  auto space = Space::Create(std::move(options));
  REQUIRE(space.ok());
  return *std::move(space);
}

void Park(Cache* cache, Bytes size, int count) {
  std::vector<Range> ranges;
  for (int i = 0; i < count; ++i) ranges.push_back(cache->Allocate(size).value());
  for (const Range& range : ranges) REQUIRE(cache->Free(range).ok());
}

TEST_CASE("Churn beside 42,500 parked ranges visits O(log n) nodes (linear first-fit)") {
  CountingFence fence;
  auto space = Make({.usable = {Piece(0, 0xFFFFFFFFFFFF)},
                     .reserved = {Piece(0xFEE00000, 0xFEEFFFFF)},
                     .depot_magazines = 136,
                     .fence = &fence});
  auto cache = Cache::Create(space.get(), {}).value();
  Random random(1);

  // Every second of 200,000 pages stays, so that free holes are as many as live ranges.
  std::vector<Range> live;
  const int pages = 200000 / kScale;
  for (int i = 0; i < pages; ++i) live.push_back(space->Allocate({.size = kPage}).value());
  for (int i = 0; i < pages / 2; ++i) {
    REQUIRE(space->Free(live[i]).ok());
    live[i] = live.back();
    live.pop_back();
  }
  const int parked = 8500 / kScale;
  for (unsigned order = 0; order < 5; ++order) Park(cache.get(), kPage * (1u << order), parked);
  REQUIRE(cache->stats().parked + space->stats().depot_parked == 5u * parked);

  Watch watch(space.get());
  const Bytes sizes[] = {kPage, kPage, kPage, kPage * 2, kPage * 3, kPage * 16, MiB(1), MiB(2)};
  for (int i = 0; i < 1000000 / kScale; ++i) {
    if (random.OneIn(2)) {
      Space::Request request{.size = sizes[random.Below(8)]};
      request.alignment = Bytes(uint64_t{4096} << random.Below(19));
      if (random.OneIn(8)) {
        request.highest = Iova(0xFFFFFFFFFF);
        request.alignment = std::min(request.alignment, MiB(32));
      }
      if (random.OneIn(8)) request.prefer_below = Iova(0xFFFFFFFF);
      const auto range = space->Allocate(request);
      watch.Check();
      REQUIRE(range.ok());
      live.push_back(*range);
    } else {
      const size_t victim = random.Below(live.size());
      REQUIRE(space->Free(live[victim]).ok());
      watch.Check();
      live[victim] = live.back();
      live.pop_back();
    }
  }
  const Space::Stats stats = space->stats();
  CHECK(stats.reclaims == 0);
  CHECK(space->Validate() == "");
  WARN("live " << stats.live_ranges << ", free " << stats.free_ranges << ", nodes "
               << stats.tree_nodes << ", height " << stats.tree_height << ": at most "
               << watch.most() << " visits, mean " << watch.mean() << ", bound "
               << VisitBound(stats));

  SECTION("20,000 one-page misses do not walk past the parked sizes") {
    Watch misses(space.get());
    for (int i = 0; i < 20000 / kScale; ++i) {
      REQUIRE(cache->Allocate(kPage).ok());
      misses.Check();
    }
    CHECK(cache->stats().parked <= cache->stats().parked_bound);
  }
}

TEST_CASE("A low-first request with a full low window costs one bounded search more (tax)") {
  auto space = Make({.usable = {Piece(0, 0xFFFFFFFFFFFF)}});
  const Iova low(0xFFFFFFFF);
  // The low window full with 50,000 live ranges, none of which is free even for one page.
  int count = 0;
  for (uint64_t base = 0x1000; count < 50000; ++count, base += kPage.value()) {
    REQUIRE(space->AllocateFixed({Iova(base), kPage}).ok());
  }
  const uint64_t rest = 0x1000 + 50000 * kPage.value();
  REQUIRE(space->AllocateFixed({Iova(rest), Bytes(0x100000000 - rest)}).ok());

  uint64_t plain_most = 0;
  uint64_t preferred_most = 0;
  Watch watch(space.get());
  for (int i = 0; i < 100000 / kScale; ++i) {
    const auto plain = space->Allocate({.size = kPage}).value();
    plain_most = std::max(plain_most, space->stats().visits_last);
    watch.Check();
    const auto preferred = space->Allocate({.size = kPage, .prefer_below = low}).value();
    preferred_most = std::max(preferred_most, space->stats().visits_last);
    watch.Check();
    REQUIRE(preferred.base > low);
    // Kept in part, so that the space above fills with ranges as well.
    REQUIRE(space->Free(plain).ok());
    if (i % 2 == 0) REQUIRE(space->Free(preferred).ok());
  }
  const Space::Stats stats = space->stats();
  CHECK(preferred_most <= plain_most + 2 * stats.tree_height - 1);
  CHECK(stats.preferred_misses == 100000u / kScale);
  CHECK(stats.reclaims == 0);
}

TEST_CASE("A request that cannot be met costs one search, however fragmented the space is") {
  auto space = Make({.usable = {Piece(0, 0x1FFFFFFF)}, .max_cached = PageCount(0)});
  // No two free pages touch: every second page of 512 MiB is live.
  const int pages = 60000;
  for (int i = 1; i < pages; i += 2) {
    REQUIRE(space->AllocateFixed({Iova(kPage.value() * i), kPage}).ok());
  }
  const uint64_t rest = kPage.value() * pages;
  REQUIRE(space->AllocateFixed({Iova(rest), Bytes(0x20000000 - rest)}).ok());
  Watch watch(space.get());
  for (int i = 0; i < 1000; ++i) {
    CHECK(!space->Allocate({.size = kPage * 2}).ok());
    watch.Check();
    CHECK(!space->Allocate({.size = kPage, .alignment = MiB(256)}).ok());
    watch.Check();
  }
  CHECK(space->stats().visits_last <= 2);
}

}  // namespace
}  // namespace dmakit::iova
