// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/demo.h"

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nic/cmd/forward.h"
#include "nic/cmd/report.h"
#include "nic/wire/counters.h"
#include "nic/wire/memory_wire.h"
#include "nic/wire/pcap_source.h"

namespace dmakit::nic::cmd {
namespace {

// The capture is replayed this often in a row, so that the figures are those of the steady state.
constexpr uint64_t kRounds = 50;

// Takes the same frames in the same order, over and over; any other counts as lost.
class CompareSink final : public Wire {
 public:
  explicit CompareSink(const std::vector<Frame>& frames) : frames_(frames) {}

  std::optional<std::span<const std::byte>> Peek() override { return std::nullopt; }
  void Pop() override {}
  bool exhausted() const override { return true; }
  void Accept(std::span<const std::byte> frame) override {
    const Frame& want = frames_[next_];
    next_ = (next_ + 1) % frames_.size();
    counters_.FromNic(frame.size());
    if (!std::equal(frame.begin(), frame.end(), want.begin(), want.end())) {
      counters_.Lost(1, frame.size());
    }
  }
  absl::Status Close() override {
    const uint64_t wrong = counters_.Get().lost;
    if (wrong == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(wrong, " frames are not those that went in"));
  }
  WireStats stats() const override { return counters_.Get(); }

 private:
  const std::vector<Frame>& frames_;
  size_t next_ = 0;
  internal::WireCounters counters_;
};

absl::StatusOr<std::vector<Frame>> LoadCapture() {
  auto capture = PcapSource::FromMemory(DemoCapture(), "bundled demo.pcap");
  if (!capture.ok()) return capture.status();
  std::vector<Frame> frames;
  while (const auto frame = (*capture)->Peek()) {
    frames.emplace_back(frame->begin(), frame->end());
    (*capture)->Pop();
  }
  if (absl::Status s = (*capture)->Close(); !s.ok()) return s;
  return frames;
}

struct Sum {
  uint64_t in = 0;
  uint64_t out = 0;
  uint64_t lost = 0;
  uint64_t faults = 0;
};

void PrintRow(std::ostream& out, std::string_view backend, dma::Policy policy, const Totals& t) {
  const auto per_frame = [&](uint64_t n) {
    return static_cast<double>(n) / static_cast<double>(std::max<uint64_t>(t.frames_in, 1));
  };
  out << absl::StrFormat("%-10s %-11s %8d %12.4f %12.4f %20.4f %16.1f %7d\n", std::string(backend),
                         std::string(dma::Name(policy)), t.frames_out, per_frame(t.dma_maps),
                         per_frame(t.dma_unmaps), per_frame(t.iotlb_invalidations),
                         t.driver_ns_per_frame, t.iommu_faults)
      << std::flush;
}

// One row. Returns what was wrong, in words; empty: nothing.
std::string RunOne(Backend& backend, dma::Policy policy, const std::vector<Frame>& frames,
                   const Environment& env, Sum& sum) {
  RigOptions options;
  options.in.backend = options.out.backend = &backend;
  options.policy = policy;
  auto rig = Rig::Create(options);
  if (!rig.ok()) return std::string(rig.status().message());
  MemorySource source(frames, kRounds);
  CompareSink sink(frames);
  RunHooks hooks;
  hooks.interrupted = env.interrupted;
  const auto run = RunRig(**rig, options, {}, source, sink, hooks);
  if (!run.ok()) return std::string(run.status().message());
  const Totals totals = ComputeTotals(*run);
  PrintRow(*env.out, backend.name(), policy, totals);
  sum.in += totals.frames_in;
  sum.out += totals.frames_out;
  sum.lost += totals.frames_dropped;
  sum.faults += totals.iommu_faults;
  return absl::StrJoin(FindProblems(*run, totals), "; ");
}

}  // namespace

int RunDemo(const BackendRegistry& registry, const Environment& env) {
  const auto frames = LoadCapture();
  if (!frames.ok() || frames->empty()) {
    *env.err << "dmakit: demo: the bundled capture is damaged; build the program anew" << std::endl;
    return kExitUsage;
  }
  *env.out << frames->size() << " frames of a real capture, " << kRounds
           << " times, received by one NIC and transmitted by another\n\n"
           << absl::StrFormat("%-10s %-11s %8s %12s %12s %20s %16s %7s\n", "backend", "policy",
                              "frames", "maps/frame", "unmaps/frame", "invalidations/frame",
                              "driver ns/frame", "faults");
  Sum sum;
  int code = kExitDone;
  for (const auto& backend : registry.all()) {
    if (backend->real()) continue;  // the capture is replayed by software NICs
    for (const dma::Policy policy :
         {dma::Policy::kPersistent, dma::Policy::kDeferred, dma::Policy::kStrict}) {
      if (env.interrupted && env.interrupted()) break;
      const std::string problems = RunOne(*backend, policy, *frames, env, sum);
      if (problems.empty()) continue;
      *env.err << "dmakit: demo: " << backend->name() << ", " << dma::Name(policy) << ": "
               << problems << std::endl;
      code = kExitLost;
    }
  }
  *env.out << "\n"
           << sum.in << " frames in, " << sum.out << " frames out, " << sum.lost << " lost, "
           << sum.faults << " IOMMU faults" << std::endl;
  return code;
}

}  // namespace dmakit::nic::cmd
