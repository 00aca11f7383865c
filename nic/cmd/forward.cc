// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/forward.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/cmd/cable.h"
#include "nic/wire/limited_wire.h"
#include "nic/wire/open.h"
#include "nic/wire/spec.h"

namespace dmakit::nic::cmd {
namespace {

uint64_t Dropped(const PortStats& stats) {
  uint64_t dropped = 0;
  for (const QueueStats& queue : stats.queues) dropped += queue.rx.dropped + queue.tx.dropped;
  return dropped;
}

// By identity where both exist, else by name.
bool SameFile(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(a, error) && fs::exists(b, error)) {
    return fs::is_regular_file(a, error) && fs::equivalent(a, b, error);
  }
  return fs::weakly_canonical(a, error) == fs::weakly_canonical(b, error);
}

absl::Status Different(std::string_view option_a, const std::optional<std::string>& a,
                       std::string_view option_b, const std::optional<std::string>& b) {
  if (!a || !b || !SameFile(*a, *b)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(option_b), ": ", Quote(*b),
                                                 " is the file of ", std::string(option_a),
                                                 " and would overwrite it; give another path"));
}

// A real NIC's is nothing that could be opened.
absl::StatusOr<std::unique_ptr<Wire>> Open(std::string_view option, const PortSpec& port,
                                           WireRole role, std::string_view working_directory) {
  if (!port.wire) return std::make_unique<Cable>();
  auto wire = OpenWire(*port.wire, role, working_directory);
  if (wire.ok()) return wire;
  return absl::Status(wire.status().code(),
                      absl::StrCat(std::string(option), ": ", wire.status().message()));
}

absl::StatusOr<RigOptions::End> FindEnd(const BackendRegistry& registry, std::string_view option,
                                        const PortSpec& port) {
  const auto backend = registry.Find(port.backend);
  if (!backend.ok()) {
    return absl::Status(backend.status().code(),
                        absl::StrCat(std::string(option), ": ", backend.status().message()));
  }
  if ((*backend)->real() && port.wire) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(option), ": ", port.backend, " is a real NIC and has a cable of ",
                     "its own; leave out ", Quote("wire=" + *port.wire)));
  }
  if (!(*backend)->real() && !port.wire) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(option), ": ", Quote(port.backend),
        " has no wire=, which must come last; a port is BACKEND[,key=value...],wire=WIRE, as in ",
        port.backend, ",wire=pcap:in.pcap"));
  }
  return RigOptions::End{*backend, port.keys};
}

std::optional<std::string> FileOf(const PortSpec& port, std::string_view working_directory) {
  return port.wire ? WireFile(*port.wire, working_directory) : std::nullopt;
}

// Refuses what would destroy a file: input, output and statistics must be three different ones.
absl::Status CheckFiles(const ForwardOptions& options, std::string_view working_directory) {
  const auto in = FileOf(options.in, working_directory);
  const auto out = FileOf(options.out, working_directory);
  std::optional<std::string> stats;
  if (options.stats_file) stats = ResolvePath(*options.stats_file, working_directory);
  for (const absl::Status& s :
       {Different("--in", in, "--out", out), Different("--in", in, "--stats", stats),
        Different("--out", out, "--stats", stats)}) {
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunRecord> RunForward(const BackendRegistry& registry, const ForwardOptions& options,
                                     std::string_view working_directory, const RunHooks& hooks) {
  RigOptions rig_options;
  rig_options.both = options.both;
  rig_options.threaded = options.threads != 0;
  rig_options.queues = options.queues;
  rig_options.ring = options.ring;
  rig_options.mtu = options.mtu;
  rig_options.page_order = options.page_order;
  rig_options.policy = options.policy;
  rig_options.audit = options.audit;
  auto in = FindEnd(registry, "--in", options.in);
  if (!in.ok()) return in.status();
  rig_options.in = *std::move(in);
  auto out = FindEnd(registry, "--out", options.out);
  if (!out.ok()) return out.status();
  rig_options.out = *std::move(out);
  if (absl::Status s = CheckFiles(options, working_directory); !s.ok()) return s;

  // The output last: nothing is overwritten before all the rest is known to be right.
  auto source = Open("--in", options.in, options.both ? WireRole::kBoth : WireRole::kSource,
                     working_directory);
  if (!source.ok()) return source.status();
  auto rig = Rig::Create(rig_options);
  if (!rig.ok()) return rig.status();
  auto sink = Open("--out", options.out, options.both ? WireRole::kBoth : WireRole::kSink,
                   working_directory);
  if (!sink.ok()) return sink.status();
  const RunLimits limits = {options.count, options.duration, options.burst, options.threads};
  return RunRig(**rig, rig_options, limits, **source, **sink, hooks);
}

absl::StatusOr<RunRecord> RunRig(Rig& rig, const RigOptions& options, const RunLimits& limits,
                                 Wire& source, Wire& sink, const RunHooks& hooks) {
  RunRecord record;
  record.both = options.both;
  record.mtu = options.mtu;
  record.queues = options.queues;
  record.threads = limits.threads;
  record.ring = options.ring;
  record.policy = options.policy;
  Cable* const in_cable = dynamic_cast<Cable*>(&source);  // nullptr: a software NIC's wire
  Cable* const out_cable = dynamic_cast<Cable*>(&sink);
  FrameBudget budget(limits.count.value_or(FrameBudget::kNoLimit));
  LimitedWire limited(source, budget);
  LimitedWire back(sink, budget);
  rig.Plug(limited, options.both ? static_cast<Wire&>(back) : sink);
  if (absl::Status s = rig.Start(); !s.ok()) return s;
  {
    ForwardLoop::Options loop;
    loop.queues = options.queues;
    loop.burst = limits.burst;
    loop.threads = limits.threads;
    loop.starter = &rig.threads();
    loop.duration = limits.duration;
    loop.interrupted = hooks.interrupted;
    if (hooks.progress) {
      loop.progress = [&](dma::Nanos elapsed, uint64_t forwarded) {
        hooks.progress(elapsed, forwarded,
                       Dropped(rig.in().port->stats()) + Dropped(rig.out().port->stats()) +
                           source.stats().refused + sink.stats().lost +
                           (options.both ? sink.stats().refused + source.stats().lost : 0));
      };
    }
    if (in_cable != nullptr) in_cable->Connect(*rig.in().port);
    if (out_cable != nullptr) out_cable->Connect(*rig.out().port);
    loop.exhausted = [&] {
      if (in_cable != nullptr) in_cable->Freeze();
      if (out_cable != nullptr) out_cable->Freeze();
    };
    LimitedWire* const other = options.both ? &back : nullptr;
    record.loop =
        ForwardLoop(rig.in(), rig.out(), limited, other, rig.clock(), std::move(loop)).Run();
  }
  record.rig = rig.Finish();
  if (in_cable != nullptr) in_cable->Disconnect(record.rig.in.port);
  if (out_cable != nullptr) out_cable->Disconnect(record.rig.out.port);
  record.source_status = source.Close();
  record.sink_status = sink.Close();
  record.source = source.stats();
  record.sink = sink.stats();
  return record;
}

}  // namespace dmakit::nic::cmd
