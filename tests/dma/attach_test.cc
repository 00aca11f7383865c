// SPDX-License-Identifier: Apache-2.0
//
// Attach and detach in every order: replay of pages, refusal by name with nothing changed, shared
// domains, holes that a later domain has, and many threads at once.
#include <algorithm>
#include <barrier>
#include <set>
#include <thread>

#include "dma/intervals.h"
#include "dma/ring_pool.h"
#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::Fixture;
using testing::Gate;
using testing::Has;
using testing::HookedDomain;

struct Pages : Fixture {
  Buffer buffer{64 * 4096};
  std::vector<SharedRange> pages;

  void AddPages(int count) {
    for (int i = 0; i < count; ++i) {
      auto range = space->Reserve(Bytes(4096), Bytes(0), "pool");
      REQUIRE(range.ok());
      REQUIRE(range->Map(buffer.view(4096 * pages.size(), 4096)).ok());
      pages.push_back(*std::move(range));
    }
  }
  uint64_t live_ranges() { return space->iova_space().stats().live_ranges; }
};

TEST_CASE("A device that comes late has the pages replayed; the last one of a domain takes them") {
  Pages f;
  f.NewSpace();
  FakeDomain& d0 = f.NewDomain();
  FakeDomain& d1 = f.NewDomain();
  auto nic0 = f.Attach("nic0", d0);
  f.AddPages(5);
  auto nic1 = f.space->Attach({.name = "nic1", .domain = &d1, .page_access = Access::kRead});
  REQUIRE(nic1.ok());
  CHECK(d1.live().size() == 5);
  CHECK(d1.live()[0].access == Access::kRead);
  REQUIRE(f.pages.back().Unmap(Policy::kStrict).ok());
  CHECK(d1.live().size() == 4);
  const uint64_t invalidations = d1.stats().invalidations;
  nic1->reset();
  CHECK(d1.live().empty());
  CHECK(d1.stale().empty());
  CHECK(d1.stats().invalidations == invalidations + 1);  // one for all pages
  CHECK(d0.live().size() == 4);
  CHECK(f.lines.empty());
}

TEST_CASE("Two devices in one domain: pages are mapped once, and stay while one is there") {
  for (const bool first_goes_first : {true, false}) {
    Pages f;
    f.NewSpace();
    FakeDomain& domain = f.NewDomain();
    auto a = f.Attach("a", domain);
    f.AddPages(3);
    auto b = f.Attach("b", domain);
    CHECK(domain.stats().maps == 3);
    (first_goes_first ? a : b).reset();
    CHECK(domain.live().size() == 3);
    f.AddPages(1);
    CHECK(domain.live().size() == 4);
    (first_goes_first ? b : a).reset();
    CHECK(domain.live().empty());
    CHECK(domain.stale().empty());
    // Known to the space, but in no domain: the next device gets all.
    auto again = f.Attach("again", domain);
    CHECK(domain.live().size() == 4);
    CHECK(domain.stale_reuses() == 0);
  }
}

TEST_CASE("Devices of one domain agree on the access to pages") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain();
  auto a = f.Attach("a", domain);
  const absl::Status s =
      f.space->Attach({.name = "b", .domain = &domain, .page_access = Access::kRead}).status();
  CHECK(absl::IsInvalidArgument(s));
  CHECK(Has(s, "page_access read"));
  a.reset();
  CHECK(f.space->Attach({.name = "b", .domain = &domain, .page_access = Access::kRead}).ok());
}

// Reserve, attach, detach the last, attach again, give up: every interleaving of the steps.
TEST_CASE("Attach, detach, re-attach, map and unmap in every order") {
  std::vector<int> order{0, 1, 2, 3, 4, 5};
  do {
    Pages f;
    f.NewSpace();
    FakeDomain& d0 = f.NewDomain();
    FakeDomain& d1 = f.NewDomain();
    auto seed = f.Attach("seed", d0);
    seed.reset();
    std::unique_ptr<Device> nic0, nic1;
    for (const int step : order) {
      switch (step) {
        case 0:
          nic0 = f.Attach("nic0", d0);
          break;
        case 1:
          nic1.reset();
          nic1 = f.Attach("nic1", d1);
          break;
        case 2:
          f.AddPages(2);
          break;
        case 3:
          nic0.reset();
          break;
        case 4:
          if (!f.pages.empty()) f.pages.pop_back();
          break;
        case 5:
          nic1.reset();
          nic1 = f.Attach("nic1", d1);
          break;
      }
      const size_t pages = f.pages.size();
      CHECK(d0.live().size() == (nic0 != nullptr ? pages : 0));
      CHECK(d1.live().size() == (nic1 != nullptr ? pages : 0));
    }
    f.pages.clear();
    CHECK(d0.live().empty());
    CHECK(d1.live().empty());
    CHECK(d0.stale().empty());
    CHECK(d1.stale().empty());
    CHECK(d0.stale_reuses() + d1.stale_reuses() == 0);
    CHECK(f.live_ranges() == 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("Replay fails at page k: attach unwinds, for all k") {
  Pages f;
  f.NewSpace();
  FakeDomain& d0 = f.NewDomain();
  FakeDomain& d1 = f.NewDomain();
  auto nic0 = f.Attach("nic0", d0);
  f.AddPages(7);
  const uint64_t live = f.live_ranges();
  for (uint64_t k = 1; k <= 7; ++k) {
    f.faults.map.FailAt(k);
    const absl::Status s = f.space->Attach({.name = "nic1", .domain = &d1}).status();
    CHECK(absl::IsResourceExhausted(s));
    CHECK(Has(s, "nic1"));
    CHECK(Has(s, "pool"));
    CHECK(d1.live().empty());
    CHECK(d1.stale().empty());
    CHECK(d0.live().size() == 7);
    CHECK(f.live_ranges() == live);
  }
  f.faults.map.FailAt(0);
  auto nic1 = f.Attach("nic1", d1);
  CHECK(d1.live().size() == 7);
}

TEST_CASE("A replay whose undoing fails: said, tried again at the next attach and unmap") {
  Pages f;
  f.NewSpace();
  FakeDomain& d0 = f.NewDomain();
  FakeDomain& d1 = f.NewDomain();
  auto nic0 = f.Attach("nic0", d0);
  f.AddPages(3);
  f.faults.map.FailAt(3);
  f.faults.unmap.FailAt(1);
  CHECK(Has(f.space->Attach({.name = "nic1", .domain = &d1}).status(), "undoing"));
  CHECK(d1.live().size() == 1);
  auto nic1 = f.Attach("nic1", d1);
  CHECK(d1.live().size() == 3);
  CHECK(d1.stale_reuses() == 0);
  f.pages.clear();
  CHECK(d1.live().empty());
  CHECK(f.space->quarantine().count() == 0);
}

TEST_CASE("A detach that cannot unmap a page reports it, and the page's own unmap makes it good") {
  Pages f;
  f.NewSpace();
  FakeDomain& d0 = f.NewDomain();
  FakeDomain& d1 = f.NewDomain();
  auto nic0 = f.Attach("nic0", d0);
  auto nic1 = f.Attach("nic1", d1);
  f.AddPages(1);
  f.faults.unmap.FailAt(1);
  nic1.reset();
  CHECK(f.Reported("not all pages were unmapped"));
  CHECK(d1.live().size() == 1);
  REQUIRE(f.pages[0].Unmap(Policy::kStrict).ok());
  CHECK(d1.live().empty());
  CHECK(d1.stale().empty());
}

TEST_CASE("Late attach is refused by name, with nothing changed") {
  Pages f;
  f.NewSpace();
  FakeDomain& d0 = f.NewDomain();
  auto nic0 = f.Attach("nic0", d0);
  f.AddPages(3);
  const uint64_t live = f.live_ranges();
  const Interval top{f.pages[2].iova(), f.pages[0].iova() + Bytes(4095)};

  DomainFacts narrow{.width = AddressBits(39)};
  DomainFacts holed{.reserved = {top}};
  DomainFacts small_budget{.max_mappings = 2};
  DomainFacts coarse{.page_sizes = 65536};
  struct Case {
    DomainFacts facts;
    AddressMask mask;
    absl::StatusCode code;
    const char* said;
  };
  const Case cases[] = {
      {narrow, {}, absl::StatusCode::kOutOfRange, "width 39 bits"},
      {{}, AddressBits(32).ToMask(), absl::StatusCode::kOutOfRange, "mask, 0xffffffff"},
      {holed, {}, absl::StatusCode::kOutOfRange, "1 reserved"},
      {small_budget, {}, absl::StatusCode::kResourceExhausted, "budget is 2"},
      {coarse, {}, absl::StatusCode::kFailedPrecondition, "granule is 65536"},
  };
  for (const Case& c : cases) {
    FakeDomain& domain = f.NewDomain(c.facts);
    const absl::Status s =
        f.space->Attach({.name = "late", .domain = &domain, .mask = c.mask}).status();
    INFO(s.ToString());
    CHECK(s.code() == c.code);
    CHECK(Has(s, "late"));
    CHECK(Has(s, c.said));
    if (c.code != absl::StatusCode::kResourceExhausted) CHECK(Has(s, "pool"));
    CHECK(domain.stats().maps == 0);
    CHECK(f.live_ranges() == live);
    CHECK(f.space->granule() == Bytes(4096));
    // The space goes on as before.
    auto page = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
    REQUIRE(page.ok());
    CHECK(page->iova().value() > 0xffffffffu);
  }
  f.pages.clear();  // without pages all of them can come
  for (const Case& c : cases) {
    FakeDomain& domain = f.NewDomain(c.facts);
    CHECK(f.space->Attach({.name = "late", .domain = &domain, .mask = c.mask}).ok());
  }
}

TEST_CASE("A second device with a narrow mask in a known domain is checked against the pages") {
  Pages f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain();
  auto nic0 = f.Attach("nic0", domain);
  f.AddPages(1);
  CHECK(absl::IsOutOfRange(
      f.space->Attach({.name = "b", .domain = &domain, .mask = AddressBits(32).ToMask()})
          .status()));
}

TEST_CASE("A later domain's holes are taken out of what is handed out") {
  Pages f;
  f.NewSpace();
  FakeDomain& d0 = f.NewDomain({.width = AddressBits(20)});  // 256 pages
  const Interval msi{Iova(0xfee00), Iova(0xfeeff)};          // page 0xfe
  const Interval low{Iova(0x10000), Iova(0x1ffff)};
  FakeDomain& d1 = f.NewDomain({.reserved = {msi, low}, .width = AddressBits(20)});
  auto nic0 = f.Attach("nic0", d0);
  // Parked IOVAs are free for this purpose.
  auto cache = f.space->NewCache("tx0");
  REQUIRE(cache.ok());
  std::vector<Mapping> held;
  for (int i = 0; i < 4; ++i) {
    auto m = nic0->Map(f.buffer.part(0, 4096), Direction::kToDevice, {.cache = cache->get()});
    REQUIRE(m.ok());
    held.push_back(*std::move(m));
  }
  for (Mapping& m : held) REQUIRE(nic0->Unmap(std::move(m), {.cache = cache->get()}).ok());
  CHECK((*cache)->stats().parked == 4);  // one of them in the interrupt window
  auto nic1 = f.Attach("nic1", d1);
  std::vector<SharedRange> all;
  for (;;) {
    auto page = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
    if (!page.ok()) break;
    CHECK_FALSE(msi.Overlaps({page->iova(), page->iova() + Bytes(4095)}));
    CHECK_FALSE(low.Overlaps({page->iova(), page->iova() + Bytes(4095)}));
    all.push_back(*std::move(page));
  }
  CHECK(all.size() == 255 - 1 - 16);
  all.clear();
  // Again and again: the holes are taken once.
  for (int i = 0; i < 3; ++i) {
    nic1.reset();
    nic1 = f.Attach("nic1", d1);
    CHECK(f.live_ranges() == 2);
  }
  cache->reset();
}

TEST_CASE("A hole where another device has a mapping refuses the attach and names its owner") {
  Pages f;
  f.NewSpace();
  FakeDomain& d0 = f.NewDomain({.width = AddressBits(20)});
  auto nic0 = f.Attach("nic0", d0);
  auto above = f.space->Reserve(Bytes(4096), Bytes(0), "top");  // else the ceiling would do
  auto ring = RingPool<uint64_t>::Create(*nic0, {.count = 8, .label = "rx0"});
  REQUIRE(ring.ok());
  FakeDomain& d1 =
      f.NewDomain({.reserved = {{ring->iova(), ring->iova()}}, .width = AddressBits(20)});
  const absl::Status s = f.space->Attach({.name = "nic1", .domain = &d1}).status();
  CHECK(absl::IsOutOfRange(s));
  CHECK(Has(s, "rx0"));
  CHECK(Has(s, "nic0"));
  CHECK(f.live_ranges() == 2);
  ring = RingPool<uint64_t>();
  CHECK(f.space->Attach({.name = "nic1", .domain = &d1}).ok());
}

TEST_CASE("Excluding holes gives back what it took when the second hole is in use") {
  Pages f;
  f.NewSpace();
  FakeDomain& d0 = f.NewDomain({.width = AddressBits(20)});
  auto nic0 = f.Attach("nic0", d0);
  auto above = f.space->Reserve(Bytes(4096), Bytes(0), "top");  // else the ceiling would do
  auto ring = RingPool<uint64_t>::Create(*nic0, {.count = 8, .label = "rx0"});
  REQUIRE(ring.ok());
  FakeDomain& d1 =
      f.NewDomain({.reserved = {{Iova(0x4000), Iova(0x5fff)}, {ring->iova(), ring->iova()}},
                   .width = AddressBits(20)});
  const Bytes free = f.space->iova_space().free_bytes();
  CHECK_FALSE(f.space->Attach({.name = "nic1", .domain = &d1}).ok());
  CHECK(f.space->iova_space().free_bytes() == free);
  ring = RingPool<uint64_t>();  // now it can come, and both holes are taken
  auto nic1 = f.Attach("nic1", d1);
  CHECK(f.space->iova_space().free_bytes() == free - Bytes(2 * 4096));
  CHECK(f.space->iova_space().FindLive(Iova(0x4000)).has_value());
}

TEST_CASE("A narrower domain leaves other devices' private mappings above it alone") {
  Pages f;
  f.NewSpace();
  FakeDomain& d0 = f.NewDomain();
  FakeDomain& d1 = f.NewDomain({.width = AddressBits(39)});
  auto nic0 = f.Attach("nic0", d0);
  auto ring = RingPool<uint64_t>::Create(*nic0, {.count = 8, .label = "rx0"});
  REQUIRE(ring.ok());
  CHECK(ring->iova().value() >> 39 != 0);
  auto nic1 = f.Attach("nic1", d1);
  f.AddPages(1);
  CHECK(f.pages[0].iova().value() >> 39 == 0);
  auto own = nic1->Map(f.buffer.part(0, 10), Direction::kToDevice);
  REQUIRE(own.ok());
  CHECK(own->iova().value() >> 39 == 0);
}

TEST_CASE("A coarser domain makes page ranges coarser") {
  Pages f;
  f.NewSpace();
  auto nic0 = f.Attach("nic0", f.NewDomain());
  auto nic1 = f.Attach("nic1", f.NewDomain({.page_sizes = 65536}));
  CHECK(f.space->granule() == Bytes(65536));
  const absl::Status s = f.space->Reserve(Bytes(4096), Bytes(0), "pool").status();
  CHECK(absl::IsInvalidArgument(s));
  CHECK(Has(s, "65536"));
  auto ring = RingPool<uint64_t>::Create(*nic0, {.count = 8, .label = "rx0"});
  REQUIRE(ring.ok());
  auto range = f.space->Reserve(Bytes(65536), Bytes(0), "pool");
  REQUIRE(range.ok());
  CHECK(range->iova().value() % 65536 == 0);
  CHECK(nic0->stats().coherent_bytes == 4096);  // its own domain is fine-grained
}

TEST_CASE("Widths, apertures and the interrupt window bound every address") {
  for (const unsigned width : {36u, 39u, 48u, 64u}) {
    const Interval msi{Iova(0xfee00000), Iova(0xfeefffff)};
    Pages f;
    f.NewSpace();
    FakeDomain& domain =
        f.NewDomain({.apertures = {{Iova(0x1000), Iova(0xfffff)}, {Iova(0xfed00000), Iova::Max()}},
                     .reserved = {msi},
                     .width = AddressBits(width)});
    for (const AddressMask mask : {AddressMask(), AddressBits(32).ToMask()}) {
      auto nic = f.space->Attach({.name = "nic0", .domain = &domain, .mask = mask});
      REQUIRE(nic.ok());
      std::vector<Mapping> held;
      for (int i = 0; i < 64; ++i) {
        auto m = (*nic)->Map(f.buffer.part(4096 * i, 4096), Direction::kToDevice);
        REQUIRE(m.ok());  // the domain refuses what is outside
        held.push_back(*std::move(m));
      }
    }
  }
}

TEST_CASE("Bad device options are refused by value") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain();
  auto refused = [&](DeviceOptions options, const char* said) {
    const absl::Status s = f.space->Attach(std::move(options)).status();
    INFO(s.ToString());
    CHECK(absl::IsInvalidArgument(s));
    CHECK(Has(s, said));
  };
  refused({.domain = &domain}, "name is empty");
  refused({.name = "a,b", .domain = &domain}, "comma");
  refused({.name = "a"}, "domain is null");
  refused({.name = "a", .domain = &domain, .mask = AddressMask(39)}, "2^k - 1");
  refused({.name = "a", .domain = &domain, .mask = AddressMask(0xfff)}, "no address");
  refused({.name = "a", .domain = &domain, .max_segment = Bytes(0)}, "max_segment 0");
  refused({.name = "a", .domain = &domain, .segment_boundary = Bytes(48)}, "segment_boundary 48");
  CHECK_FALSE(f.space->has_devices());
  // A refused first attach leaves no trace: the next one decides what the space is.
  FakeDomain& low = f.NewDomain({.width = AddressBits(32)});
  auto nic = f.Attach("a", low);
  CHECK(f.space->iova_space().bounds().last == Iova(0xffffffff));
  CHECK(absl::IsAlreadyExists(f.space->Attach({.name = "a", .domain = &domain}).status()));
  FakeDomain& high = f.NewDomain({.apertures = {{Iova(1ull << 40), Iova(1ull << 41)}}});
  refused({.name = "b", .domain = &high}, "space of its own");
}

TEST_CASE("A device that goes with live mappings reports them by owner and unmaps them") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain();
  auto nic = f.Attach("nic0", domain);
  Buffer buffer(16 * 4096);
  std::vector<Mapping> rx;
  for (int i = 0; i < 3; ++i) {
    rx.push_back(*nic->Map(buffer.part(4096 * i, 10), Direction::kFromDevice, {.owner = "rx0"}));
  }
  Mapping tx = *nic->Map(buffer.part(4096 * 4, 8192), Direction::kToDevice, {.owner = "tx0"});
  auto ring = RingPool<uint64_t>::Create(*nic, {.count = 8, .label = "ring rx0"});
  REQUIRE(ring.ok());
  nic.reset();
  CHECK(f.lines.size() == 3);
  CHECK(f.Reported("3 mappings (12288 bytes) of 'rx0'"));
  CHECK(f.Reported("1 mappings (8192 bytes) of 'tx0'"));
  CHECK(f.Reported("'ring rx0'"));
  CHECK(f.Reported("nic0"));
  CHECK(domain.live().empty());
  CHECK(domain.stale().empty());
  CHECK(domain.stats().invalidations == 1);
  CHECK(f.space->iova_space().stats().live_ranges == 0);
  // The handles are dead; ending them does nothing, however often and wherever.
  rx.clear();
  tx = Mapping();
  ring = RingPool<uint64_t>();
  CHECK(domain.stats().unmaps == 5);
  CHECK(f.memory.blocks() == 0);
}

TEST_CASE("Live mappings that a detach cannot unmap are held, a ring's memory with them") {
  for (const bool invalidate : {false, true}) {
    Fixture f;
    f.NewSpace();
    auto nic = f.Attach("nic0", f.NewDomain());
    auto ring = RingPool<uint64_t>::Create(*nic, {.count = 8, .label = "rx0"});
    REQUIRE(ring.ok());
    (invalidate ? f.faults.invalidate : f.faults.unmap).FailAt(1);
    nic.reset();
    CHECK(f.space->quarantine().count() == 1);
    CHECK(f.Reported("quarantine"));
    ring = RingPool<uint64_t>();
    CHECK(f.memory.blocks() == 1);
    REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
    CHECK(f.memory.blocks() == 0);
    CHECK(f.space->iova_space().stats().live_ranges == 0);
  }
}

// Lazy initialisation of a shared domain and space is where races were.
TEST_CASE("Eight threads attach eight devices, to one domain or their own, and let them go") {
  for (const bool one_domain : {true, false}) {
    Pages f;
    f.NewSpace();
    constexpr int kThreads = 8;
    for (int i = 0; i < kThreads; ++i) f.NewDomain();
    std::atomic<int> failures{0};
    std::barrier start(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        FakeDomain& domain = *f.domains[one_domain ? 0 : t];
        const std::string name = "nic" + std::to_string(t);
        start.arrive_and_wait();
        for (int round = 0; round < 20; ++round) {
          auto nic = f.space->Attach({.name = name, .domain = &domain});
          if (!nic.ok()) {
            ++failures;
            continue;
          }
          auto m = (*nic)->Map(f.buffer.part(4096 * t, 100), Direction::kToDevice);
          auto range = f.space->Reserve(Bytes(4096), Bytes(0), name);
          if (!m.ok() || !range.ok() || !range->Map(f.buffer.view(4096 * t, 4096)).ok()) {
            ++failures;
          }
          if (round % 2 == 0) nic->reset();  // before the handles
        }
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK(failures == 0);
    for (const auto& domain : f.domains) {
      CHECK(domain->live().empty());
      CHECK(domain->stale().empty());
      CHECK(domain->stale_reuses() == 0);
    }
    CHECK(f.live_ranges() == 0);
    CHECK(f.space->iova_space().Validate().empty());
  }
}

TEST_CASE("Mapping handles end on other threads while their device goes") {
  for (int round = 0; round < 50; ++round) {
    Fixture f;
    f.NewSpace();
    FakeDomain& domain = f.NewDomain();
    auto nic = f.Attach("nic0", domain);
    Buffer buffer(64 * 4096);
    std::vector<Mapping> handles;
    for (int i = 0; i < 64; ++i) {
      handles.push_back(*nic->Map(buffer.part(4096 * i, 10), Direction::kToDevice));
    }
    std::barrier start(2);
    std::thread ender([&] {
      start.arrive_and_wait();
      handles.clear();
    });
    start.arrive_and_wait();
    nic.reset();
    CHECK(domain.live().empty());  // whoever unmapped them, it is done when the device is gone
    CHECK(domain.stale().empty());
    ender.join();
    CHECK(domain.stats().unmaps == 64);
    CHECK(f.space->iova_space().stats().live_ranges == 0);
  }
}

TEST_CASE("A detach waits for an unmap that another thread is in") {
  HookedDomain domain;
  Gate began, go_on;
  Fixture f;
  f.NewSpace();
  auto made = f.space->Attach({.name = "nic0", .domain = &domain});
  REQUIRE(made.ok());
  std::unique_ptr<Device> nic = *std::move(made);
  Buffer buffer(4096);
  Mapping handle = *nic->Map(buffer.all(), Direction::kToDevice);
  domain.before_invalidate = [&] {
    began.Open();
    go_on.Wait();
  };
  std::thread ender([&] { handle = Mapping(); });
  began.Wait();
  std::atomic<bool> gone{false};
  std::thread detacher([&] {
    nic.reset();
    gone = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(gone);
  go_on.Open();
  ender.join();
  detacher.join();
  CHECK(domain.fake.stale().empty());
  CHECK(f.lines.empty());
}

TEST_CASE("Interval arithmetic with inclusive ends") {
  using namespace internal;
  auto I = [](uint64_t first, uint64_t last) { return Interval{Iova(first), Iova(last)}; };
  const uint64_t max = ~uint64_t{0};
  CHECK(Normalise({I(5, 9), I(0, 4), I(20, max), I(30, max)}) == Intervals{I(0, 9), I(20, max)});
  CHECK(Subtract({I(0, max)}, {I(0, 0), I(max, max)}) == Intervals{I(1, max - 1)});
  CHECK(Subtract({I(10, 20)}, {I(0, 30)}).empty());
  CHECK(Subtract({I(10, 20), I(30, 40)}, {I(15, 34)}) == Intervals{I(10, 14), I(35, 40)});
  CHECK(Intersect({I(0, 10), I(20, max)}, {I(5, 25)}) == Intervals{I(5, 10), I(20, 25)});
  CHECK(Translatable({.width = AddressBits(64)}, Bytes(4096)) == Intervals{I(4096, max)});
  CHECK(Translatable({.apertures = {I(1, 0x1fff), I(0x2000, 0x3ffe)}}, Bytes(4096)) ==
        Intervals{I(0x1000, 0x2fff)});
  CHECK(Translatable({.apertures = {I(0, 0xffe)}}, Bytes(4096)).empty());
  CHECK(Translatable({.reserved = {I(0xfee00000, 0xfee00000)}, .width = AddressBits(32)},
                     Bytes(4096)) == Intervals{I(4096, 0xfedfffff), I(0xfee01000, 0xffffffff)});
}

}  // namespace
}  // namespace dmakit::dma
