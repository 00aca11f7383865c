// SPDX-License-Identifier: Apache-2.0
//
// Counts the operations under callgrind and compares with the budget.
//
//   budget_test OPERATIONS BUDGET [--update]
//
// --update writes the counts to the source tree instead of comparing them.
#include "benchmarks/budget/budget.h"

#include <spawn.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dmakit::budget {
namespace {

constexpr char kSource[] = "benchmarks/budget/budget.txt";

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError("cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Nothing of the environment reaches the program, and its allocator has no timer: what it does
// depends on the program alone.
absl::Status RunValgrind(const std::string& program, const std::string& output) {
  std::vector<std::string> words = {"valgrind",
                                    "-q",
                                    "--tool=callgrind",
                                    "--collect-atstart=no",
                                    "--combine-dumps=yes",
                                    "--callgrind-out-file=" + output,
                                    program};
  std::vector<std::string> settings = {"PATH=/usr/bin:/bin:/usr/local/bin", "LC_ALL=C",
                                       "MALLOC_CONF=narenas:1,dirty_decay_ms:-1,muzzy_decay_ms:-1"};
  std::vector<char*> arguments, environment;
  for (std::string& word : words) arguments.push_back(word.data());
  for (std::string& setting : settings) environment.push_back(setting.data());
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawnp(&child, "valgrind", nullptr, nullptr, arguments.data(), environment.data()) !=
      0) {
    return absl::NotFoundError("valgrind does not start; install the package of that name");
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::InternalError("the operations failed under valgrind; what they said is above");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Count>> Measure(const std::string& program) {
  const char* given = std::getenv("TEST_TMPDIR");
  std::string folder = std::string(given != nullptr ? given : "/tmp") + "/budget.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return absl::InternalError("no folder " + folder);
  const std::string output = folder + "/counts";
  absl::Status run = RunValgrind(program, output);
  absl::StatusOr<std::string> text = ReadFile(output);
  std::remove(output.c_str());
  std::remove(folder.c_str());
  if (!run.ok()) return run;
  if (!text.ok()) return text.status();
  return ParseCallgrind(*text);
}

absl::Status Update(const std::vector<Count>& measured) {
  const char* root = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (root == nullptr) {
    return absl::FailedPreconditionError(
        "--update writes to the source tree: use ./bazelw run //benchmarks/budget:budget_test -- "
        "--update");
  }
  const std::string path = std::string(root) + "/" + kSource;
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  std::ofstream out(path, std::ios::binary);
  out << Rewrite(*text, ThisBuild(), measured);
  out.close();
  return out ? absl::OkStatus() : absl::InternalError("cannot write " + path);
}

absl::Status Judge(const Budget& budget, const std::vector<Count>& measured) {
  const std::vector<std::string> problems = Compare(budget, measured);
  for (const std::string& problem : problems) std::cout << "FAILED " << problem << "\n";
  if (problems.empty()) return absl::OkStatus();
  return absl::OutOfRangeError(std::string(kSource) + " disagrees; its head says how to change it");
}

absl::Status Run(const std::string& program, const std::string& file, bool update) {
  if (ThisBuild().empty()) {
    std::cout << "SKIPPED: this build (checks, no optimiser, another processor) has no budget\n";
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> text = ReadFile(file);
  if (!text.ok()) return text.status();
  absl::StatusOr<Budget> budget = ParseBudget(*text);
  if (!update && !budget.ok()) return budget.status();
  if (!update && budget->build != ThisBuild()) {
    std::cout << "SKIPPED: the budget is that of " << budget->build << ", this is " << ThisBuild()
              << "\n";
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<Count>> measured = Measure(program);
  if (!measured.ok()) return measured.status();
  std::cout << "instructions per operation, " << ThisBuild() << "\n";
  for (const Count& count : *measured) {
    std::printf("%-26s %9s\n", count.operation.c_str(), Text(count.tenths).c_str());
  }
  std::fflush(stdout);
  return update ? Update(*measured) : Judge(*budget, *measured);
}

int Main(const std::vector<std::string>& arguments) {
  const bool update = arguments.size() == 3 && arguments[2] == "--update";
  if (arguments.size() != 2 && !update) {
    std::cerr << "usage: budget_test OPERATIONS BUDGET [--update]\n";
    return 2;
  }
  const absl::Status status = Run(arguments[0], arguments[1], update);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace dmakit::budget

int main(int argc, char** argv) {
  return dmakit::budget::Main(std::vector<std::string>(argv + 1, argv + argc));
}
