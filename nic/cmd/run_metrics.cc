// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/run_metrics.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/metric_tables.h"

namespace dmakit::nic::cmd {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;

constexpr Metric<Totals> kTotals[] = {
    {{"run_frames_in", "frames_in", kCounter, "packets",
      "Frames the input wires had to offer, refused ones included"},
     &Totals::frames_in},
    {{"run_frames_out", "frames_out", kCounter, "packets",
      "Frames the output wires have taken and kept"},
     &Totals::frames_out},
    {{"run_bytes_in", "bytes_in", kCounter, "bytes", "Bytes of run_frames_in"}, &Totals::bytes_in},
    {{"run_bytes_out", "bytes_out", kCounter, "bytes", "Bytes of run_frames_out"},
     &Totals::bytes_out},
    {{"run_frames_dropped", "frames_dropped", kCounter, "packets",
      "Frames that went in and did not come out"},
     &Totals::frames_dropped},
    {{"run_dma_maps", "dma_maps", kCounter, "translations",
      "Translations made, over all domains, rings included"},
     &Totals::dma_maps},
    {{"run_dma_unmaps", "dma_unmaps", kCounter, "translations",
      "Translations removed, over all domains"},
     &Totals::dma_unmaps},
    {{"run_iotlb_invalidations", "iotlb_invalidations", kCounter, "invalidations",
      "Invalidations, over all domains"},
     &Totals::iotlb_invalidations},
    {{"run_iommu_walks", "iommu_walks", kCounter, "walks",
      "Page-table walks: translations that a port's IOTLB did not have"},
     &Totals::iommu_walks},
    {{"run_iommu_faults", "iommu_faults", kCounter, "accesses", "Accesses the IOMMU refused"},
     &Totals::iommu_faults},
    {{"run_live_mappings_at_exit", "live_mappings_at_exit", kGauge, "translations",
      "Translations left when both ports are closed: leaks"},
     &Totals::live_mappings_at_exit},
    {{"run_pool_bytes", "pool_bytes", kGauge, "bytes", "Packet memory at its peak"},
     &Totals::pool_bytes},
    {{"run_audit_errors", "audit_errors", kCounter, "reports",
      "Mistakes that the audit found; 0 without one"},
     &Totals::audit_errors},
    {{"run_driver_ns_per_frame", "driver_ns_per_frame", kGauge, "ns",
      "Processor time in driver code per frame sent, all threads together"},
     &Totals::driver_ns_per_frame},
};

// A registry of values that do not change any more.
class Collector {
 public:
  template <typename Stats>
  void Add(std::span<const Metric<Stats>> table, MetricLabels labels,
           std::optional<std::string> json, const Stats& stats) {
    const absl::Status added =
        registry_.Register(table, {std::move(labels), std::move(json)}, [stats] { return stats; });
    // No two ports or devices of a rig have one name.
    assert(added.ok());
    (void)added;
  }
  std::vector<MetricSample> samples() const { return registry_.Snapshot(); }

 private:
  MetricRegistry registry_;
};

// A port that frames go through one way has no other half.
struct Halves {
  bool receives = false;
  bool transmits = false;
};

void AddPort(int index, Halves has, const NicReport& nic, const WireStats& wire, Collector& to) {
  const std::string json = absl::StrCat("/ports/", index);
  for (size_t q = 0; q < nic.port.queues.size(); ++q) {
    const MetricLabels labels = {{"device", nic.port.name}, {"queue", absl::StrCat(q)}};
    const std::string queue = absl::StrCat(json, "/queues/", q);
    if (has.receives) {
      to.Add(RxMetrics(), labels, queue + "/rx", nic.port.queues[q].rx);
      to.Add(PagePoolMetrics(), labels, queue + "/pool", nic.port.queues[q].pool);
    }
    if (has.transmits) {
      to.Add(TxMetrics(), labels, queue + "/tx", nic.port.queues[q].tx);
    }
  }
  const MetricLabels labels = {{"device", nic.port.name}};
  to.Add(WireMetrics(), labels, json + "/wire", wire);
  to.Add(DomainMetrics(), labels, json + "/domain", nic.domain);
  if (!nic.walks) return;
  to.Add(IommuMetrics(), labels, json + "/iommu", *nic.walks);
  const ModelStats model = {nic.violation_count};
  to.Add(ModelMetrics(), labels, json + "/model", model);
}

void AddSpace(const SpaceReport& space, Collector& to) {
  const std::string json = "/address_space";
  const MetricLabels labels = {{"space", space.name}};
  to.Add(AddressSpaceMetrics(), labels, json, space.stats);
  if (space.flush) to.Add(FlushQueueMetrics(), labels, json + "/flush_queue", *space.flush);
  for (size_t i = 0; i < space.devices.size(); ++i) {
    to.Add(DeviceMetrics(), {{"device", space.devices[i].first}},
           absl::StrCat(json, "/devices/", i), space.devices[i].second);
  }
}

}  // namespace

std::span<const Metric<Totals>> TotalMetrics() { return kTotals; }

std::vector<MetricSample> RunSamples(const RunRecord& run, const Totals& totals) {
  Collector all;
  all.Add(TotalMetrics(), {}, "", totals);
  AddPort(0, {.receives = true, .transmits = run.both}, run.rig.in, run.source, all);
  AddPort(1, {.receives = run.both, .transmits = true}, run.rig.out, run.sink, all);
  AddSpace(run.rig.space, all);
  for (const auto& [name, reports] : run.rig.audit_summary.totals) {
    all.Add(AuditMetrics(), {{"class", name}}, std::nullopt, AuditClassStats{reports});
  }
  return all.samples();
}

std::string ToStats(StatsFormat format, const RunRecord& run, const Totals& totals) {
  switch (format) {
    case StatsFormat::kJson:
      return ToJson(run, totals);
    case StatsFormat::kPrometheus:
      return PrometheusText(RunSamples(run, totals));
    case StatsFormat::kText:
      return PlainText(RunSamples(run, totals));
  }
  return "";
}

}  // namespace dmakit::nic::cmd
