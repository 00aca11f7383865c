// SPDX-License-Identifier: Apache-2.0
//
// A 16-byte ring entry as two little-endian words, and bit fields in a word: what the descriptors.h
// of backends with such entries are made of. Words that a device shares with the CPU are
// dma::Shared, not this. Values only; any thread.
#ifndef DMAKIT_NIC_DESCRIPTOR_WORDS_H_
#define DMAKIT_NIC_DESCRIPTOR_WORDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nic/endian.h"

namespace dmakit::nic {

// Byte 0 of the entry is the low byte of `low`.
struct Words {
  uint64_t low = 0;
  uint64_t high = 0;
  friend constexpr bool operator==(const Words&, const Words&) = default;
};

constexpr std::array<std::byte, 16> ToBytes(const Words& words) {
  std::array<std::byte, 16> bytes{};
  StoreLe<uint64_t>(bytes, 0, words.low);
  StoreLe<uint64_t>(bytes, 8, words.high);
  return bytes;
}
constexpr Words FromBytes(std::span<const std::byte, 16> bytes) {
  return {LoadLe<uint64_t>(bytes, 0), LoadLe<uint64_t>(bytes, 8)};
}

namespace bits {
// The low `width` (below 64) bits of `value`, placed at bit `at`; and back.
constexpr uint64_t Put(uint64_t value, unsigned at, unsigned width) {
  return (value & ((uint64_t{1} << width) - 1)) << at;
}
constexpr uint64_t Get(uint64_t word, unsigned at, unsigned width) {
  return word >> at & ((uint64_t{1} << width) - 1);
}
}  // namespace bits

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_DESCRIPTOR_WORDS_H_
