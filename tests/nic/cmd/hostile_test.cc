// SPDX-License-Identifier: Apache-2.0
//
// The command with an enic that misbehaves at either end: it says in one line what was wrong, and
// ends.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nic/enic/backend.h"
#include "tests/catch.h"
#include "tests/nic/cmd/command.h"

namespace dmakit::nic {
namespace {

using testing::OneLine;
using testing::Outcome;

Outcome Run(const std::vector<std::string>& args) {
  BackendRegistry registry;
  registry.Register(enic::NewBackend());
  return testing::Run(registry, args);
}

TEST_CASE("a hostile NIC ends in one line and exit code 1, whichever end it is") {
  constexpr const char* kWire = "wire=gen:size=60-1514,count=3000,flows=16";
  for (const char* policy : {"persistent", "strict", "deferred"}) {
    for (const int seed : {7, 11}) {
      for (const bool in : {true, false}) {
        INFO(policy << ", seed " << seed << (in ? ", in" : ", out"));
        const std::string hostile = absl::StrCat("hostile=", seed, ",");
        const Outcome run =
            Run({"forward", absl::StrCat("--in=enic,", in ? hostile : "", kWire),
                 absl::StrCat("--out=enic,", in ? "" : hostile, "wire=null"), "--mtu=1500",
                 "--ring=256", "--queues=2", absl::StrCat("--policy=", policy)});
        INFO(run.err);
        CHECK(run.code == cmd::kExitLost);
        CHECK(OneLine(run.err));
      }
    }
  }
}

TEST_CASE("a seed that is none is refused, and help tells of the key") {
  const Outcome wrong =
      Run({"forward", "--in=enic,hostile=no,wire=gen:count=1", "--out=enic,wire=null"});
  CHECK(wrong.code == cmd::kExitUsage);
  CHECK(OneLine(wrong.err));
  CHECK(absl::StrContains(wrong.err, "key \"hostile=no\": must be a seed from 1 to"));
  CHECK(absl::StrContains(Run({"forward", "--help"}).out, "hostile=SEED"));
}

}  // namespace
}  // namespace dmakit::nic
