// SPDX-License-Identifier: Apache-2.0
//
// One fail point behind every edge (memory, threads, each domain's map): the k-th thing that can
// fail fails, for all k, in every public entry point. Afterwards nothing is leaked, and the same
// call works.
#include "dma/ring_pool.h"
#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;

// Everything that must be as before after a failed call.
struct Counts {
  uint64_t blocks, ranges, mappings, stale, devices_live, failures_held, parked;
  friend bool operator==(const Counts&, const Counts&) = default;
};

struct World {
  host::FailPoint fail;
  host::FakeClock clock;
  host::FakeThreads threads{&fail};
  host::FakeMemory memory{{.fail = &fail}};
  FakeDomain d0{{.name = "d0", .fail_map = &fail}};
  FakeDomain d1{{.name = "d1", .fail_map = &fail}};
  FakeDomain d2{{.name = "d2", .fail_map = &fail}};
  Buffer buffer{64 * 4096};
  std::unique_ptr<AddressSpace> space;
  std::unique_ptr<Device> nic0, nic1;
  std::vector<SharedRange> pages;
  std::vector<Mapping> held;

  AddressSpace::Options Options() {
    AddressSpace::Options options;
    options.memory = &memory;
    options.clock = &clock;
    options.threads = &threads;
    options.policy = Policy::kDeferred;
    options.report = [](std::string_view) {};
    return options;
  }
  // Two devices, three pages in use, one mapping, one ring.
  void Populate() {
    space = *AddressSpace::Create(Options());
    nic0 = *space->Attach({.name = "nic0", .domain = &d0});
    nic1 = *space->Attach({.name = "nic1", .domain = &d1});
    for (int i = 0; i < 3; ++i) {
      pages.push_back(*space->Reserve(Bytes(4096), Bytes(0), "pool"));
      REQUIRE(pages.back().Map(buffer.view(4096 * i, 4096)).ok());
    }
    held.push_back(*nic0->Map(buffer.part(4096 * 4, 10), Direction::kToDevice));
  }
  Counts Now() {
    Counts c{};
    c.blocks = memory.blocks();
    c.ranges = space->iova_space().stats().live_ranges;
    for (FakeDomain* d : {&d0, &d1, &d2}) {
      c.mappings += d->live().size();
      c.stale += d->stale().size();
    }
    c.devices_live = nic0->stats().live_mappings + nic1->stats().live_mappings;
    c.failures_held = space->quarantine().total_held();
    c.parked = space->flush_queue()->stats().pending_ranges;
    return c;
  }
  // Fails the k-th fallible step of `call` for k = 1, 2, ... until it succeeds without reaching the
  // k-th. Returns how many steps there were.
  uint64_t FailEach(const std::function<absl::Status(World&)>& call) {
    for (uint64_t k = 1;; ++k) {
      REQUIRE(k < 100);
      const Counts before = Now();
      fail.FailAt(k);
      const absl::Status status = call(*this);
      const bool reached = fail.triggered();
      fail.FailAt(0);
      INFO("k = " << k << ": " << status.ToString());
      CHECK(status.ok() == !reached);
      CHECK(Now() == before);  // the calls undo what they did on success
      CHECK(space->iova_space().Validate().empty());
      if (!reached) return k - 1;
    }
  }
};

absl::Status Single(World& w) {
  auto m = w.nic0->Map(w.buffer.part(4096 * 8, 9000), Direction::kFromDevice);
  return m.status();
}

absl::Status List(World& w) {
  std::vector<std::span<std::byte>> list;
  for (int i = 0; i < 18; ++i) list.push_back(w.buffer.part(4096 * (2 * i + 8), 1500));
  return w.nic0->MapSg(list, Direction::kToDevice).status();
}

absl::Status Ring(World& w) {
  return RingPool<uint64_t>::Create(*w.nic1, {.count = 4096, .label = "rx0"}).status();
}

// As a driver sets up: rings first, then buffers; each member unwinds itself.
absl::Status WholeDriver(World& w) {
  std::vector<RingPool<uint64_t>> rings;
  for (int i = 0; i < 4; ++i) {
    auto ring = RingPool<uint64_t>::Create(*w.nic0, {.count = 512, .label = "ring"});
    if (!ring.ok()) return ring.status();
    rings.push_back(*std::move(ring));
  }
  std::vector<Mapping> buffers;
  for (int i = 0; i < 8; ++i) {
    auto m = w.nic0->Map(w.buffer.part(4096 * (8 + i), 2048), Direction::kFromDevice);
    if (!m.ok()) return m.status();
    buffers.push_back(*std::move(m));
  }
  return absl::OkStatus();
}

absl::Status Page(World& w) {
  auto range = w.space->Reserve(Bytes(8192), Bytes(8192), "pool");
  if (!range.ok()) return range.status();
  auto memory = w.memory.Allocate({.size = Bytes(8192), .numa = {}, .label = "page"});
  if (!memory.ok()) return memory.status();
  if (absl::Status s = range->Map(memory->view()); !s.ok()) return s;
  return range->Unmap(Policy::kStrict).status();
}

absl::Status Late(World& w) { return w.space->Attach({.name = "nic2", .domain = &w.d2}).status(); }

TEST_CASE("The k-th failure of memory, map or thread, for all k, in each entry point") {
  struct Entry {
    const char* name;
    absl::Status (*call)(World&);
    uint64_t steps;
  };
  for (const Entry& e :
       {Entry{"Map", Single, 1}, Entry{"MapSg", List, 18}, Entry{"Ring", Ring, 2},
        Entry{"driver", WholeDriver, 16}, Entry{"page", Page, 3}, Entry{"late attach", Late, 3}}) {
    World w;
    w.Populate();
    INFO(e.name);
    CHECK(w.FailEach(e.call) == e.steps);
  }
}

TEST_CASE("The k-th failure while a space is set up: creation, devices, rings, pages") {
  for (uint64_t k = 1;; ++k) {
    World w;
    w.fail.FailAt(k);
    const absl::Status status = [&]() -> absl::Status {
      auto space = AddressSpace::Create(w.Options());
      if (!space.ok()) return space.status();
      auto nic0 = (*space)->Attach({.name = "nic0", .domain = &w.d0});
      if (!nic0.ok()) return nic0.status();
      auto ring = RingPool<uint64_t>::Create(**nic0, {.count = 64, .label = "rx0"});
      if (!ring.ok()) return ring.status();
      auto range = (*space)->Reserve(Bytes(4096), Bytes(0), "pool");
      if (!range.ok()) return range.status();
      if (absl::Status s = range->Map(w.buffer.view(0, 4096)); !s.ok()) return s;
      auto nic1 = (*space)->Attach({.name = "nic1", .domain = &w.d1});
      return nic1.status();
    }();
    // A thread that does not start is made good for by strict invalidation.
    CHECK(status.ok() == (k == 1 || !w.fail.triggered()));
    CHECK(w.memory.blocks() == 0);
    CHECK(w.d0.live().empty());
    CHECK(w.d1.live().empty());
    CHECK(w.d0.stale().empty());
    CHECK(w.d1.stale().empty());
    if (!w.fail.triggered()) {
      CHECK(k == 6);
      break;
    }
  }
}

TEST_CASE("The k-th unmap or invalidation of a tear-down fails: the rest goes on, resets mend it") {
  for (const bool invalidate : {false, true}) {
    for (uint64_t k = 1;; ++k) {
      host::FailPoint fail;
      host::FakeClock clock;
      host::FakeMemory memory;
      FakeDomain d0({.name = "d0",
                     .fail_unmap = invalidate ? nullptr : &fail,
                     .fail_invalidate = invalidate ? &fail : nullptr});
      Buffer buffer(16 * 4096);
      AddressSpace::Options options;
      options.memory = &memory;
      options.clock = &clock;
      options.report = [](std::string_view) {};
      auto space = *AddressSpace::Create(std::move(options));
      auto nic = *space->Attach({.name = "nic0", .domain = &d0});
      fail.FailAt(k);
      {
        auto ring = *RingPool<uint64_t>::Create(*nic, {.count = 64, .label = "rx0"});
        auto range = *space->Reserve(Bytes(4096), Bytes(0), "pool");
        REQUIRE(range.Map(buffer.view(0, 4096)).ok());
        auto m = *nic->Map(buffer.part(4096, 100), Direction::kFromDevice);
        const std::span<std::byte> list[] = {buffer.part(8192, 10), buffer.part(3 * 4096 + 9, 10)};
        auto sg = *nic->MapSg(list, Direction::kToDevice);
      }
      const bool reached = fail.triggered();
      CHECK(space->quarantine().count() == (reached ? 1 : 0));
      CHECK(space->iova_space().stats().live_ranges == (reached ? 1 : 0));
      REQUIRE(space->quarantine().ReleaseAfterReset("nic0").ok());
      CHECK(space->iova_space().stats().live_ranges == 0);
      CHECK(memory.blocks() == 0);
      CHECK(d0.live().empty());
      CHECK(d0.stale().empty());
      if (!reached) {
        CHECK(k == 5);
        break;
      }
    }
  }
}

}  // namespace
}  // namespace dmakit::dma
