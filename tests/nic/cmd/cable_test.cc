// SPDX-License-Identifier: Apache-2.0
//
// `dmakit forward` on NICs that run by themselves, with a cable of their own.

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "nic/enic/backend.h"
#include "nic/wire/memory_wire.h"
#include "tests/catch.h"
#include "tests/nic/cmd/command.h"
#include "tests/nic/cmd/real_backend.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic::cmd {
namespace {

namespace fs = std::filesystem;
using absl::StrContains;
using testing::MakeFrame;
using testing::Outcome;
using testing::ReadFrames;
using testing::Stats;
using testing::TempPath;
using testing::WriteCapture;

constexpr uint64_t kForever = ~uint64_t{0};

std::vector<Frame> SomeFrames(size_t count) {
  std::vector<Frame> frames;
  for (size_t i = 0; i < count; ++i) frames.push_back(MakeFrame(60 + i * 37 % 1400, i));
  return frames;
}

Outcome Run(const std::vector<std::string>& args, Wire& cable) {
  BackendRegistry registry;
  registry.Register(enic::NewBackend());
  registry.Register(std::make_unique<testing::RealBackend>(enic::NewBackend(), cable));
  return testing::Run(registry, args);
}

TEST_CASE("from a real NIC exactly as many frames are forwarded as --count says") {
  const std::vector<Frame> frames = SomeFrames(100);
  MemorySource cable(frames, kForever);
  const Outcome run = Run({"forward", "--in=real", "--out=enic,wire=pcap:out.pcap", "--count=1234",
                           "--stats=stats.json"},
                          cable);
  INFO(run.err);
  CHECK(run.code == kExitDone);
  const std::vector<Frame> out = ReadFrames(TempPath("out.pcap")).value();
  REQUIRE(out.size() == 1234);
  for (size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == frames[i % frames.size()]);
  const auto stats = Stats();
  CHECK(stats["frames_in"] == 1234);
  CHECK(stats["frames_out"] == 1234);
  CHECK(stats["frames_dropped"] == 0);
  CHECK(stats["ports"][0]["wire"]["frames_to_nic"] == 1234);
  CHECK(stats["live_mappings_at_exit"] == 0);
}

TEST_CASE("to a real NIC everything goes out, and its driver's count says so") {
  const std::vector<Frame> frames = SomeFrames(777);
  WriteCapture("in.pcap", frames);
  MemorySink cable;
  const Outcome run =
      Run({"forward", "--in=enic,wire=pcap:in.pcap", "--out=real", "--stats=stats.json"}, cable);
  INFO(run.err);
  CHECK(run.code == kExitDone);
  CHECK(cable.frames() == frames);
  CHECK(Stats()["frames_out"] == 777);
  CHECK(Stats()["ports"][1]["wire"]["frames_from_nic"] == 777);
}

TEST_CASE("both ways, with threads, until the time is up") {
  const std::vector<Frame> frames = SomeFrames(50);
  MemorySource cable(frames, kForever);
  const Outcome run = Run({"forward", "--both", "--in=real", "--out=enic,wire=null", "--queues=2",
                           "--threads=2", "--seconds=0.3", "--stats=stats.json"},
                          cable);
  INFO(run.err);
  const auto stats = Stats();
  CHECK(stats["frames_in"].get<uint64_t>() > 0);
  CHECK(stats["frames_in"] == stats["frames_out"]);
  CHECK(run.code == kExitDone);
}

TEST_CASE("a wire where there is a cable, and none where there is not, are refused") {
  MemorySink cable;
  const Outcome with = Run({"forward", "--in=real,wire=null", "--out=enic,wire=null"}, cable);
  CHECK(with.code == kExitUsage);
  CHECK(StrContains(with.err,
                    "--in: real is a real NIC and has a cable of its own; leave out "
                    "\"wire=null\""));
  const Outcome without = Run({"forward", "--in=enic", "--out=real"}, cable);
  CHECK(without.code == kExitUsage);
  CHECK(StrContains(without.err, "--in: \"enic\" has no wire="));
}

TEST_CASE("the demo leaves real NICs alone") {
  MemorySink cable;
  const Outcome run = Run({"demo"}, cable);
  INFO(run.err);
  CHECK(run.code == kExitDone);
  CHECK_FALSE(StrContains(run.out, "\nreal "));
  CHECK(cable.frames().empty());
}

}  // namespace
}  // namespace dmakit::nic::cmd
