// SPDX-License-Identifier: Apache-2.0
//
// Every public entry point of an address space and its devices against every edge that can fail:
// the k-th call of each, for all k. A call that could take nothing leaves nothing and names whom it
// was for; a call that could not give back leaves it in quarantine until the reset. Either way the
// same call works afterwards. (Several edges in one count: fault_injection_test.cc.)
#include <functional>
#include <map>
#include <memory_resource>
#include <new>
#include <ostream>
#include <string>

#include "dma/audit.h"
#include "dma/raw.h"
#include "dma/ring_pool.h"
#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::Fixture;
using testing::Has;

constexpr Direction kTo = Direction::kToDevice;

// The default memory resource while it lives: where IOVA nodes and magazines come from.
class FailingNodes : public std::pmr::memory_resource {
 public:
  FailingNodes() : before_(std::pmr::set_default_resource(this)) {}
  ~FailingNodes() override { std::pmr::set_default_resource(before_); }
  host::FailPoint fail;
  int64_t blocks = 0;

 private:
  void* do_allocate(size_t size, size_t alignment) override {
    if (fail.Hit()) throw std::bad_alloc();
    ++blocks;
    return std::pmr::new_delete_resource()->allocate(size, alignment);
  }
  void do_deallocate(void* block, size_t size, size_t alignment) override {
    --blocks;
    std::pmr::new_delete_resource()->deallocate(block, size, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  std::pmr::memory_resource* const before_;
};

struct State {
  uint64_t blocks, nodes, ranges, mappings, stale, live, held, pending;
  friend bool operator==(const State&, const State&) = default;
  friend std::ostream& operator<<(std::ostream& out, const State& s) {
    return out << s.blocks << " blocks, " << s.nodes << " node blocks, " << s.ranges << " ranges, "
               << s.mappings << " mappings, " << s.stale << " stale, " << s.live << " live, "
               << s.held << " held, " << s.pending << " pending";
  }
};

// Two devices, in two domains, and a mapped page.
struct World : FailingNodes, Fixture {
  explicit World(Policy policy) {
    AddressSpace::Options options = Options();
    options.policy = policy;
    NewSpace(std::move(options));
    nic0 = Attach("nic0", NewDomain());
    nic1 = Attach("nic1", NewDomain());
    NewDomain();  // of a device that comes late
    page = *space->Reserve(Bytes(4096), Bytes(0), "pool");
    REQUIRE(page.Map(buffer.view(0, 4096)).ok());
  }
  ~World() {
    page = {};
    nic0.reset();
    nic1.reset();
    space.reset();
  }
  State Now() {
    State s{};
    s.blocks = memory.blocks();
    s.nodes = static_cast<uint64_t>(FailingNodes::blocks);
    s.ranges = space->iova_space().stats().live_ranges;
    for (const auto& domain : domains) {
      s.mappings += domain->live().size();
      s.stale += domain->stale().size();
    }
    s.live = nic0->stats().live_mappings + nic1->stats().live_mappings;
    s.held = space->quarantine().count();
    if (FlushQueue* queue = space->flush_queue()) s.pending = queue->stats().pending_ranges;
    return s;
  }
  absl::Status Flush() {
    FlushQueue* const queue = space->flush_queue();
    return queue == nullptr ? absl::OkStatus() : queue->Flush();
  }
  std::vector<std::span<std::byte>> List() {
    std::vector<std::span<std::byte>> list;
    for (int i = 1; i <= 4; ++i) list.push_back(buffer.part(8192 * i + 100, 1500));
    return list;
  }

  Buffer buffer{16 * 4096};
  std::unique_ptr<Device> nic0, nic1;
  SharedRange page;
};

template <typename T>
absl::Status Unmap(World& w, absl::StatusOr<T> mapping) {
  if (!mapping.ok()) return mapping.status();
  return w.nic0->Unmap(*std::move(mapping)).status();
}

absl::Status PageCycle(World& w, Policy policy) {
  auto range = w.space->Reserve(Bytes(8192), Bytes(8192), "pool");
  if (!range.ok()) return range.status();
  if (absl::Status s = range->Map(w.buffer.view(4096, 8192)); !s.ok()) return s;
  return range->Unmap(policy).status();
}

// What it takes it gives back.
struct Entry {
  const char* name;
  const char* names;  // what an error must name; nullptr: that is the caller's to add
  absl::Status (*call)(World&);
};

const Entry kEntries[] = {
    {"Map", "tx0",
     [](World& w) {
       return Unmap(w, w.nic0->Map(w.buffer.part(4096, 9000), kTo, {.owner = "tx0"}));
     }},
    {"MapToDevice", "tx0",
     [](World& w) {
       return Unmap(w, w.nic0->MapToDevice(w.buffer.part(4096, 10), {.owner = "tx0"}));
     }},
    {"MapSg", "tx0",
     [](World& w) { return Unmap(w, w.nic0->MapSg(w.List(), kTo, {.owner = "tx0"})); }},
    {"Map with a cache", "tx0",
     [](World& w) {
       auto cache = w.space->NewCache("tx0");
       if (!cache.ok()) return cache.status();
       auto mapping =
           w.nic0->Map(w.buffer.part(4096, 10), kTo, {.owner = "tx0", .cache = cache->get()});
       if (!mapping.ok()) return mapping.status();
       return w.nic0->Unmap(*std::move(mapping), {.cache = cache->get()}).status();
     }},
    {"RingPool", "rx0",
     [](World& w) {
       return RingPool<uint64_t>::Create(*w.nic1, {.count = 4096, .label = "rx0"}).status();
     }},
    {"AllocateCoherent", "rx0",
     [](World& w) {
       return w.nic0
           ->AllocateCoherent({.size = Bytes(100), .boundary = Bytes(4096), .label = "rx0"})
           .status();
     }},
    {"NewCache", "tx0", [](World& w) { return w.space->NewCache("tx0").status(); }},
    {"SharedRange, strict", nullptr, [](World& w) { return PageCycle(w, Policy::kStrict); }},
    {"SharedRange, deferred", nullptr, [](World& w) { return PageCycle(w, Policy::kDeferred); }},
    {"RawDma, single", "tx0",
     [](World& w) {
       RawDma raw(*w.nic0);
       const Iova a = raw.MapSingle(w.buffer.part(4096, 100), kTo, "tx0");
       return raw.IsError(a) ? raw.last_error() : raw.UnmapSingle(a, Bytes(100), kTo).status();
     }},
    {"RawDma, list", "tx0",
     [](World& w) {
       RawDma raw(*w.nic0);
       const auto segments = raw.MapSg(w.List(), kTo, "tx0");
       if (segments.empty() || raw.IsError(segments[0].iova)) return raw.last_error();
       return raw.UnmapSg(segments[0].iova, 4, kTo).status();
     }},
    {"RawDma, coherent", "rx0",
     [](World& w) {
       RawDma raw(*w.nic0);
       const RawDma::Coherent block = raw.AllocateCoherent(Bytes(100), "rx0");
       if (block.cpu == nullptr) return raw.last_error();
       return raw.FreeCoherent(Bytes(100), block.cpu, block.iova);
     }},
    {"RawDma, resource", "bar",
     [](World& w) {
       RawDma raw(*w.nic0);
       const Iova a = raw.MapResource(w.buffer.part(4096, 64), kTo, "bar");
       return raw.IsError(a) ? raw.last_error() : raw.UnmapResource(a, Bytes(64), kTo).status();
     }},
    {"Attach", "nic2",
     [](World& w) {
       return w.space->Attach({.name = "nic2", .domain = w.domains[2].get()}).status();
     }},
    {"Audit::Attach", "nic0",
     [](World& w) {
       Audit audit;
       return audit.Attach(*w.nic0);
     }},
};

// Runs `check(k)` for k = 1, 2, ... until it says that the k-th call was not reached. How many
// calls there were.
uint64_t ForAll(host::FailPoint& fail, const std::function<bool(uint64_t)>& check) {
  for (uint64_t k = 1;; ++k) {
    REQUIRE(k < 200);
    fail.FailAt(k);
    if (!check(k)) return k - 1;
  }
}

TEST_CASE("taking: the k-th call of each edge fails, for all k, in every entry point") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  std::map<std::string, uint64_t> steps;
  for (const Entry& entry : kEntries) {
    for (const char* edge : {"memory", "map", "nodes"}) {
      INFO(entry.name << ", " << edge);
      World w(policy);
      host::FailPoint& fail = edge == std::string("memory") ? w.faults.memory
                              : edge == std::string("map")  ? w.faults.map
                                                            : w.fail;
      REQUIRE(entry.call(w).ok());  // what is made once and stays is there
      REQUIRE(w.Flush().ok());
      const State before = w.Now();
      steps[edge] += ForAll(fail, [&](uint64_t k) {
        const absl::Status status = entry.call(w);
        const bool reached = fail.triggered();
        fail.FailAt(0);
        INFO("k = " << k << ": " << status);
        REQUIRE(status.ok() == !reached);
        if (reached && entry.names != nullptr) REQUIRE(Has(status, entry.names));
        REQUIRE(w.Flush().ok());
        REQUIRE(w.Now() == before);
        REQUIRE(entry.call(w).ok());
        REQUIRE(w.Flush().ok());
        REQUIRE(w.Now() == before);
        REQUIRE(w.space->iova_space().Validate().empty());
        return reached;
      });
    }
  }
  for (const auto& [edge, count] : steps) {
    INFO(edge);
    CHECK(count > 2);
  }
}

TEST_CASE("giving back: the k-th unmap or invalidation fails, for all k, in every entry point") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  std::map<std::string, uint64_t> steps;
  for (const Entry& entry : kEntries) {
    // What a detach cannot unmap is the page's own unmap's to mend: see attach_test.cc.
    if (entry.name == std::string("Attach")) continue;
    for (const char* edge : {"unmap", "invalidate", "short unmap"}) {
      INFO(entry.name << ", " << edge);
      World w(policy);
      host::FailPoint& fail = edge == std::string("unmap")        ? w.faults.unmap
                              : edge == std::string("invalidate") ? w.faults.invalidate
                                                                  : w.faults.short_unmap;
      REQUIRE(entry.call(w).ok());
      REQUIRE(w.Flush().ok());
      const State before = w.Now();
      steps[edge] += ForAll(fail, [&](uint64_t k) {
        const absl::Status status = entry.call(w);
        w.Flush().IgnoreError();
        const bool reached = fail.triggered();
        fail.FailAt(0);
        INFO("k = " << k << ": " << status);
        const State after = w.Now();
        REQUIRE(after.held == (reached ? 1 : 0));
        REQUIRE(after.ranges == before.ranges + after.held);  // not to be reused
        // Beside what is held, too.
        REQUIRE(entry.call(w).ok());
        REQUIRE(w.Flush().ok());
        REQUIRE(w.space->quarantine().ReleaseAfterReset("").ok());
        REQUIRE(w.Now() == before);
        for (const auto& domain : w.domains) REQUIRE(domain->stale_reuses() == 0);
        return reached;
      });
    }
  }
  for (const auto& [edge, count] : steps) {
    INFO(edge);
    CHECK(count > 2);
  }
}

}  // namespace
}  // namespace dmakit::dma
