// SPDX-License-Identifier: Apache-2.0
//
// Integers as bytes in a stated order, at any alignment: for device structures and packet headers
// that are looked at as bytes. Words that a device shares with the CPU are dma::Shared, not this.
// The caller keeps offset + sizeof(T) within the span. Values only; any thread.
#ifndef DMAKIT_NIC_ENDIAN_H_
#define DMAKIT_NIC_ENDIAN_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dmakit::nic {

template <std::unsigned_integral T>
constexpr T LoadLe(std::span<const std::byte> bytes, size_t offset = 0) {
  uint64_t value = 0;
  for (size_t i = sizeof(T); i-- > 0;) {
    value = value << 8 | std::to_integer<uint64_t>(bytes[offset + i]);
  }
  return static_cast<T>(value);
}

template <std::unsigned_integral T>
constexpr T LoadBe(std::span<const std::byte> bytes, size_t offset = 0) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = value << 8 | std::to_integer<uint64_t>(bytes[offset + i]);
  }
  return static_cast<T>(value);
}

template <std::unsigned_integral T>
constexpr void StoreLe(std::span<std::byte> bytes, size_t offset, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes[offset + i] = static_cast<std::byte>(uint64_t{value} >> (8 * i));
  }
}

template <std::unsigned_integral T>
constexpr void StoreBe(std::span<std::byte> bytes, size_t offset, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes[offset + i] = static_cast<std::byte>(uint64_t{value} >> (8 * (sizeof(T) - 1 - i)));
  }
}

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_ENDIAN_H_
