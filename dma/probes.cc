// SPDX-License-Identifier: Apache-2.0

#include "dma/probes.h"

#if defined(DMAKIT_USDT)

#include <sys/sdt.h>

#define DMAKIT_PROBE(event) \
  DTRACE_PROBE4(dmakit, event, name, range.base.value(), range.size.value(), way)
// Kept by the linker, see probes.h.
#define DMAKIT_KEPT [[gnu::noinline, gnu::used, gnu::retain]]

namespace dmakit::dma::internal {
namespace {

int KernelDirection(Direction direction) {
  return direction == Direction::kBidirectional ? 0 : direction == Direction::kToDevice ? 1 : 2;
}

}  // namespace

DMAKIT_KEPT void ProbeMap(MappingKind kind, const std::string& device, const Range& range,
                          Direction direction) {
  const char* const name = device.c_str();
  const int way = KernelDirection(direction);
  if (kind == MappingKind::kScatterGather) {
    DMAKIT_PROBE(dma_map_sg);
  } else if (kind == MappingKind::kCoherent) {
    DMAKIT_PROBE(dma_alloc);
  } else {
    DMAKIT_PROBE(dma_map);
  }
}

DMAKIT_KEPT void ProbeUnmap(MappingKind kind, const std::string& device, const Range& range,
                            Direction direction) {
  const char* const name = device.c_str();
  const int way = KernelDirection(direction);
  if (kind == MappingKind::kScatterGather) {
    DMAKIT_PROBE(dma_unmap_sg);
  } else if (kind == MappingKind::kCoherent) {
    DMAKIT_PROBE(dma_free);
  } else {
    DMAKIT_PROBE(dma_unmap);
  }
}

DMAKIT_KEPT void ProbeSync(bool for_cpu, const std::string& device, const Range& range,
                           Direction direction) {
  const char* const name = device.c_str();
  const int way = KernelDirection(direction);
  if (for_cpu) {
    DMAKIT_PROBE(dma_sync_single_for_cpu);
  } else {
    DMAKIT_PROBE(dma_sync_single_for_device);
  }
}

}  // namespace dmakit::dma::internal

#endif
