// SPDX-License-Identifier: Apache-2.0
//
// LinearTree: IOVA allocation as Linux had it around 2017, to be compared with. Allocated ranges
// stand in an ordered tree. A search goes down from the top of the window, or from a remembered
// range when the ceiling is the usual one of 32 bits, range by range until there is a hole that is
// large enough; the remembered range moves down with each allocation and up when something above it
// is freed. It degenerates when holes near the remembered range are too small: then it reads every
// range below.
//
// Pages, not bytes. Any thread; one lock.
#ifndef DMAKIT_BENCHMARKS_SEEDS_LINEAR_TREE_H_
#define DMAKIT_BENCHMARKS_SEEDS_LINEAR_TREE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace dmakit::seeds {

class LinearTree {
 public:
  static constexpr uint64_t kHighest32 = 0xfffff;  // the last page of 4 GiB

  // Pages from `lowest` on; page 0 is never given out.
  explicit LinearTree(uint64_t lowest = 1) : lowest_(lowest == 0 ? 1 : lowest) {}

  // The first page of a range that ends at or below `highest`, aligned to its size rounded up to a
  // power of two; nullopt: no hole was found. `pages` is at least 1.
  std::optional<uint64_t> Allocate(uint32_t pages, uint64_t highest = kHighest32);
  // The whole range that begins at `page`. False: there is none.
  bool Free(uint64_t page);

  size_t size() const;
  // Ranges that the last search read; and all of them.
  uint64_t visits_last() const;
  uint64_t visits_total() const;

 private:
  using Ranges = std::map<uint64_t, uint64_t>;  // first page -> last page

  const uint64_t lowest_;
  mutable std::mutex mutex_;  // of all below
  Ranges ranges_;
  // Where a search with the 32-bit ceiling starts below; end(): at the top.
  Ranges::iterator remembered_ = ranges_.end();
  uint64_t visits_last_ = 0;
  uint64_t visits_total_ = 0;
};

}  // namespace dmakit::seeds

#endif  // DMAKIT_BENCHMARKS_SEEDS_LINEAR_TREE_H_
