// SPDX-License-Identifier: Apache-2.0
//
// The command from end to end: captures and generated traffic through enic's driver and model, all
// memory of which the device reaches by IOVA only.

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nic/enic/backend.h"
#include "tests/catch.h"
#include "tests/nic/cmd/command.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic {
namespace {

namespace fs = std::filesystem;
using testing::MakeFrame;
using testing::OneLine;
using testing::Outcome;
using testing::ReadFrames;
using testing::Stats;
using testing::TempPath;
using testing::WriteCapture;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

Outcome Run(const std::vector<std::string>& args) {
  BackendRegistry registry;
  registry.Register(enic::NewBackend());
  return testing::Run(registry, args);
}

Outcome Forward(const std::vector<std::string>& options,
                const std::string& in = "enic,wire=pcap:in.pcap",
                const std::string& out = "enic,wire=pcap:out.pcap") {
  fs::remove(TempPath("out.pcap"));
  fs::remove(TempPath("stats.json"));
  std::vector<std::string> args = {"forward", "--in=" + in, "--out=" + out, "--stats=stats.json"};
  args.insert(args.end(), options.begin(), options.end());
  return Run(args);
}

void CheckClean(const Outcome& run) {
  INFO(run.err);
  CHECK(run.code == cmd::kExitDone);
  CHECK(run.err.empty());
  const auto stats = Stats();
  CHECK(stats["frames_dropped"] == 0);
  CHECK(stats["iommu_faults"] == 0);
  CHECK(stats["live_mappings_at_exit"] == 0);
  CHECK(stats["iommu_walks"] > 0);
  CHECK(stats["dma_maps"] == stats["dma_unmaps"]);
}

std::vector<Frame> FramesOf(const std::vector<size_t>& sizes) {
  std::vector<Frame> frames;
  for (const size_t size : sizes) frames.push_back(MakeFrame(size, frames.size()));
  return frames;
}

TEST_CASE("frames of every size come out byte for byte, in order, under every policy") {
  std::vector<size_t> sizes;
  for (size_t size = 14; size <= 1600; ++size) sizes.push_back(size);
  for (size_t size = 1601; size <= 9018; size += kSanitized ? 53 : 11) sizes.push_back(size);
  for (const size_t size : {2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193, 9017, 9018}) {
    sizes.push_back(size);
  }
  const auto frames = FramesOf(sizes);
  WriteCapture("in.pcap", frames);
  for (const char* policy : {"persistent", "deferred", "strict"}) {
    INFO(policy);
    CheckClean(Forward({absl::StrCat("--policy=", policy)}));
    CHECK(ReadFrames(TempPath("out.pcap")) == frames);
  }
}

TEST_CASE("frames of up to the MTU and 18 bytes fit; longer ones are dropped and counted") {
  for (const size_t mtu : {68, 1500, 9000}) {
    WriteCapture("in.pcap", FramesOf({mtu + 14, mtu + 18, mtu + 19, 60, mtu + 9000, 65'536, 61}));
    const Outcome run = Forward({absl::StrCat("--mtu=", mtu)});
    INFO(run.err);
    CHECK(run.code == cmd::kExitLost);
    CHECK(OneLine(run.err));
    CHECK(absl::StrContains(run.err, absl::StrCat("3 longer than --mtu=", mtu)));
    CHECK(Stats()["frames_dropped"] == 3);
    const auto out = ReadFrames(TempPath("out.pcap"));
    REQUIRE(out.has_value());
    REQUIRE(out->size() == 4);
    CHECK(out->at(1) == MakeFrame(mtu + 18, 1));
    CHECK(out->at(3) == MakeFrame(61, 6));
  }
}

TEST_CASE("ring sizes wrap, bursts of any size") {
  const auto frames = FramesOf(std::vector<size_t>(kSanitized ? 2000 : 10'000, 100));
  WriteCapture("in.pcap", frames);
  for (const int ring : {64, 96, 4096}) {
    for (const int burst : {1, 32, 512}) {
      for (const char* policy : {"persistent", "strict"}) {
        INFO(ring << " " << burst << " " << policy);
        CheckClean(Forward({absl::StrCat("--ring=", ring), absl::StrCat("--burst=", burst),
                            absl::StrCat("--policy=", policy), "--mtu=1500"}));
        CHECK(ReadFrames(TempPath("out.pcap")) == frames);
      }
    }
  }
}

TEST_CASE("several queues lose nothing and keep each flow in order") {
  for (const int queues : {1, 2, 3, 4}) {
    INFO(queues);
    CheckClean(Forward({absl::StrCat("--queues=", queues), "--mtu=1500", "--ring=64"},
                       "enic,wire=gen:size=60-1514,count=4000,flows=16"));
    const auto stats = Stats();
    CHECK(stats["frames_out"] == 4000);
    CHECK(stats["ports"][0]["queues"].size() == static_cast<size_t>(queues));
    for (const auto& queue : stats["ports"][0]["queues"]) {
      // One thread receives and transmits: every page came back without an atomic.
      CHECK(queue["pool"]["recycle_cached"] > 0);
      CHECK(queue["pool"]["recycle_ring"] == 0);
    }
    const auto out = ReadFrames(TempPath("out.pcap"));
    REQUIRE(out.has_value());
    std::map<int, uint32_t> last;  // frame number by flow
    std::set<uint32_t> seen;
    bool ordered = true;
    for (const Frame& f : *out) {
      uint32_t n = 0;
      for (size_t i = 46; i < 50; ++i) n = (n << 8) | std::to_integer<uint32_t>(f[i]);
      ordered &= last.count(n % 16) == 0 || last[n % 16] < n;
      last[n % 16] = n;
      seen.insert(n);
    }
    CHECK(ordered);
    CHECK(seen.size() == 4000);
  }
}

uint64_t PersistentMaps(uint64_t frames) {
  CheckClean(Forward({"--mtu=1500"}, absl::StrCat("enic,wire=gen:size=60-1514,count=", frames),
                     "enic,wire=null"));
  CHECK(Stats()["frames_out"] == frames);
  return Stats()["dma_maps"];
}

TEST_CASE("persistent: mappings do not depend on the number of frames") {
  const uint64_t frames = kSanitized ? 10'000 : 100'000;
  const uint64_t maps = PersistentMaps(frames);
  CHECK(maps <= frames / 20);
  const double four_times = static_cast<double>(PersistentMaps(4 * frames));
  CHECK(four_times == Approx(static_cast<double>(maps)).epsilon(0.05));
}

TEST_CASE("each page order, as far as a buffer fits, under every policy") {
  const auto frames = FramesOf(std::vector<size_t>(500, 1500));
  WriteCapture("in.pcap", frames);
  for (const char* policy : {"persistent", "deferred", "strict"}) {
    for (int order = 0; order <= 9; ++order) {
      INFO(policy << " " << order);
      CheckClean(Forward({absl::StrCat("--page-order=", order), "--mtu=1500", "--ring=64",
                          absl::StrCat("--policy=", policy)}));
      CHECK(ReadFrames(TempPath("out.pcap")) == frames);
    }
  }
}

TEST_CASE("what enic cannot do is refused in one line, and the output is left alone") {
  WriteCapture("in.pcap", FramesOf({60}));
  struct Case {
    std::string option;
    std::string words;
  };
  for (const Case& c : {Case{"--ring=48", "ring size 48"}, Case{"--ring=63", "ring size 63"},
                        Case{"--ring=65", "ring size 65"}, Case{"--ring=4128", "ring size 4128"},
                        Case{"--page-order=1", "page order 1"}}) {
    const Outcome run = Forward({c.option});
    INFO(run.err);
    CHECK(run.code == cmd::kExitUsage);
    CHECK(OneLine(run.err));
    CHECK(absl::StrContains(run.err, c.words));
    CHECK(absl::StrContains(run.err, "must be"));
    CHECK_FALSE(fs::exists(TempPath("out.pcap")));
    CHECK_FALSE(fs::exists(TempPath("stats.json")));
  }
  const Outcome key = Forward({}, "enic,colour=red,wire=pcap:in.pcap");
  CHECK(key.code == cmd::kExitUsage);
  CHECK(absl::StrContains(key.err, "colour"));
}

TEST_CASE("the demo is clean") {
  const Outcome demo = Run({"demo"});
  INFO(demo.out << demo.err);
  CHECK(demo.code == cmd::kExitDone);
  CHECK(demo.err.empty());
  CHECK(absl::EndsWith(demo.out, " frames out, 0 lost, 0 IOMMU faults\n"));
}

}  // namespace
}  // namespace dmakit::nic
