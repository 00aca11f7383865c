// SPDX-License-Identifier: Apache-2.0
//
// Forwarding with threads: the device models on two of their own, the queues on others.

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dma/host/clock.h"
#include "nic/cmd/forward.h"
#include "nic/cmd/report.h"
#include "nic/enic/backend.h"
#include "nic/wire/counters.h"
#include "nic/wire/generator.h"
#include "nic/wire/limited_wire.h"
#include "nic/wire/null_wire.h"
#include "tests/catch.h"
#include "tests/nic/cmd/pair_wire.h"

namespace dmakit::nic::cmd {
namespace {

using testing::PairWire;

constexpr uint32_t kFlows = 16;

// Takes what a Generator of kFlows flows made, whose frames carry their number, and checks that
// each flow is complete and in order.
class FlowSink final : public Wire {
 public:
  std::optional<std::span<const std::byte>> Peek() override { return std::nullopt; }
  void Pop() override {}
  bool exhausted() const override { return true; }
  void Accept(std::span<const std::byte> frame) override {
    counters_.FromNic(frame.size());
    uint32_t n = 0;
    for (size_t i = 46; i < 50; ++i) n = (n << 8) | std::to_integer<uint32_t>(frame[i]);
    const uint32_t flow = n % kFlows;
    const auto last = last_.find(flow);
    const uint32_t expected = last == last_.end() ? flow : last->second + kFlows;
    if (n != expected) ++wrong_;
    last_[flow] = n;
  }
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return counters_.Get(); }

  uint64_t wrong() const { return wrong_; }  // once the model has ended

 private:
  std::map<uint32_t, uint32_t> last_;
  uint64_t wrong_ = 0;
  internal::WireCounters counters_;
};

std::unique_ptr<Generator> Frames(uint64_t count) {
  auto options = Generator::Parse(absl::StrCat("size=60-1514,flows=", kFlows,
                                               count == 0 ? "" : absl::StrCat(",count=", count)));
  REQUIRE(options.ok());
  auto generator = Generator::Create(*options);
  REQUIRE(generator.ok());
  return *std::move(generator);
}

struct Case {
  bool both = false;
  uint32_t queues = 1;
  uint32_t threads = 1;
  dma::Policy policy = dma::Policy::kPersistent;
};

RigOptions OptionsOf(const Case& c, Backend& backend) {
  RigOptions options;
  options.in.backend = options.out.backend = &backend;
  options.both = c.both;
  options.threaded = true;
  options.queues = c.queues;
  options.ring = 128;
  options.mtu = 1500;
  options.policy = c.policy;
  options.audit = AuditMode::kOn;
  return options;
}

RunRecord Run(const Case& c, Backend& backend, Wire& in, Wire& out, RunLimits limits,
              const RunHooks& hooks) {
  const RigOptions options = OptionsOf(c, backend);
  auto rig = Rig::Create(options);
  REQUIRE(rig.ok());
  limits.threads = c.threads;
  auto run = RunRig(**rig, options, limits, in, out, hooks);
  REQUIRE(run.ok());
  return *std::move(run);
}

void CheckClean(const RunRecord& run) {
  const Totals totals = ComputeTotals(run);
  for (const std::string& problem : FindProblems(run, totals)) UNSCOPED_INFO(problem);
  CHECK(FindProblems(run, totals).empty());
  CHECK(run.rig.audit_summary.warnings == 0);
}

TEST_CASE("threads keep every flow in order and every count right") {
  constexpr uint64_t kFrames = 6000;
  const auto backend = enic::NewBackend();
  const Case cases[] = {
      {.both = false, .queues = 1, .threads = 1},
      {.both = false, .queues = 4, .threads = 4},
      {.both = false, .queues = 3, .threads = 2, .policy = dma::Policy::kDeferred},
      {.both = true, .queues = 1, .threads = 1},
      {.both = true, .queues = 3, .threads = 3},
      {.both = true, .queues = 2, .threads = 2, .policy = dma::Policy::kStrict},
  };
  for (const Case& c : cases) {
    INFO(c.both << " " << c.queues << " " << c.threads << " " << dma::Name(c.policy));
    const auto left = Frames(kFrames);
    const auto right = Frames(kFrames);
    FlowSink from_left;
    FlowSink from_right;
    PairWire in(*left, from_right);
    PairWire out(*right, from_left);
    const RunRecord run = Run(c, *backend, in, out, {}, {});
    CheckClean(run);
    const uint64_t all = kFrames * (c.both ? 2 : 1);
    CHECK(run.loop.forwarded == all);
    CHECK(ComputeTotals(run).frames_out == all);
    CHECK(run.loop.driver_time > dma::Nanos{0});
    CHECK(from_left.wrong() == 0);
    CHECK(from_right.wrong() == 0);
    CHECK(from_right.stats().frames_from_nic == (c.both ? kFrames : 0));
    uint64_t received = 0;
    for (const NicReport* nic : {&run.rig.in, &run.rig.out}) {
      for (const QueueStats& queue : nic->port.queues) {
        received += queue.rx.frames;
        // A queue's thread sends what it received: no page came back from another one's.
        CHECK(queue.pool.recycle_ring == 0);
      }
    }
    CHECK(received == all);
  }
}

TEST_CASE("a count is exact, also where two devices share it") {
  const auto backend = enic::NewBackend();
  for (const bool both : {false, true}) {
    for (const uint64_t count : {1, 500}) {
      const auto left = Frames(0);
      const auto right = Frames(0);
      NullWire sink;
      NullWire other;
      PairWire in(*left, sink);
      PairWire out(*right, other);
      const Case c{.both = both, .queues = 2, .threads = 2};
      const RunRecord run = Run(c, *backend, in, out, {.count = count}, {});
      CheckClean(run);
      CHECK(ComputeTotals(run).frames_out == count);
    }
  }
}

TEST_CASE("time and an interrupt end threads without loss; progress is told on the way") {
  const auto backend = enic::NewBackend();
  for (const bool by_time : {true, false}) {
    const auto left = Frames(0);
    const auto right = Frames(0);
    NullWire sink;
    NullWire other;
    PairWire in(*left, sink);
    PairWire out(*right, other);
    RunLimits limits;
    RunHooks hooks;
    int asked = 0;
    uint64_t told = 0;
    if (by_time) {
      limits.duration = dma::Nanos{1'100'000'000};
      hooks.progress = [&](dma::Nanos, uint64_t frames, uint64_t) { told = frames; };
    } else {
      hooks.interrupted = [&] { return ++asked > 50; };
    }
    const RunRecord run =
        Run({.both = true, .queues = 2, .threads = 2}, *backend, in, out, limits, hooks);
    CheckClean(run);
    CHECK(run.loop.interrupted == !by_time);
    CHECK(run.loop.forwarded > 0);
    CHECK((told > 0) == by_time);
  }
}

// Never exhausted, and never a frame: as a TAP with nobody at it.
class QuietWire final : public Wire {
 public:
  std::optional<std::span<const std::byte>> Peek() override { return std::nullopt; }
  void Pop() override {}
  bool exhausted() const override { return false; }
  void Accept(std::span<const std::byte>) override {}
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return {}; }
};

TEST_CASE("with nothing to do, threads sleep and the run waits for its time") {
  const auto backend = enic::NewBackend();
  QuietWire in;
  QuietWire out;
  // Longer than the limit after which frames that do not move are a failure.
  const RunRecord run = Run({.both = true, .queues = 1, .threads = 1}, *backend, in, out,
                            {.duration = dma::Nanos{2'200'000'000}}, {});
  CheckClean(run);
  CHECK(run.loop.elapsed >= dma::Nanos{2'200'000'000});
  CHECK(run.loop.forwarded == 0);
}

// Starts threads until it has started `most`.
class FewThreads final : public dma::host::ThreadStarter {
 public:
  explicit FewThreads(int most) : left_(most) {}
  absl::StatusOr<std::jthread> Start(std::string_view name,
                                     std::function<void(std::stop_token)> body) override {
    if (left_-- == 0) return absl::ResourceExhaustedError("no thread left");
    return threads_.Start(name, std::move(body));
  }

 private:
  int left_;
  dma::host::SystemThreads threads_;
};

TEST_CASE("threads that cannot be started end the run in words, and leave nothing") {
  const auto backend = enic::NewBackend();
  for (const int started : {0, 1}) {
    const Case c{.both = true, .queues = 2, .threads = 2};
    auto rig = Rig::Create(OptionsOf(c, *backend));
    REQUIRE(rig.ok());
    QuietWire in;
    QuietWire out;
    LimitedWire source(in);
    LimitedWire back(out);
    (*rig)->Plug(source, back);
    REQUIRE((*rig)->Start().ok());
    FewThreads starter(started);
    const ForwardLoop::Options options{.queues = 2, .threads = 2, .starter = &starter};
    const auto result =
        ForwardLoop((*rig)->in(), (*rig)->out(), source, &back, (*rig)->clock(), options).Run();
    CHECK(result.stalled == "no thread left");
    const RigReport report = (*rig)->Finish();
    CHECK(report.problems.empty());
    CHECK(report.in.domain.live_mappings + report.out.domain.live_mappings == 0);
    CHECK(report.audit_summary.errors == 0);
  }
}

}  // namespace
}  // namespace dmakit::nic::cmd
