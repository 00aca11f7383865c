// SPDX-License-Identifier: Apache-2.0
//
// AddressSpace: creation, reservation of page ranges, statistics, and its end.
#include "dma/address_space.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/device_state.h"
#include "dma/text.h"

namespace dmakit::dma {

using internal::DeviceState;
using internal::SharedRecord;
using internal::SpaceState;
using internal::TopologyMutex;

namespace internal {

SpaceState::SpaceState(AddressSpace::Options options_in)
    : options(std::move(options_in)), quarantine(std::make_unique<dma::Quarantine>()) {}

void SpaceState::Report(std::string_view line) const {
  const std::string text = absl::StrCat("address space '", options.name, "': ", View(line));
  if (options.report) {
    options.report(text);
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

void SpaceState::CountWatchers() {
  const auto count = std::count_if(devices.begin(), devices.end(),
                                   [](const auto& device) { return device->watcher() != nullptr; });
  watchers.store(static_cast<size_t>(count), std::memory_order_relaxed);
}

bool SpaceState::FreeParked() const {
  bool any = false;
  for (const auto& device : devices) any |= device->FreeParked();
  return any;
}

// The space ends: devices go, handles die, what waits is flushed, what is held is let go or
// reported.
void SpaceState::Close() {
  std::vector<std::shared_ptr<DeviceState>> attached;
  {
    std::shared_lock<TopologyMutex> lock(topology);
    attached = devices;
  }
  for (const auto& device : attached) {
    Report(absl::StrCat("ended with device '", device->options.name, "' attached"));
    device->Detach();
  }
  struct Sum {
    size_t count = 0;
    uint64_t bytes = 0;
  };
  std::map<std::string, Sum> owners;
  {
    std::lock_guard<TopologyMutex> lock(topology);
    dead = true;
    for (const auto& record : Records()) {
      std::lock_guard<std::mutex> leaf(record->mutex);
      record->mapped.store(false, std::memory_order_relaxed);
      if (record->orphaned) continue;
      Sum& sum = owners[record->owner];
      ++sum.count;
      sum.bytes += record->range.size.value();
    }
  }
  if (iova != nullptr && queue != nullptr) iova->Unregister(queue.get());
  queue.reset();
  for (const auto& [owner, sum] : owners) {
    Report(absl::StrCat("ended with ", sum.count, " page ranges (", sum.bytes, " bytes) of '",
                        owner, "' reserved"));
  }
  // Nothing is attached: what can be unmapped and invalidated is out of every device's reach.
  (void)quarantine->ReleaseAfterReset("");
  for (const std::string& line : quarantine->Describe()) {
    Report(absl::StrCat("ended with quarantined ", line));
  }
  quarantine.reset();
  std::lock_guard<std::mutex> lock(records_mutex);
  records.clear();
}

}  // namespace internal

namespace {

absl::Status CheckDevice(const DeviceOptions& options) {
  auto bad = [&](auto&&... message) {
    return absl::InvalidArgumentError(absl::StrCat("device '", options.name, "': ", message...));
  };
  if (options.name.empty()) return bad("name is empty: reports need one");
  if (options.name.find(',') != std::string::npos) {
    return bad("the name must have no comma, which separates names in quarantine items");
  }
  if (options.domain == nullptr) return bad("domain is null: pass the translation it is behind");
  if (!options.mask.valid()) {
    return bad("mask ", ToString(options.mask.highest()),
               ": must be 2^k - 1, the highest address it can emit; from a number of bits use "
               "AddressBits::ToMask");
  }
  const Bytes granule = options.domain->facts().granule();
  if (granule.value() == 0 || granule > iova::Space::kMaxAlignment) {
    return bad("domain '", internal::View(options.domain->name()), "' has a granule of ",
               granule.value(), " bytes: must be 1 to ", iova::Space::kMaxAlignment.value());
  }
  if (options.max_segment.value() == 0) return bad("max_segment 0: must be at least 1 byte");
  if (options.segment_boundary.value() != 0 && !IsPowerOfTwo(options.segment_boundary)) {
    return bad("segment_boundary ", options.segment_boundary.value(),
               ": must be a power of two, or 0 for none");
  }
  return absl::OkStatus();
}

absl::Status NoDevice(const SpaceState& state, const char* what) {
  return absl::FailedPreconditionError(
      absl::StrCat("address space '", state.options.name, "': ", what,
                   " before the first device: its addresses are those of the device's domain; "
                   "attach one first"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AddressSpace>> AddressSpace::Create(Options options) {
  if (options.memory == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("address space '", options.name, "': memory is null: pass a MemorySource"));
  }
  if (!options.prefer.valid()) {
    return absl::InvalidArgumentError(absl::StrCat("address space '", options.name, "': prefer ",
                                                   options.prefer.value(),
                                                   " bits: must be 1 to 64; 64 is no preference"));
  }
  auto state = std::make_shared<SpaceState>(std::move(options));
  state->policy = state->options.policy;
  if (state->policy == Policy::kDeferred) {
    absl::StatusOr<std::unique_ptr<FlushQueue>> queue =
        FlushQueue::Create({.limits = state->options.deferred,
                            .clock = &state->clock(),
                            .threads = state->options.threads});
    if (queue.ok()) {
      state->queue = *std::move(queue);
    } else if (absl::IsInvalidArgument(queue.status())) {
      return internal::Annotate(queue.status(),
                                absl::StrCat("address space '", state->options.name, "'"));
    } else {
      state->policy = Policy::kStrict;
      state->fallback =
          absl::StrCat("strict instead of deferred invalidation: ", queue.status().message());
    }
  }
  std::unique_ptr<AddressSpace> space(new AddressSpace(state));
  state->self = space.get();
  return space;
}

AddressSpace::AddressSpace(std::shared_ptr<SpaceState> state)
    : state_(std::move(state)), watchers_(&state_->watchers) {}
AddressSpace::~AddressSpace() { state_->Close(); }

absl::StatusOr<std::unique_ptr<Device>> AddressSpace::Attach(DeviceOptions options) {
  if (absl::Status s = CheckDevice(options); !s.ok()) return s;
  auto device = std::make_shared<DeviceState>(state_, std::move(options));
  std::unique_ptr<Device> handle;
  {
    std::lock_guard<TopologyMutex> lock(state_->topology);
    if (absl::Status s = state_->Admit(*device); !s.ok()) return s;
    handle.reset(new Device(device));
    device->self = handle.get();
  }
  if (const auto& then = state_->options.on_attach) {
    if (absl::Status s = then(*handle); !s.ok()) return s;  // and the handle detaches
  }
  return handle;
}

absl::StatusOr<SharedRange> AddressSpace::Reserve(Bytes size, Bytes alignment,
                                                  std::string_view owner, iova::Cache* cache) {
  SpaceState& state = *state_;
  const std::string name(owner);
  std::shared_lock<TopologyMutex> lock(state.topology);
  if (state.iova == nullptr) return NoDevice(state, "a page range was asked for");
  if (size.value() == 0 || size.value() % state.granule.value() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page range for '", name, "': size ", size.value(), ": must be a multiple of ",
        state.granule.value(), ", the coarsest granule of the devices' domains, and not 0"));
  }
  alignment = std::max(alignment, state.granule);
  const bool fits = cache != nullptr && cache->highest() <= state.ceiling;
  const auto allocate = [&] {
    return fits ? cache->Allocate(size, alignment)
                : state.iova->Allocate({.size = size,
                                        .alignment = alignment,
                                        .highest = state.ceiling,
                                        .prefer_below = state.preferred()});
  };
  absl::StatusOr<Range> iova = allocate();
  if (absl::IsResourceExhausted(iova.status()) && state.FreeParked()) iova = allocate();
  if (!iova.ok()) {
    return internal::Annotate(iova.status(), absl::StrCat("page range for '", name, "'"));
  }
  SharedRange range;
  range.space_ = state_;
  range.record_ = std::make_shared<SharedRecord>(&state, Range{iova->base, size}, *iova, name);
  std::lock_guard<std::mutex> records(state.records_mutex);
  state.records.emplace(iova->base.value(), range.record_);
  return range;
}

absl::StatusOr<std::unique_ptr<iova::Cache>> AddressSpace::NewCache(std::string_view owner) {
  Iova ceiling;
  {
    std::shared_lock<TopologyMutex> lock(state_->topology);
    if (state_->iova == nullptr) return NoDevice(*state_, "an IOVA cache was asked for");
    ceiling = state_->ceiling;
  }
  absl::StatusOr<std::unique_ptr<iova::Cache>> cache = iova::Cache::Create(
      state_->iova.get(), {.highest = ceiling, .prefer_below = state_->preferred()});
  if (!cache.ok()) {
    return internal::Annotate(cache.status(),
                              absl::StrCat("IOVA cache for '", internal::View(owner), "'"));
  }
  return cache;
}

absl::StatusOr<FlushLane> AddressSpace::NewFlushLane(std::string_view owner) {
  return state_->queue != nullptr ? state_->queue->NewLane(owner) : FlushLane();
}

host::MemorySource& AddressSpace::memory() const { return *state_->options.memory; }

iova::Space& AddressSpace::iova_space() {
  std::shared_lock<TopologyMutex> lock(state_->topology);
  return *state_->iova;
}

bool AddressSpace::has_devices() const {
  std::shared_lock<TopologyMutex> lock(state_->topology);
  return !state_->devices.empty();
}

void AddressSpace::TellRecycled(Range page, std::string_view owner) const {
  std::shared_lock<TopologyMutex> lock(state_->topology);
  for (const auto& device : state_->devices) {
    if (Observer* o = device->watcher()) o->OnRecycled(*device->self, page, owner);
  }
}

void AddressSpace::TellMisuse(const Misuse& misuse) const {
  std::shared_lock<TopologyMutex> lock(state_->topology);
  for (const auto& device : state_->devices) {
    if (Observer* o = device->watcher()) o->OnMisuse(*device->self, misuse);
  }
}

Bytes AddressSpace::granule() const {
  std::shared_lock<TopologyMutex> lock(state_->topology);
  return state_->granule;
}

FlushQueue* AddressSpace::flush_queue() { return state_->queue.get(); }
Quarantine& AddressSpace::quarantine() { return *state_->quarantine; }

AddressSpace::Stats AddressSpace::stats() const {
  Stats stats;
  std::shared_lock<TopologyMutex> lock(state_->topology);
  for (const internal::DomainUse& use : state_->domains) {
    const DomainStats domain = use.domain->stats();
    stats.maps += domain.maps;
    stats.unmaps += domain.unmaps;
    stats.invalidations += domain.invalidations;
    stats.live_mappings += domain.live_mappings;
  }
  stats.quarantined = state_->quarantine->count();
  stats.policy = state_->policy;
  stats.fallback = state_->fallback;
  return stats;
}

std::vector<std::pair<std::string, DeviceStats>> AddressSpace::device_stats() const {
  std::vector<std::shared_ptr<internal::DeviceState>> devices;
  {
    std::shared_lock<TopologyMutex> lock(state_->topology);
    devices = state_->devices;
  }
  std::vector<std::pair<std::string, DeviceStats>> all;
  for (const auto& device : devices) all.emplace_back(device->options.name, device->Stats());
  return all;
}

}  // namespace dmakit::dma
