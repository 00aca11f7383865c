// SPDX-License-Identifier: Apache-2.0
//
// One table per struct of counters: name, JSON key, kind, unit, help, member. A new counter is one
// line here and stands in everything that is printed; docs/stats.md describes each, and a test
// compares the two. Constant; any thread.
#ifndef DMAKIT_NIC_METRIC_TABLES_H_
#define DMAKIT_NIC_METRIC_TABLES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "dma/address_space.h"
#include "dma/device.h"
#include "dma/domain.h"
#include "dma/flush_queue.h"
#include "dma/software_iommu.h"
#include "frag/page_pool.h"
#include "nic/metrics.h"
#include "nic/stats.h"
#include "nic/wire/wire.h"

namespace dmakit::nic {

// What an audit found of one class (label `class`: dma::Name(AuditCode)).
struct AuditClassStats {
  uint64_t reports = 0;
};
// Of a software NIC.
struct ModelStats {
  uint64_t violations = 0;
};

std::span<const Metric<RxQueueStats>> RxMetrics();
std::span<const Metric<TxQueueStats>> TxMetrics();
std::span<const Metric<frag::PagePoolStats>> PagePoolMetrics();
std::span<const Metric<WireStats>> WireMetrics();
std::span<const Metric<dma::DomainStats>> DomainMetrics();
std::span<const Metric<dma::DeviceStats>> DeviceMetrics();
std::span<const Metric<dma::AddressSpace::Stats>> AddressSpaceMetrics();
std::span<const Metric<dma::FlushQueue::Stats>> FlushQueueMetrics();
std::span<const Metric<dma::SoftwareIommu::WalkStats>> IommuMetrics();
std::span<const Metric<ModelStats>> ModelMetrics();
std::span<const Metric<AuditClassStats>> AuditMetrics();

// Of all the tables above.
std::vector<const MetricInfo*> LibraryMetrics();

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_METRIC_TABLES_H_
