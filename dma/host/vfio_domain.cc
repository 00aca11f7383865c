// SPDX-License-Identifier: Apache-2.0
//
// A table of what is mapped, the rules of Type1 v2 checked against it, and one ioctl.
#include "dma/host/vfio_domain.h"

#include <linux/vfio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/host/vfio_error.h"
#include "dma/host/vfio_info.h"

namespace dmakit::dma::host {
namespace {

constexpr uint64_t kPage = 4096;
// Where the kernel does not say, see the header.
constexpr uint64_t kLeastLast = (uint64_t{1} << 39) - 1;
constexpr Interval kInterruptWindow{Iova(0xfee00000), Iova(0xfeefffff)};
constexpr uint64_t kUsualMappings = 65'535;
// No leaf of any IOMMU is larger; as a granule it would be nonsense.
constexpr uint64_t kLargestGranule = uint64_t{1} << 30;

std::string Text(std::string_view s) { return std::string(s); }

// The whole granules inside of what the kernel says, ascending, neighbours joined.
std::vector<Interval> ReadApertures(std::span<const std::byte> capability, uint64_t granule) {
  std::vector<Interval> all;
  const auto head = ReadAt<vfio_iommu_type1_info_cap_iova_range>(capability, 0);
  const size_t room = (capability.size() - sizeof(head)) / sizeof(vfio_iova_range);
  for (size_t i = 0; i < std::min<size_t>(head.nr_iovas, room); ++i) {
    const auto range =
        ReadAt<vfio_iova_range>(capability, sizeof(head) + i * sizeof(vfio_iova_range));
    const uint64_t first = (range.start + granule - 1) & ~(granule - 1);
    // The end is inclusive, so that a range to the top has no end of its own.
    const bool whole = (range.end & (granule - 1)) == granule - 1;
    const uint64_t last = (whole ? range.end : (range.end & ~(granule - 1)) - 1);
    const bool none = !whole && range.end < granule;  // ends in the first page
    if (range.start > range.end || first < range.start || none || last < first) continue;
    all.push_back({Iova(first), Iova(last)});
  }
  std::sort(all.begin(), all.end());
  std::vector<Interval> joined;
  for (const Interval& i : all) {
    if (!joined.empty() &&
        (joined.back().Contains(i.first) || joined.back().last + Bytes(1) == i.first)) {
      joined.back().last = std::max(joined.back().last, i.last);
    } else {
      joined.push_back(i);
    }
  }
  return joined;
}

// What lies between them.
std::vector<Interval> Gaps(const std::vector<Interval>& apertures) {
  std::vector<Interval> gaps;
  for (size_t i = 1; i < apertures.size(); ++i) {
    gaps.push_back({apertures[i - 1].last + Bytes(1), apertures[i].first - Bytes(1)});
  }
  return gaps;
}

std::string ListOf(const std::vector<Interval>& intervals) {
  std::string text;
  for (const Interval& i : intervals) absl::StrAppend(&text, text.empty() ? "" : ", ", ToString(i));
  return text;
}

}  // namespace

absl::StatusOr<DomainFacts> VfioDomain::ReadFacts(VfioKernel& kernel, int container) {
  const auto answer = VfioQuery(kernel, container, VFIO_IOMMU_GET_INFO, vfio_iommu_type1_info{});
  if (answer.result < 0) {
    return VfioError(VfioProblem::kKernel,
                     absl::StrCat("VFIO_IOMMU_GET_INFO: ", ErrnoText(-answer.result),
                                  "; add a group to the container before its domain is made"));
  }
  DomainFacts facts;
  facts.unmap_invalidates = true;
  facts.page_sizes =
      (answer.info.flags & VFIO_IOMMU_INFO_PGSIZES) != 0 ? answer.info.iova_pgsizes : kPage;
  const uint64_t granule = facts.granule().value();
  if (granule == 0 || granule > kLargestGranule) {
    return VfioError(
        VfioProblem::kUnsupported,
        absl::StrCat("VFIO_IOMMU_GET_INFO: page sizes 0x", absl::Hex(answer.info.iova_pgsizes),
                     ": the smallest must be at most 1 GiB; use another kernel"));
  }
  const bool chained = (answer.info.flags & VFIO_IOMMU_INFO_CAPS) != 0;
  const auto find = [&](uint16_t id) {
    return FindVfioCapability(answer.raw, chained ? answer.info.cap_offset : 0, id);
  };
  const auto ranges = find(VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE);
  if (ranges.size() >= sizeof(vfio_iommu_type1_info_cap_iova_range)) {
    facts.apertures = ReadApertures(ranges, granule);
    if (facts.apertures.empty()) {
      return VfioError(VfioProblem::kWidth,
                       "VFIO_IOMMU_GET_INFO: the groups of the container have no IOVA in common; "
                       "give each a container of its own");
    }
    facts.reserved = Gaps(facts.apertures);
  } else {
    facts.apertures = {{Iova(0), Iova(kLeastLast)}};
    facts.reserved = {kInterruptWindow};
  }
  facts.width =
      AddressBits(static_cast<unsigned>(std::bit_width(facts.apertures.back().last.value())));
  const auto available = find(VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL);
  facts.max_mappings = available.size() >= sizeof(vfio_iommu_type1_info_dma_avail)
                           ? ReadAt<vfio_iommu_type1_info_dma_avail>(available, 0).avail
                           : kUsualMappings;
  return facts;
}

absl::StatusOr<std::unique_ptr<VfioDomain>> VfioDomain::Create(VfioKernel& kernel, int container,
                                                               Options&& options) {
  absl::StatusOr<DomainFacts> facts = ReadFacts(kernel, container);
  if (!facts.ok()) return facts.status();
  // 0 would say that there is no limit.
  if (facts->max_mappings == 0) {
    return VfioError(VfioProblem::kBudget,
                     absl::StrCat("domain '", options.name,
                                  "': the container has no mapping left; map through this domain "
                                  "only, or raise dma_entry_limit of vfio_iommu_type1"));
  }
  return std::unique_ptr<VfioDomain>(
      new VfioDomain(kernel, container, *std::move(facts), std::move(options)));
}

VfioDomain::VfioDomain(VfioKernel& kernel, int container, DomainFacts facts, Options&& options)
    : kernel_(kernel),
      container_(container),
      facts_(std::move(facts)),
      options_(std::move(options)),
      unlimited_(kernel.MayLockAnything() || !kernel.MemlockLimit()),
      locked_(unlimited_ ? Bytes(0) : kernel.LockedBytes()) {}

VfioDomain::~VfioDomain() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (live_.empty()) return;
  const auto last = std::prev(live_.end());
  vfio_iommu_type1_dma_unmap unmap{};
  unmap.argsz = sizeof(unmap);
  unmap.iova = live_.begin()->first;
  unmap.size = last->first + last->second.size - unmap.iova;
  kernel_.Ioctl(container_, VFIO_IOMMU_UNMAP_DMA, &unmap);
}

// The first mapping that ends above `address`.
VfioDomain::Table::const_iterator VfioDomain::FirstFrom(uint64_t address) const {
  auto it = live_.upper_bound(address);
  if (it == live_.begin()) return it;
  const auto before = std::prev(it);
  return address - before->first < before->second.size ? before : it;
}

// --- Map ----------------------------------------------------------------------------------------

absl::Status VfioDomain::CheckShape(const char* what, const Range& range) const {
  const Bytes granule = facts_.granule();
  if (!range.empty() && Range::Make(range.base, range.size) && IsAligned(range.base, granule) &&
      IsAligned(range.size, granule)) {
    return absl::OkStatus();
  }
  return VfioError(
      VfioProblem::kShape,
      absl::StrCat("domain '", options_.name, "': ", what, " of ", range.size.value(), " bytes at ",
                   ToString(range.base), ": base and size must be multiples of ", granule.value(),
                   ", the IOMMU's page, and end within 64 bits; round them"));
}

absl::Status VfioDomain::Check(const Range& range, const MemoryView& memory, Access access) const {
  if (absl::Status s = CheckShape("map", range); !s.ok()) return s;
  const auto address = reinterpret_cast<uintptr_t>(memory.device);
  const uint64_t granule = facts_.granule().value();
  if (memory.device == nullptr || memory.size != range.size.value() || address % granule != 0 ||
      reinterpret_cast<uintptr_t>(memory.cpu) % granule != 0 || memory.cpu == nullptr) {
    return VfioError(
        VfioProblem::kShape,
        absl::StrCat("domain '", options_.name, "': map of ", ToString(range), ": memory of ",
                     memory.size, " bytes at 0x", absl::Hex(address),
                     ": must have the range's size and begin at a multiple of ", granule));
  }
  if ((access & Access::kReadWrite) == Access::kNone) {
    return VfioError(
        VfioProblem::kShape,
        absl::StrCat("domain '", options_.name, "': map of ", ToString(range), " with access \"",
                     Text(Name(access)), "\": must be read, write or both"));
  }
  if (absl::Status s = CheckPlace(range); !s.ok()) return s;
  return CheckBudget(range);
}

absl::Status VfioDomain::CheckPlace(const Range& range) const {
  const bool inside = std::any_of(facts_.apertures.begin(), facts_.apertures.end(),
                                  [&](const Interval& i) { return i.Contains(range); });
  const Interval wanted{range.base, range.last()};
  const bool reserved = std::any_of(facts_.reserved.begin(), facts_.reserved.end(),
                                    [&](const Interval& i) { return i.Overlaps(wanted); });
  if (!inside || reserved) {
    return VfioError(VfioProblem::kWidth,
                     absl::StrCat("domain '", options_.name, "': map of ", ToString(range),
                                  ": the IOMMU translates ", ListOf(facts_.apertures), " without ",
                                  facts_.reserved.empty() ? "holes" : ListOf(facts_.reserved),
                                  "; take the IOVA from an address space of this domain"));
  }
  const auto at = FirstFrom(range.base.value());
  if (at == live_.end() || at->first > range.last().value()) return absl::OkStatus();
  return VfioError(
      VfioProblem::kOverlap,
      absl::StrCat("domain '", options_.name, "': map of ", ToString(range), ": overlaps ",
                   ToString(Range{Iova(at->first), Bytes(at->second.size)}),
                   ", which is mapped; unmap it first"));
}

absl::Status VfioDomain::CheckBudget(const Range& range) const {
  if (live_.size() < facts_.max_mappings) return absl::OkStatus();
  return VfioError(
      VfioProblem::kBudget,
      absl::StrCat("domain '", options_.name, "': map of ", ToString(range), ": all ",
                   facts_.max_mappings,
                   " mappings that the kernel allows a container are live; make fewer, larger ones "
                   "(huge pages, larger packet pages), or raise dma_entry_limit of "
                   "vfio_iommu_type1"));
}

absl::Status VfioDomain::MemlockError(const Range& range, Bytes locked, Bytes limit) const {
  const Bytes need = locked + range.size;
  return VfioError(
      VfioProblem::kMemlock,
      absl::StrCat("domain '", options_.name, "': map of ", ToString(range), " pins ",
                   range.size.value(), " bytes; ", locked.value(),
                   " are locked already (this domain pins ", stats_.mapped_bytes,
                   "), and the limit RLIMIT_MEMLOCK is ", limit.value(), "; needed is ulimit -l ",
                   (need.value() + 1023) / 1024, " (KiB) or more, or CAP_IPC_LOCK"));
}

// The estimate is this domain's own; only what it would refuse is worth asking the kernel again.
absl::Status VfioDomain::CheckMemlock(const Range& range) {
  if (unlimited_) return absl::OkStatus();
  const std::optional<Bytes> limit = kernel_.MemlockLimit();
  const auto fits = [&] { return !limit || (locked_ <= *limit && range.size <= *limit - locked_); };
  if (fits()) return absl::OkStatus();
  locked_ = kernel_.LockedBytes();
  if (fits()) return absl::OkStatus();
  return MemlockError(range, locked_, *limit);
}

// The kernel refused what looked right.
absl::Status VfioDomain::MapFailed(const Range& range, const MemoryView& memory, int error) {
  const std::string what =
      absl::StrCat("domain '", options_.name, "': map of ", ToString(range), ": ");
  const std::string of_kernel = absl::StrCat(": the kernel says ", ErrnoText(error));
  switch (error) {
    case EEXIST:
      return VfioError(VfioProblem::kOverlap,
                       absl::StrCat(what, "overlaps a mapping that is not this domain's", of_kernel,
                                    "; map through the domain only"));
    case EINVAL:
      return VfioError(VfioProblem::kWidth,
                       absl::StrCat(what, "outside of what the IOMMU translates", of_kernel,
                                    "; its width may be less than it told, see the kernel's log"));
    case ENOSPC:
      return VfioError(VfioProblem::kBudget,
                       absl::StrCat(what, "no mapping left of ", facts_.max_mappings, ", with ",
                                    live_.size(), " live here", of_kernel,
                                    "; make fewer, larger ones, or raise dma_entry_limit of "
                                    "vfio_iommu_type1"));
    case ENOMEM: {
      const std::optional<Bytes> limit = kernel_.MemlockLimit();
      if (limit && !kernel_.MayLockAnything()) {
        locked_ = kernel_.LockedBytes();
        return MemlockError(range, locked_, *limit);
      }
      return VfioError(VfioProblem::kMemory,
                       absl::StrCat(what, "no memory to pin it or for page tables", of_kernel,
                                    "; free memory, or raise the control group's limit"));
    }
    case EFAULT:
      return VfioError(
          VfioProblem::kMemory,
          absl::StrCat(what, "memory at 0x", absl::Hex(reinterpret_cast<uintptr_t>(memory.device)),
                       " is not all there, or may not be written", of_kernel,
                       "; map it readable and writable first"));
    default:
      return VfioError(VfioProblem::kKernel, absl::StrCat(what, "VFIO_IOMMU_MAP_DMA", of_kernel,
                                                          "; see the kernel's log"));
  }
}

absl::Status VfioDomain::Map(Range range, MemoryView memory, Access access) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (absl::Status s = Check(range, memory, access); !s.ok()) return s;
  if (absl::Status s = CheckMemlock(range); !s.ok()) return s;
  // The node first: once the kernel has mapped, nothing may fail.
  const auto at =
      live_.emplace(range.base.value(), Live{range.size.value(), range.size.value()}).first;
  vfio_iommu_type1_dma_map map{};
  map.argsz = sizeof(map);
  map.flags = (Allows(access, Access::kRead) ? VFIO_DMA_MAP_FLAG_READ : 0u) |
              (Allows(access, Access::kWrite) ? VFIO_DMA_MAP_FLAG_WRITE : 0u);
  map.vaddr = reinterpret_cast<uintptr_t>(memory.device);
  map.iova = range.base.value();
  map.size = range.size.value();
  if (const int result = kernel_.Ioctl(container_, VFIO_IOMMU_MAP_DMA, &map); result < 0) {
    live_.erase(at);
    return MapFailed(range, memory, -result);
  }
  ++stats_.maps;
  stats_.mapped_bytes += range.size.value();
  if (!unlimited_) locked_ += range.size;
  WarnOfBudget();
  return absl::OkStatus();
}

void VfioDomain::WarnOfBudget() {
  const uint64_t most = facts_.max_mappings;
  if (warned_ || live_.size() < most - most / 10) return;
  warned_ = true;
  const std::string line = absl::StrCat(
      "domain '", options_.name, "': ", live_.size(), " of the ", most,
      " mappings that the kernel allows are live; maps fail at the limit: make fewer, larger ones");
  if (options_.report) {
    options_.report(line);
  } else {
    std::fprintf(stderr, "dmakit: %s\n", line.c_str());
  }
}

// --- Unmap --------------------------------------------------------------------------------------

// `bytes` have gone from the mappings in `range`, lowest first, as the kernel goes.
void VfioDomain::Forget(const Range& range, uint64_t bytes) {
  auto it = live_.lower_bound(range.base.value());
  while (bytes != 0 && it != live_.end() && it->first <= range.last().value()) {
    const uint64_t gone = std::min(bytes, it->second.left);
    it->second.left -= gone;
    bytes -= gone;
    stats_.mapped_bytes -= gone;
    if (!unlimited_) locked_ -= std::min(locked_, Bytes(gone));
    it = it->second.left == 0 ? live_.erase(it) : std::next(it);
  }
}

absl::StatusOr<Bytes> VfioDomain::Unmap(Range range) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (absl::Status s = CheckShape("unmap", range); !s.ok()) return s;
  // From the first mapping to the last: the kernel walks what lies between, and nothing more.
  vfio_iommu_type1_dma_unmap unmap{};
  unmap.argsz = sizeof(unmap);
  bool any = false;
  for (auto it = FirstFrom(range.base.value());
       it != live_.end() && it->first <= range.last().value(); ++it) {
    const Range mapped{Iova(it->first), Bytes(it->second.size)};
    if (!range.Contains(mapped)) {
      return VfioError(
          VfioProblem::kShape,
          absl::StrCat("domain '", options_.name, "': unmap of ", ToString(range), ": cuts ",
                       ToString(mapped), ", which the kernel does not split; unmap all of it"));
    }
    if (!std::exchange(any, true)) unmap.iova = mapped.base.value();
    unmap.size = mapped.last().value() - unmap.iova + 1;
  }
  uint64_t removed = 0;
  if (any) {
    if (const int result = kernel_.Ioctl(container_, VFIO_IOMMU_UNMAP_DMA, &unmap); result < 0) {
      return VfioError(VfioProblem::kKernel,
                       absl::StrCat("domain '", options_.name, "': unmap of ", ToString(range),
                                    ": VFIO_IOMMU_UNMAP_DMA: ", ErrnoText(-result),
                                    "; keep the memory until the device is closed"));
    }
    removed = unmap.size;
    Forget(range, removed);
  }
  ++stats_.unmaps;
  return Bytes(removed);
}

absl::Status VfioDomain::Invalidate(Range range) {
  if (range.empty() || !Range::Make(range.base, range.size)) {
    return VfioError(VfioProblem::kShape,
                     absl::StrCat("domain '", options_.name, "': invalidation of ",
                                  range.size.value(), " bytes at ", ToString(range.base),
                                  ": must not be empty, and end within 64 bits"));
  }
  return InvalidateAll();
}

absl::Status VfioDomain::InvalidateAll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.invalidations;
  return absl::OkStatus();
}

DomainStats VfioDomain::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  DomainStats stats = stats_;
  stats.live_mappings = live_.size();
  return stats;
}

// --- Faults -------------------------------------------------------------------------------------

bool VfioDomain::AddFaultListener(FaultListener* listener) {
  if (options_.faults == nullptr) return false;
  const std::lock_guard<std::mutex> lock(listeners_mutex_);
  listeners_.push_back(listener);
  return true;
}

void VfioDomain::RemoveFaultListener(FaultListener* listener) {
  const std::lock_guard<std::mutex> lock(listeners_mutex_);
  std::erase(listeners_, listener);
}

void VfioDomain::AddDevice(std::string_view address) {
  const std::lock_guard<std::mutex> lock(listeners_mutex_);
  devices_.emplace_back(address);
}

void VfioDomain::RemoveDevice(std::string_view address) {
  const std::lock_guard<std::mutex> lock(listeners_mutex_);
  const auto at = std::find(devices_.begin(), devices_.end(), address);
  if (at != devices_.end()) devices_.erase(at);
}

size_t VfioDomain::PollFaults() {
  if (options_.faults == nullptr) return 0;
  const std::lock_guard<std::mutex> lock(listeners_mutex_);
  size_t own = 0;
  options_.faults->Poll([&](const KernelFault& fault) {
    const auto device = std::find_if(devices_.begin(), devices_.end(),
                                     [&](const std::string& d) { return fault.IsOf(d); });
    if (device == devices_.end()) return;
    ++own;
    for (FaultListener* listener : listeners_) {
      listener->OnFault(
          {.device = *device, .iova = fault.iova, .access = fault.access, .reason = fault.reason});
    }
  });
  return own;
}

std::optional<KernelFaultLog::Stats> VfioDomain::fault_log_stats() const {
  if (options_.faults == nullptr) return std::nullopt;
  const std::lock_guard<std::mutex> lock(listeners_mutex_);
  return options_.faults->stats();
}

}  // namespace dmakit::dma::host
