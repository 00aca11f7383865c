// SPDX-License-Identifier: Apache-2.0
//
// What was counted against what was agreed. Instructions per operation are kept in tenths, so that
// a comparison is exact. Text in, values and messages out; no files and no processes here.
#ifndef DMAKIT_BENCHMARKS_BUDGET_BUDGET_H_
#define DMAKIT_BENCHMARKS_BUDGET_BUDGET_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace dmakit::budget {

struct Count {
  std::string operation{};
  int64_t tenths = 0;  // of an instruction, per operation
};

struct Budget {
  std::string build{};  // what was counted: compiler and processor, see ThisBuild
  std::vector<Count> counts{};
};

// In percent of the budget; what is exactly that far off is within it.
inline constexpr int64_t kTolerance = 5;

// "123.4"
std::string Text(int64_t tenths);

// The compiler and processor of this build, or, for one whose code is not that of users (a
// sanitizer, checks, no optimiser), empty.
std::string ThisBuild();

// The file's lines: empty, a comment after '#', "build NAME" (once), "OPERATION COUNT [# COMMENT]".
// An error names the line and the rule.
absl::StatusOr<Budget> ParseBudget(std::string_view text);

// Callgrind's combined output. A part counts if it was dumped on request under the name
// "OPERATION/N", N being how often the operation ran.
absl::StatusOr<std::vector<Count>> ParseCallgrind(std::string_view text);

// One line per disagreement, in either direction; empty: none.
std::vector<std::string> Compare(const Budget& budget, const std::vector<Count>& measured);

// The file with its counts and build replaced. Comments and order stay; operations that are new
// come last, those that are gone go.
std::string Rewrite(std::string_view text, std::string_view build,
                    const std::vector<Count>& measured);

}  // namespace dmakit::budget

#endif  // DMAKIT_BENCHMARKS_BUDGET_BUDGET_H_
