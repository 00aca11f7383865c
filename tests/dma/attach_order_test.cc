// SPDX-License-Identifier: Apache-2.0
//
// Attach, detach and re-attach between maps and unmaps of packet pages, in every order there is:
// after each step every domain translates exactly what it must, and a step that cannot be (a second
// attach, an unmap of what is not mapped) or that fails changes nothing.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::Fixture;
using testing::Has;

constexpr size_t kPages = 2;

enum Step { kMap, kAttachA, kAttachB, kDetachA, kReattachA, kUnmap };

// Two devices, in domains of their own or in one, and what is expected of them.
struct World : Fixture {
  World(bool one_domain, Policy policy_in) : policy(policy_in) {
    AddressSpace::Options options = Options();
    options.policy = policy;
    options.deferred = {.max_ranges = 4};
    NewSpace(std::move(options));
    domain_a = &NewDomain();
    domain_b = one_domain ? domain_a : &NewDomain();
    // The space has addresses from the first attach on.
    Attach("seed", *domain_a).reset();
    for (size_t i = 0; i < kPages; ++i) {
      auto range = space->Reserve(Bytes(4096), Bytes(0), "pool");
      REQUIRE(range.ok());
      pages.push_back(*std::move(range));
    }
  }

  // Fails at each page that a replay maps, and leaves everything as it was; then succeeds.
  void AttachTo(std::unique_ptr<Device>& device, const char* name, FakeDomain& domain) {
    const bool replays = mapped && domain.live().empty();
    for (uint64_t k = 1; replays && k <= kPages; ++k) {
      faults.map.FailAt(k);
      const absl::Status s = space->Attach({.name = name, .domain = &domain}).status();
      faults.map.FailAt(0);
      CHECK(Has(s, name));
      CHECK(Has(s, "pool"));
      CheckCounts();
    }
    const bool there = device != nullptr;
    auto made = space->Attach({.name = name, .domain = &domain});
    CHECK(made.ok() == !there);
    if (there) CHECK(absl::IsAlreadyExists(made.status()));
    if (made.ok()) device = *std::move(made);
  }

  void MapPages() {
    for (size_t i = 0; i < kPages; ++i) {
      // Under deferred a page waits for the flush of its last unmap.
      if (policy == Policy::kDeferred) REQUIRE(space->flush_queue()->Flush().ok());
      CHECK(pages[i].Map(buffer.view(4096 * i, 4096)).ok() == !mapped);
    }
    mapped = true;
  }
  void UnmapPages() {
    for (SharedRange& page : pages) CHECK(page.Unmap(policy).ok() == mapped);
    mapped = false;
  }

  void Do(Step step) {
    switch (step) {
      case kMap:
        return MapPages();
      case kUnmap:
        return UnmapPages();
      case kDetachA:
        return a.reset();
      case kAttachA:
      case kReattachA:
        return AttachTo(a, "nic_a", *domain_a);
      case kAttachB:
        return AttachTo(b, "nic_b", *domain_b);
    }
  }

  void CheckCounts() {
    const bool shared = domain_a == domain_b;
    const bool in_a = mapped && (a != nullptr || (shared && b != nullptr));
    const bool in_b = mapped && (b != nullptr || (shared && a != nullptr));
    CHECK(domain_a->live().size() == (in_a ? kPages : 0));
    CHECK(domain_b->live().size() == (in_b ? kPages : 0));
    CHECK(domain_a->stats().live_mappings == (in_a ? kPages : 0));
    CHECK(domain_b->stats().live_mappings == (in_b ? kPages : 0));
    const uint64_t all =
        domain_a->stats().live_mappings + (shared ? 0 : domain_b->stats().live_mappings);
    CHECK(space->stats().live_mappings == all);
    CHECK(domain_a->stale_reuses() + domain_b->stale_reuses() == 0);
    if (policy == Policy::kStrict) {
      CHECK(domain_a->stale().empty());
      CHECK(domain_b->stale().empty());
    }
    CHECK(space->iova_space().stats().live_ranges == kPages);
    CHECK(space->quarantine().count() == 0);
  }

  const Policy policy;
  Buffer buffer{kPages * 4096};
  FakeDomain* domain_a = nullptr;
  FakeDomain* domain_b = nullptr;
  std::vector<SharedRange> pages;
  std::unique_ptr<Device> a, b;
  bool mapped = false;
};

void EveryOrder(bool one_domain, Policy policy) {
  std::array<Step, 6> order{kMap, kAttachA, kAttachB, kDetachA, kReattachA, kUnmap};
  int orders = 0;
  do {
    World w(one_domain, policy);
    std::string done;
    for (const Step step : order) {
      done += "MABDRU"[step];
      INFO(done);
      w.Do(step);
      w.CheckCounts();
    }
    // And once more from wherever that led: nothing has become stuck.
    w.Do(kAttachB);
    w.Do(kMap);
    w.CheckCounts();
    w.Do(kUnmap);
    w.a.reset();
    w.b.reset();
    w.CheckCounts();
    w.pages.clear();
    if (policy == Policy::kDeferred) REQUIRE(w.space->flush_queue()->Flush().ok());
    CHECK(w.space->iova_space().stats().live_ranges == 0);
    CHECK(w.domain_a->stale().empty());
    CHECK(w.domain_b->stale().empty());
    ++orders;
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(orders == 720);
}

TEST_CASE("Attach late, detach, re-attach, map, unmap in every order: two domains") {
  EveryOrder(false, Policy::kStrict);
  EveryOrder(false, Policy::kDeferred);
}

TEST_CASE("Attach late, detach, re-attach, map, unmap in every order: one domain") {
  EveryOrder(true, Policy::kStrict);
  EveryOrder(true, Policy::kDeferred);
}

// Replay fails at page k, and then the j-th step of its way back fails too: said, and nothing that
// a later attach, detach and unmap do not mend.
TEST_CASE("Attach fails at page k and its unwinding at step j, for all k and j") {
  constexpr uint64_t kCount = 4;
  for (const bool invalidate : {false, true}) {
    for (uint64_t k = 1; k <= kCount; ++k) {
      for (uint64_t j = 1; j <= kCount; ++j) {
        Fixture f;
        f.NewSpace();
        FakeDomain& d0 = f.NewDomain();
        FakeDomain& d1 = f.NewDomain();
        Buffer buffer(kCount * 4096);
        auto first = f.Attach("first", d0);
        std::vector<SharedRange> pages;
        for (uint64_t i = 0; i < kCount; ++i) {
          pages.push_back(*f.space->Reserve(Bytes(4096), Bytes(0), "pool"));
          REQUIRE(pages.back().Map(buffer.view(4096 * i, 4096)).ok());
        }
        INFO("k " << k << ", j " << j << (invalidate ? ", invalidation" : ", unmap"));
        host::FailPoint& back = invalidate ? f.faults.invalidate : f.faults.unmap;
        f.faults.map.FailAt(k);
        back.FailAt(j);
        const absl::Status s = f.space->Attach({.name = "late", .domain = &d1}).status();
        const bool stuck = back.triggered();
        CHECK_FALSE(s.ok());
        CHECK(stuck == (invalidate ? k > 1 && j == 1 : j < k));
        CHECK(Has(s, "undoing") == stuck);
        CHECK(d0.live().size() == kCount);
        CHECK(d1.live().size() == (stuck && !invalidate ? 1 : 0));
        f.faults.map.FailAt(0);
        back.FailAt(0);
        auto late = f.Attach("late", d1);
        CHECK(d1.live().size() == kCount);
        CHECK(d1.stale_reuses() == 0);
        late.reset();
        CHECK(d1.live().empty());
        CHECK(d1.stale().empty());
        CHECK(d0.live().size() == kCount);
      }
    }
  }
}

}  // namespace
}  // namespace dmakit::dma
