// SPDX-License-Identifier: Apache-2.0
//
// Space: checks, units, the lock around the tree. The levels above it that park ranges, and how
// they are emptied, are in space_reclaim.cc.

#include "iova/space.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "absl/strings/str_cat.h"
#include "iova/cache.h"
#include "iova/range_tree.h"

namespace dmakit::iova {
namespace {

using internal::Extent;
using internal::Outcome;
using internal::RangeTree;
using internal::Search;

constexpr unsigned kMaxShift = 30;  // 1 GiB, the largest granule and alignment

std::string Who(const std::string& name) { return absl::StrCat("iova space '", name, "': "); }

// Granules below `last` inclusive, as an exclusive end; at most 2^52.
uint64_t EndGranule(Iova last, unsigned shift) {
  if (last == Iova::Max()) return uint64_t{1} << (64 - shift);
  return (last.value() + 1) >> shift;
}

Range ToRange(Extent extent, unsigned shift) {
  return Range{Iova(extent.base << shift), Bytes((extent.end - extent.base) << shift)};
}

// Nothing unless the range consists of whole granules.
std::optional<Extent> ToExtent(const Range& range, unsigned shift) {
  const uint64_t low = (uint64_t{1} << shift) - 1;
  if (range.empty() || ((range.base.value() | range.size.value()) & low) != 0 ||
      !Range::Make(range.base, range.size)) {
    return std::nullopt;
  }
  const uint64_t base = range.base.value() >> shift;
  return Extent{base, base + (range.size.value() >> shift)};
}

// Sorted, with what overlaps or touches made one.
std::vector<Extent> Normalise(std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.base < b.base; });
  std::vector<Extent> result;
  for (const Extent& extent : extents) {
    if (extent.base >= extent.end) continue;
    if (!result.empty() && extent.base <= result.back().end) {
      result.back().end = std::max(result.back().end, extent.end);
    } else {
      result.push_back(extent);
    }
  }
  return result;
}

std::vector<Extent> Subtract(const std::vector<Extent>& usable, const std::vector<Extent>& holes) {
  std::vector<Extent> result;
  size_t hole = 0;
  for (Extent rest : usable) {
    while (hole < holes.size() && holes[hole].end <= rest.base) ++hole;
    for (size_t h = hole; h < holes.size() && holes[h].base < rest.end; ++h) {
      if (rest.base < holes[h].base) result.push_back({rest.base, holes[h].base});
      rest.base = std::min(std::max(rest.base, holes[h].end), rest.end);
    }
    if (rest.base < rest.end) result.push_back(rest);
  }
  return result;
}

absl::Status CheckIntervals(const std::vector<Interval>& intervals, const char* what) {
  for (const Interval& i : intervals) {
    if (!i.valid()) {
      return absl::InvalidArgumentError(absl::StrCat(what, " interval ", ToString(i),
                                                     ": its first address must not be above its "
                                                     "last; both are inclusive"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const Space::Options& options) {
  const Bytes granule = options.granule;
  if (!IsPowerOfTwo(granule) || granule < KiB(4) || granule > GiB(1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "granule ", ToString(granule),
        " bytes: must be a power of two from 4096 to 1073741824; use the smallest page "
        "size that all domains map"));
  }
  const uint64_t cached = options.max_cached.value();
  if (cached > 1024 || (cached & (cached - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_cached ", cached,
                     " granules: must be 0 or a power of two up to 1024; larger ranges bypass the "
                     "caches"));
  }
  if (options.magazine_size < 1 || options.magazine_size > internal::Magazine::kMaxRanges) {
    return absl::InvalidArgumentError(
        absl::StrCat("magazine_size ", options.magazine_size, " ranges: must be from 1 to ",
                     internal::Magazine::kMaxRanges, "; raise depot_magazines to park more"));
  }
  if (options.depot_magazines > (size_t{1} << 20)) {
    return absl::InvalidArgumentError(absl::StrCat("depot_magazines ", options.depot_magazines,
                                                   ": must be at most 1048576; park less"));
  }
  if (absl::Status status = CheckIntervals(options.usable, "usable"); !status.ok()) return status;
  return CheckIntervals(options.reserved, "reserved");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Space>> Space::Create(Options options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(Who(options.name), status.message()));
  }
  std::unique_ptr<Space> space(new Space(options));
  if (absl::Status status = space->Populate(options); !status.ok()) return status;
  return space;
}

Space::Space(const Options& options)
    : name_(options.name),
      shift_(static_cast<unsigned>(std::countr_zero(options.granule.value()))),
      memory_(options.memory != nullptr ? options.memory : std::pmr::get_default_resource()),
      max_cached_(options.max_cached.value()),
      magazine_size_(options.magazine_size),
      depot_magazines_(options.depot_magazines),
      fence_(options.fence != nullptr && options.fence->available() ? options.fence : nullptr),
      tree_(std::make_unique<RangeTree>(memory_, kMaxShift - shift_ + 1)) {}

absl::Status Space::Populate(const Options& options) {
  const uint64_t low = (uint64_t{1} << shift_) - 1;
  std::vector<Extent> usable;
  for (const Interval& i : options.usable) {
    const uint64_t first = i.first.value();
    usable.push_back({(first >> shift_) + ((first & low) != 0), EndGranule(i.last, shift_)});
  }
  std::vector<Extent> holes{{0, 1}};  // IOVA 0
  for (const Interval& i : options.reserved) {
    holes.push_back({i.first.value() >> shift_, (i.last.value() >> shift_) + 1});
  }
  const std::vector<Extent> extents =
      Subtract(Normalise(std::move(usable)), Normalise(std::move(holes)));
  if (extents.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        Who(name_), "usable addresses: not one whole granule of ", granule().value(),
        " bytes is left without the reserved ones and IOVA 0; widen `usable` or trim `reserved`"));
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const Extent& extent : extents) {
    if (tree_->Append(extent) != Outcome::kDone) {
      return absl::ResourceExhaustedError(absl::StrCat(
          Who(name_), "the memory resource failed while adding ", ToString(ToRange(extent, shift_)),
          ", one of ", extents.size(), " usable pieces; give it more memory"));
    }
    const Range range = ToRange(extent, shift_);
    usable_.push_back(Interval{range.base, range.last()});
    largest_usable_ = std::max(largest_usable_, extent.end - extent.base);
  }
  bounds_ = Interval{usable_.front().first, usable_.back().last};
  return absl::OkStatus();
}

Space::~Space() {
  if (caches_ == nullptr) return;
  std::fprintf(stderr, "%sdestroyed before its caches; destroy every iova::Cache of it first\n",
               Who(name_).c_str());
  std::abort();
}

// --- Taking and giving back ---

absl::StatusOr<Search> Space::ToSearch(const Request& request) const {
  const uint64_t size = request.size.value();
  const uint64_t alignment = request.alignment.value();
  if (size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Who(name_), "size 0 bytes: must be at least 1; do not map what has no bytes"));
  }
  if ((alignment & (alignment - 1)) != 0 || request.alignment > kMaxAlignment) {
    return absl::InvalidArgumentError(
        absl::StrCat(Who(name_), "alignment ", alignment, " bytes: must be a power of two up to ",
                     kMaxAlignment.value(), ", or 0 for the granule; round it"));
  }
  Search search;
  search.size = ((size - 1) >> shift_) + 1;
  search.order = alignment <= granule().value()
                     ? 0
                     : static_cast<unsigned>(std::countr_zero(alignment)) - shift_;
  search.end = EndGranule(request.highest, shift_);
  if (request.prefer_below) search.preferred_end = EndGranule(*request.prefer_below, shift_);
  return search;
}

Outcome Space::TakeFit(const Search& search, Range* range) {
  const std::lock_guard<std::mutex> guard(mutex_);
  uint64_t base = 0;
  const Outcome outcome = tree_->Allocate(search, &base);
  if (outcome == Outcome::kDone) {
    ++counts_.allocations;
    *range = ToRange({base, base + search.size}, shift_);
  } else if (outcome == Outcome::kNoMemory) {
    ++counts_.memory_failures;
  }
  return outcome;
}

absl::StatusOr<Range> Space::Allocate(const Request& request) {
  const absl::StatusOr<Search> search = ToSearch(request);
  if (!search.ok()) return search.status();
  Range range;
  Outcome outcome = TakeFit(*search, &range);
  // Emptying caches cannot make room for what never fits.
  const bool may_fit = search->size <= largest_usable_ &&
                       search->size + (bounds_.first.value() >> shift_) <= search->end;
  if (outcome == Outcome::kNoFit && may_fit) {
    ReclaimThen([&] { outcome = TakeFit(*search, &range); });
  }
  if (outcome != Outcome::kDone) return MissError(request, outcome);
  return range;
}

std::optional<Range> Space::AllocateWithoutReclaim(const Request& request) {
  const absl::StatusOr<Search> search = ToSearch(request);
  Range range;
  if (!search.ok() || TakeFit(*search, &range) != Outcome::kDone) return std::nullopt;
  return range;
}

absl::Status Space::MissError(const Request& request, Outcome outcome) {
  if (outcome == Outcome::kNoMemory) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Who(name_), "size ", request.size.value(),
        " bytes: the memory resource failed while recording the range; nothing has changed, free "
        "memory and try again"));
  }
  uint64_t live;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    ++counts_.exhaustions;
    live = tree_->stats().used;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(Who(name_), "size ", request.size.value(), " bytes, alignment ",
                   request.alignment.value(), ", highest ", ToString(request.highest),
                   ": no free range fits (largest for this alignment, "
                   "without the ceiling: ",
                   largest_free(request.alignment).value(), " bytes; ", live,
                   " ranges are live); free some, or raise the ceiling"));
}

Outcome Space::TakeFixed(const Range& range) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const Outcome outcome = tree_->Take(*ToExtent(range, shift_));
  if (outcome == Outcome::kDone) ++counts_.allocations;
  if (outcome == Outcome::kNoMemory) ++counts_.memory_failures;
  return outcome;
}

absl::Status Space::AllocateFixed(const Range& range) {
  if (!ToExtent(range, shift_)) {
    return absl::InvalidArgumentError(absl::StrCat(
        Who(name_), "fixed range base ", ToString(range.base), ", size ", range.size.value(),
        ": both must be multiples of the granule ", granule().value(),
        ", the size not 0, and the end not above 2^64; extend it to whole granules"));
  }
  if (!Contains(range)) {
    return absl::OutOfRangeError(absl::StrCat(
        Who(name_), "fixed range ", ToString(range), ": must lie in one usable piece within ",
        ToString(bounds_), " and off reserved addresses; place the memory elsewhere"));
  }
  Outcome outcome = TakeFixed(range);
  if (outcome == Outcome::kInUse) ReclaimThen([&] { outcome = TakeFixed(range); });
  if (outcome == Outcome::kDone) return absl::OkStatus();
  if (outcome == Outcome::kNoMemory) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Who(name_), "fixed range ", ToString(range),
        ": the memory resource failed while recording it; nothing has changed, free memory and try "
        "again"));
  }
  return absl::AlreadyExistsError(
      absl::StrCat(Who(name_), "fixed range ", ToString(range),
                   ": part of it is live; free that first or place the memory elsewhere"));
}

Outcome Space::PutBack(const Range& range) {
  const std::optional<Extent> extent = ToExtent(range, shift_);
  const std::lock_guard<std::mutex> guard(mutex_);
  const Outcome outcome = extent ? tree_->Free(*extent) : Outcome::kNotLive;
  if (outcome == Outcome::kDone) ++counts_.frees;
  return outcome;
}

absl::Status Space::Free(const Range& range) {
  if (PutBack(range) == Outcome::kDone) return absl::OkStatus();
  const std::optional<Range> live = FindLive(range.base);
  const std::lock_guard<std::mutex> guard(mutex_);
  ++counts_.rejected_frees;
  return absl::NotFoundError(absl::StrCat(
      Who(name_), "free of base ", ToString(range.base), ", size ", range.size.value(),
      ": must be one whole range that is live; ",
      live ? absl::StrCat("the live range there is ", ToString(*live)) : "nothing is live there",
      ". Free once, with the range that Allocate returned"));
}

void Space::FreeParked(const Range& range) {
  const bool freed = PutBack(range) == Outcome::kDone;
  const std::lock_guard<std::mutex> guard(mutex_);
  freed ? ++counts_.reclaimed_ranges : ++counts_.rejected_drains;
}

// --- Looking ---

void Space::ForEachLive(const std::function<void(const Range&)>& visit) const {
  const std::lock_guard<std::mutex> guard(mutex_);
  tree_->ForEachUsed([&](Extent extent) { visit(ToRange(extent, shift_)); });
}

std::optional<Range> Space::FindLive(Iova address) const {
  const std::lock_guard<std::mutex> guard(mutex_);
  const std::optional<Extent> extent = tree_->FindUsed(address.value() >> shift_);
  if (!extent) return std::nullopt;
  return ToRange(*extent, shift_);
}

bool Space::Contains(const Range& range) const {
  const auto above =
      std::upper_bound(usable_.begin(), usable_.end(), range.base,
                       [](Iova base, const Interval& piece) { return base < piece.first; });
  return above != usable_.begin() && Range::Make(range.base, range.size) &&
         std::prev(above)->Contains(range);
}

Bytes Space::free_bytes() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return Bytes(tree_->stats().free_granules << shift_);
}

Bytes Space::largest_free(Bytes alignment) const {
  if ((alignment.value() & (alignment.value() - 1)) != 0 || alignment > kMaxAlignment) {
    return Bytes(0);
  }
  const unsigned order = alignment <= granule()
                             ? 0
                             : static_cast<unsigned>(std::countr_zero(alignment.value())) - shift_;
  const std::lock_guard<std::mutex> guard(mutex_);
  return Bytes(tree_->LargestFit(order) << shift_);
}

Space::Stats Space::stats() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  Stats stats = counts_;
  const RangeTree::Stats tree = tree_->stats();
  stats.live_ranges = tree.used;
  stats.free_ranges = tree.free;
  stats.tree_nodes = tree.nodes;
  stats.tree_height = tree.height;
  stats.visits_last = tree.visits_last;
  stats.visits_max = tree.visits_max;
  stats.visits_total = tree.visits_total;
  stats.operations = tree.operations;
  stats.preferred_misses = tree.preferred_misses;
  stats.depot_parked = depot_parked_.load(std::memory_order_relaxed);
  stats.depot_gets = depot_gets_.load(std::memory_order_relaxed);
  stats.depot_puts = depot_puts_.load(std::memory_order_relaxed);
  stats.caches = cache_count_.load(std::memory_order_relaxed);
  return stats;
}

std::string Space::Validate() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return tree_->Validate();
}

}  // namespace dmakit::iova
