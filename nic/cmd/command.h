// SPDX-License-Identifier: Apache-2.0
//
// The dmakit command line. A program registers the backends it links and calls RunMain; RunCommand
// is the same without the process around it.
//
// Exit codes: 0 done; 1 something was lost, faulted or leaked; 2 bad usage or input. Every failure
// is one line on the error stream.
#ifndef DMAKIT_NIC_CMD_COMMAND_H_
#define DMAKIT_NIC_CMD_COMMAND_H_

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "nic/backend.h"

namespace dmakit::nic::cmd {

inline constexpr int kExitDone = 0;
inline constexpr int kExitLost = 1;
inline constexpr int kExitUsage = 2;

// What the process gives to a command.
struct Environment {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  std::string working_directory;        // relative paths start here; empty: the process's own
  bool terminal = false;                // show progress
  std::function<bool()> interrupted{};  // true: end the run, print the totals
};

// `args` without the program's name.
int RunCommand(const std::vector<std::string>& args, const BackendRegistry& registry,
               const Environment& environment);

// For main(): the standard streams, SIGINT and SIGTERM, and the directory from which `bazel run`
// was called.
int RunMain(int argc, const char* const* argv, const BackendRegistry& registry);

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_COMMAND_H_
