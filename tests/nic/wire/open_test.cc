// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/open.h"

#include <string>

#include "absl/strings/match.h"
#include "tests/catch.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic {
namespace {

using testing::MakeFrame;
using testing::ReadFrames;
using testing::TempPath;
using testing::WriteCapture;

TEST_CASE("each kind of wire opens by name") {
  WriteCapture("in.pcap", {MakeFrame(60, 1)});
  auto source = OpenWire("pcap:in.pcap", WireRole::kSource, TempPath(""));
  REQUIRE(source.ok());
  CHECK((*source)->Peek()->size() == 60);
  auto sink = OpenWire("pcap:" + TempPath("out.pcap"), WireRole::kSink, "/nowhere");
  REQUIRE(sink.ok());
  (*sink)->Accept(*(*source)->Peek());
  REQUIRE((*sink)->Close().ok());
  CHECK(ReadFrames(TempPath("out.pcap")) == std::vector<Frame>{MakeFrame(60, 1)});

  auto generator = OpenWire("gen:size=100,count=3", WireRole::kSource, "");
  REQUIRE(generator.ok());
  CHECK((*generator)->Peek()->size() == 100);
  CHECK(OpenWire("gen", WireRole::kSource, "").ok());
  CHECK(OpenWire("gen:", WireRole::kSource, "").ok());
  CHECK((*OpenWire("null", WireRole::kSource, ""))->exhausted());
  CHECK(OpenWire("null", WireRole::kSink, "").ok());
}

TEST_CASE("a colon or a comma in a file name is part of it") {
  WriteCapture("a:b,c=d.pcap", {MakeFrame(60, 1)});
  CHECK(OpenWire("pcap:a:b,c=d.pcap", WireRole::kSource, TempPath("")).ok());
}

TEST_CASE("bad wires are refused by name") {
  struct Case {
    const char* spec;
    WireRole role;
    const char* part;
  };
  const Case cases[] = {
      {"", WireRole::kSource, "wire \"\": must be one of pcap:FILE, gen:"},
      {"pacp:x", WireRole::kSource, "wire \"pacp:x\": must be one of"},
      {"pcap", WireRole::kSource, "wire \"pcap\": must be one of"},
      {"null:", WireRole::kSink, "wire \"null:\": must be one of"},
      {"pcap:", WireRole::kSource, "a file must follow"},
      {"pcap:-", WireRole::kSink, "/dev/stdin"},
      {"gen:size=1", WireRole::kSource, "size: \"1\" must be a number from 60"},
      {"gen:size=64", WireRole::kSink, "makes frames and cannot take any"},
      {"gen:size=64", WireRole::kBoth, "wire gen: goes one way; where frames go both ways"},
      {"pcap:a.pcap", WireRole::kBoth, "wire pcap: goes one way; where frames go both ways"},
      {"tap", WireRole::kSource, "wire \"tap\": must be one of"},
      {"tap:", WireRole::kBoth, "an interface must follow, as in tap:tap0"},
      {"tap:a/b", WireRole::kSink, "is no interface's name"},
      {"tap:abcdefghijklmnop", WireRole::kBoth, "has 16 characters"},
  };
  for (const Case& c : cases) {
    const auto wire = OpenWire(c.spec, c.role, "");
    REQUIRE_FALSE(wire.ok());
    INFO(wire.status().message());
    CHECK(wire.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(absl::StrContains(wire.status().message(), c.part));
    CHECK(CheckWire(c.spec, c.role) == wire.status());
  }
  CHECK_FALSE(OpenWire(std::string("pcap:a\0b", 8), WireRole::kSink, "").ok());
}

TEST_CASE("a wire for both ways is a TAP or null") {
  for (const WireRole role : {WireRole::kSource, WireRole::kSink, WireRole::kBoth}) {
    CHECK(CheckWire("tap:tap0", role).ok());
    CHECK(CheckWire("null", role).ok());
    CHECK(OpenWire("null", role, "").ok());
  }
  CHECK_FALSE(WireFile("tap:tap0", "/home/x").has_value());
}

TEST_CASE("relative paths are the caller's") {
  CHECK(WireFile("pcap:a/b.pcap", "/home/x") == "/home/x/a/b.pcap");
  CHECK(WireFile("pcap:/a/b.pcap", "/home/x") == "/a/b.pcap");
  CHECK(WireFile("pcap:b.pcap", "") == "b.pcap");
  CHECK_FALSE(WireFile("null", "/home/x").has_value());
  CHECK_FALSE(WireFile("gen:size=64", "/home/x").has_value());
}

}  // namespace
}  // namespace dmakit::nic
