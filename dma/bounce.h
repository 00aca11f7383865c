// SPDX-License-Identifier: Apache-2.0
//
// Internal: bounce memory. What a device must not reach where the caller has it, because the rest
// of the page is not the caller's or because the domain cannot translate it, lies in a slot of
// whole granules while it is mapped. BouncePool hands out slots within a limit; Bounce is one
// mapping's slot and the bytes that are copied to and fro. Which mappings need one, and when to
// copy, is decided elsewhere (device_bounce.cc).
//
// A slot holds nothing but its mapping's bytes and zeros from the moment a device can reach it.
//
// BouncePool: any thread. Bounce: constant once filled but for the bytes in its slot; copies of the
// same part by one thread at a time.
#ifndef DMAKIT_DMA_BOUNCE_H_
#define DMAKIT_DMA_BOUNCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/host/memory.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma::internal {

class BouncePool;

// Whole granules, move-only; back to its pool when it dies, so whoever let a device use it unmaps
// and invalidates first.
class BounceSlot {
 public:
  BounceSlot() = default;
  BounceSlot(std::shared_ptr<BouncePool> pool, host::Memory memory, Bytes size)
      : pool_(std::move(pool)), memory_(std::move(memory)), size_(size) {}
  BounceSlot(BounceSlot&& other) noexcept
      : pool_(std::move(other.pool_)),
        memory_(std::move(other.memory_)),
        size_(std::exchange(other.size_, Bytes(0))) {}
  BounceSlot& operator=(BounceSlot&&) = delete;
  ~BounceSlot();

  MemoryView view() const { return memory_.view().Sub(0, size_.value()); }

 private:
  std::shared_ptr<BouncePool> pool_;
  host::Memory memory_;
  Bytes size_{0};
};

// Slots that come back are kept for the next of the same size, until the limit needs their room or
// Close. Lives as long as its slots; the source must too.
class BouncePool : public std::enable_shared_from_this<BouncePool> {
 public:
  // `limit` is on what slots in use and kept ones add up to.
  BouncePool(host::MemorySource& source, host::NumaPolicy numa, Bytes limit)
      : source_(source), numa_(numa), limit_(limit) {}
  BouncePool(const BouncePool&) = delete;
  BouncePool& operator=(const BouncePool&) = delete;

  // `size` is a multiple of `granule`, and so are both addresses. The bytes are undefined: Fill
  // them. ResourceExhausted: the limit (`limited`, unless null, tells), or the source's error.
  absl::StatusOr<BounceSlot> Take(Bytes size, Bytes granule, bool* limited = nullptr);
  // No slot is kept from here on.
  void Close();

  Bytes in_use() const;
  Bytes kept() const;

 private:
  friend class BounceSlot;
  void Return(host::Memory memory, Bytes size);

  host::MemorySource& source_;
  const host::NumaPolicy numa_;
  const Bytes limit_;

  mutable std::mutex mutex_;
  bool closed_ = false;
  Bytes in_use_{0};
  Bytes kept_{0};
  std::multimap<uint64_t, host::Memory> free_;  // by size
};

class Bounce {
 public:
  struct Piece {
    std::span<std::byte> caller;
    uint64_t offset = 0;  // in the slot
    size_t entry = 0;     // which of the list's it is
  };
  static_assert(sizeof(Piece::offset) == 8 && sizeof(size_t) == 8,
                "a slot may lie beyond 4 GiB, and so may a piece in it");

  explicit Bounce(BounceSlot slot) : slot_(std::move(slot)) {}

  // Ascending and disjoint in the slot; the caller's memory lives until the mapping has ended.
  void Add(const Piece& piece) { pieces_.push_back(piece); }
  // The pieces get their callers' bytes, all else is zero. Before a device can reach the slot.
  void Fill();

  std::span<const Piece> pieces() const { return pieces_; }
  MemoryView view() const { return slot_.view(); }
  // Where the device finds a piece.
  std::span<std::byte> bytes(const Piece& piece) const {
    return slot_.view().bytes().subspan(piece.offset, piece.caller.size());
  }
  // The longest part of `memory`, from its start, that is in the slot or outside of it, whole.
  MemoryView ViewOf(std::span<std::byte> memory) const;

  // Exactly these bytes of the piece. All return how many were copied.
  uint64_t CopyToDevice(const Piece& piece, uint64_t offset, uint64_t length) const;
  uint64_t CopyToCaller(const Piece& piece, uint64_t offset, uint64_t length) const;
  uint64_t CopyToDevice() const;
  uint64_t CopyToCaller() const;

  // The first byte outside the pieces that is not zero any more: the device wrote there.
  std::optional<uint64_t> WrittenOutside() const;

 private:
  BounceSlot slot_;
  absl::InlinedVector<Piece, 1> pieces_;
};

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_BOUNCE_H_
