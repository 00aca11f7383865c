// SPDX-License-Identifier: Apache-2.0
//
// The command from end to end through liquidio: the same capture in both receive modes, on rings of
// every size, with counters that wrap, under the audit, to another kind of NIC, and through a
// device that misbehaves; and what the statistics say its lists cost.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nic/enic/backend.h"
#include "nic/liquidio/backend.h"
#include "tests/catch.h"
#include "tests/nic/cmd/command.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic {
namespace {

using testing::MakeFrame;
using testing::OneLine;
using testing::Outcome;
using testing::ReadFrames;
using testing::Stats;
using testing::TempPath;
using testing::WriteCapture;

Outcome Forward(const std::string& in, const std::string& out,
                const std::vector<std::string>& options = {}) {
  std::filesystem::remove(TempPath("out.pcap"));
  BackendRegistry registry;
  registry.Register(enic::NewBackend());
  registry.Register(liquidio::NewBackend());
  std::vector<std::string> args = {"forward", "--in=" + in + ",wire=pcap:in.pcap",
                                   "--out=" + out + ",wire=pcap:out.pcap", "--stats=stats.json"};
  args.insert(args.end(), options.begin(), options.end());
  return testing::Run(registry, args);
}

void CheckClean(const Outcome& run) {
  INFO(run.err);
  CHECK(run.code == cmd::kExitDone);
  CHECK(run.err.empty());
  const auto stats = Stats();
  CHECK(stats["frames_dropped"] == 0);
  CHECK(stats["iommu_faults"] == 0);
  CHECK(stats["live_mappings_at_exit"] == 0);
  CHECK(stats["ports"][0]["model"]["violations"] == 0);
  CHECK(stats["ports"][1]["model"]["violations"] == 0);
}

std::vector<Frame> Frames(size_t step) {
  std::vector<Frame> frames;
  for (size_t size = 14; size <= 9018; size += step) {
    frames.push_back(MakeFrame(size, frames.size()));
  }
  for (const size_t size : {1519, 1520, 1647, 1648, 1649, 1664, 1665, 3328, 9017, 9018}) {
    frames.push_back(MakeFrame(size, frames.size()));
  }
  return frames;
}

TEST_CASE("captures are identical in both receive modes, on every ring, wherever counters start") {
  const auto frames = Frames(23);
  WriteCapture("in.pcap", frames);
  for (const char* mode : {"info", "buffer"}) {
    for (const char* more : {",counters=4294967290", ",function=vf", ""}) {
      for (const int ring : {128, 513, 2048}) {
        INFO(mode << more << " " << ring);
        const std::string nic = absl::StrCat("liquidio,mode=", mode, more);
        CheckClean(Forward(nic, nic, {absl::StrCat("--ring=", ring)}));
        CHECK(ReadFrames(TempPath("out.pcap")) == frames);
      }
    }
  }
}

TEST_CASE("every policy, to and from another kind of NIC, and the audit is silent") {
  const auto frames = Frames(97);
  WriteCapture("in.pcap", frames);
  for (const char* policy : {"persistent", "deferred", "strict"}) {
    for (const char* audit : {"--audit", "--audit=checked"}) {
      for (const char* mode : {"info", "buffer"}) {
        const std::string nic = absl::StrCat("liquidio,mode=", mode);
        INFO(policy << " " << audit << " " << mode);
        const std::string how = absl::StrCat("--policy=", policy);
        CheckClean(Forward(nic, nic, {how, audit}));
        CHECK(Stats()["audit_errors"] == 0);
        CHECK(ReadFrames(TempPath("out.pcap")) == frames);
      }
    }
    CheckClean(Forward("enic", "liquidio", {absl::StrCat("--policy=", policy)}));
    CHECK(ReadFrames(TempPath("out.pcap")) == frames);
    CheckClean(Forward("liquidio", "enic", {absl::StrCat("--policy=", policy)}));
    CHECK(ReadFrames(TempPath("out.pcap")) == frames);
  }
}

TEST_CASE("statistics: one coherent allocation per ring for each kind") {
  WriteCapture("in.pcap", Frames(23));
  for (const char* mode : {"info", "buffer"}) {
    const std::string nic = absl::StrCat("liquidio,mode=", mode);
    CheckClean(Forward(nic, nic, {"--queues=3"}));
    const auto stats = Stats();
    for (const auto& queue : stats["ports"][0]["queues"]) {
      CHECK(queue["rx"]["ring_allocations"] == 1);
      CHECK(queue["rx"]["info_maps"] == (std::string(mode) == "info" ? 1 : 0));
    }
    for (const auto& queue : stats["ports"][1]["queues"]) {
      CHECK(queue["tx"]["ring_allocations"] == 1);
      CHECK(queue["tx"]["list_maps"] == 1);
    }
  }
}

TEST_CASE("options that the NIC does not take are usage errors that say why") {
  WriteCapture("in.pcap", Frames(1000));
  const Outcome ring = Forward("liquidio", "liquidio", {"--ring=100"});
  CHECK(ring.code == cmd::kExitUsage);
  CHECK(OneLine(ring.err));
  CHECK(absl::StrContains(ring.err, "ring size 100: must be between 128 and 2048"));
  const Outcome queues = Forward("liquidio,function=vf", "liquidio", {"--queues=9"});
  CHECK(queues.code == cmd::kExitUsage);
  CHECK(absl::StrContains(queues.err, "this virtual function has 8 rings"));
}

TEST_CASE("a device that misbehaves costs frames and one line, never the program") {
  WriteCapture("in.pcap", Frames(5));
  for (int seed = 1; seed <= 10; ++seed) {
    INFO(seed);
    const std::string nic = absl::StrCat("liquidio,hostile=", seed);
    const Outcome run = Forward(nic, nic);
    INFO(run.err);
    CHECK((run.code == cmd::kExitDone || run.code == cmd::kExitLost));
  }
}

}  // namespace
}  // namespace dmakit::nic
