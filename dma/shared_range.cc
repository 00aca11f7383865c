// SPDX-License-Identifier: Apache-2.0
//
// SharedRange: one IOVA range in all domains of a space. The record behind a handle lives on while
// a flush or the quarantine still needs its IOVA.
#include <algorithm>
#include <cassert>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dma/address_space.h"
#include "dma/device_state.h"
#include "dma/text.h"

namespace dmakit::dma {

using internal::Annotate;
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
    forget = record->orphaned && !record->flushing;
  }
  if (forget) Forget(*record);
  return absl::OkStatus();
}

// On the flushing thread, without topology.
void SpaceState::FinishFlush(const std::shared_ptr<SharedRecord>& record, std::string devices,
                             const absl::Status& status) {
  bool hold;
  bool forget;
  {
    std::lock_guard<std::mutex> leaf(record->mutex);
    record->flushing = false;
    hold = !status.ok() && !record->held;
    record->held |= hold;
    forget = record->orphaned && !record->held;
  }
  if (hold) Hold(record, std::move(devices), internal::Message(status));
  if (forget) Forget(*record);
}

void SpaceState::Forget(const SharedRecord& record) {
  const Range iova_range = record.iova;
  {
    std::lock_guard<std::mutex> lock(records_mutex);
    records.erase(record.range.base.value());  // before someone else can get this base
  }
  [[maybe_unused]] const absl::Status status = iova->Free(iova_range);
  assert(status.ok());
}

std::string SpaceState::DeviceNames(const Translation* translation) const {
  std::vector<std::string> names;
  for (const auto& device : devices) {
    const bool reaches =
        translation == nullptr ||
        std::any_of(translation->parts().begin(), translation->parts().end(),
                    [&](const Translation::Part& p) { return p.domain == &device->domain(); });
    if (reaches) names.push_back(device->options.name);
  }
  return absl::StrJoin(names, ",");
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
    if (record.flushing) return Wrong(record, "waits for a flush; map when the ticket is done");
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
      s = absl::Status(s.code(), absl::StrCat(s.message(),
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

absl::StatusOr<FlushTicket> SharedRange::Unmap(Policy policy) {
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
    return DeferFlush();
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
FlushTicket SharedRange::DeferFlush() {
  std::vector<Domain*> domains;
  for (const Translation::Part& part : record_->translation.parts()) domains.push_back(part.domain);
  std::vector<std::shared_ptr<internal::DeviceState>> observed;
  for (const auto& device : space_->devices) {
    if (device->watcher() != nullptr) observed.push_back(device);
  }
  {
    std::lock_guard<std::mutex> leaf(record_->mutex);
    record_->flushing = true;
  }
  auto release = [space = space_.get(), record = record_,
                  names = space_->DeviceNames(&record_->translation),
                  observed = std::move(observed)](const absl::Status& flushed) {
    if (flushed.ok()) {
      for (const auto& device : observed) device->NotifyRetired(record->range);
    }
    space->FinishFlush(record, names, flushed);
  };
  return space_->queue->Defer({record_->range, domains, std::move(release)});
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
      forget = !record_->held && !record_->flushing;
    }
    if (forget) space_->Forget(*record_);
  }
  lock.unlock();
  record_ = nullptr;
  space_ = nullptr;
}

}  // namespace dmakit::dma
