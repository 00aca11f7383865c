// SPDX-License-Identifier: Apache-2.0
//
// The caches' fast path in object code: no lock-prefixed, exchange or fence instruction. Looks at
// its own binary with objdump; a function that has one shows that the check can fail.

#include <atomic>
#include <cstdio>
#include <optional>
#include <regex>
#include <string>

#include "iova/cache.h"
#include "tests/catch.h"
#include "tests/iova/testing.h"

using dmakit::Bytes;
using dmakit::Range;
using dmakit::iova::Cache;

// `noipa`, `flatten`: the whole path inlined, for any argument, under a name of its own.
extern "C" {
__attribute__((noipa, flatten)) bool dmakit_test_try_allocate(Cache* cache, Bytes size,
                                                              Range* range) {
  const std::optional<Range> parked = cache->TryAllocate(size);
  if (parked) *range = *parked;
  return parked.has_value();
}
__attribute__((noipa, flatten)) bool dmakit_test_try_free(Cache* cache, const Range* range) {
  return cache->TryFree(*range);
}
__attribute__((noipa, flatten)) void dmakit_test_pair(Cache* cache, Bytes size) {
  const auto range = cache->Allocate(size);
  if (range.ok()) (void)cache->Free(*range);
}
__attribute__((noipa)) void dmakit_test_counterexample(std::atomic<int>* word) {
  word->fetch_add(1, std::memory_order_relaxed);
}
}

namespace dmakit::iova {
namespace {

std::string Disassemble(const std::string& symbol) {
  const std::string command = "objdump --no-show-raw-insn --disassemble=" + symbol + " /proc/" +
                              std::to_string(getpid()) + "/exe 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string text;
  char line[512];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) text += line;
  pclose(pipe);
  return text.find('<' + symbol + '>') == std::string::npos ? "" : text;
}

// The first forbidden instruction, or empty. `xchg %ax,%ax` between two registers is padding.
std::string Forbidden(const std::string& code) {
#if defined(__x86_64__)
  static const std::regex pattern(
      "\t(lock[ \t].*|[lms]fence.*|(xchg|cmpxchg|xadd)[a-z]*[ \t].*\\(.*)");
#else
  static const std::regex pattern(
      "\t((ld|st)l?a?x[rp][bh]?|(cas|swp|ldadd|ldclr|ldset|ldeor)[a-z]*|dmb|dsb)[ \t].*");
#endif
  std::smatch match;
  return std::regex_search(code, match, pattern) ? match[1].str() : "";
}

// The calls in the code: only those of a locked cache and of the slow path may be left.
std::string UnknownCall(const std::string& code) {
  static const std::regex call("\t(call|bl)[ \t].*<([^>]*)>");
  static const std::regex known(".*(Contended|Slow|Status|stack_chk|Unwind).*");
  for (std::sregex_iterator it(code.begin(), code.end(), call), end; it != end; ++it) {
    const std::string target = (*it)[2].str();
    if (!std::regex_match(target, known)) return target;
  }
  return "";
}

TEST_CASE("The cache fast path has no lock-prefixed, exchange or fence instruction") {
  if (testing::kSanitized) {
    SUCCEED("sanitizers turn atomics into calls");
    return;
  }
  const std::string control = Disassemble("dmakit_test_counterexample");
  if (control.empty()) {
    WARN("objdump or the symbol table is missing: object code not checked");
    return;
  }
  CHECK(Forbidden(control) != "");
  for (const char* symbol :
       {"dmakit_test_try_allocate", "dmakit_test_try_free", "dmakit_test_pair"}) {
    const std::string code = Disassemble(symbol);
    INFO(code);
    REQUIRE(code.size() > 200);
    CHECK(Forbidden(code) == "");
    CHECK(UnknownCall(code) == "");
  }
}

TEST_CASE("The functions checked above are the ones that work") {
  testing::CountingFence fence;
  auto space = Space::Create({.usable = {testing::Piece(0, 0xFFFFFFFF)}, .fence = &fence}).value();
  auto cache = Cache::Create(space.get(), {}).value();
  Range range;
  CHECK(!dmakit_test_try_allocate(cache.get(), KiB(4), &range));
  dmakit_test_pair(cache.get(), KiB(4));
  CHECK(dmakit_test_try_allocate(cache.get(), KiB(4), &range));
  CHECK(dmakit_test_try_free(cache.get(), &range));
  for (int i = 0; i < 1000; ++i) dmakit_test_pair(cache.get(), KiB(4));
  CHECK(cache->stats().hits == 1001);
  CHECK(cache->stats().tree_calls == 1);
}

}  // namespace
}  // namespace dmakit::iova
