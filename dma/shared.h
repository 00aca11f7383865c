// SPDX-License-Identifier: Apache-2.0
//
// Shared<T> is one word in memory that a device also reads or writes. It has the size and alignment
// of T and no other state, so descriptor structs are made of it. Every access is a single load or
// store of the whole word: the compiler may neither tear nor repeat it, which matters when the
// other side is hostile (check once, use what was checked).
//
// Not for MMIO registers (mmio.h) and not a lock: there is no read-modify-write and no sequentially
// consistent store (on x86 that is an `xchg`). Reading a descriptor: LoadAcquire the word that says
// who owns it, then Load the rest. Handing one over: Store the body, then StoreRelease the
// ownership word.
#ifndef DMAKIT_DMA_SHARED_H_
#define DMAKIT_DMA_SHARED_H_

#include <atomic>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace dmakit::dma {

namespace internal {

template <std::unsigned_integral T>
constexpr T SwapBytes(T value) {
  T result = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    result = static_cast<T>((static_cast<uint64_t>(result) << 8) | (value & 0xff));
    value = static_cast<T>(static_cast<uint64_t>(value) >> 8);
  }
  return result;
}

template <std::unsigned_integral T, std::endian kDeviceOrder>
constexpr T Convert(T value) {
  if constexpr (kDeviceOrder == std::endian::native || sizeof(T) == 1) {
    return value;
  } else {
    return SwapBytes(value);
  }
}

}  // namespace internal

// `kDeviceOrder` is the byte order the device uses; values in and out are in the CPU's.
template <std::unsigned_integral T, std::endian kDeviceOrder = std::endian::little>
class Shared {
 public:
  Shared() = default;
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T Load() const { return FromDevice(word_.load(std::memory_order_relaxed)); }
  T LoadAcquire() const { return FromDevice(word_.load(std::memory_order_acquire)); }
  void Store(T value) { word_.store(ToDevice(value), std::memory_order_relaxed); }
  void StoreRelease(T value) { word_.store(ToDevice(value), std::memory_order_release); }

 private:
  static constexpr T FromDevice(T raw) { return internal::Convert<T, kDeviceOrder>(raw); }
  static constexpr T ToDevice(T value) { return internal::Convert<T, kDeviceOrder>(value); }

  static_assert(std::atomic<T>::is_always_lock_free && sizeof(std::atomic<T>) == sizeof(T));
  std::atomic<T> word_;
};

using SharedU8 = Shared<uint8_t>;
using SharedLe16 = Shared<uint16_t>;
using SharedLe32 = Shared<uint32_t>;
using SharedLe64 = Shared<uint64_t>;
using SharedBe16 = Shared<uint16_t, std::endian::big>;
using SharedBe32 = Shared<uint32_t, std::endian::big>;
using SharedBe64 = Shared<uint64_t, std::endian::big>;

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_SHARED_H_
