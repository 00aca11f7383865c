// SPDX-License-Identifier: Apache-2.0
//
// The comparison can fail, in each of the ways it should, and in no other.
#include <string>
#include <vector>

#include "benchmarks/budget/budget.h"
#include "tests/catch.h"

namespace dmakit::budget {
namespace {

constexpr char kFile[] =
    "# head\n"
    "\n"
    "build gcc-12-x86_64\n"
    "map    100.0  # a map\n"
    "unmap   20.0\n";

Budget Parsed(std::string_view text) {
  const absl::StatusOr<Budget> budget = ParseBudget(text);
  INFO(budget.status());
  REQUIRE(budget.ok());
  return *budget;
}

TEST_CASE("each disagreement is one line that names operation, count and remedy") {
  struct Case {
    std::vector<Count> measured;
    std::string expected;  // empty: agreement
  };
  const Case cases[] = {
      {{{"map", 1000}, {"unmap", 200}}, ""},
      {{{"unmap", 200}, {"map", 1000}}, ""},
      {{{"map", 1050}, {"unmap", 200}}, ""},
      {{{"map", 950}, {"unmap", 210}}, ""},
      {{{"map", 1051}, {"unmap", 200}}, "map: 105.1 instructions, above the budget of 100.0"},
      {{{"map", 1060}, {"unmap", 200}}, "make it cheaper"},
      {{{"map", 949}, {"unmap", 200}}, "map: 94.9 instructions, below the budget of 100.0"},
      {{{"map", 940}, {"unmap", 200}}, "lower the budget"},
      {{{"map", 1000}, {"unmap", 0}}, "lower the budget"},
      {{{"map", 1000}}, "unmap: has a budget and was not counted"},
      {{{"map", 1000}, {"unmap", 200}, {"sync", 7}}, "sync: 0.7 instructions, and no budget"},
  };
  for (const Case& c : cases) {
    const std::vector<std::string> problems = Compare(Parsed(kFile), c.measured);
    INFO(c.expected << (problems.empty() ? "" : ": " + problems[0]));
    CHECK(problems.size() == (c.expected.empty() ? 0 : 1));
    if (!problems.empty()) CHECK(problems[0].find(c.expected) != std::string::npos);
  }
  CHECK(Compare(Parsed(kFile), {{"map", 2000}, {"unmap", 2}, {"sync", 1}}).size() == 3);
}

TEST_CASE("malformed budgets are refused with line and rule") {
  const struct {
    std::string line;
    std::string rule;
  } cases[] = {
      {"sync", "must be OPERATION COUNT"},
      {"sync 1.0 2.0", "must be OPERATION COUNT"},
      {"sync # 1.0", "must be OPERATION COUNT"},
      {"sync 1", "one digit"},
      {"sync 1.", "one digit"},
      {"sync 1.25", "one digit"},
      {"sync .5", "one digit"},
      {"sync -1.0", "one digit"},
      {"sync 1.-1", "one digit"},
      {"sync 0.0", "above 0"},
      {"sync 1e3", "one digit"},
      {"sync 99999999999999999999.0", "one digit"},
      {"map 100.0", "a budget already"},
      {"build gcc-13-x86_64", "a second build"},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<Budget> budget = ParseBudget(kFile + c.line + "\n");
    INFO(c.line << ": " << budget.status());
    REQUIRE(!budget.ok());
    CHECK(std::string(budget.status().message()).find("line 6 \"" + c.line) != std::string::npos);
    CHECK(std::string(budget.status().message()).find(c.rule) != std::string::npos);
  }
  CHECK(!ParseBudget("map 1.0\n").ok());
  CHECK(!ParseBudget("").ok());
}

TEST_CASE("callgrind's parts become counts per operation") {
  const auto counts = ParseCallgrind(
      "desc: Trigger: Client Request: map/64\nevents: Ir\nsummary: 6432\nfn=x\ntotals: 6432\n"
      "desc: Trigger: Client Request: un/map/1000\nsummary: 50\n"
      "desc: Trigger: Program termination\nsummary: 99\n");
  REQUIRE(counts.ok());
  REQUIRE(counts->size() == 2);
  CHECK((*counts)[0].operation == "map");
  CHECK((*counts)[0].tenths == 1005);
  CHECK((*counts)[1].operation == "un/map");
  CHECK((*counts)[1].tenths == 1);  // 0.05, rounded
  for (const char* bad : {"", "summary: 1\n", "desc: Trigger: Client Request: map\nsummary: 1\n",
                          "desc: Trigger: Client Request: map/0\nsummary: 1\n",
                          "desc: Trigger: Client Request: map/4\nsummary: 1 2\n"}) {
    INFO(bad);
    CHECK(!ParseCallgrind(bad).ok());
  }
}

TEST_CASE("an update keeps head, order and comments, and agrees with what was measured") {
  const std::vector<Count> measured = {{"sync", 71}, {"map", 1234}};
  const std::string text = Rewrite(kFile, "gcc-13-x86_64", measured);
  CHECK(text ==
        "# head\n\nbuild gcc-13-x86_64\n"
        "map                            123.4  # a map\n"
        "sync                             7.1\n");
  CHECK(Compare(Parsed(text), measured).empty());
  CHECK(Rewrite(text, "gcc-13-x86_64", measured) == text);
  CHECK(Compare(Parsed(Rewrite("", "x", measured)), measured).empty());
}

}  // namespace
}  // namespace dmakit::budget
