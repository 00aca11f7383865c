// SPDX-License-Identifier: Apache-2.0
//
// What a run amounts to: totals, what was wrong, and both as text and JSON. Pure functions, any
// thread.
//
// Frames are counted at the wires, on both sides of everything else: whatever came in and did not
// go out was dropped, whether or not some counter in between says why.
#ifndef DMAKIT_NIC_CMD_REPORT_H_
#define DMAKIT_NIC_CMD_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "nic/cmd/forward.h"

namespace dmakit::nic::cmd {

// The names, and their order, are those of the JSON file and of the printed totals.
struct Totals {
  uint64_t frames_in = 0;   // the input wires had to offer, refused ones included
  uint64_t frames_out = 0;  // the output wires have taken and kept
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  uint64_t frames_dropped = 0;  // frames_in - frames_out, for each direction
  uint64_t dma_maps = 0;        // summed over the domains, rings included
  uint64_t dma_unmaps = 0;
  uint64_t iotlb_invalidations = 0;
  uint64_t iommu_walks = 0;
  uint64_t iommu_faults = 0;
  uint64_t live_mappings_at_exit = 0;  // with both ports closed
  uint64_t pool_bytes = 0;             // packet memory at its peak
  uint64_t audit_errors = 0;           // 0 also when nothing was audited
  double driver_ns_per_frame = 0;      // processor time in driver code, see ForwardLoop
};

Totals ComputeTotals(const RunRecord& run);

// In words, most important first; empty when nothing was lost, faulted or leaked.
std::vector<std::string> FindProblems(const RunRecord& run, const Totals& totals);

// One "name value" line each, then faults and violations in words, if any.
std::string ToText(const RunRecord& run, const Totals& totals);

// Totals at the top level, detail under ports[].queues[]. Ends with a newline.
std::string ToJson(const RunRecord& run, const Totals& totals);

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_REPORT_H_
