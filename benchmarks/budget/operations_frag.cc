// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/budget/meter.h"
#include "benchmarks/budget/rig.h"
#include "frag/frag_allocator.h"
#include "frag/page_pool.h"
#include "frag/returner.h"
#include "tests/catch.h"

namespace dmakit::budget {
namespace {

// A ring of 512 buffers for an MTU of 1500 on pages of 32 KiB, filled and emptied in bursts of 32,
// oldest first: a page ends with every twentieth buffer.
void CountFragments(const std::string& operation, bool returner) {
  constexpr size_t kRing = 512, kBurst = 32;
  Rig rig(dma::Policy::kStrict);
  const auto pool = *frag::PagePool::Create(*rig.space, {.label = "rx0", .order = 3});
  auto fragments = *frag::FragAllocator::Create(*pool, {.size = 1600});
  frag::Returner back;
  std::vector<frag::Fragment> ring(kRing);
  for (frag::Fragment& slot : ring) slot = fragments.Allocate();
  const std::string suffix = returner ? "_by_returner" : "";
  Meter meter(operation);
  size_t at = 0;
  CHECK(Measure(meter, 64, 320, [&] {
          const std::span burst = std::span(ring).subspan(at, kBurst);
          at = (at + kBurst) % kRing;
          meter.Run("frag.release" + suffix, kBurst, [&] {
            for (const frag::Fragment& f : burst) {
              if (returner) {
                back.Return(f);
              } else {
                pool->Release(f);
              }
            }
            if (returner) back.Flush();
          });
          meter.Run("frag.allocate" + suffix, kBurst, [&] {
            for (frag::Fragment& f : burst) f = fragments.Allocate();
          });
        }) == 320 * kBurst);
  for (const frag::Fragment& f : ring) {
    CHECK(!f.empty());
    pool->Release(f);
  }
}

TEST_CASE("Fragments: allocate and release on the owner's thread") {
  for (const char* operation : {"frag.allocate", "frag.release"}) CountFragments(operation, false);
}

TEST_CASE("Fragments: released through a Returner, folded by the owner") {
  for (const char* operation : {"frag.allocate_by_returner", "frag.release_by_returner"}) {
    CountFragments(operation, true);
  }
}

}  // namespace
}  // namespace dmakit::budget
