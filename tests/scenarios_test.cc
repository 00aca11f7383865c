// SPDX-License-Identifier: Apache-2.0
//
// docs/scenarios.md names tests; each must be there.
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/catch.h"

namespace dmakit {
namespace {

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

// "| a | b |" is two cells; anything else is no row.
std::optional<std::vector<std::string>> Cells(std::string_view line) {
  if (line.size() < 2 || line.front() != '|' || line.back() != '|') return std::nullopt;
  std::vector<std::string> cells;
  std::istringstream in{std::string(line.substr(1))};
  for (std::string cell; std::getline(in, cell, '|');) cells.push_back(Trim(cell));
  return cells;
}

// Whether the source has a test case of exactly this name. A name too long for a line is several
// literals.
bool HasTest(std::string_view source, std::string_view name) {
  for (size_t at = 0; (at = source.find("TEST_CASE(", at)) != std::string_view::npos;) {
    at += 10;
    std::string found;
    for (;;) {
      at = source.find_first_not_of(" \n", at);
      if (at == std::string_view::npos || source[at] != '"') break;
      const size_t end = source.find('"', at + 1);
      if (end == std::string_view::npos) return false;
      found += source.substr(at + 1, end - at - 1);
      at = end + 1;
    }
    if (found == name) return true;
    if (at == std::string_view::npos) return false;
  }
  return false;
}

struct Result {
  std::vector<std::string> problems{};
  std::map<std::string, int> faults{};  // by chapter
};

// `read` gives the text of a file.
template <typename Read>
Result Check(std::string_view document, Read&& read) {
  Result result;
  std::set<std::vector<std::string>> seen;
  std::string chapter;
  std::istringstream lines{std::string(document)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) chapter = line.substr(3);
    if (!line.starts_with("|") || line.starts_with("|---") || line.starts_with("| fault |"))
      continue;
    const auto cells = Cells(line);
    const auto problem = [&](const std::string& what) {
      result.problems.push_back(what + ": " + line);
    };
    if (!cells || cells->size() != 3) {
      problem("not three cells");
      continue;
    }
    const std::string &fault = (*cells)[0], &file = (*cells)[1], &test = (*cells)[2];
    if (!fault.empty()) ++result.faults[chapter];
    if (fault.empty() && result.faults[chapter] == 0) problem("belongs to no fault");
    if (file == "-") {
      if (!test.starts_with("hardware only: ")) problem("neither test nor reason");
      if (fault.empty()) problem("no test, and no fault");
      continue;
    }
    if (file.size() < 3 || file.front() != '`' || file.back() != '`') {
      problem("the file must be in backquotes");
      continue;
    }
    const std::optional<std::string> source = read(file.substr(1, file.size() - 2));
    if (!source) {
      problem("no such file, or no data of this test");
    } else if (!HasTest(*source, test)) {
      problem("no such test in that file");
    }
    if (!fault.empty()) seen.clear();
    if (!seen.insert({file, test}).second) problem("named twice for one fault");
  }
  return result;
}

TEST_CASE("every test that docs/scenarios.md names exists, and every chapter is whole") {
  const std::optional<std::string> document = ReadFile("docs/scenarios.md");
  REQUIRE(document.has_value());
  const Result result = Check(*document, ReadFile);
  for (const std::string& problem : result.problems) {
    INFO(problem);
    CHECK(false);
  }
  CHECK(result.faults == std::map<std::string, int>{{"IOVA allocation", 14},
                                                    {"Invalidation and page tables", 4},
                                                    {"Bounce buffering and sync", 4},
                                                    {"Fragment and object allocators", 10},
                                                    {"Map/unmap discipline in drivers", 9},
                                                    {"The kernel's IOMMU", 5},
                                                    {"Rings, completions and refill", 12}});
}

TEST_CASE("the check fails where it should") {
  const std::string source =
      "TEST_CASE(\"a test\") {}\n"
      "TEST_CASE(\n    \"a longer \"\n    \"test\") {}\n"
      "TEMPLATE_TEST_CASE(\"of types\", \"\", int, long) {}\n"
      "// \"a comment\"\n";
  const auto read = [&](const std::string& path) -> std::optional<std::string> {
    if (path == "t.cc") return source;
    return std::nullopt;
  };
  const struct {
    const char* row;
    const char* problem;  // nullptr: none
  } cases[] = {
      {"| fault | file | test |\n|---|---|---|", nullptr},
      {"| f | `t.cc` | a test |", nullptr},
      {"| f | `t.cc` | a longer test |", nullptr},
      {"| f | `t.cc` | of types |", nullptr},
      {"| f | - | open |", "neither test nor reason"},
      {"| f | - | hardware only: two nodes |", nullptr},
      {"| f | `t.cc` | a tes |", "no such test"},
      {"| f | `t.cc` | a longer |", "no such test"},
      {"| f | `t.cc` | a comment |", "no such test"},
      {"| f | `t.cc` |  |", "no such test"},
      {"| f | `u.cc` | a test |", "no such file"},
      {"| f | t.cc | a test |", "backquotes"},
      {"| f | `t.cc` a test |", "not three cells"},
      {"| f | `t.cc` | a test | more |", "not three cells"},
      {"| f | `t.cc` | a test", "not three cells"},
      {"| f | - | a test |", "neither test nor reason"},
      {"| f | - | hardware only |", "neither test nor reason"},
      {"| | `t.cc` | a test |", "belongs to no fault"},
      {"| f | `t.cc` | a test |\n| | `t.cc` | a test |", "named twice"},
  };
  for (const auto& c : cases) {
    const Result result = Check(std::string("## Chapter\n") + c.row + "\n", read);
    INFO(c.row << (result.problems.empty() ? "" : ": " + result.problems[0]));
    CHECK(result.problems.size() == (c.problem == nullptr ? 0 : 1));
    if (c.problem != nullptr && !result.problems.empty()) {
      CHECK(result.problems[0].find(c.problem) != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace dmakit
