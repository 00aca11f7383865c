// SPDX-License-Identifier: Apache-2.0
//
// MmioRegion is a window of device registers. On silicon an access is one volatile load or store;
// on a software device it is one branch and a call to the model, which only latches (see the rules
// for models in docs/design.md).
//
// Order against memory. A register write is a release point: everything the thread stored before it
// is visible to the device when the device sees the write (the doorbell rule). A register read is
// an acquire point. On x86 the processor gives both for write-back memory followed by an uncached
// access, so the compiler is all that must be held back; other processors get their own barrier
// (see barrier.h).
//
// A region owns nothing: mapping (or model) must outlive it. Any thread; the device defines what
// concurrent use means.
#ifndef DMAKIT_DMA_MMIO_H_
#define DMAKIT_DMA_MMIO_H_

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "dma/barrier.h"

namespace dmakit::dma {

// The register file of a software device. Calls come from the driver's threads and must not block
// or do device work: latch with release/acquire atomics, and let the model's Step() act. `width` is
// 1, 2, 4 or 8 bytes.
class MmioHandler {
 public:
  virtual ~MmioHandler() = default;
  virtual uint64_t MmioRead(uint64_t offset, size_t width) = 0;
  virtual void MmioWrite(uint64_t offset, uint64_t value, size_t width) = 0;
};

class MmioRegion {
 public:
  MmioRegion() = default;
  static MmioRegion OfDevice(volatile void* base, size_t size) {
    return MmioRegion(static_cast<volatile std::byte*>(base), nullptr, 0, size);
  }
  static MmioRegion OfModel(MmioHandler& model, size_t size) {
    return MmioRegion(nullptr, &model, 0, size);
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The registers from `offset` on. The caller keeps offset + length within size() (asserted), and
  // every access inside its region and naturally aligned (asserted in checked builds).
  MmioRegion Sub(size_t offset, size_t length) const {
    assert(offset <= size_ && length <= size_ - offset);
    return MmioRegion(base_ == nullptr ? nullptr : base_ + offset, model_, origin_ + offset,
                      length);
  }

  uint32_t Read32(size_t offset) const { return Read<uint32_t>(offset); }
  uint64_t Read64(size_t offset) const { return Read<uint64_t>(offset); }
  void Write32(size_t offset, uint32_t value) const { Write<uint32_t>(offset, value); }
  void Write64(size_t offset, uint64_t value) const { Write<uint64_t>(offset, value); }

 private:
  MmioRegion(volatile std::byte* base, MmioHandler* model, uint64_t origin, size_t size)
      : base_(base), model_(model), origin_(origin), size_(size) {}

  template <typename T>
  void Check([[maybe_unused]] size_t offset) const {
#if defined(DMAKIT_CHECKED)
    assert(offset % sizeof(T) == 0 && offset <= size_ && sizeof(T) <= size_ - offset);
#endif
  }

  template <typename T>
  T Read(size_t offset) const {
    Check<T>(offset);
    if (model_ != nullptr) [[unlikely]] {
      return static_cast<T>(model_->MmioRead(origin_ + offset, sizeof(T)));
    }
    T value = *reinterpret_cast<const volatile T*>(base_ + offset);
    BarrierAfterMmioRead();
    return value;
  }

  template <typename T>
  void Write(size_t offset, T value) const {
    Check<T>(offset);
    if (model_ != nullptr) [[unlikely]] {
      model_->MmioWrite(origin_ + offset, value, sizeof(T));
      return;
    }
    BarrierBeforeMmioWrite();
    *reinterpret_cast<volatile T*>(base_ + offset) = value;
  }

  volatile std::byte* base_ = nullptr;
  MmioHandler* model_ = nullptr;
  uint64_t origin_ = 0;
  size_t size_ = 0;
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_MMIO_H_
