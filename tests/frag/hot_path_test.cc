// SPDX-License-Identifier: Apache-2.0
//
// No locked, xchg or fence instruction on an owner's path: read from the object code of the
// functions in hot_path_probe.cc and of everything they call, down to the slow paths named below.
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/machine_code.h"

namespace {

using dmakit::testing::Disassemble;
using dmakit::testing::IsIndirect;
using dmakit::testing::IsLocked;
using Code = dmakit::testing::MachineCode;

// What takes memory, mappings or other threads' returns: not per fragment, and not per page that is
// recycled under the persistent policy. Allocate's and Release's own slow halves are not among
// them, they are read too.
const std::set<std::string> kSlow = {
    "dmakit::frag::internal::PoolCore::TakeSlow(unsigned int)",
    "dmakit::frag::internal::PoolCore::RecycleSlow(dmakit::frag::internal::PageRecord&)",
    "dmakit::frag::internal::PoolCore::RefuseRelease(dmakit::frag::Page const&, unsigned int)"};

// What must not be there, in `function` and all it reaches.
std::vector<std::string> Violations(const Code& code, const std::string& start,
                                    std::set<std::string>* seen) {
  std::vector<std::string> found;
  std::deque<std::string> todo{start};
  while (!todo.empty()) {
    const std::string function = todo.front();
    todo.pop_front();
    if (kSlow.count(function) != 0 || !seen->insert(function).second) continue;
    const auto at = code.find(function);
    if (at == code.end()) {
      found.push_back(function + ": not found");
      continue;
    }
    for (const std::string& instruction : at->second) {
      if (IsLocked(instruction) || IsIndirect(instruction)) {
        found.push_back(function + ": " + instruction);
      }
      if (std::string to = dmakit::testing::Target(instruction, function); !to.empty())
        todo.push_back(to);
    }
  }
  return found;
}

TEST_CASE("no locked instruction on the owner's path") {
#if !defined(__x86_64__)
  WARN("reads x86-64 code only");
#else
  const Code code = Disassemble("tests/frag/hot_path_probe");
  REQUIRE(code.size() > 10);  // objdump is there and understood
  std::set<std::string> seen;
  for (const char* probe : {"probe_allocate", "probe_release", "probe_release_many", "probe_take",
                            "probe_take_at_least"}) {
    const std::vector<std::string> violations = Violations(code, probe, &seen);
    for (const std::string& violation : violations) UNSCOPED_INFO(violation);
    CHECK(violations.empty());
  }
  // The slow halves were read, not only named.
  CHECK(seen.count("dmakit::frag::FragAllocator::AllocateSlow()") == 1);
  CHECK(seen.count("dmakit::frag::PagePool::ReleaseSlow(dmakit::frag::Page*, unsigned int)") == 1);
  CHECK(seen.count("dmakit::frag::PagePool::Take()") == 1);
  for (const std::string& slow : kSlow) CHECK(code.count(slow) == 1);
#endif
}

TEST_CASE("the reader finds what it looks for") {
#if defined(__x86_64__)
  const Code code = Disassemble("tests/frag/hot_path_probe");
  for (const char* control : {"control_add", "control_exchange", "control_seq_cst_store",
                              "control_fence", "control_call", "control_indirect"}) {
    INFO(control);
    std::set<std::string> seen;
    CHECK_FALSE(Violations(code, control, &seen).empty());
  }
  std::set<std::string> seen;
  CHECK(Violations(code, "control_clean", &seen).empty());
  // Folding is where the atomics are.
  CHECK_FALSE(Violations(code, "dmakit::frag::internal::PoolCore::Fold()", &seen).empty());
  CHECK_FALSE(Violations(code, "no_such_function", &seen).empty());
#endif
}

}  // namespace
