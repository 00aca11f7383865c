// SPDX-License-Identifier: Apache-2.0
//
// The handles of streaming mappings and coherent blocks: moves, sync, and how they end.
#include "dma/mapping.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/audit_code.h"
#include "dma/coherent.h"
#include "dma/device_state.h"
#include "dma/probes.h"
#include "dma/text.h"

namespace dmakit::dma {

using internal::DeviceState;

namespace {

absl::Status NotThere(const DeviceState& device, const char* what) {
  return absl::FailedPreconditionError(absl::StrCat(
      "device '", device.options.name, "': ", what,
      " through a mapping that ended when the device was detached; map again after an attach"));
}

struct SyncCall {
  Iova mapping;  // its range's base
  Range part;
  Direction direction;
  bool for_cpu;
  bool moves;
};

absl::Status Sync(DeviceState* device, const SyncCall& call) {
  const char* what = call.for_cpu ? "sync for the CPU" : "sync for the device";
  if (device == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, " through an empty mapping: map first, and do not use a moved-from one"));
  }
  if (device->detached.load(std::memory_order_relaxed)) return NotThere(*device, what);
  Observer* const observing = device->watcher();
  if (!((observing != nullptr) | call.moves)) [[likely]]
    return absl::OkStatus();
  if (!device->Enter()) return NotThere(*device, what);
  internal::ProbeSync(call.for_cpu, device->options.name, call.part, call.direction);
  if (call.moves) device->Move(call.mapping, call.part, call.for_cpu);
  if (observing != nullptr) {
    observing->OnSync(*device->self, call.part, call.direction, call.for_cpu);
  }
  device->Leave();
  return absl::OkStatus();
}

absl::Status Refuse(const DeviceState& device, const DeviceState* other) {
  if (other == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("device '", device.options.name,
                     "': unmap of an empty mapping; it was unmapped or moved from before"));
  }
  return absl::InvalidArgumentError(absl::StrCat("device '", device.options.name,
                                                 "': unmap of a mapping of device '",
                                                 other->options.name, "'; unmap it there"));
}

absl::Status Foreign(const DeviceState& device, const DeviceState* other, const Range& range) {
  absl::Status status = Refuse(device, other);
  Observer* const observing = device.watcher();
  if (observing != nullptr && !device.detached.load(std::memory_order_relaxed)) {
    observing->OnMisuse(
        *device.self,
        {.code = AuditCode::kNothingMapped, .range = range, .what = internal::Message(status)});
  }
  return status;
}

}  // namespace

// --- Mapping ---

Mapping::Mapping(Mapping&& other) noexcept
    : device_(std::move(other.device_)),
      iova_(std::exchange(other.iova_, Iova(0))),
      range_(std::exchange(other.range_, {})),
      bytes_(std::exchange(other.bytes_, {})),
      direction_(other.direction_),
      moves_(other.moves_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Release();
    device_ = std::move(other.device_);
    iova_ = std::exchange(other.iova_, Iova(0));
    range_ = std::exchange(other.range_, {});
    bytes_ = std::exchange(other.bytes_, {});
    direction_ = other.direction_;
    moves_ = other.moves_;
  }
  return *this;
}

Mapping::~Mapping() { Release(); }

// A failure is in the quarantine; a handle of a detached device has nothing to end.
void Mapping::Release() {
  if (device_ == nullptr) return;
  (void)std::exchange(device_, nullptr)->Retire(range_.base, {});
}

absl::Status Mapping::SyncForCpu(size_t offset, size_t length) {
  if (absl::Status s = CheckPart(offset, length); !s.ok()) return s;
  return Sync(device_.get(),
              {range_.base, {iova_ + Bytes(offset), Bytes(length)}, direction_, true, moves_});
}

absl::Status Mapping::SyncForDevice(size_t offset, size_t length) {
  if (absl::Status s = CheckPart(offset, length); !s.ok()) return s;
  return Sync(device_.get(),
              {range_.base, {iova_ + Bytes(offset), Bytes(length)}, direction_, false, moves_});
}

absl::Status Mapping::CheckPart(size_t offset, size_t length) const {
  if (offset <= bytes_.size() && length <= bytes_.size() - offset) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("sync of ", length, " bytes at offset ", offset,
                                            ": must lie within the ", bytes_.size(),
                                            " bytes that are mapped"));
}

// --- SgMapping ---

SgMapping::SgMapping(SgMapping&& other) noexcept
    : device_(std::move(other.device_)),
      range_(std::exchange(other.range_, {})),
      entries_(std::exchange(other.entries_, {})),
      segments_(std::exchange(other.segments_, {})),
      direction_(other.direction_),
      moves_(other.moves_) {}

SgMapping& SgMapping::operator=(SgMapping&& other) noexcept {
  if (this != &other) {
    Release();
    device_ = std::move(other.device_);
    range_ = std::exchange(other.range_, {});
    entries_ = std::exchange(other.entries_, {});
    segments_ = std::exchange(other.segments_, {});
    direction_ = other.direction_;
    moves_ = other.moves_;
  }
  return *this;
}

SgMapping::~SgMapping() { Release(); }

void SgMapping::Release() {
  if (device_ == nullptr) return;
  (void)std::exchange(device_, nullptr)->Retire(range_.base, {.list = entries_});
}

absl::Status SgMapping::SyncForCpu() {
  return Sync(device_.get(), {range_.base, range_, direction_, true, moves_});
}
absl::Status SgMapping::SyncForDevice() {
  return Sync(device_.get(), {range_.base, range_, direction_, false, moves_});
}

// --- Ending them with a ticket ---

absl::StatusOr<FlushTicket> Device::Unmap(Mapping&& mapping, const UnmapOptions& options) {
  if (mapping.device_ != state_) return Foreign(*state_, mapping.device_.get(), mapping.range_);
  Mapping ended = std::move(mapping);
  ended.device_ = nullptr;
  return state_->Retire(ended.range_.base, {.may_defer = true, .unmap = options});
}

absl::StatusOr<FlushTicket> Device::Unmap(SgMapping&& mapping, const UnmapOptions& options) {
  if (mapping.device_ != state_) return Foreign(*state_, mapping.device_.get(), mapping.range_);
  SgMapping ended = std::move(mapping);
  ended.device_ = nullptr;
  return state_->Retire(ended.range_.base,
                        {.may_defer = true, .unmap = options, .list = ended.entries_});
}

// --- Packet pages ---

void Device::SyncPageSlowly(Range part, bool for_cpu) const {
  DeviceState& device = *state_;
  if (part.empty() || !device.Enter()) return;
  internal::ProbeSync(for_cpu, device.options.name, part, Direction::kBidirectional);
  if (!device.options.coherent) {
    for_cpu ? device.domain().SyncForCpu(part) : device.domain().SyncForDevice(part);
  }
  if (Observer* const observing = device.watcher()) {
    observing->OnSync(*this, part, Direction::kBidirectional, for_cpu);
  }
  device.Leave();
}

// --- CoherentBlock ---

CoherentBlock::CoherentBlock(CoherentBlock&& other) noexcept
    : device_(std::move(other.device_)),
      memory_(std::move(other.memory_)),
      view_(std::exchange(other.view_, {})),
      iova_(std::exchange(other.iova_, Iova(0))),
      range_(std::exchange(other.range_, {})),
      label_(std::exchange(other.label_, {})) {}

CoherentBlock& CoherentBlock::operator=(CoherentBlock&& other) noexcept {
  if (this != &other) {
    Release();
    device_ = std::move(other.device_);
    memory_ = std::move(other.memory_);
    view_ = std::exchange(other.view_, {});
    iova_ = std::exchange(other.iova_, Iova(0));
    range_ = std::exchange(other.range_, {});
    label_ = std::exchange(other.label_, {});
  }
  return *this;
}

CoherentBlock::~CoherentBlock() { Release(); }

void CoherentBlock::Release() {
  if (device_ == nullptr) return;
  (void)std::exchange(device_, nullptr)->Retire(range_.base, {});
  memory_.reset();
}

}  // namespace dmakit::dma
