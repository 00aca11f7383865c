// SPDX-License-Identifier: Apache-2.0
//
// The command line on a NIC that does what it is told, also wrong things: exit codes, totals,
// messages.

#include "nic/cmd/command.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nic/cmd/demo.h"
#include "tests/catch.h"
#include "tests/nic/cmd/command.h"
#include "tests/nic/cmd/fake_backend.h"
#include "tests/nic/prometheus.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic::cmd {
namespace {

namespace fs = std::filesystem;
using absl::StrContains;
using testing::MakeFrame;
using testing::OneLine;
using testing::Outcome;
using testing::ReadFile;
using testing::ReadFrames;
using testing::Stats;
using testing::TempPath;
using testing::WriteCapture;
using testing::WriteFile;

Outcome Run(const std::vector<std::string>& args, std::function<bool()> interrupted = {}) {
  BackendRegistry registry;
  registry.Register(testing::NewFakeBackend());
  return testing::Run(registry, args, std::move(interrupted));
}

// Forwards in.pcap to out.pcap with these options behind, and statistics to stats.json.
Outcome Forward(std::vector<std::string> options, const std::string& in_keys = "",
                const std::string& out_keys = "") {
  fs::remove(TempPath("out.pcap"));
  fs::remove(TempPath("stats.json"));
  std::vector<std::string> args = {"forward", "--in=fake" + in_keys + ",wire=pcap:in.pcap",
                                   "--out=fake" + out_keys + ",wire=pcap:out.pcap",
                                   "--stats=stats.json"};
  args.insert(args.end(), options.begin(), options.end());
  return Run(args);
}

std::vector<Frame> SomeFrames(size_t count) {
  std::vector<Frame> frames;
  for (size_t i = 0; i < count; ++i) frames.push_back(MakeFrame(14 + i * 37 % 8987, i));
  return frames;
}

TEST_CASE("a capture is forwarded byte for byte, in order, under every policy") {
  const auto frames = SomeFrames(1500);
  WriteCapture("in.pcap", frames);
  size_t bytes = 0;
  for (const Frame& f : frames) bytes += f.size();
  for (const char* policy : {"persistent", "deferred", "strict"}) {
    const Outcome run = Forward({absl::StrCat("--policy=", policy)});
    INFO(policy << ": " << run.err);
    CHECK(run.code == kExitDone);
    CHECK(run.err.empty());
    CHECK(ReadFrames(TempPath("out.pcap")) == frames);
    const auto stats = Stats();
    CHECK(stats["frames_in"] == 1500);
    CHECK(stats["frames_out"] == 1500);
    CHECK(stats["bytes_in"] == bytes);
    CHECK(stats["bytes_out"] == bytes);
    CHECK(stats["frames_dropped"] == 0);
    CHECK(stats["iommu_faults"] == 0);
    CHECK(stats["live_mappings_at_exit"] == 0);
    CHECK(stats["dma_maps"] > 0);
    CHECK(stats["dma_maps"] == stats["dma_unmaps"]);
    CHECK(stats["iommu_walks"] > 0);
    CHECK(stats["pool_bytes"] > 0);
    CHECK(stats["driver_ns_per_frame"] > 0);
    CHECK(stats["options"]["policy"] == policy);
    CHECK(StrContains(run.out, "frames_out             1500\n"));
  }
}

TEST_CASE("the statistics have exactly these names at the top, and detail per queue") {
  WriteCapture("in.pcap", SomeFrames(40));
  REQUIRE(Forward({"--queues=2"}).code == kExitDone);
  const auto stats = Stats();
  for (const char* name :
       {"frames_in", "frames_out", "bytes_in", "bytes_out", "frames_dropped", "dma_maps",
        "dma_unmaps", "iotlb_invalidations", "iommu_walks", "iommu_faults", "live_mappings_at_exit",
        "pool_bytes", "driver_ns_per_frame"}) {
    INFO(name);
    CHECK(stats[name].is_number());
  }
  REQUIRE(stats["ports"].size() == 2);
  CHECK(stats["ports"][0]["device"] == "fake0");
  CHECK(stats["ports"][1]["device"] == "fake1");
  for (int q = 0; q < 2; ++q) {
    const auto& in = stats["ports"][0]["queues"][q];
    const auto& out = stats["ports"][1]["queues"][q];
    CHECK(in["queue"] == q);
    CHECK(in["rx"]["frames"] == 20);
    CHECK(in["rx"].size() == 16);
    CHECK(in["pool"].size() == 21);
    CHECK(in["pool"]["bytes_peak"] > 0);
    CHECK(out["tx"]["frames"] == 20);
    CHECK(out["tx"].size() == 16);
    CHECK(out["tx"]["in_flight"] == 0);
  }
}

TEST_CASE("--stats-format chooses what is written") {
  WriteCapture("in.pcap", SomeFrames(40));
  REQUIRE(Forward({"--stats-format=prometheus", "--policy=deferred", "--audit"}).code == kExitDone);
  testing::PrometheusReader reader;
  CHECK(reader.Read(ReadFile(TempPath("stats.json"))).empty());
  CHECK(reader.samples().at({"dmakit_rx_packets_total", {{"device", "fake0"}, {"queue", "0"}}}) ==
        40);
  CHECK(reader.samples().at({"dmakit_space_maps_total", {{"space", "forward"}}}) > 0);
  CHECK(reader.samples().at({"dmakit_flush_deferred_total", {{"space", "forward"}}}) > 0);
  CHECK(reader.samples().contains({"dmakit_device_maps_total", {{"device", "fake1"}}}));
  CHECK(reader.samples().at({"dmakit_audit_reports_total", {{"class", "wrong-size"}}}) == 0);

  REQUIRE(Forward({"--stats-format=text"}).code == kExitDone);
  CHECK(StrContains(ReadFile(TempPath("stats.json")),
                    "device=fake1 queue=0:\n     tx_packets: 40\n"));
  REQUIRE(Forward({"--stats-format=json"}).code == kExitDone);
  CHECK(Stats()["address_space"]["devices"].size() == 2);
  CHECK_FALSE(Stats()["address_space"].contains("flush_queue"));

  CHECK(
      Forward({"--stats-format=xml"}).err ==
      "dmakit: --stats-format: \"xml\" must be json, prometheus or text; leave it out for json\n");
  const Outcome alone =
      Run({"forward", "--in=fake,wire=null", "--out=fake,wire=null", "--stats-format=text"});
  CHECK(alone.code == kExitUsage);
  CHECK(alone.err ==
        "dmakit: --stats-format: \"text\" needs a file to be written; add --stats=FILE\n");
}

TEST_CASE("several queues lose nothing") {
  const auto frames = SomeFrames(500);
  WriteCapture("in.pcap", frames);
  for (const int queues : {1, 2, 3, 4}) {
    for (const int ring : {4, 64}) {
      const Outcome run =
          Forward({absl::StrCat("--queues=", queues), absl::StrCat("--ring=", ring), "--burst=7"});
      INFO(run.err);
      REQUIRE(run.code == kExitDone);
      const auto out = ReadFrames(TempPath("out.pcap"));
      REQUIRE(out.has_value());
      CHECK(std::multiset<Frame>(out->begin(), out->end()) ==
            std::multiset<Frame>(frames.begin(), frames.end()));
    }
  }
}

TEST_CASE("packets that find no room in the transmit ring wait, in order") {
  const auto frames = SomeFrames(400);
  WriteCapture("in.pcap", frames);
  for (const char* room : {",room=1", ",room=10", ",room=33"}) {
    const Outcome run = Forward({}, "", room);
    INFO(room << ": " << run.err);
    CHECK(run.code == kExitDone);
    CHECK(ReadFrames(TempPath("out.pcap")) == frames);
    CHECK(Stats()["ports"][1]["queues"][0]["tx"]["ring_full"] > 0);
  }
  // What waits when the device stops is given back.
  const Outcome stalled = Forward({"--ring=64"}, "", ",room=10,stall=100");
  CHECK(stalled.code == kExitLost);
  CHECK(StrContains(stalled.err, "nothing moves: a frame waits that the in port does not take, "));
  CHECK(Stats()["live_mappings_at_exit"] == 0);
  CHECK(Stats()["problems"].size() == 2);
}

TEST_CASE("a count ends the run after exactly that many frames") {
  const auto frames = SomeFrames(100);
  WriteCapture("in.pcap", frames);
  for (const size_t count : {1, 31, 99}) {
    CHECK(Forward({absl::StrCat("--count=", count)}).code == kExitDone);
    CHECK(ReadFrames(TempPath("out.pcap")) ==
          std::vector<Frame>(frames.begin(), frames.begin() + count));
  }
  CHECK(Forward({"--count=1000"}).code == kExitDone);
  CHECK(Stats()["frames_out"] == 100);
}

TEST_CASE("time and an interrupt end a run that has no end, and nothing is lost") {
  const std::vector<std::string> args = {"forward", "--in=fake,wire=gen:size=64,flows=3",
                                         "--out=fake,wire=null", "--stats=stats.json"};
  auto timed = args;
  timed.push_back("--seconds=0.05");
  const Outcome by_time = Run(timed);
  CHECK(by_time.code == kExitDone);
  CHECK(Stats()["frames_out"] > 0);
  CHECK(Stats()["frames_dropped"] == 0);
  CHECK(Stats()["interrupted"] == false);

  int asked = 0;
  const Outcome by_signal = Run(args, [&] { return ++asked > 10; });
  CHECK(by_signal.code == kExitDone);
  CHECK(Stats()["frames_out"] > 0);
  CHECK(Stats()["frames_dropped"] == 0);
  CHECK(Stats()["interrupted"] == true);
  CHECK(StrContains(by_signal.out, "frames_dropped         0\n"));
}

TEST_CASE("null as the input has no frames") {
  const Outcome run = Run({"forward", "--in=fake,wire=null", "--out=fake,wire=null"});
  CHECK(run.code == kExitDone);
  CHECK(StrContains(run.out, "frames_in              0\n"));
  const Outcome both = Run({"forward", "--in=fake,wire=null", "--out=fake,wire=null", "--both"});
  CHECK(both.code == kExitDone);
  CHECK(StrContains(both.out, "frames_in              0\n"));
}

TEST_CASE("frames that do not fit are dropped and counted, and the run says so") {
  WriteCapture("in.pcap", {MakeFrame(1518, 1), MakeFrame(1600, 2), MakeFrame(60, 3),
                           MakeFrame(100'000, 4), MakeFrame(60, 5)});
  const Outcome run = Forward({"--mtu=1500"});
  CHECK(run.code == kExitLost);
  CHECK(OneLine(run.err));
  CHECK(run.err ==
        "dmakit: 2 of 5 frames lost (2 longer than --mtu=1500 allows (raise it, up to 9000))\n");
  CHECK(Stats()["frames_dropped"] == 2);
  CHECK(Stats()["frames_in"] == 5);
  CHECK(Stats()["frames_out"] == 3);
  CHECK(Stats()["bytes_in"] == 1518 + 1600 + 60 + 100'000 + 60);
  CHECK(ReadFrames(TempPath("out.pcap")) ==
        std::vector<Frame>{MakeFrame(1518, 1), MakeFrame(60, 3), MakeFrame(60, 5)});
}

TEST_CASE("frames refused at the wire are lost input") {
  testing::Record cut{MakeFrame(100, 1)};
  cut.length = 200;
  WriteFile(TempPath("in.pcap"), testing::PcapHeader() + testing::PcapRecord({MakeFrame(13, 1)}) +
                                     testing::PcapRecord(cut) +
                                     testing::PcapRecord({MakeFrame(60, 2)}));
  const Outcome run = Forward({});
  CHECK(run.code == kExitLost);
  CHECK(run.err ==
        "dmakit: 2 of 3 frames lost (1 shorter than 14 bytes, refused at the wire, 1 cut by the "
        "capture's snap length, refused at the wire)\n");
  CHECK(Stats()["frames_dropped"] == 2);
  CHECK(ReadFrames(TempPath("out.pcap"))->size() == 1);
}

TEST_CASE("whatever goes wrong underneath makes the run fail in words") {
  WriteCapture("in.pcap", SomeFrames(200));
  struct Case {
    const char* in_keys;
    const char* out_keys;
    const char* words;
  };
  const Case cases[] = {
      {"", ",drop=50", "4 of 200 frames lost (4 unaccounted for)"},
      {"", ",twice=100", "2 more frames out than in"},
      {",fault=100", "", "2 IOMMU faults"},
      {"", ",violate=3", "3 device model violations"},
      {",leak=1", "", "1 mappings leaked"},
      {"", ",stop=1", "fake1: told not to stop"},
      {",stop=1", ",drop=200", "fake0: told not to stop"},
  };
  for (const Case& c : cases) {
    const Outcome run = Forward({}, c.in_keys, c.out_keys);
    INFO(run.err);
    CHECK(run.code == kExitLost);
    CHECK(OneLine(run.err));
    CHECK(StrContains(run.err, c.words));
    CHECK(Stats()["problems"].size() >= 1);
  }
  CHECK(StrContains(Forward({}, ",fault=100").out, "fault: fake0 write at 0x400000000000: "));
  CHECK(StrContains(Forward({}, "", ",violate=1").out, "violation: fake1: told to"));
  CHECK(Forward({}, ",leak=1").code == kExitLost);
  CHECK(Stats()["live_mappings_at_exit"] == 1);
}

TEST_CASE("a device that stops working does not hold the run") {
  WriteCapture("in.pcap", SomeFrames(200));
  const Outcome run = Forward({}, "", ",stall=100");
  CHECK(run.code == kExitLost);
  CHECK(OneLine(run.err));
  CHECK(StrContains(run.err, "100 of 200 frames lost"));
  CHECK(StrContains(run.err, "nothing moves: 100 frames in flight"));
  CHECK(Stats()["live_mappings_at_exit"] == 0);
}

TEST_CASE("a capture that is damaged half-way is bad input, after what could be read") {
  const auto frames = SomeFrames(10);
  const std::string path = WriteCapture("in.pcap", frames);
  const std::string bytes = ReadFile(path);
  WriteFile(path, bytes.substr(0, bytes.size() - 1));
  const Outcome run = Forward({});
  CHECK(run.code == kExitUsage);
  CHECK(OneLine(run.err));
  CHECK(StrContains(run.err, "truncated or corrupt after 9 frames"));
  CHECK(StrContains(run.out, "frames_out             9\n"));
  CHECK(ReadFrames(TempPath("out.pcap"))->size() == 9);
  CHECK(Stats()["frames_out"] == 9);
}

TEST_CASE("bad input and losses together are still one line") {
  WriteFile(TempPath("in.pcap"), testing::PcapHeader() + testing::PcapRecord({MakeFrame(60, 1)}) +
                                     testing::PcapRecord({MakeFrame(13, 1)}) + "rest");
  const Outcome run = Forward({});
  CHECK(run.code == kExitUsage);
  CHECK(OneLine(run.err));
  CHECK(StrContains(run.err, "truncated or corrupt after 2 frames"));
  CHECK(StrContains(run.err, "; 1 of 2 frames lost"));
}

TEST_CASE("bad usage and input: one line, exit code 2, and nothing is overwritten") {
  WriteCapture("in.pcap", SomeFrames(10));
  WriteFile(TempPath("empty.pcap"), "");
  WriteFile(TempPath("text.pcap"), "no capture, whatever its name says");
  const std::string in = "--in=fake,wire=pcap:in.pcap";
  const std::string out = "--out=fake,wire=pcap:out.pcap";
  struct Case {
    std::vector<std::string> args;
    std::string words;
  };
  const Case cases[] = {
      {{}, "a command must follow: demo, forward or devices"},
      {{"fly"}, "fly"},
      {{"forward"}, "--in: is missing"},
      {{"forward", in}, "--out: is missing"},
      {{"forward", in, out, "--speed=9"}, "--speed=9"},
      {{"forward", in, out, "more"}, "more"},
      {{"forward", in, out, in}, "--in"},
      {{"forward", in, out, "--mtu"}, "--mtu"},
      {{"forward", "--mtu=", in, out}, "--mtu= must be followed by a value"},
      {{"forward", "--in=", out}, "--in= must be followed by a value"},
      {{"demo", "forward"}, "forward"},
      {{"forward", in, out, "--mtu=67"}, "\"67\" must be a number from 68 to 9000"},
      {{"forward", in, out, "--queues=2", "--threads=3"}, "\"3\" must be a number from 1 to 2"},
      {{"forward", in, out, "--both"}, "--in: wire pcap: goes one way"},
      {{"forward", "--in=fake,wire=tap:a/b", out}, "--in: wire tap: \"a/b\" is no interface"},
      {{"forward", in, out, "--queues=0"}, "\"0\" must be a number from 1 to 64"},
      {{"forward", in, out, "--ring=1"}, "--in: ring size 1: must be between 2 and 4096"},
      {{"forward", in, out, "--page-order=30"}, "\"30\" must be a number from 0 to 9"},
      {{"forward", in, out, "--page-order=0"}, "--in: "},
      {{"forward", in, out, "--policy=none"}, "must be persistent, deferred or strict"},
      {{"forward", "--in=fale,wire=null", out}, "--in: backend \"fale\": unknown; this program"},
      {{"forward", in, "--out=fale,wire=null"}, "--out: backend \"fale\""},
      {{"forward", "--in=fake", out}, "--in: \"fake\" has no wire=, which must come last"},
      {{"forward", in, "--out=fake,room=1"}, "--out: \"fake\" has no wire="},
      {{"forward", "--in=fake,x=1,wire=null", out}, "--in: backend fake: unknown key \"x\""},
      {{"forward", in, "--out=fake,drop=z,wire=null"}, "--out: backend fake: drop: \"z\""},
      {{"forward", "--in=fake,wire=pcap:none.pcap", out}, "No such file or directory"},
      {{"forward", "--in=fake,wire=pcap:empty.pcap", out}, "is empty"},
      {{"forward", "--in=fake,wire=pcap:text.pcap", out}, "is no readable capture"},
      {{"forward", in, "--out=fake,wire=pcap:no/dir/out.pcap"}, "cannot be written"},
      {{"forward", in, "--out=fake,wire=pcap:/dev/full"}, "cannot be written"},
      {{"forward", in, "--out=fake,wire=pcap:in.pcap"}, "is the file of --in"},
      {{"forward", in, "--out=fake,wire=pcap:./x/../in.pcap"}, "--out: "},
      {{"forward", in, out, "--stats=in.pcap"}, "is the file of --in"},
      {{"forward", in, out, "--stats=out.pcap"}, "is the file of --out"},
      {{"forward", in, out, "--stats=no/dir/s.json"}, "--stats: "},
  };
  const std::string before = ReadFile(TempPath("in.pcap"));
  for (const Case& c : cases) {
    fs::remove(TempPath("out.pcap"));
    const Outcome run = Run(c.args);
    INFO(run.err);
    CHECK(run.code == kExitUsage);
    CHECK(OneLine(run.err));
    CHECK(absl::StartsWith(run.err, "dmakit: "));
    CHECK(StrContains(run.err, c.words));
    CHECK(run.out.empty());
    CHECK_FALSE(fs::exists(TempPath("out.pcap")));
    CHECK(ReadFile(TempPath("in.pcap")) == before);
  }
}

TEST_CASE("links to the input are recognised as the input") {
  WriteCapture("in.pcap", SomeFrames(3));
  const std::string before = ReadFile(TempPath("in.pcap"));
  fs::remove(TempPath("hard.pcap"));
  fs::remove(TempPath("soft.pcap"));
  fs::create_hard_link(TempPath("in.pcap"), TempPath("hard.pcap"));
  fs::create_symlink("in.pcap", TempPath("soft.pcap"));
  for (const char* name : {"hard.pcap", "soft.pcap"}) {
    const Outcome run = Run(
        {"forward", "--in=fake,wire=pcap:in.pcap", absl::StrCat("--out=fake,wire=pcap:", name)});
    CHECK(run.code == kExitUsage);
    CHECK(ReadFile(TempPath("in.pcap")) == before);
  }
}

TEST_CASE("statistics that cannot be written at the end are an error") {
  WriteCapture("in.pcap", SomeFrames(3));
  const Outcome run =
      Run({"forward", "--in=fake,wire=pcap:in.pcap", "--out=fake,wire=null", "--stats=/dev/full"});
  CHECK(run.code == kExitUsage);
  CHECK(OneLine(run.err));
  CHECK(StrContains(run.err, "--stats: \"/dev/full\" cannot be written (No space left"));
}

TEST_CASE("help is no error") {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--help"}, {"forward", "--help"}, {"demo", "-h"}}) {
    const Outcome run = Run(args);
    CHECK(run.code == kExitDone);
    CHECK(run.err.empty());
    CHECK_FALSE(run.out.empty());
  }
  const std::string help = Run({"forward", "--help"}).out;
  for (const char* part : {"--in", "--policy", "pcap:FILE", "fake  no real NIC", "68 to 9000"}) {
    CHECK(StrContains(help, part));
  }
}

TEST_CASE("progress is shown on a terminal and nowhere else") {
  BackendRegistry registry;
  registry.Register(testing::NewFakeBackend());
  std::ostringstream out;
  std::ostringstream err;
  Environment environment;
  environment.out = &out;
  environment.err = &err;
  environment.terminal = true;
  const std::vector<std::string> args = {"forward", "--in=fake,wire=gen:size=64",
                                         "--out=fake,wire=null", "--seconds=1.1"};
  CHECK(RunCommand(args, registry, environment) == kExitDone);
  CHECK(StrContains(err.str(), " frames/s, 0 dropped"));
}

TEST_CASE("the demo runs every backend under every policy and counts for real") {
  const Outcome good = Run({"demo"});
  INFO(good.out << good.err);
  CHECK(good.code == kExitDone);
  CHECK(good.err.empty());
  for (const char* policy : {"persistent", "deferred", "strict"}) {
    CHECK(StrContains(good.out, absl::StrCat("fake       ", policy)));
  }
  const std::string last = good.out.substr(good.out.rfind('\n', good.out.size() - 2) + 1);
  const size_t frames = std::stoul(last);
  CHECK(frames > 3 * 10'000);
  CHECK(last ==
        absl::StrCat(frames, " frames in, ", frames, " frames out, 0 lost, 0 IOMMU faults\n"));
}

TEST_CASE("a demo that is not clean says so and fails") {
  BackendRegistry registry;
  registry.Register(testing::NewFakeBackend({{"corrupt", "1000"}, {"fault", "1000"}}));
  const Outcome demo = testing::Run(registry, {"demo"});
  INFO(demo.out << demo.err);
  CHECK(demo.code == kExitLost);
  CHECK(absl::EndsWith(demo.out, " 57 lost, 57 IOMMU faults\n"));
  CHECK(StrContains(demo.err, "not those that went in"));
  CHECK(StrContains(demo.err, "19 IOMMU faults"));
}

TEST_CASE("the bundled capture spans 60 to 9,000 bytes") {
  WriteFile(TempPath("in.pcap"),
            std::string(reinterpret_cast<const char*>(DemoCapture().data()), DemoCapture().size()));
  const auto frames = ReadFrames(TempPath("in.pcap"));
  REQUIRE(frames.has_value());
  const auto [least, most] = std::minmax_element(
      frames->begin(), frames->end(), [](auto& a, auto& b) { return a.size() < b.size(); });
  CHECK(least->size() == 60);
  CHECK(most->size() == 9000);
  CHECK(frames->size() > 300);
}

}  // namespace
}  // namespace dmakit::nic::cmd
