// SPDX-License-Identifier: Apache-2.0
//
// Tree and magazine memory that fails, and that comes full of garbage.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "iova/cache.h"
#include "iova/space.h"
#include "tests/catch.h"
#include "tests/iova/testing.h"

namespace dmakit::iova {
namespace {

using testing::AccountingResource;
using testing::Piece;
using testing::Random;

constexpr Bytes kPage = KiB(4);

struct State {
  std::vector<Range> live;
  Bytes free;
  uint64_t nodes;
  size_t blocks;
  bool operator==(const State&) const = default;
};

State Look(const Space& space, const AccountingResource& memory) {
  State state{{}, space.free_bytes(), space.stats().tree_nodes, memory.blocks()};
  space.ForEachLive([&](const Range& range) { state.live.push_back(range); });
  return state;
}

// Takes and frees in a fixed order, so that nodes split at every level. Returns the number of calls
// that failed; each of them must leave everything as it was.
int RunScript(Space* space, AccountingResource* memory) {
  Random random(7);
  std::vector<Range> live;
  int failures = 0;
  for (int i = 0; i < 1500; ++i) {
    if (live.size() > 4 && random.OneIn(4)) {
      const size_t victim = random.Below(live.size());
      REQUIRE(space->Free(live[victim]).ok());
      live[victim] = live.back();
      live.pop_back();
      continue;
    }
    const uint64_t calls = memory->calls;
    // No call takes more than 8 nodes, so this is every call that may be the one to fail.
    const bool about_to_fail = calls < memory->fail_at && calls + 8 >= memory->fail_at;
    const State before = about_to_fail ? Look(*space, *memory) : State{};
    const auto range =
        space->Allocate({.size = kPage, .alignment = kPage * (1u << random.Below(3))});
    if (range.ok()) {
      live.push_back(*range);
      continue;
    }
    ++failures;
    REQUIRE(range.status().code() == absl::StatusCode::kResourceExhausted);
    REQUIRE(memory->calls != calls);
    if (about_to_fail) REQUIRE(Look(*space, *memory) == before);
  }
  for (const Range& range : live) REQUIRE(space->Free(range).ok());
  REQUIRE(space->Validate() == "");
  return failures;
}

TEST_CASE(
    "Memory that fails at its k-th call, for all k: an error, nothing changed, nothing leaked") {
  uint64_t calls = 0;
  for (uint64_t k = 1; k == 1 || k <= calls; ++k) {
    AccountingResource memory;
    // A first run without failure counts the calls.
    if (calls != 0) memory.fail_at = k;
    memory.fail_once = true;
    {
      auto space = Space::Create({.usable = {Piece(0, 0xFFFFFFFF)}, .memory = &memory});
      if (space.ok()) {
        const int failures = RunScript(space->get(), &memory);
        REQUIRE(failures == (calls == 0 ? 0 : 1));
        REQUIRE((*space)->stats().memory_failures == (calls == 0 ? 0 : 1));
        REQUIRE((*space)->stats().tree_nodes == 1);
        REQUIRE((*space)->stats().exhaustions == 0);
      } else {
        REQUIRE(space.status().code() == absl::StatusCode::kResourceExhausted);
        REQUIRE(k == 1);
      }
    }
    REQUIRE(memory.blocks() == 0);
    REQUIRE(memory.wrong_returns == 0);
    if (calls == 0) {
      calls = memory.calls;
      REQUIRE(calls > 50);
      k = 0;
    }
  }
}

TEST_CASE("Memory that fails for good at its k-th call: Free still works to the last range") {
  for (const uint64_t k : {2, 3, 5, 9, 17, 33, 65, 100}) {
    AccountingResource memory;
    memory.fail_at = k;
    auto space = Space::Create({.usable = {Piece(0, 0xFFFFFFFF)}, .memory = &memory}).value();
    RunScript(space.get(), &memory);
    CHECK(space->stats().free_ranges == 1);
    CHECK(space->free_bytes() == GiB(4) - kPage);
    space.reset();
    CHECK(memory.blocks() == 0);
  }
}

TEST_CASE("A failed fixed allocation changes nothing") {
  AccountingResource memory;
  auto space = Space::Create({.usable = {Piece(0, 0xFFFFFFFF)}, .memory = &memory}).value();
  memory.fail_at = memory.calls + 1;
  int taken = 0;
  absl::Status status;
  State before;
  for (;; ++taken) {
    before = Look(*space, memory);
    status = space->AllocateFixed({Iova(0x10000 + 0x2000 * static_cast<uint64_t>(taken)), kPage});
    if (!status.ok()) break;
  }
  CHECK(taken > 10);
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Look(*space, memory) == before);
  CHECK(space->Validate() == "");
}

TEST_CASE("Recycled nodes full of ones are initialised (uninitialised node equals the sentinel)") {
  AccountingResource memory;  // gives nothing but 0xFF
  auto space = Space::Create({.usable = {Interval::All()}, .memory = &memory}).value();
  const size_t blocks = memory.blocks();
  // A ring's worth of ranges comes and goes, as when rings are resized.
  for (int resize = 0; resize < 1000; ++resize) {
    std::vector<Range> ring;
    for (int i = 0; i < 64 + resize % 64; ++i) {
      ring.push_back(space->Allocate({.size = kPage * 2}).value());
    }
    for (const Range& range : ring) REQUIRE(space->Free(range).ok());
    REQUIRE(memory.blocks() == blocks);
    REQUIRE(space->stats().tree_nodes == 1);
  }
  REQUIRE(space->Validate() == "");
}

TEST_CASE("A cache whose memory fails at the k-th call, for all k, is not made and leaks nothing") {
  for (uint64_t k = 1;; ++k) {
    AccountingResource memory;
    auto space = Space::Create({.usable = {Piece(0, 0xFFFFFF)}, .memory = &memory}).value();
    const size_t blocks = memory.blocks();
    memory.fail_at = memory.calls + k;
    memory.fail_once = true;
    auto cache = Cache::Create(space.get(), {});
    if (cache.ok()) {
      CHECK(k == 4);  // depot, its magazines, the cache's magazines
      break;
    }
    CHECK(cache.status().code() == absl::StatusCode::kResourceExhausted);
    CHECK(memory.blocks() == blocks);
    CHECK(space->stats().caches == 0);
    // The next attempt is a fresh one, also beside another cache.
    auto first = Cache::Create(space.get(), {});
    REQUIRE(first.ok());
    const size_t with_one = memory.blocks();
    memory.fail_at = memory.calls + 1;
    CHECK(!Cache::Create(space.get(), {}).ok());
    CHECK(memory.blocks() == with_one);
    CHECK((*first)->Allocate(kPage).ok());
    first->reset();
    CHECK(memory.wrong_returns == 0);
  }
}

// Whatever a space is asked for while its memory fails: an error that names it, nothing changed,
// and the same call works afterwards. Many calls before it, so that nodes are needed at all.
TEST_CASE("Memory that fails at its k-th call, for all k, in every entry point") {
  struct Entry {
    const char* name;
    std::function<absl::Status(Space&, Cache&, uint64_t)> call;
  };
  std::vector<Range> live;
  const auto keep = [&](absl::StatusOr<Range> range) {
    if (range.ok()) live.push_back(*range);
    return range.status();
  };
  const Entry entries[] = {
      {"Allocate",
       [&](Space& s, Cache&, uint64_t) {
         return keep(s.Allocate({.size = kPage, .alignment = KiB(64)}));
       }},
      {"Allocate, preferred",
       [&](Space& s, Cache&, uint64_t i) {
         return keep(s.Allocate({.size = kPage * (1 + i % 3), .prefer_below = Iova(0xFFFFFF)}));
       }},
      {"AllocateFixed",
       [&](Space& s, Cache&, uint64_t i) {
         const Range range{Iova(0x10000 + 0x2000 * i), kPage};
         const absl::Status status = s.AllocateFixed(range);
         return status.ok() ? keep(range) : status;
       }},
      {"Cache", [&](Space&, Cache& c, uint64_t) { return keep(c.Allocate(kPage)); }},
      {"Cache, past it",
       [&](Space&, Cache& c, uint64_t) { return keep(c.Allocate(kPage * 3, KiB(64))); }},
  };
  for (const Entry& entry : entries) {
    uint64_t failures = 0;
    bool reached = true;
    for (uint64_t k = 1; reached; ++k) {
      INFO(entry.name << ", k = " << k);
      AccountingResource memory;
      auto space =
          Space::Create({.usable = {Piece(0, 0xFFFFFFFF)}, .name = "space9", .memory = &memory})
              .value();
      auto cache = Cache::Create(space.get(), {}).value();
      live.clear();
      memory.fail_once = true;
      memory.fail_at = memory.calls + k;
      for (uint64_t i = 0; i < 300; ++i) {
        const bool near = memory.calls + 8 >= memory.fail_at && memory.calls < memory.fail_at;
        const State before = near ? Look(*space, memory) : State{};
        const absl::Status status = entry.call(*space, *cache, i);
        if (status.ok()) continue;
        ++failures;
        REQUIRE(near);
        REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
        REQUIRE(std::string(status.message()).find("space9") != std::string::npos);
        REQUIRE(Look(*space, memory) == before);
        REQUIRE(entry.call(*space, *cache, i).ok());
      }
      reached = memory.calls >= memory.fail_at;
      memory.fail_at = 0;
      REQUIRE(live.size() == 300);
      for (const Range& range : live) REQUIRE(cache->Free(range).ok());
      cache.reset();
      REQUIRE(space->stats().tree_nodes == 1);
      REQUIRE(space->stats().rejected_drains == 0);
      space.reset();
      REQUIRE(memory.blocks() == 0);
    }
    CHECK(failures > 0);
  }
}

}  // namespace
}  // namespace dmakit::iova
