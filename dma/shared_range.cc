// SPDX-License-Identifier: Apache-2.0
//
// SharedRange: one IOVA range in all domains of a space. The record behind a handle lives on while
// a flush or the quarantine still needs its IOVA.
#include <algorithm>
#include <cassert>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "dma/address_space.h"
#include "dma/device_state.h"
#include "dma/text.h"

namespace dmakit::dma {

using internal::Annotate;
using internal::Reword;
using internal::SharedRecord;
using internal::SpaceState;
using internal::TopologyMutex;
using internal::Translation;

namespace {

std::string Who(const SharedRecord& record) {
  return absl::StrCat("page range ", ToString(record.range), " of '", record.owner, "'");
}

absl::Status Wrong(const SharedRecord& record, const char* what) {
  return absl::FailedPreconditionError(absl::StrCat(Who(record), ": ", what));
}

MappingEvent PageEvent(const SharedRecord& record) {
  return {.kind = MappingKind::kPage,
          .range = record.range,
          .memory = record.memory,
          .owner = record.owner,
          .used = record.range};
}

// Calls `notify` for each device that has an observer. With topology held.
template <typename Notify>
void ForObservers(const SpaceState& space, Notify notify) {
  for (const auto& device : space.devices) {
    if (Observer* const observing = device->watcher()) notify(*observing, *device->self);
  }
}

void NotifyRetired(const SpaceState& space, const SharedRecord& record) {
  ForObservers(space, [&](Observer& observer, const Device& device) {
    observer.OnRetired(device, record.range);
  });
}

}  // namespace

namespace internal {

// The record has been marked as held, once, by the caller. `devices` as Quarantine::Item wants it.
void SpaceState::Hold(const std::shared_ptr<SharedRecord>& record, std::string devices,
                      std::string_view reason) {
  Quarantine::Item item;
  item.device = std::move(devices);
  item.owner = record->owner;
  item.reason = std::string(reason);
  item.range = record->range;
  item.bytes = record->range.size;
  item.release = [this, record] { return ReleaseHeld(record); };
  quarantine->Hold(std::move(item));
}

absl::Status SpaceState::ReleaseHeld(const std::shared_ptr<SharedRecord>& record) {
  host::Memory memory;  // freed last, without a lock
  bool forget;
  {
    std::lock_guard<TopologyMutex> lock(topology);
    if (absl::Status s = record->translation.Remove(); !s.ok()) return s;
    std::lock_guard<std::mutex> leaf(record->mutex);
    record->held = false;
    memory = std::move(record->kept);
    forget = record->orphaned && record->releases == 0;
  }
  if (forget) Forget(*record);
  return absl::OkStatus();
}

// On the releasing thread, without topology. After a good flush it may come late, when the range is
// in use again: then it only counts.
void SharedRecord::Release(const Retired& retired, const absl::Status& flushed,
                           iova::Cache* cache) {
  if (retired.tag != 0) {
    for (const auto& device : observed) {
      if (flushed.ok()) device->NotifyRetired(range);
    }
    observed.clear();
  }
  std::shared_ptr<SharedRecord> record;
  bool hold;
  bool forget;
  {
    std::lock_guard<std::mutex> leaf(mutex);
    record = --releases == 0 ? std::move(self) : self;
    hold = !flushed.ok() && !held;
    held |= hold;
    forget = orphaned && !held && releases == 0;
  }
  if (hold) space->Hold(record, reaching, internal::Message(flushed));
  if (forget) space->Forget(*this, cache);
}

void SpaceState::Forget(const SharedRecord& record, iova::Cache* cache) {
  const Range iova_range = record.iova;
  {
    std::lock_guard<std::mutex> lock(records_mutex);
    records.erase(record.range.base.value());  // before someone else can get this base
  }
  [[maybe_unused]] const absl::Status status =
      cache != nullptr ? cache->Free(iova_range) : iova->Free(iova_range);
  assert(status.ok());
}

std::string SpaceState::DeviceNames(const Translation* translation) const {
  std::string names;
  NameDevices(translation, &names);
  return names;
}

// Into a string that is there already: an unmap in the steady state allocates nothing.
void SpaceState::NameDevices(const Translation* translation, std::string* names) const {
  names->clear();
  for (const auto& device : devices) {
    const bool reaches =
        translation == nullptr ||
        std::any_of(translation->parts().begin(), translation->parts().end(),
                    [&](const Translation::Part& p) { return p.domain == &device->domain(); });
    if (reaches) absl::StrAppend(names, names->empty() ? "" : ",", device->options.name);
  }
}

}  // namespace internal

SharedRange::SharedRange(SharedRange&& other) noexcept
    : space_(std::move(other.space_)), record_(std::move(other.record_)) {}

SharedRange& SharedRange::operator=(SharedRange&& other) noexcept {
  if (this != &other) {
    Release();
    space_ = std::move(other.space_);
    record_ = std::move(other.record_);
  }
  return *this;
}

SharedRange::~SharedRange() { Release(); }

bool SharedRange::mapped() const {
  return record_ != nullptr && record_->mapped.load(std::memory_order_relaxed);
}
bool SharedRange::quarantined() const {
  if (record_ == nullptr) return false;
  std::lock_guard<std::mutex> leaf(record_->mutex);
  return record_->held;
}
Iova SharedRange::iova() const { return record_ == nullptr ? Iova(0) : record_->range.base; }
Bytes SharedRange::size() const { return record_ == nullptr ? Bytes(0) : record_->range.size; }

absl::Status SharedRange::Map(MemoryView memory) {
  if (empty())
    return absl::FailedPreconditionError("map of an empty page range: reserve one first");
  SharedRecord& record = *record_;
  if (memory.cpu == nullptr || memory.size != record.range.size.value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Who(record), ": memory of ", memory.size,
                     memory.cpu == nullptr ? " bytes at null" : " bytes", ": must be exactly the ",
                     record.range.size.value(), " bytes reserved"));
  }
  std::shared_lock<TopologyMutex> lock(space_->topology);
  if (space_->dead) return Wrong(record, "its address space has ended; nothing can be mapped");
  if (mapped()) return Wrong(record, "is mapped already; unmap it first");
  {
    std::lock_guard<std::mutex> leaf(record.mutex);
    if (record.held) return Wrong(record, "is in quarantine; release it after a reset first");
    if (record.ticket.state() == FlushTicket::State::kPending) {
      return Wrong(record, "waits for a flush; map when the ticket is done");
    }
  }
  record.translation.Invalidated();  // by the flush, if its unmap was deferred
  for (const internal::DomainUse& use : space_->domains) {
    if (use.devices == 0) continue;
    absl::Status s = record.translation.Map(*use.domain, record.range, memory, use.page_access);
    if (s.ok()) continue;
    s = Annotate(s, absl::StrCat(Who(record), ": not mapped in domain '",
                                 internal::View(use.domain->name()), "'"));
    if (absl::Status undo = record.translation.Remove(); !undo.ok()) {
      HoldRecord(absl::StrCat("undoing a failed map: ", undo.message()));
      s = Reword(s, absl::StrCat(s.message(),
                                 "; undoing that failed too, so it is in "
                                 "quarantine: ",
                                 undo.message()));
    }
    return s;
  }
  record.memory = memory;
  record.mapped.store(true, std::memory_order_relaxed);
  ForObservers(*space_, [&](Observer& observer, const Device& device) {
    observer.OnMap(device, PageEvent(record));
  });
  return absl::OkStatus();
}

// With topology held. Does nothing for a record that is held already.
void SharedRange::HoldRecord(std::string_view reason) {
  {
    std::lock_guard<std::mutex> leaf(record_->mutex);
    if (std::exchange(record_->held, true)) return;
  }
  const bool gone = record_->translation.gone();
  space_->Hold(record_, space_->DeviceNames(gone ? nullptr : &record_->translation), reason);
}

// With topology held: the unmap in all domains, not yet the invalidation.
absl::Status SharedRange::Withdraw() {
  record_->mapped.store(false, std::memory_order_relaxed);
  ForObservers(*space_, [&](Observer& observer, const Device& device) {
    observer.OnBeforeUnmap(device, PageEvent(*record_));
  });
  return record_->translation.Unmap();
}

absl::StatusOr<FlushTicket> SharedRange::Unmap(Policy policy, const Local& local) {
  if (empty()) return absl::FailedPreconditionError("unmap of an empty page range");
  std::shared_lock<TopologyMutex> lock(space_->topology);
  if (space_->dead) return Wrong(*record_, "its address space has ended, which unmapped it");
  if (!mapped()) return Wrong(*record_, "is not mapped");
  if (policy == Policy::kDeferred) {
    ForObservers(*space_, [&](Observer& observer, const Device& device) {
      if (observer.WantsStrict(device, record_->range)) policy = Policy::kStrict;
    });
  }
  absl::Status status = Withdraw();
  if (status.ok() && policy == Policy::kDeferred && space_->queue != nullptr &&
      !record_->translation.gone()) {
    return DeferFlush(local);
  }
  // Also after a failure: the domains that did unmap need no reset then.
  status.Update(record_->translation.Invalidate());
  if (!status.ok()) {
    HoldRecord(internal::Message(status));
    return Annotate(status, absl::StrCat(Who(*record_),
                                         ": not unmapped; it is in quarantine: keep its memory, "
                                         "reset the device, then call ReleaseAfterReset"));
  }
  NotifyRetired(*space_, *record_);
  return FlushTicket();
}

// With topology held.
FlushTicket SharedRange::DeferFlush(const Local& local) {
  SharedRecord& record = *record_;
  absl::InlinedVector<Domain*, 4> domains;
  for (const Translation::Part& part : record.translation.parts()) domains.push_back(part.domain);
  space_->NameDevices(&record.translation, &record.reaching);
  bool observed = false;
  for (const auto& device : space_->devices) observed |= device->watcher() != nullptr;
  if (observed) {
    record.observed.clear();
    for (const auto& device : space_->devices) {
      if (device->watcher() != nullptr) record.observed.push_back(device);
    }
  }
  {
    std::lock_guard<std::mutex> leaf(record.mutex);
    ++record.releases;
    record.self = record_;
  }
  // An observer hears of the release before the ticket is done, which the common lane sees to.
  FlushTicket ticket = space_->queue->Defer(
      {.range = record.range, .domains = domains, .releaser = &record, .tag = observed ? 1u : 0u},
      observed ? Local() : local);
  std::lock_guard<std::mutex> leaf(record.mutex);
  record.ticket = ticket;
  return ticket;
}

void SharedRange::Quarantine(host::Memory memory, std::string_view reason,
                             std::string_view device) && {
  if (empty()) return;
  const std::shared_ptr<SpaceState> space = std::move(space_);
  const std::shared_ptr<SharedRecord> record = std::move(record_);
  std::shared_lock<TopologyMutex> lock(space->topology);
  if (space->dead) return;  // it was unmapped, so the memory can go
  record->mapped.store(false, std::memory_order_relaxed);
  bool held;
  {
    std::lock_guard<std::mutex> leaf(record->mutex);
    record->kept = std::move(memory);
    record->orphaned = true;
    held = std::exchange(record->held, true);
  }
  if (held) return;  // a failed unmap has put it there, with the devices concerned
  space->Hold(record, device.empty() ? space->DeviceNames(nullptr) : std::string(device), reason);
}

void SharedRange::Release() {
  if (empty()) return;
  std::shared_lock<TopologyMutex> lock(space_->topology);
  if (!space_->dead) {
    if (mapped()) {
      absl::Status status = Withdraw();
      status.Update(record_->translation.Invalidate());
      status.ok() ? NotifyRetired(*space_, *record_) : HoldRecord(internal::Message(status));
    }
    bool forget;
    {
      std::lock_guard<std::mutex> leaf(record_->mutex);
      record_->orphaned = true;
      forget = !record_->held && record_->releases == 0;
    }
    if (forget) space_->Forget(*record_);
  }
  lock.unlock();
  record_ = nullptr;
  space_ = nullptr;
}

}  // namespace dmakit::dma
