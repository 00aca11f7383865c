// SPDX-License-Identifier: Apache-2.0
//
// Runs the command line inside a test, with its own streams and directory. Header only.
#ifndef DMAKIT_TESTS_NIC_CMD_COMMAND_H_
#define DMAKIT_TESTS_NIC_CMD_COMMAND_H_

#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "nic/cmd/command.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic::testing {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

inline Outcome Run(const BackendRegistry& registry, const std::vector<std::string>& args,
                   std::function<bool()> interrupted = {}) {
  std::ostringstream out;
  std::ostringstream err;
  cmd::Environment environment;
  environment.out = &out;
  environment.err = &err;
  environment.working_directory = TempPath("");
  environment.interrupted = std::move(interrupted);
  const int code = cmd::RunCommand(args, registry, environment);
  return {code, out.str(), err.str()};
}

// Exactly one line, as every failure has.
inline bool OneLine(const std::string& text) {
  return text.size() > 1 && std::count(text.begin(), text.end(), '\n') == 1 && text.back() == '\n';
}

// The statistics file of a run, "stats.json" in the test's directory.
inline nlohmann::json Stats() {
  return nlohmann::json::parse(ReadFile(TempPath("stats.json")), nullptr, false);
}

}  // namespace dmakit::nic::testing

#endif  // DMAKIT_TESTS_NIC_CMD_COMMAND_H_
