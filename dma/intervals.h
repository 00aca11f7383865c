// SPDX-License-Identifier: Apache-2.0
//
// Internal: sets of addresses as ascending, disjoint, non-touching intervals; what a domain can
// translate and what it cannot. Pure functions on values.
#ifndef DMAKIT_DMA_INTERVALS_H_
#define DMAKIT_DMA_INTERVALS_H_

#include <optional>
#include <vector>

#include "dma/domain.h"
#include "iova/types.h"

namespace dmakit::dma::internal {

using Intervals = std::vector<Interval>;

// Sorted, with what overlaps or touches made one.
Intervals Normalise(Intervals list);
// Both arguments normalised.
Intervals Subtract(const Intervals& from, const Intervals& what);
Intervals Intersect(const Intervals& a, const Intervals& b);
// Whether one interval of `list` has all of `range`.
bool Covers(const Intervals& list, const Range& range);

// Whole granules that `facts` can translate: apertures (none stated: everything) within the width,
// without reserved holes and without IOVA 0. Normalised.
Intervals Translatable(const DomainFacts& facts, Bytes granule);

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_INTERVALS_H_
