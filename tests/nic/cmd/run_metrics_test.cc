// SPDX-License-Identifier: Apache-2.0
//
// What --stats-format writes, and that docs/stats.md says what it is.

#include "nic/cmd/run_metrics.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "nic/metric_tables.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/nic/prometheus.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic::cmd {
namespace {

using testing::PrometheusReader;
using testing::ReadFile;

// A run that has everything there can be.
RunRecord Everything() {
  RunRecord run;
  run.rig.in.port.name = "enic0";
  run.rig.out.port.name = "enic1";
  for (NicReport* nic : {&run.rig.in, &run.rig.out}) {
    nic->port.queues.resize(2);
    nic->walks.emplace().walks = 7;
    nic->violation_count = 3;
  }
  run.rig.in.port.queues[1].rx.frames = 11;
  run.rig.in.port.queues[1].pool.alloc_fast = 12;
  run.rig.out.port.queues[0].tx.frames = 13;
  run.source.frames_to_nic = 14;
  run.rig.space.name = "forward";
  run.rig.space.stats.maps = 15;
  run.rig.space.flush.emplace().lanes = 16;
  run.rig.space.devices = {{"enic0", {.bounced_maps = 17}}, {"enic1", {.maps = 18}}};
  run.rig.audit = AuditMode::kOn;
  run.rig.audit_summary.json = R"({"errors": 1})";
  run.rig.audit_summary.totals = {{"wrong-size", 19}, {"leaked", 0}};
  return run;
}

TEST_CASE("Prometheus reads a run, and every value is there") {
  RunRecord run = Everything();
  run.rig.in.port.name = "odd \"\xff\\\nname";
  const Totals totals = ComputeTotals(run);
  PrometheusReader reader;
  CHECK(reader.Read(ToStats(StatsFormat::kPrometheus, run, totals)).empty());
  CHECK(reader.samples().size() == RunSamples(run, totals).size());
  const std::string odd = "odd \"\xef\xbf\xbd\\\nname";
  const auto value = [&](const std::string& name, const PrometheusReader::Labels& labels) {
    return reader.samples().at({"dmakit_" + name, labels});
  };
  CHECK(value("rx_packets_total", {{"device", odd}, {"queue", "1"}}) == 11);
  CHECK(value("page_pool_alloc_fast_total", {{"device", odd}, {"queue", "1"}}) == 12);
  CHECK(value("tx_packets_total", {{"device", "enic1"}, {"queue", "0"}}) == 13);
  CHECK(value("wire_to_nic_packets_total", {{"device", odd}}) == 14);
  CHECK(value("space_maps_total", {{"space", "forward"}}) == 15);
  CHECK(value("flush_lanes", {{"space", "forward"}}) == 16);
  CHECK(value("device_bounced_maps_total", {{"device", "enic0"}}) == 17);
  CHECK(value("device_maps_total", {{"device", "enic1"}}) == 18);
  CHECK(value("audit_reports_total", {{"class", "wrong-size"}}) == 19);
  CHECK(value("audit_reports_total", {{"class", "leaked"}}) == 0);
  CHECK(value("run_frames_in_total", {}) == 14);
  CHECK(value("iommu_walks_total", {{"device", "enic1"}}) == 7);
  CHECK(value("model_violations_total", {{"device", "enic1"}}) == 3);
}

TEST_CASE("text has the same numbers under the same names") {
  const RunRecord run = Everything();
  const std::string text = ToStats(StatsFormat::kText, run, ComputeTotals(run));
  CHECK(text.starts_with("all:\n     run_frames_in: 14\n"));
  CHECK(text.find("device=enic0 queue=1:\n     rx_packets: 11\n") != std::string::npos);
  CHECK(text.find("class=wrong-size:\n     audit_reports: 19\n") != std::string::npos);
}

std::vector<std::string> Keys(const nlohmann::ordered_json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

TEST_CASE("the keys of the JSON document are those that programs read") {
  using Names = std::vector<std::string>;
  const RunRecord run = Everything();
  const auto json =
      nlohmann::ordered_json::parse(ToStats(StatsFormat::kJson, run, ComputeTotals(run)));
  CHECK(Keys(json) == Names{"frames_in",
                            "frames_out",
                            "bytes_in",
                            "bytes_out",
                            "frames_dropped",
                            "dma_maps",
                            "dma_unmaps",
                            "iotlb_invalidations",
                            "iommu_walks",
                            "iommu_faults",
                            "live_mappings_at_exit",
                            "pool_bytes",
                            "audit_errors",
                            "driver_ns_per_frame",
                            "elapsed_ns",
                            "interrupted",
                            "options",
                            "policy_fallback",
                            "problems",
                            "audit",
                            "ports",
                            "address_space"});
  const auto& in = json["ports"][0];
  const auto& out = json["ports"][1];
  CHECK(Keys(in) == Names{"device", "direction", "queues", "wire", "domain", "iommu", "model"});
  CHECK(in["queues"].size() == 2);
  CHECK(Keys(in["queues"][1]) == Names{"queue", "rx", "pool"});
  CHECK(Keys(out["queues"][1]) == Names{"queue", "tx"});
  CHECK(Keys(in["queues"][0]["rx"]) ==
        Names{"frames", "bytes", "dropped", "bad_fcs", "truncated", "bad_completions",
              "device_no_buffer", "refill_failed", "skipped", "left_at_stop", "doorbells",
              "ring_allocations", "info_maps", "posted", "kept", "device_error"});
  CHECK(Keys(out["queues"][0]["tx"]) ==
        Names{"frames", "bytes", "dropped", "too_long", "too_many_segments", "empty",
              "unsupported_offload", "addressing_failed", "device_errors", "bad_completions",
              "ring_full", "doorbells", "ring_allocations", "list_maps", "in_flight",
              "device_error"});
  CHECK(Keys(in["queues"][0]["pool"]) == Names{"alloc_fast",
                                               "alloc_slow",
                                               "alloc_slow_high_order",
                                               "alloc_empty",
                                               "alloc_refill",
                                               "alloc_waive",
                                               "recycle_cached",
                                               "recycle_ring",
                                               "alloc_failed_cap",
                                               "alloc_failed_memory",
                                               "alloc_failed_map",
                                               "order_fallbacks",
                                               "bad_releases",
                                               "maps",
                                               "unmaps",
                                               "pages",
                                               "pages_peak",
                                               "bytes",
                                               "bytes_peak",
                                               "pages_waiting_flush",
                                               "pages_quarantined"});
  CHECK(Keys(in["wire"]) == Names{"frames_to_nic", "bytes_to_nic", "frames_from_nic",
                                  "bytes_from_nic", "refused", "refused_bytes", "refused_short",
                                  "refused_cut", "lost", "lost_bytes"});
  CHECK(Keys(in["domain"]) ==
        Names{"maps", "unmaps", "invalidations", "live_mappings", "mapped_bytes"});
  CHECK(Keys(in["iommu"]) == Names{"accesses", "iotlb_hits", "walks", "levels_read",
                                   "walk_cache_hits", "faults", "stale_uses", "lines_evicted"});
  CHECK(Keys(in["model"]) == Names{"violations"});
  CHECK(json["address_space"]["name"] == "forward");
  CHECK(json["address_space"]["maps"] == 15);
  CHECK(json["address_space"]["flush_queue"]["lanes"] == 16);
  CHECK(json["address_space"]["devices"][0]["device"] == "enic0");
  CHECK(json["address_space"]["devices"][0]["bounced_maps"] == 17);
}

// --- docs/stats.md
// ----------------------------------------------------------------------------------

struct Row {
  std::set<std::string> labels;
  std::string key;
  std::string unit;
};

// What stands between backquotes.
std::vector<std::string> Quoted(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  std::string word;
  for (bool inside = false; std::getline(in, word, '`'); inside = !inside) {
    if (inside) words.push_back(word);
  }
  return words;
}

// Rows of four cells below a line "Labels: ... .", by name.
std::map<std::string, Row> Documented() {
  std::map<std::string, Row> rows;
  std::istringstream in(ReadFile("docs/stats.md"));
  std::set<std::string> labels;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("Labels: ")) {
      const auto words = Quoted(line.substr(0, line.find('.')));
      labels = {words.begin(), words.end()};
    }
    if (!line.starts_with("| `") || std::count(line.begin(), line.end(), '|') != 5) continue;
    const auto words = Quoted(line);
    std::istringstream cells(line);
    std::string unit;
    for (int i = 0; i < 4; ++i) std::getline(cells, unit, '|');
    INFO(line);
    REQUIRE(words.size() >= 2);
    CHECK(rows.emplace(words[0], Row{labels, words[1], unit}).second);
  }
  return rows;
}

TEST_CASE("docs/stats.md names every metric, and no other") {
  auto rows = Documented();
  REQUIRE_FALSE(rows.empty());
  std::vector<const MetricInfo*> known = LibraryMetrics();
  for (const Metric<Totals>& metric : TotalMetrics()) known.push_back(&metric.info);
  for (const MetricInfo* info : known) {
    INFO(info->name);
    const auto row = rows.find(std::string(info->name));
    CHECK(row != rows.end());
    if (row == rows.end()) continue;
    CHECK(row->second.key == info->key);
    const std::string gauge = info->kind == MetricKind::kGauge ? ", gauge" : "";
    CHECK(row->second.unit == " " + std::string(info->unit) + gauge + " ");
  }
  for (const auto& [name, row] : rows) {
    INFO(name);
    CHECK(std::any_of(known.begin(), known.end(), [&](auto* i) { return i->name == name; }));
  }
}

TEST_CASE("docs/stats.md names the labels that a run has") {
  const auto rows = Documented();
  const RunRecord run = Everything();
  std::set<std::string> seen;
  for (const MetricSample& sample : RunSamples(run, ComputeTotals(run))) {
    std::set<std::string> labels;
    for (const auto& [name, value] : sample.place->labels) labels.insert(name);
    const std::string name(sample.info->name);
    INFO(name);
    REQUIRE(rows.contains(name));
    CHECK(rows.at(name).labels == labels);
    seen.insert(name);
  }
  CHECK(seen.size() == rows.size());
}

}  // namespace
}  // namespace dmakit::nic::cmd
