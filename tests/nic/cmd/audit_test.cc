// SPDX-License-Identifier: Apache-2.0
//
// `forward --audit`: silent while everything is right; when a driver makes a mistake, the run fails
// and says which mistake, and whose it was.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "nic/enic/backend.h"
#include "tests/catch.h"
#include "tests/nic/cmd/command.h"
#include "tests/nic/cmd/planted_backend.h"

namespace dmakit::nic {
namespace {

using testing::OneLine;
using testing::Outcome;
using testing::Stats;

Outcome Forward(const std::string& in, const std::string& out,
                const std::vector<std::string>& options) {
  BackendRegistry registry;
  registry.Register(enic::NewBackend());
  registry.Register(testing::NewPlantedBackend());
  std::vector<std::string> args = {"forward",
                                   "--in=" + in + ",wire=gen:size=60-1514,count=3000",
                                   "--out=" + out + ",wire=null",
                                   "--stats=stats.json",
                                   "--mtu=1500",
                                   "--ring=64"};
  args.insert(args.end(), options.begin(), options.end());
  return testing::Run(registry, args);
}

const char* const kPolicies[] = {"--policy=persistent", "--policy=deferred", "--policy=strict"};

TEST_CASE("an audit is silent on good traffic") {
  for (const char* backend : {"enic", "planted"}) {
    for (const char* policy : kPolicies) {
      for (const char* audit : {"--audit", "--audit=checked"}) {
        INFO(backend << " " << policy << " " << audit);
        const Outcome run = Forward(backend, backend, {policy, audit});
        INFO(run.out << run.err);
        CHECK(run.code == cmd::kExitDone);
        CHECK(run.err.empty());
        CHECK(absl::StrContains(run.out, "audit_errors           0\n"));
        const auto stats = Stats();
        CHECK(stats["frames_out"] == 3000);
        CHECK(stats["audit_errors"] == 0);
        CHECK(stats["audit"]["errors"] == 0);
        CHECK(stats["audit"]["warnings"] == 0);
        CHECK(stats["options"]["audit"] == (std::string(audit) == "--audit" ? "on" : "checked"));
      }
    }
  }
}

// Each with the class and the owner that must be named. The frame of a freed segment is lost, the
// others all arrive.
struct Planted {
  const char* fault;
  const char* audit;
  const char* code;
  const char* owner;
};

TEST_CASE("a planted mistake is named, with its owner") {
  const Planted planted[] = {
      {"missing-sync", "--audit", "sync-for-device-of-from-device", "planted0 rq 0"},
      {"recycle", "--audit", "reused-while-posted", "planted0 buffers"},
      {"early-free", "--audit", "access-after-unmap", "planted1 wq 0"},
      {"unmap-posted", "--audit", "reused-while-posted", "planted1 wq 0"},
      {"wrong-length", "--audit", "wrong-size", "planted1 wq 0"},
      {"changed", "--audit=checked", "cpu-access", "planted1 wq 0"},
  };
  for (const Planted& p : planted) {
    const bool in = absl::StartsWith(p.owner, "planted0");
    const std::string bad = std::string("planted,fault=") + p.fault;
    INFO(p.fault);
    const Outcome run =
        Forward(in ? bad : "planted", in ? "planted" : bad, {"--policy=strict", p.audit});
    INFO(run.out << run.err);
    CHECK(run.code == cmd::kExitLost);
    CHECK(OneLine(run.err));
    CHECK(absl::StrContains(run.err, " audit errors: "));
    CHECK(absl::StrContains(run.err, std::string(p.code) + " of '" + p.owner + "'"));
    CHECK(absl::StrContains(run.out, in ? "planted0 rq 0" : "planted1 wq 0"));
    const auto stats = Stats();
    CHECK(stats["audit_errors"] >= 1);
    CHECK(stats["audit"]["totals"].value(p.code, 0) >= 1);
  }
}

TEST_CASE("what is planted passes unseen without the audit that looks for it") {
  CHECK(Forward("planted,fault=missing-sync", "planted", {"--audit=off"}).code == cmd::kExitDone);
  CHECK(Forward("planted", "planted,fault=changed", {"--audit"}).code == cmd::kExitDone);
  CHECK(Stats()["audit_errors"] == 0);
}

TEST_CASE("--audit takes on, checked or off") {
  const Outcome run = Forward("enic", "enic", {"--audit=loud"});
  CHECK(run.code == cmd::kExitUsage);
  CHECK(OneLine(run.err));
  CHECK(absl::StrContains(run.err, "--audit: \"loud\" must be on, checked or off"));
  CHECK(Forward("enic", "enic", {"--audit=on"}).code == cmd::kExitDone);
  CHECK(Stats()["options"]["audit"] == "on");
  CHECK(Forward("enic", "enic", {"--audit=off"}).code == cmd::kExitDone);
  CHECK(Stats()["options"]["audit"] == "off");
  CHECK_FALSE(Stats().contains("audit"));
}

}  // namespace
}  // namespace dmakit::nic
