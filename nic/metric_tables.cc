// SPDX-License-Identifier: Apache-2.0

#include "nic/metric_tables.h"

namespace dmakit::nic {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;

using Rx = RxQueueStats;
constexpr Metric<Rx> kRx[] = {
    {{"rx_packets", "frames", kCounter, "packets", "Frames handed to the application"},
     &Rx::frames},
    {{"rx_bytes", "bytes", kCounter, "bytes", "Bytes handed to the application"}, &Rx::bytes},
    {{"rx_dropped", "dropped", kCounter, "packets",
      "Sum of rx_crc_errors, rx_over_errors, rx_bad_completions and rx_missed_errors"},
     &Rx::dropped},
    {{"rx_crc_errors", "bad_fcs", kCounter, "packets", "Frames with a bad FCS"}, &Rx::bad_fcs},
    {{"rx_over_errors", "truncated", kCounter, "packets", "Frames longer than the buffers"},
     &Rx::truncated},
    {{"rx_bad_completions", "bad_completions", kCounter, "completions",
      "Completions with an impossible index, length or order"},
     &Rx::bad_completions},
    {{"rx_missed_errors", "device_no_buffer", kCounter, "packets",
      "Frames the device had no buffer for, by its own count"},
     &Rx::device_no_buffer},
    {{"rx_alloc_failed", "refill_failed", kCounter, "buffers", "Buffers wanted and not to be had"},
     &Rx::refill_failed},
    {{"rx_desc_skip", "skipped", kCounter, "buffers", "Buffers the device gave back unused"},
     &Rx::skipped},
    {{"rx_left_at_stop", "left_at_stop", kCounter, "packets",
      "Frames received that nobody had asked for when the port stopped"},
     &Rx::left_at_stop},
    {{"rx_doorbells", "doorbells", kCounter, "writes", "Writes to the queue's doorbell"},
     &Rx::doorbells},
    {{"rx_ring_allocs", "ring_allocations", kCounter, "allocations",
      "Coherent allocations made for the queue's rings"},
     &Rx::ring_allocations},
    {{"rx_info_maps", "info_maps", kCounter, "mappings",
      "Mappings made for info buffers beside the ring, a coherent allocation being one"},
     &Rx::info_maps},
    {{"rx_posted", "posted", kGauge, "buffers", "Buffers the device holds"}, &Rx::posted},
    {{"rx_kept", "kept", kGauge, "packets",
      "Received before a change of the port, and not asked for yet"},
     &Rx::kept},
    {{"rx_device_error", "device_error", kGauge, "code",
      "Not 0 when the device has stopped the queue by itself"},
     &Rx::device_error},
};

using Tx = TxQueueStats;
constexpr Metric<Tx> kTx[] = {
    {{"tx_packets", "frames", kCounter, "packets", "Frames the device reported sent"}, &Tx::frames},
    {{"tx_bytes", "bytes", kCounter, "bytes", "Bytes the device reported sent"}, &Tx::bytes},
    {{"tx_dropped", "dropped", kCounter, "packets",
      "Packets taken and never sent: the sum of the six reasons"},
     &Tx::dropped},
    {{"tx_too_long", "too_long", kCounter, "packets", "Dropped: longer than the port allows"},
     &Tx::too_long},
    {{"tx_too_many_segments", "too_many_segments", kCounter, "packets",
      "Dropped: more segments than the device takes"},
     &Tx::too_many_segments},
    {{"tx_empty", "empty", kCounter, "packets", "Dropped: no bytes at all"}, &Tx::empty},
    {{"tx_unsupported_offload", "unsupported_offload", kCounter, "packets",
      "Dropped: asked for what the device does not do to this frame"},
     &Tx::unsupported_offload},
    {{"tx_addressing_failed", "addressing_failed", kCounter, "packets",
      "Dropped: no device address for its bytes"},
     &Tx::addressing_failed},
    {{"tx_device_errors", "device_errors", kCounter, "packets",
      "Dropped: given to the device, which never reported them sent"},
     &Tx::device_errors},
    {{"tx_bad_completions", "bad_completions", kCounter, "completions",
      "Completions with an impossible index or order"},
     &Tx::bad_completions},
    {{"tx_ring_full", "ring_full", kCounter, "calls", "Transmit calls that left packets behind"},
     &Tx::ring_full},
    {{"tx_doorbells", "doorbells", kCounter, "writes", "Writes to the queue's doorbell"},
     &Tx::doorbells},
    {{"tx_ring_allocs", "ring_allocations", kCounter, "allocations",
      "Coherent allocations made for the queue's rings"},
     &Tx::ring_allocations},
    {{"tx_list_maps", "list_maps", kCounter, "mappings",
      "Mappings made for gather lists, a coherent allocation being one"},
     &Tx::list_maps},
    {{"tx_in_flight", "in_flight", kGauge, "packets", "Packets the device has not reported yet"},
     &Tx::in_flight},
    {{"tx_device_error", "device_error", kGauge, "code",
      "Not 0 when the device has stopped the queue by itself"},
     &Tx::device_error},
};

// Linux's names of page_pool statistics, where it has the event.
using Pool = frag::PagePoolStats;
constexpr Metric<Pool> kPool[] = {
    {{"page_pool_alloc_fast", "alloc_fast", kCounter, "pages", "Served from the free pages"},
     &Pool::alloc_fast},
    {{"page_pool_alloc_slow", "alloc_slow", kCounter, "pages", "New pages of 4 KiB"},
     &Pool::alloc_slow},
    {{"page_pool_alloc_slow_high_order", "alloc_slow_high_order", kCounter, "pages",
      "New pages larger than 4 KiB"},
     &Pool::alloc_slow_high_order},
    {{"page_pool_alloc_empty", "alloc_empty", kCounter, "calls", "No free page was ready"},
     &Pool::alloc_empty},
    {{"page_pool_alloc_refill", "alloc_refill", kCounter, "calls",
      "Found pages in what other threads had returned"},
     &Pool::alloc_refill},
    {{"page_pool_alloc_waive", "alloc_waive", kCounter, "pages",
      "Free pages given up: not of the wanted size"},
     &Pool::alloc_waive},
    {{"page_pool_recycle_cached", "recycle_cached", kCounter, "pages",
      "Became free on the owner's thread"},
     &Pool::recycle_cached},
    {{"page_pool_recycle_ring", "recycle_ring", kCounter, "pages",
      "Became free by what other threads returned"},
     &Pool::recycle_ring},
    {{"page_pool_alloc_failed_cap", "alloc_failed_cap", kCounter, "calls",
      "Failed: the pool is at its cap"},
     &Pool::alloc_failed_cap},
    {{"page_pool_alloc_failed_memory", "alloc_failed_memory", kCounter, "calls",
      "Failed: no memory at any usable size"},
     &Pool::alloc_failed_memory},
    {{"page_pool_alloc_failed_map", "alloc_failed_map", kCounter, "calls",
      "Failed: no device address, or the mapping"},
     &Pool::alloc_failed_map},
    {{"page_pool_order_fallbacks", "order_fallbacks", kCounter, "pages",
      "Pages smaller than wanted"},
     &Pool::order_fallbacks},
    {{"page_pool_bad_releases", "bad_releases", kCounter, "calls",
      "Refused: more references given back than were out, or another pool's page"},
     &Pool::bad_releases},
    {{"page_pool_maps", "maps", kCounter, "pages", "Page mappings, each once for all domains"},
     &Pool::maps},
    {{"page_pool_unmaps", "unmaps", kCounter, "pages", "Page unmappings"}, &Pool::unmaps},
    {{"page_pool_pages", "pages", kGauge, "pages", "Pages there are, without quarantined ones"},
     &Pool::pages},
    {{"page_pool_pages_peak", "pages_peak", kGauge, "pages", "The most pages there ever were"},
     &Pool::pages_peak},
    {{"page_pool_bytes", "bytes", kGauge, "bytes", "Page memory"}, &Pool::bytes},
    {{"page_pool_bytes_peak", "bytes_peak", kGauge, "bytes", "The most page memory ever"},
     &Pool::bytes_peak},
    {{"page_pool_pages_waiting_flush", "pages_waiting_flush", kGauge, "pages",
      "Pages that wait for a deferred invalidation"},
     &Pool::pages_waiting_flush},
    {{"page_pool_pages_quarantined", "pages_quarantined", kGauge, "pages",
      "Pages that a device may still write"},
     &Pool::pages_quarantined},
};

constexpr Metric<WireStats> kWire[] = {
    {{"wire_to_nic_packets", "frames_to_nic", kCounter, "packets", "Frames the NIC took"},
     &WireStats::frames_to_nic},
    {{"wire_to_nic_bytes", "bytes_to_nic", kCounter, "bytes", "Bytes the NIC took"},
     &WireStats::bytes_to_nic},
    {{"wire_from_nic_packets", "frames_from_nic", kCounter, "packets", "Frames the NIC sent"},
     &WireStats::frames_from_nic},
    {{"wire_from_nic_bytes", "bytes_from_nic", kCounter, "bytes", "Bytes the NIC sent"},
     &WireStats::bytes_from_nic},
    {{"wire_refused_packets", "refused", kCounter, "packets",
      "Frames never offered to the NIC: the sum of the two reasons"},
     &WireStats::refused},
    {{"wire_refused_bytes", "refused_bytes", kCounter, "bytes", "Bytes of refused frames"},
     &WireStats::refused_bytes},
    {{"wire_refused_short_packets", "refused_short", kCounter, "packets",
      "Refused: under 14 bytes"},
     &WireStats::refused_short},
    {{"wire_refused_cut_packets", "refused_cut", kCounter, "packets",
      "Refused: the wire has only a part of it"},
     &WireStats::refused_cut},
    {{"wire_lost_packets", "lost", kCounter, "packets",
      "Sent by the NIC and not written, or not taken by the kernel"},
     &WireStats::lost},
    {{"wire_lost_bytes", "lost_bytes", kCounter, "bytes", "Bytes of lost frames"},
     &WireStats::lost_bytes},
};

using Domain = dma::DomainStats;
constexpr Metric<Domain> kDomain[] = {
    {{"domain_maps", "maps", kCounter, "translations", "Translations made"}, &Domain::maps},
    {{"domain_unmaps", "unmaps", kCounter, "translations", "Translations removed"},
     &Domain::unmaps},
    {{"domain_invalidations", "invalidations", kCounter, "invalidations",
      "Invalidations, of a range or of everything"},
     &Domain::invalidations},
    {{"domain_live_mappings", "live_mappings", kGauge, "translations", "Translations there are"},
     &Domain::live_mappings},
    {{"domain_mapped_bytes", "mapped_bytes", kGauge, "bytes", "Bytes the device can reach"},
     &Domain::mapped_bytes},
};

using Device = dma::DeviceStats;
constexpr Metric<Device> kDevice[] = {
    {{"device_maps", "maps", kCounter, "mappings", "Streaming and coherent mappings made"},
     &Device::maps},
    {{"device_unmaps", "unmaps", kCounter, "mappings", "Streaming and coherent mappings ended"},
     &Device::unmaps},
    {{"device_map_failures", "map_failures", kCounter, "mappings", "Mappings refused"},
     &Device::map_failures},
    {{"device_live_mappings", "live_mappings", kGauge, "mappings", "Mappings there are"},
     &Device::live_mappings},
    {{"device_coherent_bytes", "coherent_bytes", kGauge, "bytes", "Coherent memory"},
     &Device::coherent_bytes},
    {{"device_bounced_maps", "bounced_maps", kCounter, "mappings",
      "Mappings with at least one entry bounced"},
     &Device::bounced_maps},
    {{"device_bounced_bytes", "bounced_bytes", kCounter, "bytes",
      "Bytes copied into and out of bounce memory"},
     &Device::bounced_bytes},
    {{"device_bounce_bytes_now", "bounce_bytes_now", kGauge, "bytes", "Bounce memory in use"},
     &Device::bounce_bytes_now},
};

using Space = dma::AddressSpace::Stats;
constexpr Metric<Space> kSpace[] = {
    {{"space_maps", "maps", kCounter, "translations", "Translations made, over all domains"},
     &Space::maps},
    {{"space_unmaps", "unmaps", kCounter, "translations", "Translations removed, over all domains"},
     &Space::unmaps},
    {{"space_invalidations", "invalidations", kCounter, "invalidations",
      "Invalidations, over all domains"},
     &Space::invalidations},
    {{"space_live_mappings", "live_mappings", kGauge, "translations",
      "Translations there are, over all domains"},
     &Space::live_mappings},
    {{"space_quarantined", "quarantined", kGauge, "ranges",
      "Ranges held aside because a device may still use them"},
     &Space::quarantined},
};

using Flush = dma::FlushQueue::Stats;
constexpr Metric<Flush> kFlush[] = {
    {{"flush_deferred", "deferred", kCounter, "ranges", "Unmapped ranges that waited for a flush"},
     &Flush::deferred},
    {{"flush_flushes", "flushes", kCounter, "flushes", "Flushes"}, &Flush::flushes},
    {{"flush_forced_by_bound", "forced_by_bound", kCounter, "flushes",
      "Flushes because count or bytes were at their bound"},
     &Flush::forced_by_bound},
    {{"flush_forced_by_age", "forced_by_age", kCounter, "flushes", "Flushes because of age"},
     &Flush::forced_by_age},
    {{"flush_forced_by_exhaustion", "forced_by_exhaustion", kCounter, "flushes",
      "Flushes because addresses had run out"},
     &Flush::forced_by_exhaustion},
    {{"flush_failed", "failed", kCounter, "flushes",
      "Failed flushes: their ranges are quarantined"},
     &Flush::failed},
    {{"flush_pending_ranges", "pending_ranges", kGauge, "ranges", "Ranges that wait"},
     &Flush::pending_ranges},
    {{"flush_pending_bytes", "pending_bytes", kGauge, "bytes", "Bytes that wait"},
     &Flush::pending_bytes},
    {{"flush_peak_pending_ranges", "peak_pending_ranges", kGauge, "ranges",
      "The most that ever waited, the lanes' own peaks added up"},
     &Flush::peak_pending_ranges},
    {{"flush_parked_ranges", "parked_ranges", kGauge, "ranges",
      "Flushed, but their addresses wait for the lane's owner"},
     &Flush::parked_ranges},
    {{"flush_lanes", "lanes", kGauge, "lanes", "Lanes with an owner"}, &Flush::lanes},
    {{"flush_common", "common", kCounter, "ranges", "Ranges put into the lane all share"},
     &Flush::common},
    {{"flush_lock_waits", "lock_waits", kCounter, "waits", "Someone else held a lane's lock"},
     &Flush::lock_waits},
    {{"flush_flush_waits", "flush_waits", kCounter, "waits",
      "Someone else's flush was running when a lane was full"},
     &Flush::flush_waits},
    {{"flush_releases", "releases", kCounter, "locks",
      "A lane's lock was taken to release what was flushed"},
     &Flush::releases},
};

using Walk = dma::SoftwareIommu::WalkStats;
constexpr Metric<Walk> kIommu[] = {
    {{"iommu_accesses", "accesses", kCounter, "accesses", "Accesses of software NICs, per page"},
     &Walk::accesses},
    {{"iommu_iotlb_hits", "iotlb_hits", kCounter, "accesses", "Translations the IOTLB had"},
     &Walk::iotlb_hits},
    {{"iommu_walks", "walks", kCounter, "walks", "Translations the IOTLB did not have"},
     &Walk::walks},
    {{"iommu_levels_read", "levels_read", kCounter, "entries", "Table entries read by walks"},
     &Walk::levels_read},
    {{"iommu_walk_cache_hits", "walk_cache_hits", kCounter, "entries",
      "Upper levels that the walk cache had"},
     &Walk::walk_cache_hits},
    {{"iommu_faults", "faults", kCounter, "accesses", "Accesses refused"}, &Walk::faults},
    {{"iommu_stale_uses", "stale_uses", kCounter, "accesses",
      "An IOTLB entry was used after its translation had gone"},
     &Walk::stale_uses},
    {{"iommu_lines_evicted", "lines_evicted", kCounter, "lines",
      "Cache lines evicted, of NICs that are not coherent"},
     &Walk::lines_evicted},
};

constexpr Metric<ModelStats> kModel[] = {
    {{"model_violations", "violations", kCounter, "violations",
      "What the driver did that the data sheet forbids"},
     &ModelStats::violations},
};

constexpr Metric<AuditClassStats> kAudit[] = {
    {{"audit_reports", "reports", kCounter, "reports", "Mistakes and hints of one class"},
     &AuditClassStats::reports},
};

template <typename Stats>
void Append(std::span<const Metric<Stats>> table, std::vector<const MetricInfo*>& infos) {
  for (const Metric<Stats>& metric : table) infos.push_back(&metric.info);
}

}  // namespace

std::span<const Metric<RxQueueStats>> RxMetrics() { return kRx; }
std::span<const Metric<TxQueueStats>> TxMetrics() { return kTx; }
std::span<const Metric<frag::PagePoolStats>> PagePoolMetrics() { return kPool; }
std::span<const Metric<WireStats>> WireMetrics() { return kWire; }
std::span<const Metric<dma::DomainStats>> DomainMetrics() { return kDomain; }
std::span<const Metric<dma::DeviceStats>> DeviceMetrics() { return kDevice; }
std::span<const Metric<dma::AddressSpace::Stats>> AddressSpaceMetrics() { return kSpace; }
std::span<const Metric<dma::FlushQueue::Stats>> FlushQueueMetrics() { return kFlush; }
std::span<const Metric<dma::SoftwareIommu::WalkStats>> IommuMetrics() { return kIommu; }
std::span<const Metric<ModelStats>> ModelMetrics() { return kModel; }
std::span<const Metric<AuditClassStats>> AuditMetrics() { return kAudit; }

std::vector<const MetricInfo*> LibraryMetrics() {
  std::vector<const MetricInfo*> infos;
  Append(RxMetrics(), infos);
  Append(TxMetrics(), infos);
  Append(PagePoolMetrics(), infos);
  Append(WireMetrics(), infos);
  Append(DomainMetrics(), infos);
  Append(DeviceMetrics(), infos);
  Append(AddressSpaceMetrics(), infos);
  Append(FlushQueueMetrics(), infos);
  Append(IommuMetrics(), infos);
  Append(ModelMetrics(), infos);
  Append(AuditMetrics(), infos);
  return infos;
}

}  // namespace dmakit::nic
