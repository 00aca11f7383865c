// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/memory_wire.h"

#include "nic/wire/limited_wire.h"
#include "nic/wire/null_wire.h"
#include "tests/catch.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic {
namespace {

using testing::MakeFrame;

std::vector<Frame> Drain(Wire& wire) {
  std::vector<Frame> frames;
  while (auto frame = wire.Peek()) {
    frames.emplace_back(frame->begin(), frame->end());
    wire.Pop();
  }
  return frames;
}

TEST_CASE("a memory source repeats its frames and refuses short ones") {
  const Frame a = MakeFrame(14, 1);
  const Frame b = MakeFrame(9000, 2);
  MemorySource source({MakeFrame(13, 0), a, MakeFrame(0, 0), b}, 3);
  CHECK(Drain(source) == std::vector<Frame>{a, b, a, b, a, b});
  CHECK(source.exhausted());
  const WireStats stats = source.stats();
  CHECK(stats.frames_to_nic == 6);
  CHECK(stats.bytes_to_nic == 3 * 9014);
  CHECK(stats.refused == 6);
  CHECK(stats.refused_short == 6);
  CHECK(stats.refused_bytes == 39);
}

TEST_CASE("a memory source with nothing in it is exhausted at once") {
  CHECK(MemorySource({}).exhausted());
  CHECK(MemorySource({MakeFrame(20, 1)}, 0).exhausted());
  MemorySource only_short({MakeFrame(3, 1)});
  CHECK_FALSE(only_short.Peek().has_value());
  CHECK(only_short.exhausted());
}

TEST_CASE("a memory sink keeps frames up to its bound and reports the rest") {
  MemorySink sink(100);
  sink.Accept(MakeFrame(60, 1));
  sink.Accept(MakeFrame(41, 2));
  sink.Accept(MakeFrame(40, 3));
  CHECK(sink.frames() == std::vector<Frame>{MakeFrame(60, 1), MakeFrame(40, 3)});
  CHECK(sink.stats().frames_from_nic == 3);
  CHECK(sink.stats().lost == 1);
  CHECK(sink.stats().lost_bytes == 41);
  CHECK(sink.Close().code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("the null wire has nothing and takes everything") {
  NullWire wire;
  CHECK_FALSE(wire.Peek().has_value());
  CHECK(wire.exhausted());
  wire.Accept(MakeFrame(64, 1));
  CHECK(wire.stats().frames_from_nic == 1);
  CHECK(wire.stats().lost == 0);
  CHECK(wire.Close().ok());
}

TEST_CASE("a frame sent to a source-only wire counts as lost") {
  MemorySource source({});
  source.Accept(MakeFrame(64, 1));
  CHECK(source.stats().lost == 1);
}

TEST_CASE("a limit ends the supply after that many frames") {
  MemorySource source({MakeFrame(20, 1), MakeFrame(20, 2), MakeFrame(5, 0), MakeFrame(20, 3)});
  LimitedWire limited(source, 2);
  CHECK(Drain(limited).size() == 2);
  CHECK(limited.exhausted());
  CHECK_FALSE(source.exhausted());
  CHECK(limited.stats().frames_to_nic == 2);
  CHECK(limited.stats().refused == 0);  // what lies behind the limit was not looked at
}

TEST_CASE("stopping ends the supply at once") {
  MemorySource source({MakeFrame(20, 1), MakeFrame(20, 2)});
  LimitedWire limited(source);
  CHECK_FALSE(limited.exhausted());
  CHECK(limited.Peek().has_value());
  CHECK(limited.frame_waiting());
  limited.Pop();
  CHECK_FALSE(limited.frame_waiting());
  CHECK(limited.Peek().has_value());
  limited.Stop();
  CHECK_FALSE(limited.exhausted());  // whoever was shown a frame may still take it
  CHECK_FALSE(limited.Peek().has_value());
  CHECK(limited.exhausted());
  CHECK_FALSE(limited.frame_waiting());
  limited.Pop();  // shows nothing: takes nothing
  CHECK(source.stats().frames_to_nic == 1);
}

TEST_CASE("a frame that was shown before the stop can be taken, and is the last") {
  MemorySource source({MakeFrame(20, 1), MakeFrame(20, 2)});
  LimitedWire limited(source);
  CHECK(limited.Peek().has_value());
  limited.Stop();
  limited.Pop();
  CHECK(limited.exhausted());
  CHECK_FALSE(limited.Peek().has_value());
  CHECK(source.stats().frames_to_nic == 1);
}

TEST_CASE("wires that share a limit take no more in sum, and an idle one holds nothing back") {
  MemorySource a(std::vector<Frame>(10, MakeFrame(20, 1)));
  NullWire idle;
  MemorySource b(std::vector<Frame>(10, MakeFrame(20, 2)));
  FrameBudget budget(7);
  LimitedWire first(a, budget);
  LimitedWire second(idle, budget);
  LimitedWire third(b, budget);
  for (int i = 0; i < 3; ++i) {
    CHECK(first.Peek().has_value());
    first.Pop();
  }
  CHECK(first.Peek().has_value());  // the fourth is its own, taken or not
  CHECK_FALSE(second.Peek().has_value());
  CHECK(Drain(third).size() == 3);
  CHECK(third.exhausted());
  CHECK_FALSE(first.exhausted());
  CHECK(Drain(first).size() == 1);
  CHECK(first.exhausted());
  CHECK(a.stats().frames_to_nic + b.stats().frames_to_nic == 7);
}

TEST_CASE("without a limit the inner wire's end is the end") {
  MemorySource source({MakeFrame(20, 1)});
  LimitedWire limited(source);
  CHECK(Drain(limited).size() == 1);
  CHECK(limited.exhausted());
}

}  // namespace
}  // namespace dmakit::nic
