// SPDX-License-Identifier: Apache-2.0
//
// Interval arithmetic with inclusive ends, so that 2^64 - 1 needs no special case.
#include "dma/intervals.h"

#include <algorithm>

namespace dmakit::dma::internal {
namespace {

// Inclusive bounds of whole granules: outwards for holes, inwards for what is usable.
Interval Outwards(const Interval& i, Bytes granule) {
  return {AlignDown(i.first, granule), Iova(i.last.value() | (granule.value() - 1))};
}

std::optional<Interval> Inwards(const Interval& i, Bytes granule) {
  const std::optional<Iova> first = AlignUp(i.first, granule);
  if (!first) return std::nullopt;
  const Iova last =
      i.last == Iova::Max() ? i.last : AlignDown(i.last + Bytes(1), granule) - Bytes(1);
  // Below one granule the subtraction wrapped.
  if (i.last != Iova::Max() && i.last.value() < granule.value() - 1) return std::nullopt;
  if (*first > last) return std::nullopt;
  return Interval{*first, last};
}

}  // namespace

Intervals Normalise(Intervals list) {
  std::sort(list.begin(), list.end());
  Intervals result;
  for (const Interval& i : list) {
    if (!i.valid()) continue;
    const bool touches = !result.empty() && (result.back().last == Iova::Max() ||
                                             i.first <= result.back().last + Bytes(1));
    if (touches) {
      result.back().last = std::max(result.back().last, i.last);
    } else {
      result.push_back(i);
    }
  }
  return result;
}

Intervals Subtract(const Intervals& from, const Intervals& what) {
  Intervals result;
  for (Interval rest : from) {
    bool left = true;
    for (const Interval& hole : what) {
      if (!hole.Overlaps(rest)) continue;
      if (rest.first < hole.first) result.push_back({rest.first, hole.first - Bytes(1)});
      if (hole.last >= rest.last) {
        left = false;
        break;
      }
      rest.first = hole.last + Bytes(1);
    }
    if (left) result.push_back(rest);
  }
  return result;
}

Intervals Intersect(const Intervals& a, const Intervals& b) {
  Intervals result;
  for (const Interval& x : a) {
    for (const Interval& y : b) {
      if (x.Overlaps(y)) {
        result.push_back({std::max(x.first, y.first), std::min(x.last, y.last)});
      }
    }
  }
  return result;
}

bool Covers(const Intervals& list, const Range& range) {
  return std::any_of(list.begin(), list.end(),
                     [&range](const Interval& i) { return i.Contains(range); });
}

Intervals Translatable(const DomainFacts& facts, Bytes granule) {
  const Iova top = facts.width.ToMask().highest();
  Intervals usable = facts.apertures;
  if (usable.empty()) usable.push_back(Interval::All());
  Intervals whole;
  for (Interval i : Normalise(std::move(usable))) {
    i.last = std::min(i.last, top);
    if (!i.valid()) continue;
    if (std::optional<Interval> inner = Inwards(i, granule)) whole.push_back(*inner);
  }
  Intervals holes{Outwards({Iova(0), Iova(0)}, granule)};
  for (const Interval& i : facts.reserved) {
    if (i.valid()) holes.push_back(Outwards(i, granule));
  }
  return Subtract(whole, Normalise(std::move(holes)));
}

}  // namespace dmakit::dma::internal
