// SPDX-License-Identifier: Apache-2.0

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "nic/cmd/command.h"

namespace dmakit::nic::cmd {
namespace {

// A signal handler has no other way to tell anybody. Only RunMain, the process's one, uses it.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void OnSignal(int) { interrupted.store(true, std::memory_order_relaxed); }

// The first signal ends the run; a second one, the process.
void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A pipe nobody reads any more and a file that may not grow are then errors like any other.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

}  // namespace

int RunMain(int argc, const char* const* argv, const BackendRegistry& registry) {
  CatchSignals();
  Environment environment;
  environment.out = &std::cout;
  environment.err = &std::cerr;
  // Set by `bazel run`, which changes the directory.
  if (const char* const directory = std::getenv("BUILD_WORKING_DIRECTORY")) {
    environment.working_directory = directory;
  }
  environment.terminal = isatty(STDOUT_FILENO) != 0 && isatty(STDERR_FILENO) != 0;
  environment.interrupted = [] { return interrupted.load(std::memory_order_relaxed); };
  return RunCommand({argv + (argc > 0 ? 1 : 0), argv + argc}, registry, environment);
}

}  // namespace dmakit::nic::cmd
