// SPDX-License-Identifier: Apache-2.0
//
// Internal: where the entries of a scatter-gather list go in one contiguous IOVA range, and which
// segments the device is told. Arithmetic only, nothing is mapped here; pure functions.
#ifndef DMAKIT_DMA_SG_PLAN_H_
#define DMAKIT_DMA_SG_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "dma/mapping.h"
#include "iova/types.h"

namespace dmakit::dma::internal {

// Whole granules that follow each other in memory as in the range: one Domain::Map.
struct SgRun {
  uint64_t offset = 0;
  std::byte* memory = nullptr;
  uint64_t size = 0;
};

struct SgPlan {
  uint64_t size = 0;  // of the range, whole granules
  std::vector<SgRun> runs;
  std::vector<uint64_t> starts;  // offset of each entry's first byte
};

// An entry follows its predecessor without a gap where it does so in memory, or where the one ends
// and the other begins at a granule boundary; any other gets granules of its own. InvalidArgument
// for an empty list, an empty entry, and anything that would go beyond the address space.
absl::StatusOr<SgPlan> PlanSg(std::span<const std::span<std::byte>> entries, Bytes granule);

// Joins neighbours that touch in the range while the whole entry fits into the segment; cuts an
// entry only where `max_segment` or a multiple of `boundary` (0: none) inside it demands it.
std::vector<SgSegment> CutSegments(std::span<const std::span<std::byte>> entries,
                                   const SgPlan& plan, Iova base, Bytes max_segment,
                                   Bytes boundary);

// A span's whole granules.
struct Covered {
  std::byte* memory = nullptr;
  uint64_t size = 0;
  uint64_t offset = 0;  // of the first byte in them
};
absl::StatusOr<Covered> Cover(std::span<std::byte> memory, Bytes granule);

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_SG_PLAN_H_
