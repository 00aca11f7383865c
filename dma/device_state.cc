// SPDX-License-Identifier: Apache-2.0
//
// DeviceState: the table of live mappings, how each of them ends, and detach.
#include "dma/device_state.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/probes.h"
#include "dma/text.h"

namespace dmakit::dma::internal {

DeviceState::DeviceState(std::shared_ptr<SpaceState> space_in, DeviceOptions options_in)
    : space(std::move(space_in)),
      options(std::move(options_in)),
      fixed_memory(options.domain->facts().fixed_memory),
      may_bounce(!options.trusted || fixed_memory),
      slots(std::make_shared<BouncePool>(*space->options.memory, options.numa,
                                         options.bounce_limit)) {}

bool DeviceState::Enter() {
  std::lock_guard<std::mutex> lock(mutex);
  if (detached.load(std::memory_order_relaxed)) return false;
  ++busy;
  return true;
}

void DeviceState::Leave() {
  std::lock_guard<std::mutex> lock(mutex);
  if (--busy == 0) quiet.notify_all();
}

std::optional<LiveMapping> DeviceState::Claim(Iova base) {
  std::lock_guard<std::mutex> lock(mutex);
  if (detached.load(std::memory_order_relaxed)) return std::nullopt;
  auto it = live.find(base.value());
  if (it == live.end()) return std::nullopt;
  LiveMapping mapping = std::move(it->second);
  live.erase(it);
  --stats.live_mappings;
  if (mapping.kind == MappingKind::kCoherent) stats.coherent_bytes -= mapping.memory.size;
  ++busy;
  return mapping;
}

void DeviceState::Insert(LiveMapping mapping) {
  const uint64_t key = mapping.range.base.value();
  std::lock_guard<std::mutex> lock(mutex);
  ++stats.maps;
  ++stats.live_mappings;
  if (mapping.kind == MappingKind::kCoherent) stats.coherent_bytes += mapping.memory.size;
  if (mapping.bounce != nullptr) ++stats.bounced_maps;
  live.insert_or_assign(key, std::move(mapping));
}

DeviceStats DeviceState::Stats() const {
  std::lock_guard<std::mutex> lock(mutex);
  DeviceStats copy = stats;
  copy.bounce_bytes_now = slots->in_use().value();
  return copy;
}

void DeviceState::CountFailure() {
  std::lock_guard<std::mutex> lock(mutex);
  ++stats.map_failures;
}

absl::StatusOr<Range> DeviceState::AllocateIova(Bytes size, Bytes alignment, iova::Cache* cache) {
  const auto allocate = [&] {
    if (cache != nullptr) return cache->Allocate(size, alignment);
    return iova->Allocate({.size = size,
                           .alignment = alignment,
                           .highest = ceiling,
                           .prefer_below = space->preferred()});
  };
  absl::StatusOr<Range> range = allocate();
  if (absl::IsResourceExhausted(range.status())) {
    std::shared_lock<TopologyMutex> lock(space->topology);
    if (space->FreeParked()) range = allocate();
  }
  return range;
}

void DeviceState::Park(const Range& range) {
  Range oldest;
  {
    std::lock_guard<std::mutex> lock(mutex);
    parked.push_back(range);
    if (parked.size() <= kMaxParked) return;
    oldest = parked.front();
    parked.pop_front();
  }
  FreeIova(oldest, nullptr);
}

bool DeviceState::FreeParked() {
  std::deque<Range> ranges;
  {
    std::lock_guard<std::mutex> lock(mutex);
    ranges.swap(parked);
  }
  for (const Range& range : ranges) FreeIova(range, nullptr);
  return !ranges.empty();
}

void DeviceState::FreeIova(const Range& range, iova::Cache* cache) {
  [[maybe_unused]] const absl::Status status =
      cache != nullptr ? cache->Free(range) : iova->Free(range);
  assert(status.ok());
}

MappingEvent DeviceState::Event(const LiveMapping& mapping,
                                std::span<const std::span<std::byte>> list) const {
  return {.kind = mapping.kind,
          .range = mapping.range,
          .memory = mapping.memory,
          .direction = mapping.direction,
          .entries = mapping.entries,
          .owner = mapping.owner,
          .list = list,
          .used = mapping.used,
          .red_zones = mapping.red_zones,
          .bounced = mapping.bounce == nullptr ? 0 : mapping.bounce->pieces().size()};
}

absl::Status DeviceState::Hold(const LiveMapping& mapping, Translation translation,
                               const absl::Status& why) {
  Quarantine::Item item;
  item.device = options.name;
  item.owner = mapping.owner;
  item.reason = std::string(why.message());
  item.range = mapping.range;
  item.bytes = mapping.range.size;
  auto rest = std::make_shared<Translation>(std::move(translation));
  item.release = [this_iova = iova, rest, range = mapping.iova, block = mapping.block,
                  bounce = mapping.bounce] {
    if (absl::Status s = rest->Remove(); !s.ok()) return s;
    return this_iova->Free(range);
  };
  space->quarantine->Hold(std::move(item));
  return absl::Status(
      why.code(), absl::StrCat("device '", options.name, "': ", ToString(mapping.range), " of '",
                               mapping.owner, "': ", why.message(),
                               "; it is in quarantine: keep its memory, reset the device, then "
                               "call Quarantine::ReleaseAfterReset(\"",
                               options.name, "\")"));
}

void DeviceState::NotifyRetired(const Range& range) {
  if (watcher() == nullptr || !Enter()) return;
  watcher()->OnRetired(*self, range);
  Leave();
}

// Detach flushes, so the queue is done with this device before it goes.
FlushTicket DeviceState::Defer(LiveMapping mapping, const Local& local) {
  Domain* const domains[] = {&domain()};
  // An observer hears of the release before the ticket is done, which the common lane sees to.
  std::shared_ptr<void> keep = std::move(mapping.block);
  if (mapping.bounce != nullptr) keep = std::const_pointer_cast<Bounce>(mapping.bounce);
  return space->queue->Defer({.range = mapping.range,
                              .domains = domains,
                              .releaser = this,
                              .iova = mapping.iova,
                              .owner = std::move(mapping.owner),
                              .keep = std::move(keep)},
                             watcher() == nullptr ? local : Local());
}

void DeviceState::Release(const Retired& retired, const absl::Status& flushed, iova::Cache* cache) {
  if (flushed.ok()) {
    FreeIova(retired.iova, cache);
    NotifyRetired(retired.range);
    return;
  }
  LiveMapping mapping{.range = retired.range,
                      .iova = retired.iova,
                      .owner = retired.owner,
                      .block = {retired.keep, nullptr}};  // only kept
  Translation rest(mapping.range);
  rest.Owe(domain());
  (void)Hold(mapping, std::move(rest), flushed);  // the ticket tells
}

absl::StatusOr<FlushTicket> DeviceState::Retire(Iova base, const Ending& how) {
  std::optional<LiveMapping> mapping = Claim(base);
  if (!mapping) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device '", options.name, "': unmap at ", ToString(base),
        ": nothing of it is mapped there; the device was detached, which unmapped it"));
  }
  ProbeUnmap(mapping->kind, options.name, mapping->used, mapping->direction);
  Observer* const observing = watcher();
  bool park = false;
  if (observing != nullptr) {
    park = observing->WantsStrict(*self, mapping->range);
    MappingEvent event = Event(*mapping, how.list);
    event.skip_sync = how.unmap.skip_sync;
    observing->OnBeforeUnmap(*self, event);
  }
  if (!options.coherent) [[unlikely]]
    WriteBack(*mapping, how.unmap);
  Translation translation(mapping->range, domain());
  absl::Status status = translation.Unmap();
  FlushTicket ticket;
  if (status.ok() && how.may_defer && !park && space->queue != nullptr && !translation.gone()) {
    if (mapping->bounce != nullptr) CopyBack(*mapping, how.unmap);
    ticket = Defer(*std::move(mapping), how.unmap.local());
  } else {
    if (status.ok()) status = translation.Invalidate();
    if (status.ok()) {
      if (mapping->bounce != nullptr) CopyBack(*mapping, how.unmap);
      mapping->bounce.reset();
      park ? Park(mapping->iova) : FreeIova(mapping->iova, how.unmap.cache);
      if (observing != nullptr) observing->OnRetired(*self, mapping->range);
    } else {
      status = Hold(*mapping, std::move(translation), status);
    }
  }
  {
    std::lock_guard<std::mutex> lock(mutex);
    ++stats.unmaps;
  }
  Leave();
  if (!status.ok()) return status;
  return ticket;
}

void DeviceState::DropLive(std::vector<LiveMapping> mappings) {
  struct Sum {
    size_t count = 0;
    uint64_t bytes = 0;
  };
  std::map<std::string, Sum> owners;
  std::vector<std::pair<LiveMapping, Translation>> unmapped;
  bool owed = false;
  for (LiveMapping& mapping : mappings) {
    Sum& sum = owners[mapping.owner];
    ++sum.count;
    sum.bytes += mapping.range.size.value();
    if (watcher() != nullptr) watcher()->OnBeforeUnmap(*self, Event(mapping, {}));
    if (!options.coherent) WriteBack(mapping, {});
    Translation translation(mapping.range, domain());
    if (absl::Status s = translation.Unmap(); !s.ok()) {
      space->Report(Message(Hold(mapping, std::move(translation), s)));
      continue;
    }
    owed |= !translation.gone();
    unmapped.emplace_back(std::move(mapping), std::move(translation));
  }
  const absl::Status flushed = owed ? domain().InvalidateAll() : absl::OkStatus();
  for (auto& [mapping, translation] : unmapped) {
    if (!flushed.ok()) {
      space->Report(Message(Hold(mapping, std::move(translation), flushed)));
      continue;
    }
    if (mapping.bounce != nullptr) CopyBack(mapping, {});
    FreeIova(mapping.iova, nullptr);
    if (watcher() != nullptr) watcher()->OnRetired(*self, mapping.range);
  }
  for (const auto& [owner, sum] : owners) {
    space->Report(absl::StrCat("device '", options.name, "': detached with ", sum.count,
                               " mappings (", sum.bytes, " bytes) of '", owner,
                               "' still live; they were unmapped"));
  }
}

void DeviceState::Detach() {
  std::vector<LiveMapping> mappings;
  {
    std::unique_lock<std::mutex> lock(mutex);
    if (detached.load(std::memory_order_relaxed)) return;
    detached.store(true, std::memory_order_relaxed);
    quiet.wait(lock, [this] { return busy == 0; });
    for (auto& [base, mapping] : live) mappings.push_back(std::move(mapping));
    live.clear();
    stats.unmaps += mappings.size();
    stats.live_mappings = 0;
    stats.coherent_bytes = 0;
  }
  std::sort(mappings.begin(), mappings.end(),
            [](const LiveMapping& a, const LiveMapping& b) { return a.range.base < b.range.base; });
  if (watcher() != nullptr) watcher()->OnDetach(*self, mappings.size());
  // A failed flush has put its ranges into quarantine already.
  if (space->queue != nullptr) (void)space->queue->Flush();
  if (!mappings.empty()) DropLive(std::move(mappings));
  FreeParked();
  slots->Close();

  std::vector<std::string> lines;
  {
    std::lock_guard<TopologyMutex> lock(space->topology);
    space->Remove(*this, &lines);
  }
  for (const std::string& line : lines) space->Report(line);
}

}  // namespace dmakit::dma::internal
