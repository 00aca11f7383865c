// SPDX-License-Identifier: Apache-2.0
//
// What the datapath must not contain: locked, xchg and fence instructions, calls through pointers
// other than the one register write of a burst, allocations, Status. Read from the machine code of
// hot_path_probe.cc and of everything it calls, down to the page-level functions named below.
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/machine_code.h"

namespace {

using dmakit::testing::IsIndirect;
using dmakit::testing::IsLocked;
using Code = dmakit::testing::MachineCode;

// Per page or per burst, not per packet, and looked at by the tests of frag/.
const std::set<std::string> kPageLevel = {
    "dmakit::frag::FragAllocator::AllocateSlow()",
    "dmakit::frag::PagePool::ReleaseSlow(dmakit::frag::Page*, unsigned int)",
    "dmakit::frag::Returner::Return(dmakit::frag::Page*)",
    "dmakit::frag::Returner::Flush()",
};

// Reached only while a checker is attached, behind the one branch of a burst.
bool Watched(const std::string& function) {
  return function.starts_with("dmakit::nic::RingWatch::Posted(") ||
         function.starts_with("dmakit::nic::RingWatch::Completed(");
}

const Code& Probe() {
  static const Code code = dmakit::testing::Disassemble("tests/nic/enic/hot_path_probe");
  return code;
}

struct Found {
  std::vector<std::string> locked;
  std::vector<std::string> indirect;
  std::set<std::string> outside;  // reached, and neither ours nor named above
  std::set<std::string> page_level;
};

Found Read(const std::string& start) {
  Found found;
  std::set<std::string> seen;
  std::deque<std::string> todo{start};
  while (!todo.empty()) {
    const std::string function = todo.front();
    todo.pop_front();
    if (!seen.insert(function).second || Watched(function)) continue;
    if (kPageLevel.count(function) != 0) {
      found.page_level.insert(function);
      continue;
    }
    const auto at = Probe().find(function);
    const bool ours = function.find("dmakit::") != std::string::npos ||
                      function.starts_with("probe_") || function.starts_with("control_");
    if (at == Probe().end() || !ours) {
      found.outside.insert(function);
      continue;
    }
    for (const std::string& i : at->second) {
      if (IsLocked(i)) found.locked.push_back(function + ": " + i);
      if (IsIndirect(i)) found.indirect.push_back(function + ": " + i);
      if (std::string to = dmakit::testing::Target(i, function); !to.empty()) todo.push_back(to);
    }
  }
  return found;
}

void Show(const Found& found) {
  for (const std::string& s : found.locked) UNSCOPED_INFO("locked: " << s);
  for (const std::string& s : found.indirect) UNSCOPED_INFO("indirect: " << s);
  for (const std::string& s : found.outside) UNSCOPED_INFO("outside: " << s);
}

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
    const Found found = Read(path.probe);
    Show(found);
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
