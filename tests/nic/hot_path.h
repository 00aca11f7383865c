// SPDX-License-Identifier: Apache-2.0
//
// Reads the machine code of a datapath and of everything it calls, down to the page-level functions
// named here, for what must not be in it.
#ifndef DMAKIT_TESTS_NIC_HOT_PATH_H_
#define DMAKIT_TESTS_NIC_HOT_PATH_H_

#include <deque>
#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/machine_code.h"

namespace dmakit::nic {

// What a function reaches.
struct Reached {
  std::vector<std::string> locked;
  std::vector<std::string> indirect;
  std::set<std::string> outside;  // neither ours nor page-level
  std::set<std::string> page_level;

  void Show() const {
    for (const std::string& s : locked) UNSCOPED_INFO("locked: " << s);
    for (const std::string& s : indirect) UNSCOPED_INFO("indirect: " << s);
    for (const std::string& s : outside) UNSCOPED_INFO("outside: " << s);
  }
};

class HotPath {
 public:
  explicit HotPath(const std::string& binary) : code_(testing::Disassemble(binary)) {}

  size_t size() const { return code_.size(); }

  Reached Read(const std::string& start) const {
    Reached found;
    std::set<std::string> seen;
    std::deque<std::string> todo{start};
    while (!todo.empty()) {
      const std::string function = todo.front();
      todo.pop_front();
      if (!seen.insert(function).second || Watched(function)) continue;
      if (PageLevel().count(function) != 0) {
        found.page_level.insert(function);
        continue;
      }
      const auto at = code_.find(function);
      const bool ours = function.find("dmakit::") != std::string::npos ||
                        function.starts_with("probe_") || function.starts_with("control_");
      if (at == code_.end() || !ours) {
        found.outside.insert(function);
        continue;
      }
      for (const std::string& i : at->second) {
        if (testing::IsLocked(i)) found.locked.push_back(function + ": " + i);
        if (testing::IsIndirect(i)) found.indirect.push_back(function + ": " + i);
        if (std::string to = testing::Target(i, function); !to.empty()) todo.push_back(to);
      }
    }
    return found;
  }

 private:
  // Per page or per burst, not per packet, and looked at by the tests of frag/.
  static const std::set<std::string>& PageLevel() {
    static const std::set<std::string> names = {
        "dmakit::frag::FragAllocator::AllocateSlow()",
        "dmakit::frag::PagePool::ReleaseSlow(dmakit::frag::Page*, unsigned int)",
        "dmakit::frag::Returner::Return(dmakit::frag::Page*)",
        "dmakit::frag::Returner::Flush()",
    };
    return names;
  }
  // Reached only while a checker is attached, behind the one branch of a burst.
  static bool Watched(const std::string& function) {
    return function.starts_with("dmakit::nic::RingWatch::Posted(") ||
           function.starts_with("dmakit::nic::RingWatch::Completed(");
  }

  testing::MachineCode code_;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_TESTS_NIC_HOT_PATH_H_
