// SPDX-License-Identifier: Apache-2.0
//
// The cache of a software device that is not coherent: lines of 64 bytes, found by IOVA and by the
// translation they were made through. Each byte of a line is absent, read or written (dirty); only
// dirty bytes ever go to memory, only bytes asked for ever come from it. Deterministic: what is in
// it depends on the calls made, not on addresses of memory or time. Needs the port's lock.
#ifndef DMAKIT_DMA_LINE_CACHE_H_
#define DMAKIT_DMA_LINE_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dma/page_table.h"

namespace dmakit::dma::internal {

class LineCache {
 public:
  static constexpr uint64_t kLine = 64;
  static constexpr size_t kWays = 4;

  // Rounded up to a power of two, at least kWays.
  explicit LineCache(size_t lines);

  // `leaf` translates all of it. The return value: lines evicted for it.
  size_t Read(uint64_t iova, const PageTable::Leaf& leaf, std::span<std::byte> to);
  size_t Write(uint64_t iova, const PageTable::Leaf& leaf, std::span<const std::byte> from);

  // Of exactly the bytes [first, last]: the dirty ones go to memory and are as read then.
  void WriteBack(uint64_t first, uint64_t last);
  // All are absent then.
  void Forget(uint64_t first, uint64_t last);
  // Empties the lines with a byte in [first, last] for which `alive(iova, leaf)` is false.
  template <typename Alive>
  void DropUnless(uint64_t first, uint64_t last, Alive alive) {
    for (Line& line : lines_) {
      if (line.valid == 0 || line.iova > last || line.iova + (kLine - 1) < first) continue;
      if (!alive(line.iova, line.leaf)) line.valid = line.dirty = 0;
    }
  }

 private:
  using Leaf = PageTable::Leaf;
  struct Line {
    uint64_t iova = 0;  // of its first byte
    Leaf leaf;
    uint64_t valid = 0;  // one bit per byte; 0: the line is free
    uint64_t dirty = 0;
    std::array<std::byte, kLine> data;

    std::byte* memory() const;  // of its first byte
  };

  static uint64_t Bits(size_t from, size_t count);
  // The bytes of `line` that lie in [first, last].
  static uint64_t BitsIn(const Line& line, uint64_t first, uint64_t last);
  static void Store(Line& line, uint64_t bits);
  // The line of this address; taken for it, and free, if there was none.
  Line& Find(uint64_t iova, const Leaf& leaf, size_t* evicted);

  std::vector<Line> lines_;    // sets of kWays
  std::vector<uint8_t> next_;  // per set, the way to be evicted next
};

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_LINE_CACHE_H_
