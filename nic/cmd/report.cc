// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/report.h"

#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nic/cmd/run_metrics.h"
#include "nic/metrics_json.h"
#include "nlohmann/json.hpp"

namespace dmakit::nic::cmd {
namespace {

using Json = nlohmann::ordered_json;

// The sum of one counter over the queues of both ports. A port without receive or transmit queues
// has zeros there.
template <typename Get>
uint64_t Sum(const RunRecord& run, Get get) {
  uint64_t sum = 0;
  for (const NicReport* nic : {&run.rig.in, &run.rig.out}) {
    for (const QueueStats& queue : nic->port.queues) sum += get(queue);
  }
  return sum;
}

// The same for the wires: those that frames come from, and those that they go to.
template <typename Get>
uint64_t SumSources(const RunRecord& run, Get get) {
  return get(run.source) + (run.both ? get(run.sink) : 0);
}
template <typename Get>
uint64_t SumSinks(const RunRecord& run, Get get) {
  return get(run.sink) + (run.both ? get(run.source) : 0);
}

// The frames of each direction, as the wires at its two ends counted them.
struct Flow {
  uint64_t in = 0;
  uint64_t out = 0;
  uint64_t lost() const { return in > out ? in - out : 0; }
  uint64_t too_many() const { return out > in ? out - in : 0; }
};
std::vector<Flow> Flows(const RunRecord& run) {
  const auto flow = [](const WireStats& from, const WireStats& to) {
    return Flow{from.frames_to_nic + from.refused, to.frames_from_nic - to.lost};
  };
  std::vector<Flow> flows = {flow(run.source, run.sink)};
  if (run.both) flows.push_back(flow(run.sink, run.source));
  return flows;
}

// What a port is called; the numbers are added by AddJson.
Json PortJson(const NicReport& nic, std::string_view direction) {
  Json queues = Json::array();
  for (size_t q = 0; q < nic.port.queues.size(); ++q) queues.push_back({{"queue", q}});
  return {{"device", nic.port.name}, {"direction", direction}, {"queues", std::move(queues)}};
}

Json SpaceJson(const SpaceReport& space) {
  Json json = {{"name", space.name}, {"devices", Json::array()}};
  for (const auto& [name, stats] : space.devices) json["devices"].push_back({{"device", name}});
  return json;
}

// "5 longer than mtu 1500 allows, 1 ..." for the frames in `totals.frames_dropped`.
std::string ExplainLoss(const RunRecord& run, const Totals& totals) {
  std::vector<std::string> reasons;
  uint64_t explained = 0;
  const auto reason = [&](uint64_t n, std::string_view why) {
    if (n == 0) return;
    explained += n;
    reasons.push_back(absl::StrCat(n, " ", std::string(why)));
  };
  reason(SumSources(run, [](auto& w) { return w.refused_short; }),
         "shorter than 14 bytes, refused at the wire");
  reason(SumSources(run, [](auto& w) { return w.refused_cut; }),
         "cut by the capture's snap length, refused at the wire");
  reason(Sum(run, [](auto& q) { return q.rx.truncated; }),
         absl::StrCat("longer than --mtu=", run.mtu, " allows (raise it, up to 9000)"));
  reason(Sum(run, [](auto& q) { return q.rx.bad_fcs; }), "with a bad FCS");
  reason(Sum(run, [](auto& q) { return q.rx.device_no_buffer; }), "without a receive buffer");
  reason(Sum(run, [](auto& q) { return q.rx.left_at_stop; }), "left in the receive ring");
  reason(Sum(run, [](auto& q) { return q.tx.dropped; }), "dropped by the transmit driver");
  reason(SumSinks(run, [](auto& w) { return w.lost; }), "not written");
  if (explained < totals.frames_dropped) {
    reason(totals.frames_dropped - explained, "unaccounted for");
  }
  return absl::StrJoin(reasons, ", ");
}

// Names of counters that must be zero after a clean run.
std::vector<std::string> WrongCounters(const RunRecord& run) {
  const NicReport& in = run.rig.in;
  const NicReport& out = run.rig.out;
  const std::pair<std::string_view, uint64_t> counters[] = {
      {"stale IOTLB uses",
       (in.walks ? in.walks->stale_uses : 0) + (out.walks ? out.walks->stale_uses : 0)},
      {"device model violations", in.violation_count + out.violation_count},
      {"bad receive completions", Sum(run, [](auto& q) { return q.rx.bad_completions; })},
      {"bad transmit completions", Sum(run, [](auto& q) { return q.tx.bad_completions; })},
      {"bad page releases", Sum(run, [](auto& q) { return q.pool.bad_releases; })},
      {"quarantined pages", Sum(run, [](auto& q) { return q.pool.pages_quarantined; })},
      {"queues stopped by the device",
       Sum(run,
           [](auto& q) { return uint64_t{q.rx.device_error != 0} + (q.tx.device_error != 0); })},
  };
  std::vector<std::string> wrong;
  for (const auto& [name, count] : counters) {
    if (count != 0) wrong.push_back(absl::StrCat(count, " ", std::string(name)));
  }
  return wrong;
}

}  // namespace

Totals ComputeTotals(const RunRecord& run) {
  Totals t;
  t.bytes_in = SumSources(run, [](auto& w) { return w.bytes_to_nic + w.refused_bytes; });
  t.bytes_out = SumSinks(run, [](auto& w) { return w.bytes_from_nic - w.lost_bytes; });
  for (const Flow& flow : Flows(run)) {
    t.frames_in += flow.in;
    t.frames_out += flow.out;
    t.frames_dropped += flow.lost();
  }
  for (const NicReport* nic : {&run.rig.in, &run.rig.out}) {
    if (nic == &run.rig.out && run.rig.shared_domain) break;
    t.dma_maps += nic->domain.maps;
    t.dma_unmaps += nic->domain.unmaps;
    t.iotlb_invalidations += nic->domain.invalidations;
    t.live_mappings_at_exit += nic->domain.live_mappings;
    if (nic->walks) t.iommu_walks += nic->walks->walks;
    t.iommu_faults += nic->fault_count;
  }
  t.audit_errors = run.rig.audit_summary.errors;
  t.pool_bytes = Sum(run, [](auto& q) { return q.pool.bytes_peak; });
  if (run.loop.forwarded != 0) {
    t.driver_ns_per_frame =
        static_cast<double>(run.loop.driver_time.count()) / static_cast<double>(run.loop.forwarded);
  }
  return t;
}

std::vector<std::string> FindProblems(const RunRecord& run, const Totals& totals) {
  std::vector<std::string> problems;
  if (totals.frames_dropped != 0) {
    problems.push_back(absl::StrCat(totals.frames_dropped, " of ", totals.frames_in,
                                    " frames lost (", ExplainLoss(run, totals), ")"));
  }
  uint64_t too_many = 0;
  for (const Flow& flow : Flows(run)) too_many += flow.too_many();
  if (too_many != 0) {
    problems.push_back(
        absl::StrCat(too_many, " more frames out than in: something was sent twice"));
  }
  if (!run.sink_status.ok()) problems.emplace_back(run.sink_status.message());
  if (!run.loop.stalled.empty()) problems.push_back(run.loop.stalled);
  if (totals.iommu_faults != 0) {
    problems.push_back(absl::StrCat(totals.iommu_faults, " IOMMU faults"));
  }
  for (std::string& wrong : WrongCounters(run)) problems.push_back(std::move(wrong));
  if (totals.live_mappings_at_exit != 0) {
    problems.push_back(absl::StrCat(totals.live_mappings_at_exit, " mappings leaked"));
  }
  if (totals.audit_errors != 0) {
    problems.push_back(absl::StrCat(
        totals.audit_errors, " audit errors: ", absl::StrJoin(run.rig.audit_summary.found, ", "),
        totals.audit_errors > run.rig.audit_summary.found.size() ? ", and more" : ""));
  }
  for (const std::string& problem : run.rig.problems) problems.push_back(problem);
  return problems;
}

std::string ToText(const RunRecord& run, const Totals& totals) {
  std::string text;
  for (const Metric<Totals>& metric : TotalMetrics()) {
    const std::string key(metric.info.key);
    if (const auto* whole = std::get_if<uint64_t Totals::*>(&metric.value)) {
      absl::StrAppendFormat(&text, "%-22s %d\n", key, totals.**whole);
    } else {
      absl::StrAppendFormat(&text, "%-22s %.1f\n", key,
                            totals.*std::get<double Totals::*>(metric.value));
    }
  }
  for (const NicReport* nic : {&run.rig.in, &run.rig.out}) {
    for (const std::string& fault : nic->faults) absl::StrAppend(&text, "fault: ", fault, "\n");
    for (const std::string& violation : nic->violations) {
      absl::StrAppend(&text, "violation: ", nic->port.name, ": ", violation, "\n");
    }
  }
  for (const std::string& report : run.rig.audit_summary.reports) {
    absl::StrAppend(&text, "audit: ", report);
    if (!text.ends_with('\n')) text += '\n';
  }
  return text;
}

std::string ToJson(const RunRecord& run, const Totals& totals) {
  Json json;
  const std::vector<MetricSample> samples = RunSamples(run, totals);
  const auto all = std::span(samples);
  const size_t total = TotalMetrics().size();
  AddJson(all.first(total), json);
  json["elapsed_ns"] = run.loop.elapsed.count();
  json["interrupted"] = run.loop.interrupted;
  json["options"] = {{"policy", dma::Name(run.policy)}, {"both", run.both}, {"queues", run.queues},
                     {"threads", run.threads},          {"ring", run.ring}, {"mtu", run.mtu},
                     {"audit", Name(run.rig.audit)}};
  json["policy_fallback"] = run.rig.policy_fallback;
  json["problems"] = FindProblems(run, totals);
  if (run.rig.audit != AuditMode::kOff) {
    json["audit"] = Json::parse(run.rig.audit_summary.json, nullptr, false);
  }
  json["ports"] = Json::array({PortJson(run.rig.in, run.both ? "both" : "in"),
                               PortJson(run.rig.out, run.both ? "both" : "out")});
  json["address_space"] = SpaceJson(run.rig.space);
  AddJson(all.subspan(total), json);
  // Names from the command line may be anything; invalid UTF-8 is replaced, not thrown.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dmakit::nic::cmd
