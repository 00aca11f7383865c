// SPDX-License-Identifier: Apache-2.0
//
// Device: making mappings. Each step that takes something gives it back itself when a later one
// fails; ending mappings is in device_state.cc.
#include "dma/device.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/device_state.h"
#include "dma/probes.h"
#include "dma/sg_plan.h"
#include "dma/text.h"

namespace dmakit::dma {

using internal::Annotate;
using internal::Bounce;
using internal::DeviceState;
using internal::LiveMapping;
using internal::Reword;
using internal::Translation;
using internal::View;

namespace {

constexpr Bytes kMaxAlignment = iova::Space::kMaxAlignment;

std::string Who(const DeviceState& device, std::string_view owner, uint64_t bytes) {
  return absl::StrCat("device '", device.options.name, "': map of ", bytes, " bytes for '",
                      View(owner), "'");
}

absl::Status Detached(const DeviceState& device) {
  return absl::FailedPreconditionError(
      absl::StrCat("device '", device.options.name,
                   "' is detached: its address space has ended; attach it to a new one"));
}

// A call that makes a mapping: counts its failure and lets a detach go on.
class Making {
 public:
  explicit Making(DeviceState& device) : device_(device), entered_(device.Enter()) {}
  ~Making() {
    if (!entered_) return;
    if (!done_) device_.CountFailure();
    device_.Leave();
  }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

  bool entered() const { return entered_; }
  // The mapping is live from here on.
  void Done(LiveMapping mapping, std::span<const std::span<std::byte>> list) {
    done_ = true;
    internal::ProbeMap(mapping.kind, device_.options.name, mapping.used, mapping.direction);
    if (!device_.options.coherent && mapping.cached()) [[unlikely]] {
      device_.domain().SyncForDevice(mapping.used);
    }
    Observer* const observing = device_.watcher();
    if (observing == nullptr) {
      device_.Insert(std::move(mapping));
      return;
    }
    const LiveMapping copy = mapping;
    device_.Insert(std::move(mapping));
    observing->OnMap(*device_.self, device_.Event(copy, list));
  }
  // The domain did not map it.
  void Refused(const LiveMapping& mapping, std::span<const std::span<std::byte>> list) {
    Observer* const observing = device_.watcher();
    if (observing != nullptr) observing->OnMapFailed(*device_.self, device_.Event(mapping, list));
  }

 private:
  DeviceState& device_;
  const bool entered_;
  bool done_ = false;
};

// Fails with nothing mapped: what was mapped before is taken down, or held if that fails too.
absl::Status Unwind(DeviceState& device, const LiveMapping& mapping, Translation translation,
                    iova::Cache* cache, const absl::Status& why) {
  if (absl::Status s = translation.Remove(); !s.ok()) {
    const absl::Status held = device.Hold(mapping, std::move(translation), s);
    return Reword(why, absl::StrCat(why.message(), "; and undoing it: ", held.message()));
  }
  device.FreeIova(mapping.iova, cache);
  return why;
}

iova::Cache* Fitting(const DeviceState& device, iova::Cache* cache) {
  return cache != nullptr && cache->highest() <= device.ceiling ? cache : nullptr;
}

// How the device may use a streaming mapping, or for good memory that it shares with the CPU.
Access Streaming(const DeviceState& device, Direction direction, bool resource) {
  const bool snoop = resource && !device.options.coherent;
  return AccessFor(direction) | (snoop ? Access::kSnoop : Access::kNone);
}
Access Coherent(const DeviceState& device) {
  return device.options.coherent ? Access::kReadWrite : Access::kReadWrite | Access::kSnoop;
}

// A list that fits below the segment boundary is placed so that it crosses none.
absl::StatusOr<Range> AllocateList(DeviceState& device, Bytes size, iova::Cache* cache) {
  Bytes alignment = device.granule;
  if (device.options.segment_boundary >= size && size <= kMaxAlignment) {
    alignment = std::max(alignment, Bytes(std::bit_ceil(size.value())));
  }
  absl::StatusOr<Range> iova = device.AllocateIova(size, alignment, cache);
  if (absl::IsResourceExhausted(iova.status()) && alignment > device.granule) {
    iova = device.AllocateIova(size, device.granule, cache);
  }
  return iova;
}

// The runs of a list, which may go from the caller's memory into the slot and back.
absl::Status MapRuns(DeviceState& device, const internal::SgPlan& plan, const Bounce* bounce,
                     Access access, Translation& translation) {
  const Iova base = translation.range().base;
  for (const internal::SgRun& run : plan.runs) {
    for (uint64_t done = 0; done < run.size;) {
      const std::span<std::byte> rest(run.memory + done, run.size - done);
      const MemoryView view = bounce == nullptr ? MemoryView::Of(rest) : bounce->ViewOf(rest);
      const Range piece{base + Bytes(run.offset + done), Bytes(view.size)};
      if (absl::Status s = translation.Map(device.domain(), piece, view, access); !s.ok()) return s;
      done += view.size;
    }
  }
  return absl::OkStatus();
}

// The entries where the device finds them.
std::vector<std::span<std::byte>> Moved(std::span<const std::span<std::byte>> entries,
                                        const Bounce& bounce) {
  std::vector<std::span<std::byte>> moved(entries.begin(), entries.end());
  for (const Bounce::Piece& piece : bounce.pieces()) moved[piece.entry] = bounce.bytes(piece);
  return moved;
}

absl::Status CheckCoherent(const DeviceState& device, const CoherentOptions& options) {
  auto bad = [&](auto&&... message) {
    return absl::InvalidArgumentError(absl::StrCat("ring '", options.label, "' of device '",
                                                   device.options.name, "': ", message...));
  };
  const uint64_t size = options.size.value();
  if (size == 0) return bad("size 0: must be at least 1 byte");
  if (!IsPowerOfTwo(options.alignment) || options.alignment > kMaxAlignment) {
    return bad("alignment ", options.alignment.value(), ": must be a power of two up to ",
               kMaxAlignment.value());
  }
  if (!AlignUp(options.size, device.granule)) {
    return bad("size ", size, ": must be below 2^64 when rounded up to granules of ",
               device.granule.value(), " bytes");
  }
  const uint64_t boundary = options.boundary.value();
  if (boundary == 0) return absl::OkStatus();
  if (!IsPowerOfTwo(options.boundary) || options.boundary < options.size) {
    return bad("boundary ", boundary, ": must be 0 or a power of two that is at least the size, ",
               size, " bytes");
  }
  if (options.size > kMaxAlignment) {
    return bad("size ", size, " with a boundary: can be at most ", kMaxAlignment.value(),
               " bytes; use boundary 0 or a smaller ring");
  }
  return absl::OkStatus();
}

}  // namespace

Device::Device(std::shared_ptr<DeviceState> state)
    : state_(std::move(state)), watch_(&state_->observer), cached_(!state_->options.coherent) {}
Device::~Device() { state_->Detach(); }

std::string_view Device::name() const { return state_->options.name; }
const DeviceOptions& Device::options() const { return state_->options; }
AddressSpace& Device::address_space() const { return *state_->space->self; }
Waiter& Device::waiter() const {
  return state_->options.waiter != nullptr ? *state_->options.waiter : SystemWaiter();
}
void Device::set_observer(Observer* observer) {
  std::lock_guard<internal::TopologyMutex> lock(state_->space->topology);
  state_->observer.store(observer, std::memory_order_relaxed);
  state_->space->CountWatchers();
}

DeviceStats Device::stats() const { return state_->Stats(); }

void Device::ForEachLive(const std::function<void(const MappingEvent&)>& visit) const {
  std::vector<LiveMapping> copy;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    for (const auto& [base, mapping] : state_->live) copy.push_back(mapping);
  }
  {
    // Exclusive: the pages' own threads change them with the lock shared.
    std::lock_guard<internal::TopologyMutex> lock(state_->space->topology);
    for (const auto& record : state_->space->Records()) {
      if (!record->translation.Translates(&state_->domain())) continue;
      copy.push_back({.kind = MappingKind::kPage,
                      .range = record->range,
                      .memory = record->memory,
                      .owner = record->owner,
                      .used = record->range});
    }
  }
  std::sort(copy.begin(), copy.end(),
            [](const LiveMapping& a, const LiveMapping& b) { return a.range.base < b.range.base; });
  for (const LiveMapping& mapping : copy) visit(state_->Event(mapping, {}));
}

absl::StatusOr<Mapping> Device::Map(std::span<std::byte> memory, Direction direction,
                                    const MapOptions& options) {
  DeviceState& device = *state_;
  Making making(device);
  if (!making.entered()) return Detached(device);
  const std::string owner(options.owner);
  auto failed = [&](const absl::Status& status) {
    return Annotate(status, Who(device, owner, memory.size()));
  };
  absl::StatusOr<internal::Covered> covered = internal::Cover(memory, device.granule);
  if (!covered.ok()) return failed(covered.status());
  absl::StatusOr<std::shared_ptr<const Bounce>> bounce = nullptr;
  if (device.may_bounce && !options.resource) [[unlikely]]
    bounce = device.NewBounce({&memory, 1});
  if (!bounce.ok()) return failed(bounce.status());
  iova::Cache* const cache = Fitting(device, options.cache);
  absl::StatusOr<Range> iova = device.AllocateIova(Bytes(covered->size), device.granule, cache);
  if (!iova.ok()) return failed(iova.status());

  const Range range{iova->base, Bytes(covered->size)};
  const MemoryView view = MemoryView::Of({covered->memory, covered->size});
  const MemoryView reached = *bounce == nullptr ? view : (*bounce)->view();
  const Access access = Streaming(device, direction, options.resource);
  LiveMapping live{.kind = options.resource ? MappingKind::kResource : MappingKind::kSingle,
                   .range = range,
                   .iova = *iova,
                   .direction = direction,
                   .memory = view,
                   .owner = owner,
                   .used = {range.base + Bytes(covered->offset), Bytes(memory.size())},
                   .red_zones = options.red_zones,
                   .bounce = *std::move(bounce)};
  if (absl::Status s = device.domain().Map(range, reached, access); !s.ok()) {
    making.Refused(live, {});
    device.FreeIova(*iova, cache);
    return failed(s);
  }
  Mapping mapping;
  mapping.moves_ = (cached_ && !options.resource) || live.bounce != nullptr;
  making.Done(std::move(live), {});
  mapping.device_ = state_;
  mapping.iova_ = range.base + Bytes(covered->offset);
  mapping.range_ = range;
  mapping.bytes_ = memory;
  mapping.direction_ = direction;
  return mapping;
}

absl::StatusOr<Mapping> Device::MapToDevice(std::span<const std::byte> memory,
                                            const MapOptions& options) {
  // The domain lets the device read only; nothing here writes through the pointer.
  return Map({const_cast<std::byte*>(memory.data()), memory.size()}, Direction::kToDevice, options);
}

absl::StatusOr<SgMapping> Device::MapSg(std::span<const std::span<std::byte>> entries,
                                        Direction direction, const MapOptions& options) {
  DeviceState& device = *state_;
  Making making(device);
  if (!making.entered()) return Detached(device);
  absl::StatusOr<internal::SgPlan> plan = internal::PlanSg(entries, device.granule);
  auto failed = [&](const absl::Status& status) {
    return Annotate(status, Who(device, options.owner, plan.ok() ? plan->size : 0));
  };
  if (!plan.ok()) return failed(plan.status());

  absl::StatusOr<std::shared_ptr<const Bounce>> bounce = nullptr;
  if (device.may_bounce && !options.resource) [[unlikely]]
    bounce = device.NewBounce(entries);
  if (bounce.ok() && *bounce != nullptr) {
    plan = internal::PlanSg(Moved(entries, **bounce), device.granule);
    if (!plan.ok()) return failed(plan.status());
  }
  if (!bounce.ok()) return failed(bounce.status());

  iova::Cache* const cache = Fitting(device, options.cache);
  absl::StatusOr<Range> iova = AllocateList(device, Bytes(plan->size), cache);
  if (!iova.ok()) return failed(iova.status());
  LiveMapping live{.kind = MappingKind::kScatterGather,
                   .range = Range{iova->base, Bytes(plan->size)},
                   .iova = *iova,
                   .direction = direction,
                   .entries = entries.size(),
                   .owner = std::string(options.owner),
                   .used = {iova->base, Bytes(plan->size)},
                   .bounce = *std::move(bounce)};
  Translation translation(live.range);
  const Access access = Streaming(device, direction, options.resource);
  if (absl::Status s = MapRuns(device, *plan, live.bounce.get(), access, translation); !s.ok()) {
    making.Refused(live, entries);
    return failed(Unwind(device, live, std::move(translation), cache, s));
  }
  SgMapping mapping;
  mapping.range_ = live.range;
  mapping.entries_.assign(entries.begin(), entries.end());
  mapping.segments_ = internal::CutSegments(
      entries, *plan, live.range.base, device.options.max_segment, device.options.segment_boundary);
  mapping.direction_ = direction;
  mapping.moves_ = cached_ | (live.bounce != nullptr);
  making.Done(std::move(live), entries);
  mapping.device_ = state_;
  return mapping;
}

absl::StatusOr<CoherentBlock> Device::AllocateCoherent(const CoherentOptions& options) {
  DeviceState& device = *state_;
  Making making(device);
  if (!making.entered()) return Detached(device);
  if (absl::Status s = CheckCoherent(device, options); !s.ok()) return s;
  auto failed = [&](const absl::Status& status, std::string_view what) {
    return Reword(status, absl::StrCat("ring '", options.label, "' of device '",
                                       device.options.name, "': ", View(what), " for ",
                                       options.size.value(), " bytes: ", status.message()));
  };
  const Bytes size = *AlignUp(options.size, device.granule);
  Bytes alignment = std::max(options.alignment, device.granule);
  absl::StatusOr<host::Memory> memory = device.space->options.memory->Allocate(
      {.size = size, .alignment = alignment, .numa = device.options.numa, .label = options.label});
  if (!memory.ok()) {
    const bool full = absl::IsResourceExhausted(memory.status());
    return failed(memory.status(), full ? "out of memory" : "no memory");
  }
  // A block aligned to its size, rounded up to a power of two, crosses no boundary above that.
  if (options.boundary.value() != 0) {
    alignment = std::max(alignment, Bytes(std::bit_ceil(options.size.value())));
  }
  absl::StatusOr<Range> iova = device.AllocateIova(size, alignment, nullptr);
  if (!iova.ok()) return failed(iova.status(), "out of device addresses");

  const Range range{iova->base, size};
  const MemoryView whole = memory->view().Sub(0, size.value());
  if (absl::Status s = device.domain().Map(range, whole, Coherent(device)); !s.ok()) {
    device.FreeIova(*iova, nullptr);
    return failed(s, "not mapped");
  }
  CoherentBlock block;
  block.memory_ = std::make_shared<host::Memory>(*std::move(memory));
  block.view_ = whole.Sub(0, options.size.value());
  block.iova_ = range.base;
  block.range_ = range;
  block.label_ = options.label;
  making.Done({.kind = MappingKind::kCoherent,
               .range = range,
               .iova = *iova,
               .memory = whole,
               .owner = options.label,
               .block = block.memory_,
               .used = {range.base, options.size}},
              {});
  block.device_ = state_;
  return block;
}

}  // namespace dmakit::dma
