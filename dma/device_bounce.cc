// SPDX-License-Identifier: Apache-2.0
//
// DeviceState: which mappings are bounced, and what is moved when: at syncs and at the end of a
// mapping, through the device's caches and through bounce memory.
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/audit_code.h"
#include "dma/device_state.h"
#include "dma/sg_plan.h"

namespace dmakit::dma::internal {

namespace {

bool Aligned(const std::byte* address, Bytes granule) {
  return reinterpret_cast<uintptr_t>(address) % granule.value() == 0;
}

// Adds, with the highest value instead of an overflow.
uint64_t Sum(uint64_t a, uint64_t b) {
  return b > std::numeric_limits<uint64_t>::max() - a ? std::numeric_limits<uint64_t>::max()
                                                      : a + b;
}

}  // namespace

// `alone`: nobody else has bytes in the granules.
bool DeviceState::NeedsBounce(std::span<std::byte> entry, bool alone) const {
  if (!options.trusted && !alone) return true;
  if (!fixed_memory) return false;
  const Covered covered = *Cover(entry, granule);
  return !domain().Reachable(MemoryView::Of({covered.memory, covered.size}));
}

// At the limit, slots that only wait for a flush need not wait longer. A flush that is running
// already may have freed some since the last look, and another thread may have taken what this one
// has freed, and let it wait again: so more than once, but not without end.
absl::StatusOr<BounceSlot> DeviceState::TakeSlot(Bytes size) {
  for (int attempts = 16;; --attempts) {
    bool limited = false;
    absl::StatusOr<BounceSlot> slot = slots->Take(size, granule, &limited);
    if (!limited || space->queue == nullptr || attempts == 0) return slot;
    (void)space->queue->Flush();
  }
}

absl::StatusOr<std::shared_ptr<const Bounce>> DeviceState::NewBounce(
    std::span<const std::span<std::byte>> entries) {
  absl::InlinedVector<Bounce::Piece, 8> pieces;
  uint64_t size = 0;
  for (size_t first = 0; first < entries.size();) {
    // Entries that touch fill their granules together.
    size_t end = first + 1;
    while (end < entries.size() &&
           entries[end].data() == entries[end - 1].data() + entries[end - 1].size()) {
      ++end;
    }
    const auto whole = [&](const std::byte* from, std::span<std::byte> last) {
      return Aligned(from, granule) && Aligned(last.data() + last.size(), granule);
    };
    const bool all_alone = whole(entries[first].data(), entries[end - 1]);
    for (; first < end; ++first) {
      const std::span<std::byte> entry = entries[first];
      if (!NeedsBounce(entry, all_alone || whole(entry.data(), entry))) continue;
      const Covered covered = *Cover(entry, granule);
      pieces.push_back({entry, Sum(size, covered.offset), first});
      size = Sum(size, covered.size);
    }
  }
  if (pieces.empty()) return nullptr;
  absl::StatusOr<BounceSlot> slot = TakeSlot(Bytes(size));
  if (!slot.ok()) return slot.status();
  // What the domain cannot reach either is no help: its refusal of the caller's memory says more.
  if (options.trusted && !domain().Reachable(slot->view())) return nullptr;
  auto bounce = std::make_shared<Bounce>(*std::move(slot));
  uint64_t copied = 0;
  for (const Bounce::Piece& piece : pieces) {
    bounce->Add(piece);
    copied += piece.caller.size();
  }
  bounce->Fill();
  std::lock_guard<std::mutex> lock(mutex);
  stats.bounced_bytes += copied;
  return bounce;
}

void DeviceState::Move(Iova base, const Range& part, bool for_cpu) {
  LiveMapping mapping;
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto it = live.find(base.value());
    if (it == live.end()) return;
    mapping = {.kind = it->second.kind,
               .direction = it->second.direction,
               .used = it->second.used,
               .bounce = it->second.bounce};
  }
  // A device that only reads has nothing for the CPU.
  if (part.empty() || (for_cpu && mapping.direction == Direction::kToDevice)) return;
  if (for_cpu && !options.coherent) domain().SyncForCpu(part);
  if (const Bounce* const bounce = mapping.bounce.get()) {
    uint64_t copied = 0;
    if (mapping.kind == MappingKind::kScatterGather) {
      copied = for_cpu ? bounce->CopyToCaller() : bounce->CopyToDevice();
    } else {
      const uint64_t offset = (part.base - mapping.used.base).value();
      const Bounce::Piece& piece = bounce->pieces().front();
      copied = for_cpu ? bounce->CopyToCaller(piece, offset, part.size.value())
                       : bounce->CopyToDevice(piece, offset, part.size.value());
    }
    std::lock_guard<std::mutex> lock(mutex);
    stats.bounced_bytes += copied;
  }
  if (!for_cpu && !options.coherent) domain().SyncForDevice(part);
}

void DeviceState::WriteBack(const LiveMapping& mapping, const UnmapOptions& how) const {
  if (how.skip_sync || mapping.direction == Direction::kToDevice) return;
  if (mapping.cached()) domain().SyncForCpu(mapping.used);
}

void DeviceState::CopyBack(const LiveMapping& mapping, const UnmapOptions& how) {
  if (mapping.direction == Direction::kToDevice) return;
  if (!how.skip_sync) {
    const uint64_t copied = mapping.bounce->CopyToCaller();
    std::lock_guard<std::mutex> lock(mutex);
    stats.bounced_bytes += copied;
  }
  Observer* const observing = watcher();
  if (observing == nullptr) return;
  const std::optional<uint64_t> at = mapping.bounce->WrittenOutside();
  if (!at) return;
  const std::string what =
      absl::StrCat("the device wrote outside the bytes it was given, at byte ", *at,
                   " of the bounce memory of '", mapping.owner, "', ", ToString(mapping.used),
                   "; no byte of the caller's was touched");
  observing->OnMisuse(*self, {.code = AuditCode::kWroteOutside,
                              .owner = mapping.owner,
                              .range = mapping.used,
                              .what = what});
}

}  // namespace dmakit::dma::internal
