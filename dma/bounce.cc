// SPDX-License-Identifier: Apache-2.0
#include "dma/bounce.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dmakit::dma::internal {

// --- Slots -----------------------------------------------------------------------------------

BounceSlot::~BounceSlot() {
  if (pool_ != nullptr) pool_->Return(std::move(memory_), size_);
}

absl::StatusOr<BounceSlot> BouncePool::Take(Bytes size, Bytes granule, bool* limited) {
  if (limited != nullptr) *limited = false;
  std::vector<host::Memory> dropped;  // freed without the lock
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto it = free_.find(size.value()); it != free_.end()) {
      BounceSlot slot(shared_from_this(), std::move(it->second), size);
      free_.erase(it);
      kept_ -= size;
      in_use_ += size;
      return slot;
    }
    if (in_use_ > limit_ || size > limit_ - in_use_) {
      if (limited != nullptr) *limited = true;
      return absl::ResourceExhaustedError(absl::StrCat(
          "bounce memory: ", size.value(), " bytes needed, and ", in_use_.value(), " of at most ",
          limit_.value(), " are in use; unmap sooner, raise DeviceOptions::bounce_limit, or map ",
          "memory that needs none: whole granules of ", granule.value(), " bytes"));
    }
    while (kept_ > limit_ - in_use_ - size) {
      const auto largest = std::prev(free_.end());
      kept_ -= Bytes(largest->first);
      dropped.push_back(std::move(largest->second));
      free_.erase(largest);
    }
    in_use_ += size;
  }
  dropped.clear();
  absl::StatusOr<host::Memory> memory =
      source_.Allocate({.size = size, .alignment = granule, .numa = numa_, .label = "bounce"});
  if (memory.ok()) return BounceSlot(shared_from_this(), *std::move(memory), size);
  std::lock_guard<std::mutex> lock(mutex_);
  in_use_ -= size;
  return absl::Status(memory.status().code(),
                      absl::StrCat("bounce memory: no memory for ", size.value(),
                                   " bytes: ", memory.status().message()));
}

void BouncePool::Return(host::Memory memory, Bytes size) {
  std::lock_guard<std::mutex> lock(mutex_);
  in_use_ -= size;
  if (closed_) return;  // `memory` dies after the lock
  kept_ += size;
  free_.emplace(size.value(), std::move(memory));
}

void BouncePool::Close() {
  std::multimap<uint64_t, host::Memory> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  kept_ = Bytes(0);
  free_.swap(dropped);
}

Bytes BouncePool::in_use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_use_;
}

Bytes BouncePool::kept() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return kept_;
}

// --- One mapping's bytes ---------------------------------------------------------------------

void Bounce::Fill() {
  const MemoryView slot = view();
  uint64_t done = 0;
  for (const Piece& piece : pieces_) {
    std::memset(slot.cpu + done, 0, piece.offset - done);
    std::memcpy(slot.cpu + piece.offset, piece.caller.data(), piece.caller.size());
    done = piece.offset + piece.caller.size();
  }
  std::memset(slot.cpu + done, 0, slot.size - done);
}

MemoryView Bounce::ViewOf(std::span<std::byte> memory) const {
  const MemoryView slot = view();
  const std::less<const std::byte*> before;
  std::byte* const end = slot.cpu + slot.size;
  if (before(memory.data(), slot.cpu)) {
    const auto gap = static_cast<size_t>(slot.cpu - memory.data());
    return MemoryView::Of(memory.first(std::min(memory.size(), gap)));
  }
  if (!before(memory.data(), end)) return MemoryView::Of(memory);
  const auto offset = static_cast<size_t>(memory.data() - slot.cpu);
  return slot.Sub(offset, std::min(memory.size(), slot.size - offset));
}

uint64_t Bounce::CopyToDevice(const Piece& piece, uint64_t offset, uint64_t length) const {
  if (length == 0) return 0;
  std::memcpy(bytes(piece).data() + offset, piece.caller.data() + offset, length);
  return length;
}

uint64_t Bounce::CopyToCaller(const Piece& piece, uint64_t offset, uint64_t length) const {
  if (length == 0) return 0;
  std::memcpy(piece.caller.data() + offset, bytes(piece).data() + offset, length);
  return length;
}

uint64_t Bounce::CopyToDevice() const {
  uint64_t sum = 0;
  for (const Piece& piece : pieces_) sum += CopyToDevice(piece, 0, piece.caller.size());
  return sum;
}

uint64_t Bounce::CopyToCaller() const {
  uint64_t sum = 0;
  for (const Piece& piece : pieces_) sum += CopyToCaller(piece, 0, piece.caller.size());
  return sum;
}

std::optional<uint64_t> Bounce::WrittenOutside() const {
  const std::span<const std::byte> all = slot_.view().bytes();
  const auto first_in = [&](uint64_t from, uint64_t to) -> std::optional<uint64_t> {
    const auto at = std::find_if(all.begin() + from, all.begin() + to,
                                 [](std::byte b) { return b != std::byte{0}; });
    if (at == all.begin() + to) return std::nullopt;
    return static_cast<uint64_t>(at - all.begin());
  };
  uint64_t done = 0;
  for (const Piece& piece : pieces_) {
    if (auto at = first_in(done, piece.offset)) return at;
    done = piece.offset + piece.caller.size();
  }
  return first_in(done, all.size());
}

}  // namespace dmakit::dma::internal
