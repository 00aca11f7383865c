// SPDX-License-Identifier: Apache-2.0
//
// What the datapath must not contain: locked, xchg and fence instructions, calls through pointers
// other than those of register accesses, allocations, Status (tests/nic/hot_path.h; that the reader
// finds them is tested with enic's).
#include "tests/nic/hot_path.h"

#include <set>
#include <string>

#include "tests/catch.h"

namespace {

using dmakit::nic::HotPath;
using dmakit::nic::Reached;

#if defined(__x86_64__)

TEST_CASE("the datapath has no locked instruction, no allocation, and few register accesses") {
  const HotPath probe("tests/nic/liquidio/hot_path_probe");
  REQUIRE(probe.size() > 10);  // objdump is there and understood
  struct Path {
    const char* function;
    // MmioRegion's calls into a model, as written and per burst. Receive: the counter is read, what
    // was received subtracted, credits given. Transmit: the doorbell in the middle and at the end
    // of a burst, and what Reap has: the counter is read.
    size_t register_accesses;
  };
  for (const Path& path :
       {Path{"probe_receive", 3}, Path{"probe_transmit", 3}, Path{"probe_reap", 1}}) {
    INFO(path.function);
    const Reached found = probe.Read(path.function);
    found.Show();
    CHECK(found.locked.empty());
    CHECK(found.indirect.size() <= path.register_accesses);
    CHECK(!found.indirect.empty());
    CHECK(found.outside.empty());
  }
  CHECK(probe.Read("probe_receive").page_level ==
        std::set<std::string>{
            "dmakit::frag::FragAllocator::AllocateSlow()",
            "dmakit::frag::PagePool::ReleaseSlow(dmakit::frag::Page*, unsigned int)"});
}

#endif

}  // namespace
