// SPDX-License-Identifier: Apache-2.0
//
// Space against the plainest allocator that keeps the same contract: two ordered maps and a walk
// from the top. The same operations must give the same ranges, the same failures and the same
// listing.

#include <map>
#include <optional>
#include <vector>

#include "iova/space.h"
#include "tests/catch.h"
#include "tests/iova/testing.h"

namespace dmakit::iova {
namespace {

using testing::Piece;
using testing::Random;

// All in granules, ends exclusive.
class Reference {
 public:
  explicit Reference(unsigned shift) : shift_(shift) {}

  void AddFree(uint64_t base, uint64_t end) { free_[base] = end; }

  std::optional<Range> Allocate(const Space::Request& request) {
    const uint64_t size = ((request.size.value() - 1) >> shift_) + 1;
    const uint64_t step = std::max(request.alignment, Granule()).value() >> shift_;
    if (request.prefer_below && *request.prefer_below < request.highest) {
      if (auto range = Highest(size, step, End(*request.prefer_below))) return range;
    }
    return Highest(size, step, End(request.highest));
  }

  bool Take(const Range& range) {
    const uint64_t base = range.base.value() >> shift_;
    const uint64_t end = base + (range.size.value() >> shift_);
    auto above = free_.upper_bound(base);
    if (above == free_.begin() || std::prev(above)->second < end) return false;
    Cut(std::prev(above), base, end);
    return true;
  }

  bool Free(const Range& range) {
    const auto found = live_.find(range.base.value() >> shift_);
    if (found == live_.end() || found->second - found->first != range.size.value() >> shift_) {
      return false;
    }
    uint64_t base = found->first;
    uint64_t end = found->second;
    live_.erase(found);
    auto next = free_.lower_bound(end);
    if (next != free_.end() && next->first == end) {
      end = next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->second == base) {
      base = std::prev(next)->first;
      free_.erase(std::prev(next));
    }
    free_[base] = end;
    return true;
  }

  std::vector<Range> Live() const {
    std::vector<Range> result;
    for (const auto& [base, end] : live_) result.push_back(ToRange(base, end));
    return result;
  }

  Bytes FreeBytes() const {
    Bytes total{0};
    for (const auto& [base, end] : free_) total += ToRange(base, end).size;
    return total;
  }

  Bytes LargestFree(Bytes alignment) const {
    const uint64_t step = std::max(alignment, Granule()).value() >> shift_;
    uint64_t largest = 0;
    for (const auto& [base, end] : free_) {
      const uint64_t first = (base + step - 1) / step * step;
      if (first < end) largest = std::max(largest, end - first);
    }
    return Bytes(largest << shift_);
  }

 private:
  using Map = std::map<uint64_t, uint64_t>;

  Bytes Granule() const { return Bytes(uint64_t{1} << shift_); }
  uint64_t End(Iova last) const {
    return last == Iova::Max() ? uint64_t{1} << (64 - shift_) : (last.value() + 1) >> shift_;
  }
  Range ToRange(uint64_t base, uint64_t end) const {
    return {Iova(base << shift_), Bytes((end - base) << shift_)};
  }

  std::optional<Range> Highest(uint64_t size, uint64_t step, uint64_t limit) {
    for (auto it = free_.end(); it != free_.begin();) {
      --it;
      const uint64_t end = std::min(it->second, limit);
      if (end < size || end - size < it->first) continue;
      const uint64_t base = (end - size) / step * step;
      if (base < it->first) continue;
      Cut(it, base, base + size);
      return ToRange(base, base + size);
    }
    return std::nullopt;
  }

  void Cut(Map::iterator it, uint64_t base, uint64_t end) {
    const auto [low, high] = *it;
    free_.erase(it);
    if (low < base) free_[low] = base;
    if (end < high) free_[end] = high;
    live_[base] = end;
  }

  const unsigned shift_;
  Map free_;
  Map live_;
};

struct Scene {
  const char* name;
  unsigned shift;
  std::vector<Interval> usable;
  std::vector<Interval> reserved;
  std::vector<Interval> free;  // usable without reserved, in whole granules, by hand
  uint64_t most_granules;      // per request
  unsigned most_order;         // alignment up to granule << order
  int rounds;
};

std::vector<Scene> Scenes() {
  return {
      {"a 16-page space", 12, {Piece(0, 0xFFFF)}, {}, {Piece(0x1000, 0xFFFF)}, 6, 4, 20000},
      {"32-bit space with the interrupt hole",
       12,
       {Piece(0, 0xFFFFFFFF)},
       {Piece(0xFEE00000, 0xFEEFFFFF)},
       {Piece(0x1000, 0xFEDFFFFF), Piece(0xFEF00000, 0xFFFFFFFF)},
       3000,
       18,
       30000},
      {"fragmented: single pages and small blocks in 16 MiB",
       12,
       {Piece(0, 0xFFFFFF)},
       {Piece(0x800800, 0x8017FF)},
       {Piece(0x1000, 0x7FFFFF), Piece(0x802000, 0xFFFFFF)},
       4,
       6,
       60000},
      {"ends at 2^64 - 1",
       12,
       {Piece(0xFFFFFFFF00000000, ~uint64_t{0})},
       {Piece(0xFFFFFFFF80000000, 0xFFFFFFFF80000000)},
       {Piece(0xFFFFFFFF00000000, 0xFFFFFFFF7FFFFFFF), Piece(0xFFFFFFFF80001000, ~uint64_t{0})},
       5000,
       18,
       30000},
      {"64 KiB granules, ragged edges",
       16,
       {Piece(0x12345, 0xFFFFFFF), Piece(0x20000000, 0x2000FFFF), Piece(0x40000001, 0x4FFFFFFE)},
       {Piece(0x5000000, 0x5000001)},
       {Piece(0x20000, 0x4FFFFFF), Piece(0x5010000, 0xFFFFFFF), Piece(0x20000000, 0x2000FFFF),
        Piece(0x40010000, 0x4FFEFFFF)},
       40,
       14,
       30000},
      {"2 MiB granules over 48 bits",
       21,
       {Piece(0, 0xFFFFFFFFFFFF)},
       {Piece(0xFEE00000, 0xFEEFFFFF)},
       {Piece(0x200000, 0xFEDFFFFF), Piece(0xFF000000, 0xFFFFFFFFFFFF)},
       100000,
       9,
       20000},
  };
}

class Comparison {
 public:
  Comparison(const Scene& scene, uint64_t seed)
      : scene_(scene), reference_(scene.shift), random_(seed) {
    memory_.fail_at = 0;
    auto space = Space::Create({.usable = scene.usable,
                                .reserved = scene.reserved,
                                .granule = Bytes(uint64_t{1} << scene.shift),
                                .memory = &memory_});
    REQUIRE(space.ok());
    space_ = *std::move(space);
    for (const Interval& piece : scene.free) {
      const uint64_t end = piece.last == Iova::Max() ? uint64_t{1} << (64 - scene.shift)
                                                     : (piece.last.value() + 1) >> scene.shift;
      reference_.AddFree(piece.first.value() >> scene.shift, end);
    }
  }

  // Grows for a while, shrinks for a while, so that nodes split and merge at all levels.
  void Run() {
    for (int round = 0; round < scene_.rounds; ++round) {
      const bool growing = (round / 3000) % 2 == 0;
      if (random_.Below(10) < (growing ? 7u : 3u)) {
        random_.OneIn(8) ? TakeFixed() : Allocate();
      } else {
        random_.OneIn(16) ? FreeWrongly() : Free();
      }
      const Space::Stats stats = space_->stats();
      if (stats.visits_last > testing::VisitBound(stats)) FAIL("visits " << stats.visits_last);
      if (round % 512 == 0) CompareAll();
    }
    CompareAll();
    while (!live_.empty()) Free();
    CompareAll();
    CHECK(space_->stats().free_ranges == scene_.free.size());
    CHECK(space_->stats().tree_nodes == 1);
    space_.reset();
    CHECK(memory_.blocks() == 0);
    CHECK(memory_.wrong_returns == 0);
  }

 private:
  Bytes Granules(uint64_t n) const { return Bytes(n << scene_.shift); }

  Iova RandomAddress() {
    const Interval& piece = scene_.usable[random_.Below(scene_.usable.size())];
    const uint64_t span = (piece.last - piece.first).value();
    return piece.first +
           Bytes(span == ~uint64_t{0} ? random_.Below(span) : random_.Below(span + 1));
  }

  void Allocate() {
    Space::Request request;
    const uint64_t most = random_.OneIn(4) ? scene_.most_granules : 3;
    request.size = Granules(1 + random_.Below(most)) - Bytes(random_.Below(4096));
    if (!random_.OneIn(3)) {
      request.alignment = Granules(uint64_t{1} << random_.Below(scene_.most_order + 1));
    }
    if (random_.OneIn(3)) request.highest = RandomAddress();
    if (random_.OneIn(4)) request.prefer_below = RandomAddress();
    const auto range = space_->Allocate(request);
    const std::optional<Range> expected = reference_.Allocate(request);
    if (range.ok() != expected.has_value() || (range.ok() && *range != *expected)) {
      FAIL("size " << request.size.value() << " alignment " << request.alignment.value()
                   << " highest " << request.highest.value() << ": got "
                   << (range.ok() ? ToString(*range) : range.status().ToString()) << ", expected "
                   << (expected ? ToString(*expected) : "a failure"));
    }
    if (range.ok()) live_.push_back(*range);
  }

  void TakeFixed() {
    const Range range{AlignDown(RandomAddress(), Granules(1)), Granules(1 + random_.Below(5))};
    const bool taken = space_->AllocateFixed(range).ok();
    const bool expected = reference_.Take(range);
    if (taken != expected) FAIL("fixed " << ToString(range) << " expected " << expected);
    if (taken) live_.push_back(range);
  }

  void Free() {
    if (live_.empty()) return;
    const size_t i = random_.Below(live_.size());
    const Range range = live_[i];
    live_[i] = live_.back();
    live_.pop_back();
    const absl::Status status = space_->Free(range);
    if (!status.ok() || !reference_.Free(range)) FAIL(status.ToString());
  }

  // Neither a part, nor more, nor a free range is accepted.
  void FreeWrongly() {
    Range range{AlignDown(RandomAddress(), Granules(1)), Granules(1 + random_.Below(3))};
    if (!live_.empty() && random_.OneIn(2)) {
      range = live_[random_.Below(live_.size())];
      if (random_.OneIn(2)) {
        range.size += Granules(1);
      } else {
        range.base += Granules(1);
      }
    }
    const bool freed = space_->Free(range).ok();
    if (freed != reference_.Free(range)) FAIL("free of " << ToString(range) << " gave " << freed);
    if (freed) std::erase(live_, range);
  }

  void CompareAll() {
    const std::string broken = space_->Validate();
    if (!broken.empty()) FAIL(broken);
    std::vector<Range> live;
    space_->ForEachLive([&](const Range& range) { live.push_back(range); });
    REQUIRE(live == reference_.Live());
    REQUIRE(space_->free_bytes() == reference_.FreeBytes());
    for (unsigned order = 0; order <= scene_.most_order; ++order) {
      const Bytes alignment = Granules(uint64_t{1} << order);
      REQUIRE(space_->largest_free(alignment) == reference_.LargestFree(alignment));
    }
  }

  const Scene& scene_;
  testing::AccountingResource memory_;
  std::unique_ptr<Space> space_;
  Reference reference_;
  Random random_;
  std::vector<Range> live_;
};

TEST_CASE(
    "Space gives what an ordered-map reference gives (aligned hole missed, stale aggregate)") {
  for (const Scene& scene : Scenes()) {
    DYNAMIC_SECTION(scene.name) {
      const int seeds = testing::kSanitized ? 1 : 3;
      for (int seed = 1; seed <= seeds; ++seed) Comparison(scene, seed).Run();
    }
  }
}

}  // namespace
}  // namespace dmakit::iova
