// SPDX-License-Identifier: Apache-2.0
#include "dma/line_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace dmakit::dma::internal {

namespace {

// Calls action(from, count) for each run of ones.
template <typename Action>
void ForEachRun(uint64_t bits, Action action) {
  size_t at = 0;
  while (bits != 0) {
    const int zeros = std::countr_zero(bits);
    bits >>= zeros;
    const int ones = std::countr_one(bits);
    action(at + zeros, static_cast<size_t>(ones));
    bits = ones == 64 ? 0 : bits >> ones;
    at += zeros + ones;
  }
}

}  // namespace

LineCache::LineCache(size_t lines)
    : lines_(std::bit_ceil(std::max(lines, kWays))), next_(lines_.size() / kWays) {}

std::byte* LineCache::Line::memory() const {
  return leaf.memory() + (iova & (PageTable::SizeOf(leaf.level) - 1));
}

uint64_t LineCache::Bits(size_t from, size_t count) {
  return (count == kLine ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << from;
}

uint64_t LineCache::BitsIn(const Line& line, uint64_t first, uint64_t last) {
  const uint64_t end = line.iova + (kLine - 1);
  if (line.valid == 0 || line.iova > last || end < first) return 0;
  const uint64_t from = std::max(first, line.iova);
  return Bits(from - line.iova, std::min(last, end) - from + 1);
}

void LineCache::Store(Line& line, uint64_t bits) {
  std::byte* const memory = line.memory();
  ForEachRun(line.dirty & bits, [&](size_t from, size_t count) {
    std::memcpy(memory + from, line.data.data() + from, count);
  });
  line.dirty &= ~bits;
}

LineCache::Line& LineCache::Find(uint64_t iova, const Leaf& leaf, size_t* evicted) {
  const size_t set = (iova / kLine) % next_.size();
  Line* const ways = &lines_[set * kWays];
  Line* line = nullptr;
  for (size_t way = 0; way < kWays; ++way) {
    if (ways[way].valid == 0) {
      if (line == nullptr) line = &ways[way];
    } else if (ways[way].iova == iova) {
      if (ways[way].leaf == leaf) return ways[way];
      // Of another translation, which is gone: its memory may be too.
      line = &ways[way];
      break;
    }
  }
  if (line == nullptr) {
    line = &ways[next_[set]];
    next_[set] = (next_[set] + 1) % kWays;
    Store(*line, ~uint64_t{0});
    ++*evicted;
  }
  line->iova = iova;
  line->leaf = leaf;
  line->valid = line->dirty = 0;
  return *line;
}

size_t LineCache::Read(uint64_t iova, const Leaf& leaf, std::span<std::byte> to) {
  size_t evicted = 0;
  while (!to.empty()) {
    const size_t offset = iova % kLine;
    const size_t count = std::min<size_t>(to.size(), kLine - offset);
    const uint64_t bits = Bits(offset, count);
    Line& line = Find(iova - offset, leaf, &evicted);
    const std::byte* const memory = line.memory();
    ForEachRun(bits & ~line.valid, [&](size_t from, size_t missing) {
      std::memcpy(line.data.data() + from, memory + from, missing);
    });
    line.valid |= bits;
    std::memcpy(to.data(), line.data.data() + offset, count);
    iova += count;
    to = to.subspan(count);
  }
  return evicted;
}

size_t LineCache::Write(uint64_t iova, const Leaf& leaf, std::span<const std::byte> from) {
  size_t evicted = 0;
  while (!from.empty()) {
    const size_t offset = iova % kLine;
    const size_t count = std::min<size_t>(from.size(), kLine - offset);
    const uint64_t bits = Bits(offset, count);
    Line& line = Find(iova - offset, leaf, &evicted);
    std::memcpy(line.data.data() + offset, from.data(), count);
    line.valid |= bits;
    line.dirty |= bits;
    iova += count;
    from = from.subspan(count);
  }
  return evicted;
}

void LineCache::WriteBack(uint64_t first, uint64_t last) {
  for (Line& line : lines_) Store(line, BitsIn(line, first, last));
}

void LineCache::Forget(uint64_t first, uint64_t last) {
  for (Line& line : lines_) {
    const uint64_t kept = ~BitsIn(line, first, last);
    line.valid &= kept;
    line.dirty &= kept;
  }
}

}  // namespace dmakit::dma::internal
