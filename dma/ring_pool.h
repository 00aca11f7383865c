// SPDX-License-Identifier: Apache-2.0
//
// RingPool<T>: one coherent allocation per ring, cut into `count` entries. An entry's device
// address is base + index * entry_size: no map, no unmap, no sync per packet. That is the whole
// point; see docs/design.md.
//
// T is what one entry looks like (a struct of Shared<> words), or std::byte with a run-time
// `entry_size` for tables whose entries have no fixed type (gather lists). Entries are zero at
// first. The pool only owns memory: who may write an entry when is the ring's protocol. Move-only;
// at() and iova() are plain arithmetic, any thread.
#ifndef DMAKIT_DMA_RING_POOL_H_
#define DMAKIT_DMA_RING_POOL_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/coherent.h"
#include "dma/device.h"
#include "iova/types.h"

namespace dmakit::dma {

struct RingPoolOptions {
  uint32_t count = 0;   // entries, at least 1
  Bytes entry_size{0};  // 0: sizeof(T); else at least that, and a multiple of alignof(T)
  Bytes alignment{64};  // of the first entry
  Bytes boundary{0};    // the ring crosses no multiple of it; 0 = none
  std::string label{};  // named in errors and leak reports
};

template <typename T>
class RingPool {
 public:
  static_assert(std::is_standard_layout_v<T> && std::is_trivially_destructible_v<T>);

  RingPool() = default;
  RingPool(RingPool&& other) noexcept
      : block_(std::move(other.block_)),
        count_(std::exchange(other.count_, 0)),
        entry_size_(std::exchange(other.entry_size_, 0)) {}
  RingPool& operator=(RingPool&& other) noexcept {
    block_ = std::move(other.block_);
    count_ = std::exchange(other.count_, 0);
    entry_size_ = std::exchange(other.entry_size_, 0);
    return *this;
  }

  // InvalidArgument names the ring, the value and the rule; ResourceExhausted ("out of memory")
  // names the ring.
  static absl::StatusOr<RingPool> Create(Device& device, const RingPoolOptions& options);

  bool empty() const { return block_.empty(); }
  uint32_t count() const { return count_; }
  size_t entry_size() const { return entry_size_; }
  Iova iova() const { return block_.iova(); }
  std::byte* data() const { return block_.data(); }
  Bytes size() const { return block_.size(); }

  // `index` < count(). One multiplication by a constant of the ring.
  T* at(uint32_t index) const {
    return reinterpret_cast<T*>(block_.data() + size_t{index} * entry_size_);
  }
  Iova iova(uint32_t index) const { return block_.iova() + Bytes{uint64_t{index} * entry_size_}; }

 private:
  CoherentBlock block_;
  uint32_t count_ = 0;
  size_t entry_size_ = 0;
};

namespace internal {
// The checks that do not depend on T; OK or InvalidArgument.
absl::Status CheckRing(const RingPoolOptions& options, size_t type_size, size_t type_alignment);
}  // namespace internal

template <typename T>
absl::StatusOr<RingPool<T>> RingPool<T>::Create(Device& device, const RingPoolOptions& options) {
  if (absl::Status s = internal::CheckRing(options, sizeof(T), alignof(T)); !s.ok()) return s;
  const uint64_t entry = options.entry_size.value() == 0 ? sizeof(T) : options.entry_size.value();
  absl::StatusOr<CoherentBlock> block =
      device.AllocateCoherent({.size = Bytes{entry * options.count},
                               .alignment = options.alignment,
                               .boundary = options.boundary,
                               .label = options.label});
  if (!block.ok()) return block.status();
  RingPool pool;
  pool.block_ = *std::move(block);
  pool.count_ = options.count;
  pool.entry_size_ = entry;
  return pool;
}

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_RING_POOL_H_
