// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/budget/meter.h"
#include "benchmarks/budget/rig.h"
#include "dma/ring_pool.h"
#include "dma/shared.h"
#include "tests/catch.h"

namespace dmakit::budget {
namespace {

// The compiler must have both.
template <typename A, typename B>
void Use(A a, B b) {
  asm volatile("" : : "r"(a), "r"(b) : "memory");
}

// Maps `live` buffers of 2048 bytes, then unmaps them in the same order.
void CountMapping(const std::string& operation, dma::Policy policy, size_t live) {
  Rig rig(policy);
  const std::string policy_name = policy == dma::Policy::kDeferred ? "deferred" : "strict";
  const std::string map = "dma.map_" + policy_name, unmap = "dma.unmap_" + policy_name;
  const auto cache = *rig.space->NewCache("rx0");
  dma::FlushLane lane = *rig.space->NewFlushLane("rx0");  // the empty one under strict
  const auto memory = *rig.memory.Allocate({.size = Bytes(live * 4096)});
  std::vector<dma::Mapping> mappings(live);
  bool ok = true;
  Meter meter(operation);
  CHECK(Measure(meter, 8, 4, [&] {
          meter.Run(map, live, [&] {
            for (size_t i = 0; i < live; ++i) {
              auto mapping = rig.device->Map(std::span(memory.data() + i * 4096, 2048),
                                             dma::Direction::kFromDevice,
                                             {.owner = "rx0", .cache = cache.get()});
              ok = ok && mapping.ok();
              mappings[i] = *std::move(mapping);
            }
          });
          meter.Run(unmap, live, [&] {
            for (dma::Mapping& mapping : mappings) {
              ok =
                  ok &&
                  rig.device->Unmap(std::move(mapping), {.cache = cache.get(), .lane = &lane}).ok();
            }
          });
        }) == 4 * live);
  CHECK(ok);
  CHECK(rig.space->stats().policy == policy);
}

TEST_CASE("Mapping: strict, with an IOVA cache") {
  for (const char* operation : {"dma.map_strict", "dma.unmap_strict"}) {
    CountMapping(operation, dma::Policy::kStrict, 64);
  }
}

// One flush for 256 unmaps, the default bound: its cost is spread over them.
TEST_CASE("Mapping: deferred, with an IOVA cache and a lane") {
  for (const char* operation : {"dma.map_deferred", "dma.unmap_deferred"}) {
    CountMapping(operation, dma::Policy::kDeferred, 256);
  }
}

TEST_CASE("Coherent rings: an entry's two addresses") {
  Rig rig(dma::Policy::kStrict);
  struct Entry {
    dma::SharedLe64 words[2];
  };
  const auto ring = dma::RingPool<Entry>::Create(*rig.device, {.count = 4096, .label = "rx0"});
  REQUIRE(ring.ok());
  Meter meter("dma.ring_at_and_iova");
  CHECK(Measure(meter, 1, 1, [&] {
          meter.Run("dma.ring_at_and_iova", 4096, [&] {
            for (uint32_t i = 0; i < 4096; ++i) Use(ring->at(i), ring->iova(i).value());
          });
        }) == 4096);
}

}  // namespace
}  // namespace dmakit::budget
