// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/budget/budget.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <sstream>

#include "absl/status/status.h"

namespace dmakit::budget {
namespace {

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> Words(std::string_view line) {
  std::vector<std::string> words;
  std::istringstream in{std::string(line.substr(0, line.find('#')))};
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::string_view Comment(std::string_view line) {
  const size_t at = line.find('#');
  return at == std::string_view::npos ? std::string_view{} : line.substr(at);
}

std::optional<int64_t> Number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// "123.4" and nothing else: one digit behind the point.
std::optional<int64_t> Tenths(std::string_view text) {
  const size_t point = text.find('.');
  if (point == std::string_view::npos || point == 0 || point > 15 || text.size() != point + 2) {
    return std::nullopt;
  }
  const std::optional<int64_t> whole = Number(text.substr(0, point));
  const std::optional<int64_t> part = Number(text.substr(point + 1));
  if (!whole || !part) return std::nullopt;
  return *whole * 10 + *part;
}

const Count* Find(const std::vector<Count>& counts, std::string_view operation) {
  const auto at = std::find_if(counts.begin(), counts.end(),
                               [&](const Count& c) { return c.operation == operation; });
  return at == counts.end() ? nullptr : &*at;
}

absl::Status LineError(size_t number, std::string_view line, std::string_view rule) {
  return absl::InvalidArgumentError("line " + std::to_string(number) + " \"" + std::string(line) +
                                    "\": " + std::string(rule));
}

std::string BudgetLine(const Count& count, std::string_view comment) {
  char line[64];
  std::snprintf(line, sizeof(line), "%-26s %9s", count.operation.c_str(),
                Text(count.tenths).c_str());
  return std::string(line) + (comment.empty() ? "" : "  ") + std::string(comment);
}

}  // namespace

std::string Text(int64_t tenths) {
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
}

std::string ThisBuild() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(DMAKIT_CHECKED) || \
    defined(_GLIBCXX_ASSERTIONS) || defined(NDEBUG) || !defined(__OPTIMIZE__)
  return "";
#elif defined(__x86_64__) && defined(__clang__)
  return "clang-" + std::to_string(__clang_major__) + "-x86_64";
#elif defined(__x86_64__) && defined(__GNUC__)
  return "gcc-" + std::to_string(__GNUC__) + "-x86_64";
#else
  return "";
#endif
}

absl::StatusOr<Budget> ParseBudget(std::string_view text) {
  Budget budget;
  size_t number = 0;
  for (const std::string& line : Lines(text)) {
    ++number;
    const std::vector<std::string> words = Words(line);
    if (words.empty()) continue;
    if (words.size() != 2) return LineError(number, line, "must be OPERATION COUNT [# COMMENT]");
    if (words[0] == "build") {
      if (!budget.build.empty()) return LineError(number, line, "a second build; keep one");
      budget.build = words[1];
      continue;
    }
    const std::optional<int64_t> tenths = Tenths(words[1]);
    if (!tenths || *tenths == 0) {
      return LineError(number, line, "the count must be above 0, with one digit behind the point");
    }
    if (Find(budget.counts, words[0]) != nullptr) {
      return LineError(number, line, "the operation has a budget already; keep one");
    }
    budget.counts.push_back({words[0], *tenths});
  }
  if (budget.build.empty()) return absl::InvalidArgumentError("no line says \"build NAME\"");
  return budget;
}

absl::StatusOr<std::vector<Count>> ParseCallgrind(std::string_view text) {
  constexpr std::string_view kTrigger = "desc: Trigger: Client Request: ";
  constexpr std::string_view kSummary = "summary: ";
  std::vector<Count> counts;
  std::string name;
  for (const std::string& line : Lines(text)) {
    const std::string_view words = line;
    if (words.starts_with("desc: Trigger: ")) name.clear();
    if (words.starts_with(kTrigger)) name = words.substr(kTrigger.size());
    if (!words.starts_with(kSummary) || name.empty()) continue;
    const size_t slash = name.rfind('/');
    const std::optional<int64_t> times = slash == std::string::npos
                                             ? std::nullopt
                                             : Number(std::string_view(name).substr(slash + 1));
    const std::optional<int64_t> total = Number(words.substr(kSummary.size()));
    if (!times || *times == 0 || !total) {
      return absl::InvalidArgumentError("callgrind's part \"" + name + "\", \"" + line +
                                        "\": must be OPERATION/TIMES with one total");
    }
    counts.push_back({name.substr(0, slash), (*total * 10 + *times / 2) / *times});
    name.clear();
  }
  if (counts.empty()) return absl::NotFoundError("callgrind wrote no part that was asked for");
  return counts;
}

std::vector<std::string> Compare(const Budget& budget, const std::vector<Count>& measured) {
  std::vector<std::string> problems;
  for (const Count& count : measured) {
    const Count* agreed = Find(budget.counts, count.operation);
    if (agreed == nullptr) {
      problems.push_back(count.operation + ": " + Text(count.tenths) +
                         " instructions, and no budget; add a line");
      continue;
    }
    const int64_t over = count.tenths - agreed->tenths;
    const bool much = std::abs(over) * 100 > agreed->tenths * kTolerance;
    if (!much) continue;
    problems.push_back(count.operation + ": " + Text(count.tenths) + " instructions, " +
                       (over > 0 ? "above" : "below") + " the budget of " + Text(agreed->tenths) +
                       " by more than " + std::to_string(kTolerance) + " %; " +
                       (over > 0 ? "make it cheaper, or argue for more" : "lower the budget"));
  }
  for (const Count& agreed : budget.counts) {
    if (Find(measured, agreed.operation) == nullptr) {
      problems.push_back(agreed.operation + ": has a budget and was not counted; drop the line");
    }
  }
  return problems;
}

std::string Rewrite(std::string_view text, std::string_view build,
                    const std::vector<Count>& measured) {
  std::string out;
  std::vector<std::string> seen;
  bool has_build = false;
  for (const std::string& line : Lines(text)) {
    const std::vector<std::string> words = Words(line);
    if (words.empty()) {
      out += line + "\n";
    } else if (words[0] == "build") {
      out += "build " + std::string(build) + "\n";
      has_build = true;
    } else if (const Count* count = Find(measured, words[0])) {
      if (std::find(seen.begin(), seen.end(), words[0]) != seen.end()) continue;
      seen.push_back(words[0]);
      out += BudgetLine(*count, Comment(line)) + "\n";
    }
  }
  if (!has_build) out += "build " + std::string(build) + "\n";
  for (const Count& count : measured) {
    if (std::find(seen.begin(), seen.end(), count.operation) == seen.end()) {
      out += BudgetLine(count, "") + "\n";
    }
  }
  return out;
}

}  // namespace dmakit::budget
