// SPDX-License-Identifier: Apache-2.0
//
// What the datapath must not contain: locked, xchg and fence instructions, calls through pointers
// other than those of register accesses, allocations, Status (tests/nic/hot_path.h; that the reader
// finds them is tested with enic's).
#include "tests/nic/hot_path.h"

#include "tests/catch.h"

namespace {

using dmakit::nic::HotPath;
using dmakit::nic::Reached;

#if defined(__x86_64__)

TEST_CASE("the datapath has no locked instruction, no allocation, and one register access") {
  const HotPath probe("tests/nic/e1000e/hot_path_probe");
  REQUIRE(probe.size() > 10);  // objdump is there and understood
  // Reap reads memory only; the others write a tail, once a burst.
  const std::pair<const char*, size_t> paths[] = {
      {"probe_receive", 1}, {"probe_transmit", 1}, {"probe_reap", 0}};
  for (const auto& [function, register_accesses] : paths) {
    INFO(function);
    const Reached found = probe.Read(function);
    found.Show();
    CHECK(found.locked.empty());
    CHECK(found.indirect.size() == register_accesses);
    CHECK(found.outside.empty());
  }
}

#endif

}  // namespace
