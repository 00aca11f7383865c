// SPDX-License-Identifier: Apache-2.0

#include "iova/space.h"

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/iova/testing.h"

namespace dmakit::iova {
namespace {

using testing::Piece;

constexpr uint64_t kTop = std::numeric_limits<uint64_t>::max();
constexpr Bytes kPage = KiB(4);

std::unique_ptr<Space> Make(std::vector<Interval> usable, std::vector<Interval> reserved = {}) {
  auto space = Space::Create({.usable = std::move(usable), .reserved = std::move(reserved)});
  REQUIRE(space.ok());
  return *std::move(space);
}

bool Mentions(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

TEST_CASE("A hole that opened above earlier allocations is found (false exhaustion)") {
  auto space = Make({Piece(0x40000000, 0x7FFFFFFF)});
  REQUIRE(space->Allocate({.size = MiB(500)}).ok());
  const Range hole = space->Allocate({.size = MiB(12)}).value();
  REQUIRE(space->Allocate({.size = MiB(499)}).ok());
  REQUIRE(space->Free(hole).ok());
  REQUIRE(space->Allocate({.size = MiB(13)}).ok());
  CHECK(space->Allocate({.size = MiB(2)}).ok());
}

TEST_CASE("A space of 16 pages gives 15 of them, never address 0 (mixed error sentinels)") {
  auto space = Make({Piece(0, 0xFFFF)});
  std::vector<Range> live;
  while (true) {
    const auto range = space->Allocate({.size = Bytes(1)});
    if (!range.ok()) {
      CHECK(range.status().code() == absl::StatusCode::kResourceExhausted);
      break;
    }
    CHECK(range->base != Iova(0));
    CHECK(range->size == kPage);
    live.push_back(*range);
  }
  CHECK(live.size() == 15);
  CHECK(space->free_bytes() == Bytes(0));
  CHECK(space->largest_free() == Bytes(0));
  CHECK(!space->Free({Iova(0), kPage}).ok());
  CHECK(!space->AllocateFixed({Iova(0), kPage}).ok());
  for (const Range& range : live) REQUIRE(space->Free(range).ok());
  CHECK(space->free_bytes() == kPage * 15);
  CHECK(space->stats().free_ranges == 1);
  CHECK(space->Allocate({.size = kPage * 15}).ok());
}

TEST_CASE("The last page, the last 2 MiB and all of [0, 2^64) (exclusive-end overflow)") {
  auto space = Make({Interval::All()});
  CHECK(space->bounds() == Interval{Iova(0x1000), Iova::Max()});
  const Range page = space->Allocate({.size = kPage}).value();
  CHECK(page.last() == Iova::Max());
  REQUIRE(space->Free(page).ok());
  const Range large = space->Allocate({.size = MiB(2), .alignment = MiB(2)}).value();
  CHECK(large.last() == Iova::Max());
  REQUIRE(space->Free(large).ok());
  REQUIRE(space->AllocateFixed(page).ok());
  REQUIRE(space->Free(page).ok());

  const Range all = space->Allocate({.size = space->largest_free()}).value();
  CHECK(all == Range{Iova(0x1000), Bytes(kTop - 0xFFF)});
  CHECK(space->FindLive(Iova::Max()) == all);
  REQUIRE(space->Free(all).ok());

  // Past the end by one granule, or by one byte.
  CHECK(!space->AllocateFixed({page.base, kPage * 2}).ok());
  CHECK(!space->AllocateFixed({page.base, Bytes(4097)}).ok());
  CHECK(!space->Free({page.base, kPage * 2}).ok());
  CHECK(!space->Contains({page.base, kPage * 2}));
  CHECK(space->Contains(page));
  CHECK(space->Validate() == "");
}

TEST_CASE("Huge sizes fail with every alignment and change nothing (rounds up to zero)") {
  for (const Interval& usable : {Piece(0, 0xFFFF), Piece(0, 0xFFFFFFFF), Interval::All()}) {
    auto space = Make({usable});
    const Bytes before = space->free_bytes();
    for (const uint64_t less : {0, 1, 2, 63, 64, 127, 4095}) {
      for (uint64_t alignment = 1; alignment <= uint64_t{1} << 30; alignment *= 2) {
        const Space::Request request{.size = Bytes(kTop - less), .alignment = Bytes(alignment)};
        const auto range = space->Allocate(request);
        // All but granule 0 of the whole space is one granule more than 2^64 - 1 - 4095 bytes need.
        const bool fits = usable == Interval::All() && less == 4095 && alignment <= 4096;
        CHECK(range.ok() == fits);
        if (range.ok()) REQUIRE(space->Free(*range).ok());
      }
      CHECK(!space->AllocateFixed({Iova(0x1000), Bytes(kTop - less)}).ok() ==
            !(usable == Interval::All() && less == 4095));
      (void)space->Free({Iova(0x1000), Bytes(kTop - less)});
      CHECK(!space->Contains({Iova(0x2000), Bytes(kTop - less)}));
    }
    CHECK(space->free_bytes() == before);
    CHECK(space->Validate() == "");
  }
}

TEST_CASE("Apertures of 36, 39 and 48 bits with a hole are kept to (missing aperture query)") {
  for (const unsigned bits : {36u, 39u, 48u}) {
    const Interval aperture{Iova(0), AddressBits(bits).ToMask().highest()};
    const Interval hole = Piece(0xFEE00000, 0xFEEFFFFF);
    auto space = Make({aperture}, {hole});
    std::vector<Range> live;
    testing::Random random(bits);
    for (int i = 0; i < 3000; ++i) {
      const uint64_t ceiling = random.OneIn(2) ? 0xFFFFFFFF : kTop;
      const auto range = space->Allocate({.size = Bytes(1 + random.Below(3 << 20)),
                                          .alignment = Bytes(uint64_t{4096} << random.Below(10)),
                                          .highest = Iova(ceiling)});
      if (!range.ok()) continue;
      REQUIRE(aperture.Contains(*range));
      REQUIRE(range->last() <= Iova(ceiling));
      REQUIRE(!hole.Overlaps(*Interval::FromRange(*range)));
      live.push_back(*range);
    }
    for (const Range& range : live) REQUIRE(space->Free(range).ok());
    CHECK(space->largest_free(GiB(1)) <= Bytes((aperture.last - Iova(0)).value()));
    CHECK(space->stats().free_ranges == 2);
  }
}

TEST_CASE("A 32-bit ceiling and a preferred ceiling") {
  auto space = Make({Piece(0, 0xFFFFFFFFFFFF)});
  const Iova low(0xFFFFFFFF);
  CHECK(space->Allocate({.size = kPage, .highest = low})->last() == low);
  CHECK(space->Allocate({.size = kPage})->last() == Iova(0xFFFFFFFFFFFF));
  CHECK(space->Allocate({.size = kPage, .prefer_below = low})->last() == low - kPage);
  // One byte under a page end leaves that page out.
  CHECK(space->Allocate({.size = kPage, .highest = Iova(0xFFFFE)})->base == Iova(0xFE000));
  CHECK(!space->Allocate({.size = kPage, .highest = Iova(0xFFF)}).ok());
  CHECK(!space->Allocate({.size = kPage, .highest = Iova(0)}).ok());
  CHECK(space->Allocate({.size = GiB(8), .prefer_below = low})->base > low);
  CHECK(space->stats().preferred_misses == 1);
}

TEST_CASE("A descriptor's pages come as one naturally aligned block") {
  auto space = Make({Piece(0, 0xFFFFFFFF)});
  REQUIRE(space->Allocate({.size = kPage}).ok());
  const Range block = space->Allocate({.size = kPage * 64, .alignment = kPage * 64}).value();
  CHECK(IsAligned(block.base, kPage * 64));
  CHECK(block.size == kPage * 64);
}

TEST_CASE("Free takes back exactly what was handed out (mismatched region, double free)") {
  auto space = Make({Piece(0, 0xFFFFFF)});
  const Range a = space->Allocate({.size = kPage * 4}).value();
  const Range b = space->Allocate({.size = kPage * 4}).value();
  REQUIRE(b.last() + Bytes(1) == a.base);
  const Bytes free = space->free_bytes();
  const Range wrong[] = {
      {a.base, kPage * 3},          {a.base + kPage, kPage * 3}, {b.base, kPage * 8},
      {b.base, kPage * 5},          {a.base, Bytes(0)},          {a.base, Bytes(100)},
      {a.base + Bytes(1), kPage},   {Iova(0x1000), kPage},       {Iova(kTop - 4095), kPage},
      {Iova(kTop - 4095), MiB(16)}, {a.base, Bytes(kTop)},       {Iova(0), kPage},
  };
  for (const Range& range : wrong) {
    const absl::Status status = space->Free(range);
    CHECK(status.code() == absl::StatusCode::kNotFound);
  }
  CHECK(Mentions(space->Free({a.base, kPage}), ToString(a)));
  CHECK(space->free_bytes() == free);
  REQUIRE(space->Free(a).ok());
  CHECK(space->Free(a).code() == absl::StatusCode::kNotFound);
  CHECK(space->stats().rejected_frees == std::size(wrong) + 2);
  REQUIRE(space->Free(b).ok());
  CHECK(space->stats().free_ranges == 1);
  CHECK(space->Validate() == "");
}

TEST_CASE("Fixed ranges: taken exactly, refused by reason") {
  auto space = Make({Piece(0, 0xFFFFFFFF)}, {Piece(0xFEE00000, 0xFEEFFFFF)});
  const Range range{Iova(0x10000), kPage * 4};
  REQUIRE(space->AllocateFixed(range).ok());
  CHECK(space->AllocateFixed(range).code() == absl::StatusCode::kAlreadyExists);
  for (const Range& overlapping : {Range{Iova(0x13000), kPage}, Range{Iova(0xF000), kPage * 2},
                                   Range{Iova(0x8000), KiB(64)}}) {
    CHECK(space->AllocateFixed(overlapping).code() == absl::StatusCode::kAlreadyExists);
  }
  CHECK(space->AllocateFixed({Iova(0xF000), kPage}).ok());
  CHECK(space->AllocateFixed({Iova(0x14000), kPage}).ok());
  CHECK(space->AllocateFixed({Iova(0x1000), Bytes(100)}).code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(space->AllocateFixed({Iova(0x1100), kPage}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(space->AllocateFixed({Iova(0x1000), Bytes(0)}).code() ==
        absl::StatusCode::kInvalidArgument);
  for (const Range& outside :
       {Range{Iova(0), kPage}, Range{Iova(0xFEDFF000), kPage * 2}, Range{Iova(0xFEEFF000), kPage},
        Range{Iova(0xFFFFF000), kPage * 2}}) {
    CHECK(space->AllocateFixed(outside).code() == absl::StatusCode::kOutOfRange);
  }
  CHECK(space->AllocateFixed({Iova(0xFEDFF000), kPage}).ok());
  CHECK(space->AllocateFixed({Iova(0xFEF00000), kPage}).ok());
  REQUIRE(space->Free(range).ok());
  CHECK(space->Validate() == "");
}

TEST_CASE("Bad requests and options name value, rule and remedy") {
  auto space = Make({Piece(0, 0xFFFFFF)});
  CHECK(Mentions(space->Allocate({}).status(), "size 0 bytes"));
  for (const uint64_t bad : {3ull, 4097ull, 12288ull, 1ull << 31, ~0ull}) {
    const auto range = space->Allocate({.size = kPage, .alignment = Bytes(bad)});
    CHECK(range.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(Mentions(range.status(), std::to_string(bad)));
    CHECK(space->largest_free(Bytes(bad)) == Bytes(0));
  }
  const auto refused = [](Space::Options options, const std::string& text) {
    options.name = "nic0";
    const auto made = Space::Create(std::move(options));
    CHECK(made.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(Mentions(made.status(), "nic0"));
    CHECK(Mentions(made.status(), text));
  };
  const std::vector<Interval> all{Interval::All()};
  refused({}, "usable");
  refused({.usable = {Piece(0, 0xFFF)}}, "IOVA 0");
  refused({.usable = {Piece(0x1001, 0x2FFE)}}, "not one whole granule");
  refused({.usable = {Piece(0x2000, 0x1FFF)}}, "[0x2000, 0x1fff]");
  refused({.usable = all, .reserved = {Piece(5, 4)}}, "reserved interval");
  refused({.usable = all, .reserved = all}, "usable");
  refused({.usable = all, .granule = Bytes(0)}, "granule 0");
  refused({.usable = all, .granule = Bytes(12288)}, "granule 12288");
  refused({.usable = all, .granule = Bytes(2048)}, "granule 2048");
  refused({.usable = all, .granule = GiB(2)}, "granule 2147483648");
  refused({.usable = all, .max_cached = PageCount(48)}, "max_cached 48");
  refused({.usable = all, .max_cached = PageCount(2048)}, "max_cached 2048");
  refused({.usable = all, .magazine_size = 0}, "magazine_size 0");
  refused({.usable = all, .magazine_size = 65}, "magazine_size 65");
  refused({.usable = all, .depot_magazines = size_t{1} << 40}, "depot_magazines");
}

TEST_CASE("Usable pieces may overlap, touch and come in any order") {
  auto space = Make({Piece(0x5000, 0x8FFF), Piece(0x1000, 0x2FFF), Piece(0x3000, 0x3FFF),
                     Piece(0x7000, 0x9FFF), Piece(0x7000, 0x7FFF)},
                    {Piece(0x6800, 0x6801), Piece(0x9000, 0x9FFF), Piece(0x9000, 0x90FF)});
  CHECK(space->free_bytes() == kPage * 6);
  CHECK(space->stats().free_ranges == 3);
  CHECK(space->bounds() == Piece(0x1000, 0x8FFF));
  CHECK(space->Contains({Iova(0x1000), kPage * 3}));
  CHECK(!space->Contains({Iova(0x1000), kPage * 4}));
  CHECK(!space->Contains({Iova(0x6000), kPage}));
  CHECK(!space->Contains({Iova(0x5000), Bytes(0)}));
  CHECK(space->Allocate({.size = kPage * 3})->base == Iova(0x1000));
}

TEST_CASE("Look-up and listing of live ranges") {
  auto space = Make({Piece(0, 0xFFFFFF)});
  const Range a = space->Allocate({.size = kPage * 2}).value();
  const Range b = space->Allocate({.size = kPage * 3}).value();
  CHECK(space->FindLive(a.last()) == a);
  CHECK(space->FindLive(b.base) == b);
  CHECK(!space->FindLive(b.base - Bytes(1)));
  CHECK(!space->FindLive(Iova(0)));
  CHECK(!space->FindLive(Iova::Max()));
  std::vector<Range> seen;
  space->ForEachLive([&](const Range& range) { seen.push_back(range); });
  CHECK(seen == std::vector<Range>{b, a});
}

// A deferred-flush queue: what it holds becomes free only when it is told to.
class Queue : public Reclaimer {
 public:
  explicit Queue(Space* space) : space_(space) { space_->Register(this); }
  ~Queue() override { space_->Unregister(this); }
  void Reclaim() override {
    ++calls;
    for (const Range& range : held) REQUIRE(space_->Free(range).ok());
    held.clear();
  }
  std::vector<Range> held;
  int calls = 0;

 private:
  Space* const space_;
};

TEST_CASE("Exhaustion runs the deferred flush, a miss below a preferred ceiling does not") {
  auto space = Make({Piece(0, 0xFFFF)});
  Queue queue(space.get());
  Queue other(space.get());
  for (int i = 0; i < 15; ++i) queue.held.push_back(space->Allocate({.size = kPage}).value());
  REQUIRE(queue.calls == 0);
  CHECK(space->Allocate({.size = kPage * 15}).ok());
  CHECK(queue.calls == 1);
  CHECK(other.calls == 1);
  CHECK(!space->Allocate({.size = kPage}).ok());
  CHECK(queue.calls == 2);
  CHECK(space->stats().exhaustions == 1);
  // Never possible: nothing is emptied for it.
  CHECK(!space->Allocate({.size = kPage * 16}).ok());
  CHECK(queue.calls == 2);

  auto wide = Make({Piece(0, 0xFFFFFF)});
  Queue held(wide.get());
  held.held.push_back(wide->Allocate({.size = kPage * 15, .highest = Iova(0xFFFF)}).value());
  CHECK(wide->Allocate({.size = kPage, .prefer_below = Iova(0xFFFF)})->base > Iova(0xFFFF));
  CHECK(held.calls == 0);
  CHECK(wide->AllocateFixed({Iova(0x1000), kPage}).ok());
  CHECK(held.calls == 1);
}

TEST_CASE("Space from eight threads (lazy-init race, tree corruption)") {
  auto space = Make({Piece(0, 0xFFFFFFFF)});
  constexpr int kThreads = 8;
  std::vector<int> failures(kThreads, 0);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        testing::Random random(static_cast<uint64_t>(t));
        std::vector<Range> mine;
        for (int i = 0; i < 2000; ++i) {
          if (mine.empty() || random.OneIn(2)) {
            const auto range = space->Allocate({.size = kPage * (1 + random.Below(40))});
            range.ok() ? mine.push_back(*range) : void(++failures[t]);
          } else {
            if (!space->Free(mine.back()).ok()) ++failures[t];
            mine.pop_back();
          }
        }
        for (const Range& range : mine) {
          if (!space->Free(range).ok()) ++failures[t];
        }
      });
    }
  }
  CHECK(failures == std::vector<int>(kThreads, 0));
  CHECK(space->stats().live_ranges == 0);
  CHECK(space->stats().free_ranges == 1);
  CHECK(space->Validate() == "");
}

}  // namespace
}  // namespace dmakit::iova
