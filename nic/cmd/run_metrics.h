// SPDX-License-Identifier: Apache-2.0
//
// The statistics of a run, in the formats of --stats-format. Pure functions, any thread.
#ifndef DMAKIT_NIC_CMD_RUN_METRICS_H_
#define DMAKIT_NIC_CMD_RUN_METRICS_H_

#include <span>
#include <string>
#include <vector>

#include "nic/cmd/forward.h"
#include "nic/cmd/options.h"
#include "nic/cmd/report.h"
#include "nic/metrics.h"

namespace dmakit::nic::cmd {

// Of Totals, in the order of the JSON file and of the printed totals, which both use the keys. The
// names begin with "run_".
std::span<const Metric<Totals>> TotalMetrics();

// Everything that was counted, totals first.
std::vector<MetricSample> RunSamples(const RunRecord& run, const Totals& totals);

// What --stats=FILE writes. JSON has words too: options, problems, the audit's reports.
std::string ToStats(StatsFormat format, const RunRecord& run, const Totals& totals);

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_RUN_METRICS_H_
