// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "benchmarks/budget/meter.h"
#include "benchmarks/budget/rig.h"
#include "iova/cache.h"
#include "iova/space.h"
#include "tests/catch.h"

namespace dmakit::budget {
namespace {

// A page, but the compiler must not know.
Bytes Page() {
  uint64_t size = 4096;
  asm volatile("" : "+r"(size));
  return Bytes(size);
}

std::unique_ptr<iova::Space> NewSpace(NoFence& fence) {
  iova::Space::Options options;
  options.usable = {{Iova(0x10000), Iova((uint64_t{1} << 48) - 1)}};
  options.fence = &fence;
  return *iova::Space::Create(std::move(options));
}

TEST_CASE("IOVA cache: allocate and free") {
  NoFence fence;
  const auto space = NewSpace(fence);
  const auto cache = *iova::Cache::Create(space.get(), {});
  REQUIRE(cache->mode() == iova::Cache::Mode::kAsymmetric);
  Meter meter("iova.cache_pair");
  CHECK(Measure(meter, 1, 1, [&] {
          meter.Run("iova.cache_pair", 4096, [&] {
            for (int i = 0; i < 4096; ++i) {
              const absl::StatusOr<Range> range = cache->Allocate(Page());
              if (!range.ok() || !cache->Free(*range).ok()) return;
            }
          });
        }) == 4096);
  CHECK(cache->stats().hits >= 8191);
}

TEST_CASE("IOVA cache: the fast paths alone") {
  NoFence fence;
  const auto space = NewSpace(fence);
  const auto cache = *iova::Cache::Create(space.get(), {});
  REQUIRE(cache->Free(*cache->Allocate(Page())).ok());
  Meter meter("iova.cache_try_pair");
  CHECK(Measure(meter, 1, 1, [&] {
          meter.Run("iova.cache_try_pair", 4096, [&] {
            for (int i = 0; i < 4096; ++i) {
              const std::optional<Range> range = cache->TryAllocate(Page());
              if (!range || !cache->TryFree(*range)) return;
            }
          });
        }) == 4096);
  CHECK(cache->stats().hits == 8192);
}

}  // namespace
}  // namespace dmakit::budget
