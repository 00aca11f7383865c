// SPDX-License-Identifier: Apache-2.0
//
// FakeDomain: an ordered map of mappings, a list of what is unmapped but not invalidated, and the
// checks of the contract.
#include "dma/fakes.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dmakit::dma {
namespace {

constexpr size_t kMaxLog = 65'536;

bool Fails(host::FailPoint* point) { return point != nullptr && point->Hit(); }

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

// What is left of `ranges` outside of `gone`.
std::vector<Range> Without(const std::vector<Range>& ranges, const Range& gone) {
  std::vector<Range> result;
  for (const Range& r : ranges) {
    if (!r.Overlaps(gone)) {
      result.push_back(r);
      continue;
    }
    if (r.base < gone.base) result.push_back({r.base, gone.base - r.base});
    if (gone.last() < r.last()) result.push_back({gone.last() + Bytes(1), r.last() - gone.last()});
  }
  return result;
}

}  // namespace

struct FakeDomain::Impl {
  explicit Impl(Options options_in) : options(std::move(options_in)) {
    DomainFacts& facts = options.facts;
    if (facts.apertures.empty()) {
      facts.apertures.push_back({Iova(0), facts.width.ToMask().highest()});
    }
  }

  Options options;
  mutable std::mutex mutex;
  std::map<uint64_t, Entry> live;
  std::vector<Range> stale;
  std::deque<std::string> log;
  DomainStats stats;
  uint64_t stale_reuses = 0;

  using Iterator = std::map<uint64_t, Entry>::iterator;

  absl::Status Bad(absl::StatusCode code, std::string text) const {
    return absl::Status(code, absl::StrCat("domain '", options.name, "': ", text));
  }
  void Log(std::string line) {
    if (log.size() == kMaxLog) log.pop_front();
    log.push_back(std::move(line));
  }
  absl::Status CheckRange(const Range& range, const char* what) const;
  absl::Status CheckAperture(const Range& range) const;
  // The first mapping that ends at or above `address`.
  Iterator FirstFrom(Iova address);
  void Remove(const Range& range, Iterator it, uint64_t* removed);
};

absl::Status FakeDomain::Impl::CheckRange(const Range& range, const char* what) const {
  const Bytes granule = options.facts.granule();
  if (range.empty() || !Range::Make(range.base, range.size) || !IsAligned(range.base, granule) ||
      !IsAligned(range.size, granule)) {
    return Bad(absl::StatusCode::kInvalidArgument,
               absl::StrCat(what, " of ", range.size.value(), " bytes at ", ToString(range.base),
                            ": base and size must be multiples of ", granule.value(),
                            ", the size not 0, the end not above 2^64"));
  }
  return absl::OkStatus();
}

absl::Status FakeDomain::Impl::CheckAperture(const Range& range) const {
  const DomainFacts& facts = options.facts;
  const bool inside = std::any_of(facts.apertures.begin(), facts.apertures.end(),
                                  [&](const Interval& i) { return i.Contains(range); });
  const bool reserved =
      std::any_of(facts.reserved.begin(), facts.reserved.end(), [&](const Interval& i) {
        return i.Overlaps({range.base, range.last()});
      });
  if (inside && !reserved && range.last() <= facts.width.ToMask().highest()) {
    return absl::OkStatus();
  }
  return Bad(absl::StatusCode::kOutOfRange,
             absl::StrCat("map of ", ToString(range), ": not in an aperture of ",
                          facts.width.value(), " bits without its reserved holes"));
}

FakeDomain::Impl::Iterator FakeDomain::Impl::FirstFrom(Iova address) {
  auto it = live.upper_bound(address.value());
  if (it != live.begin() && std::prev(it)->second.range.last() >= address) --it;
  return it;
}

FakeDomain::FakeDomain(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
FakeDomain::~FakeDomain() = default;

std::string_view FakeDomain::name() const { return impl_->options.name; }
const DomainFacts& FakeDomain::facts() const { return impl_->options.facts; }

absl::Status FakeDomain::Map(Range range, MemoryView memory, Access access) {
  Impl& impl = *impl_;
  std::lock_guard<std::mutex> lock(impl.mutex);
  const DomainFacts& facts = impl.options.facts;
  if (absl::Status s = impl.CheckRange(range, "map"); !s.ok()) return s;
  const auto address = reinterpret_cast<uintptr_t>(memory.cpu);
  if (memory.cpu == nullptr || memory.device == nullptr || memory.size != range.size.value() ||
      address % facts.granule().value() != 0) {
    return impl.Bad(absl::StatusCode::kInvalidArgument,
                    absl::StrCat("map of ", ToString(range), ": memory of ", memory.size,
                                 " bytes at 0x", absl::Hex(address),
                                 ": must have the same size and "
                                 "be aligned to ",
                                 facts.granule().value()));
  }
  if ((access & Access::kReadWrite) == Access::kNone) {
    return impl.Bad(absl::StatusCode::kInvalidArgument,
                    absl::StrCat("map of ", ToString(range), " with access \"", View(Name(access)),
                                 "\": give read, write or both"));
  }
  if (absl::Status s = impl.CheckAperture(range); !s.ok()) return s;
  auto it = impl.FirstFrom(range.base);
  if (it != impl.live.end() && it->second.range.Overlaps(range)) {
    return impl.Bad(
        absl::StatusCode::kAlreadyExists,
        absl::StrCat("map of ", ToString(range), ": overlaps ", ToString(it->second.range)));
  }
  if (facts.max_mappings != 0 && impl.live.size() >= facts.max_mappings) {
    return impl.Bad(absl::StatusCode::kResourceExhausted,
                    absl::StrCat("map of ", ToString(range), ": all ", facts.max_mappings,
                                 " mappings of the budget are in use"));
  }
  if (!Reachable(memory)) {
    return impl.Bad(absl::StatusCode::kFailedPrecondition,
                    absl::StrCat("map of ", ToString(range), ": memory at 0x", absl::Hex(address),
                                 " was not registered; register it first"));
  }
  if (Fails(impl.options.fail_map)) {
    return impl.Bad(absl::StatusCode::kResourceExhausted, "map: told to fail");
  }
  impl.live.emplace(range.base.value(), Entry{range, memory, access});
  const bool reused = std::any_of(impl.stale.begin(), impl.stale.end(),
                                  [&](const Range& r) { return r.Overlaps(range); });
  impl.stale_reuses += reused ? 1 : 0;
  ++impl.stats.maps;
  impl.stats.mapped_bytes += range.size.value();
  impl.Log(absl::StrCat("map ", ToString(range), " ", View(Name(access))));
  return absl::OkStatus();
}

// Cuts `range` out of the mapping at `it`.
void FakeDomain::Impl::Remove(const Range& range, Iterator it, uint64_t* removed) {
  const Entry entry = it->second;
  live.erase(it);
  const Iova first = std::max(entry.range.base, range.base);
  const Iova last = std::min(entry.range.last(), range.last());
  const Range cut{first, last - first + Bytes(1)};
  if (entry.range.base < first) {
    const Bytes head = first - entry.range.base;
    live.emplace(entry.range.base.value(),
                 Entry{{entry.range.base, head}, entry.memory.Sub(0, head.value()), entry.access});
  }
  if (last < entry.range.last()) {
    const Bytes tail = entry.range.last() - last;
    const size_t offset = (last - entry.range.base).value() + 1;
    live.emplace(
        last.value() + 1,
        Entry{{last + Bytes(1), tail}, entry.memory.Sub(offset, tail.value()), entry.access});
  }
  *removed += cut.size.value();
  stats.mapped_bytes -= cut.size.value();
  if (!options.facts.unmap_invalidates) stale.push_back(cut);
}

absl::StatusOr<Bytes> FakeDomain::Unmap(Range range) {
  Impl& impl = *impl_;
  std::lock_guard<std::mutex> lock(impl.mutex);
  if (absl::Status s = impl.CheckRange(range, "unmap"); !s.ok()) return s;
  if (Fails(impl.options.fail_unmap)) {
    return impl.Bad(absl::StatusCode::kInternal, "unmap: told to fail");
  }
  if (!impl.options.facts.splittable) {
    for (auto it = impl.FirstFrom(range.base);
         it != impl.live.end() && it->second.range.base <= range.last(); ++it) {
      if (range.Contains(it->second.range)) continue;
      return impl.Bad(absl::StatusCode::kInvalidArgument,
                      absl::StrCat("unmap of ", ToString(range), ": cuts ",
                                   ToString(it->second.range), ", which cannot be split"));
    }
  }
  // The fault: a device's leftover, whatever the domain can split.
  Range done = range;
  if (Fails(impl.options.short_unmap)) {
    auto behind = impl.live.upper_bound(range.last().value());
    const Iova last =
        behind == impl.live.begin() ? range.base : std::prev(behind)->second.range.last();
    if (range.Contains(last)) {
      done.size = last - range.base + Bytes(1) - impl.options.facts.granule();
    }
  }
  uint64_t removed = 0;
  if (!done.empty()) {
    for (auto it = impl.FirstFrom(done.base);
         it != impl.live.end() && it->second.range.base <= done.last();
         it = impl.FirstFrom(done.base)) {
      impl.Remove(done, it, &removed);
    }
  }
  ++impl.stats.unmaps;
  impl.Log(absl::StrCat("unmap ", ToString(range)));
  return Bytes(removed);
}

absl::Status FakeDomain::Invalidate(Range range) {
  Impl& impl = *impl_;
  std::lock_guard<std::mutex> lock(impl.mutex);
  if (range.empty() || !Range::Make(range.base, range.size)) {
    return impl.Bad(absl::StatusCode::kInvalidArgument, "invalidation of an impossible range");
  }
  // A granule touched in part is forgotten whole.
  const uint64_t low = impl.options.facts.granule().value() - 1;
  const Iova first(range.base.value() & ~low);
  const Iova last(range.last().value() | low);
  if (Fails(impl.options.fail_invalidate)) {
    return impl.Bad(absl::StatusCode::kDeadlineExceeded, "invalidation: told to fail");
  }
  if (first == Iova(0) && last == Iova::Max()) {
    impl.stale.clear();  // a size of 2^64 has no value
  } else {
    impl.stale = Without(impl.stale, {first, last - first + Bytes(1)});
  }
  ++impl.stats.invalidations;
  impl.Log(absl::StrCat("invalidate ", ToString(range)));
  return absl::OkStatus();
}

absl::Status FakeDomain::InvalidateAll() {
  Impl& impl = *impl_;
  std::lock_guard<std::mutex> lock(impl.mutex);
  if (Fails(impl.options.fail_invalidate)) {
    return impl.Bad(absl::StatusCode::kDeadlineExceeded, "invalidation: told to fail");
  }
  impl.stale.clear();
  ++impl.stats.invalidations;
  impl.Log("invalidate all");
  return absl::OkStatus();
}

void FakeDomain::SyncForCpu(Range range) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->Log(absl::StrCat("sync ", ToString(range), " for the CPU"));
}

void FakeDomain::SyncForDevice(Range range) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->Log(absl::StrCat("sync ", ToString(range), " for the device"));
}

bool FakeDomain::Reachable(MemoryView memory) const {
  const std::function<bool(MemoryView)>& reachable = impl_->options.reachable;
  return !reachable || reachable(memory);
}

DomainStats FakeDomain::stats() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  DomainStats stats = impl_->stats;
  stats.live_mappings = impl_->live.size();
  return stats;
}

std::vector<FakeDomain::Entry> FakeDomain::live() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  std::vector<Entry> result;
  for (const auto& [base, entry] : impl_->live) result.push_back(entry);
  return result;
}

std::vector<Range> FakeDomain::stale() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->stale;
}

uint64_t FakeDomain::stale_reuses() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->stale_reuses;
}

std::vector<std::string> FakeDomain::log() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return {impl_->log.begin(), impl_->log.end()};
}

}  // namespace dmakit::dma
