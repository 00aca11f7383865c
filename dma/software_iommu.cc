// SPDX-License-Identifier: Apache-2.0
//
// The IOMMU as a whole: options, mappings, invalidation, records. Its ports are in
// software_iommu_port.cc.
#include "dma/software_iommu.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/page_table.h"
#include "dma/software_iommu_impl.h"

namespace dmakit::dma {
namespace {

using internal::PageTable;

constexpr uint64_t kGranule = 4096;
constexpr uint64_t kLeafSizes = PageTable::SizeOf(0) | PageTable::SizeOf(1) | PageTable::SizeOf(2);

absl::Status CheckOptions(const SoftwareIommu::Options& o) {
  const auto bad = [&o](auto... text) {
    return absl::InvalidArgumentError(absl::StrCat("iommu \"", o.name, "\": ", text...));
  };
  if (o.width.value() < 13 || o.width.value() > 48) {
    return bad("width of ", o.width.value(), " bits: four levels translate 13 to 48 bits");
  }
  if ((o.page_sizes & kGranule) == 0 || (o.page_sizes & ~kLeafSizes) != 0) {
    return bad("page sizes 0x", absl::Hex(o.page_sizes),
               ": must hold 4 KiB and may add 2 MiB and 1 GiB");
  }
  if (!std::has_single_bit(o.iotlb_entries) || !std::has_single_bit(o.iotlb_ways) ||
      o.iotlb_ways > o.iotlb_entries) {
    return bad("IOTLB of ", o.iotlb_entries, " entries, ", o.iotlb_ways,
               " ways: both must be powers of two, and at most as many ways as entries");
  }
  if (o.walk_cache_entries != 0 && !std::has_single_bit(o.walk_cache_entries)) {
    return bad("walk cache of ", o.walk_cache_entries, " entries: must be 0 or a power of two");
  }
  for (const Interval& hole : o.reserved) {
    if (!hole.valid()) {
      return bad("reserved ", ToString(hole), ": the first address must not be above the last");
    }
  }
  return absl::OkStatus();
}

DomainFacts FactsOf(const SoftwareIommu::Options& o) {
  DomainFacts facts;
  facts.apertures = {{Iova(0), o.width.ToMask().highest()}};
  facts.reserved = o.reserved;
  std::ranges::sort(facts.reserved);
  facts.page_sizes = o.page_sizes;
  facts.width = o.width;
  facts.max_mappings = o.max_mappings;
  return facts;
}

}  // namespace

SoftwareIommu::Impl::Impl(Options o)
    : options(std::move(o)),
      facts(FactsOf(options)),
      last_iova(facts.width.ToMask().value()),
      table(options.page_sizes, options.allow_table) {}

void SoftwareIommu::Impl::Tell(const DomainFault& fault) {
  const std::lock_guard lock(listeners_mutex);
  for (FaultListener* listener : listeners) listener->OnFault(fault);
}

// --------------------------------------------------------------------------------------

absl::Status SoftwareIommu::Impl::CheckShape(Range range, const MemoryView& memory,
                                             Access access) const {
  const auto bad = [&](auto... text) {
    return Error(absl::StatusCode::kInvalidArgument,
                 absl::StrCat("map of ", range.size.value(), " bytes at ", ToString(range.base),
                              ": ", text...));
  };
  if (range.empty()) return bad("the range is empty; map at least one page of 4096 bytes");
  if (!Range::Make(range.base, range.size)) return bad("base plus size goes past 2^64 - 1");
  if (!IsAligned(range.base, Bytes(kGranule)) || !IsAligned(range.size, Bytes(kGranule))) {
    return bad("base and size must be multiples of 4096; round them outwards");
  }
  if (memory.size != range.size.value()) {
    return bad("the memory has ", memory.size, " bytes; both must have one size");
  }
  const auto address = reinterpret_cast<uintptr_t>(memory.device);
  if (memory.device == nullptr || address % kGranule != 0 ||
      reinterpret_cast<uintptr_t>(memory.cpu) % kGranule != 0) {
    return bad("memory at 0x", absl::Hex(address), " must start on a page of 4096 bytes");
  }
  if ((access & Access::kReadWrite) == Access::kNone) {
    return bad("access \"", std::string(Name(access)), "\": give read, write or both");
  }
  return absl::OkStatus();
}

absl::Status SoftwareIommu::Impl::CheckPlace(Range range) const {
  const Interval where{range.base, range.last()};
  if (where.last.value() > last_iova) {
    return Error(absl::StatusCode::kOutOfRange,
                 absl::StrCat("map at ", ToString(range), ": this IOMMU translates ",
                              facts.width.value(), " bits, up to ", ToString(Iova(last_iova)),
                              "; allocate IOVAs within facts().apertures"));
  }
  if (const Interval* hole = ReservedAt(where)) {
    return Error(absl::StatusCode::kOutOfRange,
                 absl::StrCat("map at ", ToString(range), ": ", ToString(*hole),
                              " is reserved; keep facts().reserved out of the allocator"));
  }
  return absl::OkStatus();
}

const Interval* SoftwareIommu::Impl::ReservedAt(const Interval& where) const {
  const auto hole = std::ranges::find_if(
      facts.reserved, [&where](const Interval& hole) { return hole.Overlaps(where); });
  return hole == facts.reserved.end() ? nullptr : &*hole;
}

std::map<uint64_t, SoftwareIommu::Impl::Live>::iterator SoftwareIommu::Impl::FirstFrom(
    uint64_t first) {
  auto at = live.upper_bound(first);
  if (at != live.begin() && std::prev(at)->second.last >= first) --at;
  return at;
}

// One port after the other, each under its lock: when this returns, every access that was running
// when it was called has ended.
template <typename Action>
void SoftwareIommu::Impl::ForEachPort(Action action) {
  const std::lock_guard lock(ports_mutex);
  for (Port* port : ports) {
    const std::lock_guard port_lock(port->mutex());
    action(*port);
  }
}

absl::StatusOr<std::unique_ptr<SoftwareIommu>> SoftwareIommu::Create(Options options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  auto impl = std::make_unique<Impl>(std::move(options));
  if (!impl->table.ok()) {
    return impl->Error(absl::StatusCode::kResourceExhausted,
                       "no memory for the root page table (4096 bytes); free memory and try again");
  }
  return std::unique_ptr<SoftwareIommu>(new SoftwareIommu(std::move(impl)));
}

SoftwareIommu::SoftwareIommu(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

SoftwareIommu::~SoftwareIommu() { assert(impl_->ports.empty() && "a port outlives its IOMMU"); }

std::unique_ptr<DevicePort> SoftwareIommu::NewPort(std::string name, PortOptions options) {
  return std::make_unique<Port>(*impl_, std::move(name), options);
}

std::string_view SoftwareIommu::name() const { return impl_->options.name; }
const DomainFacts& SoftwareIommu::facts() const { return impl_->facts; }

absl::Status SoftwareIommu::Map(Range range, MemoryView memory, Access access) {
  Impl& impl = *impl_;
  if (absl::Status status = impl.CheckShape(range, memory, access); !status.ok()) return status;
  if (absl::Status status = impl.CheckPlace(range); !status.ok()) return status;
  const uint64_t first = range.base.value();
  const uint64_t last = range.last().value();

  const std::lock_guard lock(impl.map_mutex);
  if (const auto at = impl.FirstFrom(first); at != impl.live.end() && at->first <= last) {
    return impl.Error(
        absl::StatusCode::kAlreadyExists,
        absl::StrCat("map at ", ToString(range), ": ",
                     ToString(Interval{Iova(at->first), Iova(at->second.last)}), " is mapped (",
                     std::string(Name(at->second.access)), "); unmap it first"));
  }
  if (impl.options.max_mappings != 0 && impl.live.size() >= impl.options.max_mappings) {
    return impl.Error(
        absl::StatusCode::kResourceExhausted,
        absl::StrCat("map at ", ToString(range), ": the limit of ", impl.options.max_mappings,
                     " live mappings is reached; unmap some or map larger ranges"));
  }
  if (absl::Status status = impl.table.Map(range, memory.device, access); !status.ok()) {
    return impl.Error(status.code(), std::string(status.message()));
  }
  if (impl.table.has_retired()) {
    impl.ForEachPort([first, last](Port& port) { port.ForgetTables(first, last); });
    impl.table.RecycleRetired();
  }
  impl.live.emplace(first, Impl::Live{last, access});
  impl.maps.fetch_add(1, std::memory_order_relaxed);
  impl.live_mappings.fetch_add(1, std::memory_order_relaxed);
  impl.mapped_bytes.fetch_add(range.size.value(), std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::StatusOr<Bytes> SoftwareIommu::Unmap(Range range) {
  Impl& impl = *impl_;
  const auto bad = [&](auto... text) {
    return impl.Error(absl::StatusCode::kInvalidArgument,
                      absl::StrCat("unmap of ", range.size.value(), " bytes at ",
                                   ToString(range.base), ": ", text...));
  };
  if (range.empty()) return bad("the range is empty");
  if (!Range::Make(range.base, range.size)) return bad("base plus size goes past 2^64 - 1");
  const uint64_t first = range.base.value();
  const uint64_t last = range.last().value();

  const std::lock_guard lock(impl.map_mutex);
  const auto begin = impl.FirstFrom(first);
  auto end = begin;
  Bytes removed;
  for (; end != impl.live.end() && end->first <= last; ++end) {
    const Interval mapping{Iova(end->first), Iova(end->second.last)};
    if (end->first < first || end->second.last > last) {
      return bad("cuts the mapping ", ToString(mapping),
                 "; this domain cannot split, unmap it whole");
    }
    removed += mapping.last - mapping.first + Bytes(1);
  }
  for (auto at = begin; at != end; ++at) {
    impl.table.Clear({Iova(at->first), Bytes(at->second.last - at->first + 1)});
  }
  const auto count = static_cast<uint64_t>(std::distance(begin, end));
  impl.live.erase(begin, end);
  impl.unmaps.fetch_add(1, std::memory_order_relaxed);
  impl.live_mappings.fetch_sub(count, std::memory_order_relaxed);
  impl.mapped_bytes.fetch_sub(removed.value(), std::memory_order_relaxed);
  return removed;
}

absl::Status SoftwareIommu::Invalidate(Range range) {
  if (!Range::Make(range.base, range.size)) {
    return impl_->Error(absl::StatusCode::kInvalidArgument,
                        absl::StrCat("invalidation of ", range.size.value(), " bytes at ",
                                     ToString(range.base), ": goes past 2^64 - 1"));
  }
  if (range.empty()) return absl::OkStatus();
  impl_->ForEachPort(
      [&range](Port& port) { port.Invalidate(range.base.value(), range.last().value()); });
  impl_->invalidations.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status SoftwareIommu::InvalidateAll() {
  impl_->ForEachPort([](Port& port) { port.InvalidateAll(); });
  impl_->invalidations.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

void SoftwareIommu::SyncForCpu(Range range) {
  if (range.empty() || !Range::Make(range.base, range.size)) return;
  impl_->ForEachPort([&](Port& port) {
    if (port.lines() != nullptr) port.lines()->WriteBack(range.base.value(), range.last().value());
  });
}

void SoftwareIommu::SyncForDevice(Range range) {
  if (range.empty() || !Range::Make(range.base, range.size)) return;
  impl_->ForEachPort([&](Port& port) {
    if (port.lines() != nullptr) port.lines()->Forget(range.base.value(), range.last().value());
  });
}

DomainStats SoftwareIommu::stats() const {
  const auto value = [](const std::atomic<uint64_t>& count) {
    return count.load(std::memory_order_relaxed);
  };
  return {value(impl_->maps), value(impl_->unmaps), value(impl_->invalidations),
          value(impl_->live_mappings), value(impl_->mapped_bytes)};
}

bool SoftwareIommu::AddFaultListener(FaultListener* listener) {
  const std::lock_guard lock(impl_->listeners_mutex);
  impl_->listeners.push_back(listener);
  return true;
}

void SoftwareIommu::RemoveFaultListener(FaultListener* listener) {
  const std::lock_guard lock(impl_->listeners_mutex);
  std::erase(impl_->listeners, listener);
}

SoftwareIommu::WalkStats SoftwareIommu::walk_stats() const {
  const std::lock_guard lock(impl_->ports_mutex);
  WalkStats sum = impl_->of_dead_ports;
  for (const Port* port : impl_->ports) port->counts().AddTo(sum);
  return sum;
}

std::vector<SoftwareIommu::Fault> SoftwareIommu::faults() const {
  const std::lock_guard lock(impl_->records_mutex);
  return {impl_->faults.begin(), impl_->faults.end()};
}

std::vector<SoftwareIommu::StaleUse> SoftwareIommu::stale_uses() const {
  const std::lock_guard lock(impl_->records_mutex);
  return {impl_->stale_uses.begin(), impl_->stale_uses.end()};
}

size_t SoftwareIommu::table_pages() const { return impl_->table.table_pages(); }

absl::Status SoftwareIommu::FreeUnusedTables() {
  const std::lock_guard lock(impl_->map_mutex);
  const std::lock_guard ports_lock(impl_->ports_mutex);
  std::vector<std::unique_lock<std::mutex>> quiet;
  for (Port* port : impl_->ports) {
    quiet.emplace_back(port->mutex(), std::try_to_lock);
    if (!quiet.back().owns_lock()) {
      return impl_->Error(absl::StatusCode::kFailedPrecondition,
                          absl::StrCat("device \"", std::string(port->name()),
                                       "\" is in an access; stop it before freeing page tables"));
    }
  }
  for (Port* port : impl_->ports) port->ForgetTables();
  impl_->table.FreeEmptyTables();
  return absl::OkStatus();
}

std::string_view Name(SoftwareIommu::Fault::Reason reason) {
  switch (reason) {
    case SoftwareIommu::Fault::Reason::kNotPresent:
      return "not present";
    case SoftwareIommu::Fault::Reason::kNoPermission:
      return "no permission";
    case SoftwareIommu::Fault::Reason::kBeyondWidth:
      return "beyond width";
    case SoftwareIommu::Fault::Reason::kReserved:
      return "reserved";
    case SoftwareIommu::Fault::Reason::kMisaligned:
      return "misaligned";
  }
  return "invalid";
}

}  // namespace dmakit::dma
