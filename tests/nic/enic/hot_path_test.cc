// SPDX-License-Identifier: Apache-2.0
//
// What the datapath must not contain: locked, xchg and fence instructions, calls through pointers
// other than the one register write of a burst, allocations, Status. Read from the machine code of
// hot_path_probe.cc and of everything it calls (tests/nic/hot_path.h).
#include "tests/nic/hot_path.h"

#include <set>
#include <string>

#include "tests/catch.h"

namespace {

using dmakit::nic::HotPath;
using dmakit::nic::Reached;

const HotPath& Probe() {
  static const HotPath code("tests/nic/enic/hot_path_probe");
  return code;
}
Reached Read(const std::string& start) { return Probe().Read(start); }

#if defined(__x86_64__)

TEST_CASE("the datapath has no locked instruction, no allocation, and one register write") {
  REQUIRE(Probe().size() > 10);  // objdump is there and understood
  struct Path {
    const char* probe;
    // MmioRegion's calls into a model. Receive has the one of a burst, and one that returns
    // credits, every 32768 frames.
    size_t register_writes;
  };
  for (const Path& path :
       {Path{"probe_receive", 2}, Path{"probe_transmit", 1}, Path{"probe_reap", 0}}) {
    INFO(path.probe);
    const Reached found = Read(path.probe);
    found.Show();
    CHECK(found.locked.empty());
    CHECK(found.indirect.size() == path.register_writes);
    CHECK(found.outside.empty());
  }
}

TEST_CASE("what the datapath leaves to frag is what is named here") {
  CHECK(Read("probe_receive").page_level ==
        std::set<std::string>{
            "dmakit::frag::FragAllocator::AllocateSlow()",
            "dmakit::frag::PagePool::ReleaseSlow(dmakit::frag::Page*, unsigned int)"});
  CHECK(Read("probe_reap").page_level ==
        std::set<std::string>{"dmakit::frag::Returner::Return(dmakit::frag::Page*)",
                              "dmakit::frag::Returner::Flush()"});
}

TEST_CASE("the reader finds what it looks for") {
  for (const char* control : {"control_add", "control_seq_cst_store", "control_fence"}) {
    INFO(control);
    CHECK(Read(control).locked.size() == 1);
  }
  CHECK(Read("control_virtual").indirect.size() == 1);
  CHECK_FALSE(Read("control_allocation").outside.empty());
  CHECK_FALSE(Read("control_status").outside.empty());
  CHECK(Read("control_hidden").locked.size() == 1);
  CHECK(Read("control_hidden").indirect.size() == 1);
  CHECK_FALSE(Read("no_such_function").outside.empty());
}

#endif

}  // namespace
