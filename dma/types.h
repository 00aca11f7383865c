// SPDX-License-Identifier: Apache-2.0
//
// The small vocabulary that every part of dma/ shares: who may access what (from the device's
// side), which way data flows, and where a block of memory can be reached from. Plain values, no
// behaviour, safe on any thread.
#ifndef DMAKIT_DMA_TYPES_H_
#define DMAKIT_DMA_TYPES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dmakit::dma {

using Nanos = std::chrono::nanoseconds;

// What the *device* may do with a range, and how. A bit set. kSnoop goes with one of the others:
// the device's accesses there bypass what caches it has, so that it and the CPU see the same bytes
// without a sync (coherent rings, registers); it changes nothing for a coherent device.
enum class Access : uint8_t { kNone = 0, kRead = 1, kWrite = 2, kReadWrite = 3, kSnoop = 4 };

constexpr Access operator|(Access a, Access b) {
  return static_cast<Access>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}
constexpr Access operator&(Access a, Access b) {
  return static_cast<Access>(static_cast<uint8_t>(a) & static_cast<uint8_t>(b));
}
constexpr bool Allows(Access granted, Access wanted) { return (granted & wanted) == wanted; }

// Which way data flows in a streaming mapping, seen from the CPU as in every DMA interface of the
// field.
enum class Direction : uint8_t { kToDevice, kFromDevice, kBidirectional };

constexpr Access AccessFor(Direction direction) {
  switch (direction) {
    case Direction::kToDevice:
      return Access::kRead;
    case Direction::kFromDevice:
      return Access::kWrite;
    case Direction::kBidirectional:
      return Access::kReadWrite;
  }
  return Access::kNone;
}

std::string_view Name(Access access);  // "read-write", "read-write, snooped"
std::string_view Name(Direction direction);

// One block of host memory and the two addresses it is reached by. `cpu` is the program's view.
// `device` is the view through which *software* devices reach the same bytes, so that protecting
// the CPU's view does not stop them; for memory that has only one view both are equal. A view owns
// nothing.
struct MemoryView {
  std::byte* cpu = nullptr;
  std::byte* device = nullptr;
  size_t size = 0;

  static MemoryView Of(std::span<std::byte> memory) {
    return {memory.data(), memory.data(), memory.size()};
  }
  std::span<std::byte> bytes() const { return {cpu, size}; }
  // The part [offset, offset + length). The caller has checked that it is inside.
  MemoryView Sub(size_t offset, size_t length) const {
    return {cpu + offset, device + offset, length};
  }
};

// When a translation goes away, and so when memory and IOVA may be used again.
enum class Policy : uint8_t {
  kPersistent,  // mapped once, unmapped when the pool ends
  kStrict,      // unmap and invalidate before the unmap call returns
  kDeferred,    // unmap now, one flush for many later; nothing is reused before that flush has
                // completed
};

std::string_view Name(Policy policy);

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_TYPES_H_
