// SPDX-License-Identifier: Apache-2.0
//
// Forwarding in both directions between two ports, each with receive and transmit queues.

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nic/cmd/forward.h"
#include "nic/cmd/report.h"
#include "nic/enic/backend.h"
#include "nic/wire/generator.h"
#include "nic/wire/memory_wire.h"
#include "nic/wire/null_wire.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/nic/cmd/fake_backend.h"
#include "tests/nic/cmd/frozen_backend.h"
#include "tests/nic/cmd/pair_wire.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic::cmd {
namespace {

using absl::StrContains;
using testing::MakeFrame;
using testing::PairWire;

constexpr dma::Policy kPolicies[] = {dma::Policy::kPersistent, dma::Policy::kDeferred,
                                     dma::Policy::kStrict};

std::vector<Frame> SomeFrames(size_t count, uint32_t seed) {
  std::vector<Frame> frames;
  for (size_t i = 0; i < count; ++i) {
    const auto n = static_cast<uint32_t>(i);
    frames.push_back(MakeFrame(14 + (n + seed) * 37 % 1500, n * 2 + seed));
  }
  return frames;
}

RigOptions BothWays(Backend& backend) {
  RigOptions options;
  options.in.backend = options.out.backend = &backend;
  options.both = true;
  options.mtu = 1500;
  options.ring = 64;
  return options;
}

// Two memory wires, plugged into the in and the out port.
struct Ends {
  Ends(std::vector<Frame> in_frames, std::vector<Frame> out_frames, uint64_t repeat = 1)
      : in_source(std::move(in_frames), repeat), out_source(std::move(out_frames), repeat) {}
  MemorySource in_source;
  MemorySource out_source;
  MemorySink in_sink;
  MemorySink out_sink;
  PairWire in{in_source, in_sink};
  PairWire out{out_source, out_sink};
};

RunRecord Run(const RigOptions& options, Wire& in, Wire& out, const RunLimits& limits = {},
              const RunHooks& hooks = {}) {
  auto rig = Rig::Create(options);
  REQUIRE(rig.ok());
  auto run = RunRig(**rig, options, limits, in, out, hooks);
  REQUIRE(run.ok());
  return *std::move(run);
}

std::string Problems(const RunRecord& run) {
  std::string words;
  for (const std::string& p : FindProblems(run, ComputeTotals(run)))
    absl::StrAppend(&words, p, "\n");
  return words;
}

TEST_CASE("both directions arrive byte for byte, in order, under every policy") {
  const auto left = SomeFrames(900, 0);
  const auto right = SomeFrames(700, 1);
  const std::unique_ptr<Backend> backends[] = {enic::NewBackend(), testing::NewFakeBackend()};
  for (const auto& backend : backends) {
    for (const dma::Policy policy : kPolicies) {
      INFO(backend->name() << " " << dma::Name(policy));
      RigOptions options = BothWays(*backend);
      options.policy = policy;
      options.audit = AuditMode::kChecked;
      Ends ends(left, right);
      const RunRecord run = Run(options, ends.in, ends.out);
      CHECK(Problems(run) == "");
      CHECK(ends.out_sink.frames() == left);
      CHECK(ends.in_sink.frames() == right);
      CHECK(run.loop.forwarded == 1600);
      const Totals totals = ComputeTotals(run);
      CHECK(totals.frames_in == 1600);
      CHECK(totals.frames_out == 1600);
      CHECK(totals.bytes_in == totals.bytes_out);
      CHECK(totals.live_mappings_at_exit == 0);
      for (const NicReport* nic : {&run.rig.in, &run.rig.out}) {
        // One thread has all the pools: nothing came back with an atomic.
        CHECK(nic->port.queues[0].pool.recycle_cached > 0);
        CHECK(nic->port.queues[0].pool.recycle_ring == 0);
      }
    }
  }
}

TEST_CASE("several queues both ways lose nothing") {
  const auto left = SomeFrames(600, 0);
  const auto right = SomeFrames(600, 1);
  const auto backend = testing::NewFakeBackend();  // deals frames to its queues in turn
  for (const uint32_t queues : {2u, 3u}) {
    RigOptions options = BothWays(*backend);
    options.queues = queues;
    Ends ends(left, right);
    const RunRecord run = Run(options, ends.in, ends.out, {.burst = 7});
    CHECK(Problems(run) == "");
    const auto set = [](const std::vector<Frame>& frames) {
      return std::multiset<Frame>(frames.begin(), frames.end());
    };
    CHECK(set(ends.out_sink.frames()) == set(left));
    CHECK(set(ends.in_sink.frames()) == set(right));
  }
}

TEST_CASE("statistics of both directions: sums at the top, both halves of each port") {
  const auto backend = enic::NewBackend();
  Ends ends(SomeFrames(30, 0), SomeFrames(50, 1));
  const RunRecord run = Run(BothWays(*backend), ends.in, ends.out);
  const auto json = nlohmann::json::parse(ToJson(run, ComputeTotals(run)));
  CHECK(json["frames_in"] == 80);
  CHECK(json["frames_out"] == 80);
  CHECK(json["options"]["both"] == true);
  for (int port = 0; port < 2; ++port) {
    const auto& p = json["ports"][port];
    CHECK(p["direction"] == "both");
    CHECK(p["queues"][0]["rx"]["frames"] == (port == 0 ? 30 : 50));
    CHECK(p["queues"][0]["tx"]["frames"] == (port == 0 ? 50 : 30));
    CHECK(p["queues"][0]["pool"]["pages_peak"] > 0);
    CHECK(p["wire"]["frames_to_nic"] == (port == 0 ? 30 : 50));
    CHECK(p["wire"]["frames_from_nic"] == (port == 0 ? 50 : 30));
  }
  CHECK(json["pool_bytes"] ==
        run.rig.in.port.queues[0].pool.bytes_peak + run.rig.out.port.queues[0].pool.bytes_peak);
}

TEST_CASE("a count holds for both directions together") {
  const auto backend = enic::NewBackend();
  for (const uint64_t count : {1, 2, 33, 100}) {
    Ends ends(SomeFrames(90, 0), SomeFrames(90, 1));
    const RunRecord run = Run(BothWays(*backend), ends.in, ends.out, {.count = count});
    CHECK(Problems(run) == "");
    CHECK(ends.in_sink.frames().size() + ends.out_sink.frames().size() == count);
  }
}

TEST_CASE("time and an interrupt end both directions, and nothing is lost") {
  const auto backend = enic::NewBackend();
  for (const bool by_time : {true, false}) {
    auto left = Generator::Create(*Generator::Parse("size=64"));
    auto right = Generator::Create(*Generator::Parse("size=60-1514,flows=4"));
    NullWire sink_a;
    NullWire sink_b;
    PairWire in(**left, sink_a);
    PairWire out(**right, sink_b);
    RunLimits limits;
    RunHooks hooks;
    int asked = 0;
    if (by_time) limits.duration = dma::Nanos{50'000'000};
    if (!by_time) hooks.interrupted = [&] { return ++asked > 20; };
    const RunRecord run = Run(BothWays(*backend), in, out, limits, hooks);
    CHECK(Problems(run) == "");
    CHECK(run.loop.interrupted == !by_time);
    CHECK(run.source.frames_from_nic > 0);
    CHECK(run.sink.frames_from_nic > 0);
  }
}

TEST_CASE("one direction may be idle, or refused by its wire") {
  const auto backend = enic::NewBackend();
  Ends idle({}, SomeFrames(100, 1));
  CHECK(Problems(Run(BothWays(*backend), idle.in, idle.out)) == "");
  CHECK(idle.in_sink.frames().size() == 100);

  Ends bad({MakeFrame(13, 0)}, {MakeFrame(1519, 1), MakeFrame(60, 2), MakeFrame(10, 3)});
  CHECK(Problems(Run(BothWays(*backend), bad.in, bad.out)) ==
        "3 of 4 frames lost (2 shorter than 14 bytes, refused at the wire, 1 longer than "
        "--mtu=1500 allows (raise it, up to 9000))\n");
}

TEST_CASE("a port that stops sending does not hold the run, nor leak the other one's packets") {
  for (const bool in_stalls : {true, false}) {
    const auto backend = testing::NewFakeBackend();
    RigOptions options = BothWays(*backend);
    (in_stalls ? options.in : options.out).keys["stall"] = "50";
    Ends ends(SomeFrames(400, 0), SomeFrames(400, 1));
    const RunRecord run = Run(options, ends.in, ends.out);
    CHECK(
        StrContains(run.loop.stalled, "nothing moves: a frame waits that a port does not take, "));
    CHECK(StrContains(run.loop.stalled, "were not finished by the ports"));
    CHECK((in_stalls ? ends.in_sink : ends.out_sink).frames().size() == 50);
    // The other direction is none the worse for it.
    CHECK((in_stalls ? ends.out_sink : ends.in_sink).frames().size() == 400);
    CHECK(ComputeTotals(run).live_mappings_at_exit == 0);
    CHECK(run.rig.problems.empty());
  }
}

// --- Stopping with each port's packets in the other's transmit ring ------------------------------

// Hands `count` frames of each wire to the other port, which does not get to send them.
void Cross(Rig& rig, size_t count) {
  const auto receive = [count](ForwardLoop::Side from) {
    std::vector<Packet> packets(count);
    size_t have = 0;
    for (int i = 0; i < 1000 && have < count; ++i) {
      from.model->Step();
      have += from.port->Receive(0, std::span(packets).subspan(have));
    }
    REQUIRE(have == count);
    return packets;
  };
  std::vector<Packet> to_out = receive(rig.in());
  std::vector<Packet> to_in = receive(rig.out());
  REQUIRE(rig.out().port->Transmit(0, to_out) == count);
  REQUIRE(rig.in().port->Transmit(0, to_in) == count);
}

// `frozen` becomes true once the packets have crossed.
void StopCrossed(Backend& backend, Rig::StopOrder order, dma::Policy policy, bool& frozen) {
  RigOptions options = BothWays(backend);
  options.policy = policy;
  options.audit = AuditMode::kOn;
  options.stop_deadline = dma::Nanos{10'000'000};  // that much is waited for in vain, once
  auto rig = Rig::Create(options);
  REQUIRE(rig.ok());
  const auto left = SomeFrames(20, 0);
  const auto right = SomeFrames(20, 1);
  Ends ends(left, right);
  (*rig)->Plug(ends.in, ends.out);
  REQUIRE((*rig)->Start().ok());
  Cross(**rig, 20);
  frozen = true;
  const RigReport report = (*rig)->Finish(order);
  for (const std::string& problem : report.problems) UNSCOPED_INFO(problem);
  CHECK(report.problems.empty());
  CHECK(ends.out_sink.frames() == left);
  CHECK(ends.in_sink.frames() == right);
  CHECK(report.audit_summary.errors == 0);
  for (const NicReport* nic : {&report.in, &report.out}) {
    CHECK(nic->domain.live_mappings == 0);
    CHECK(nic->walks->faults == 0);
    CHECK(nic->walks->stale_uses == 0);
    CHECK(nic->port.queues[0].tx.frames == 20);
    CHECK(nic->port.queues[0].pool.pages_quarantined == 0);
  }
}

TEST_CASE("either port may be stopped first while each holds packets of the other") {
  const std::unique_ptr<Backend> backends[] = {enic::NewBackend(), testing::NewFakeBackend()};
  for (const auto& backend : backends) {
    for (const auto order : {Rig::StopOrder::kOutFirst, Rig::StopOrder::kInFirst}) {
      for (const dma::Policy policy : kPolicies) {
        INFO(backend->name() << " " << dma::Name(policy));
        bool unused = false;
        StopCrossed(*backend, order, policy, unused);
      }
    }
  }
}

// Then the first port to stop waits for pages that the second still holds, and must not give up on
// them for good.
TEST_CASE("devices that send nothing until they are stopped lose nothing either") {
  bool frozen = false;
  const auto backend = testing::NewFrozenBackend(enic::NewBackend(), frozen);
  for (const auto order : {Rig::StopOrder::kOutFirst, Rig::StopOrder::kInFirst}) {
    frozen = false;
    StopCrossed(*backend, order, dma::Policy::kPersistent, frozen);
  }
}

}  // namespace
}  // namespace dmakit::nic::cmd
