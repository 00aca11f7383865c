// SPDX-License-Identifier: Apache-2.0
//
// TranslationCache is the set-associative memory in a device port: one holds the IOTLB, one per
// level the page-walk cache. An entry covers one naturally aligned block, whose size is part of its
// tag, and stays until it is dropped or displaced by a newer one of its set (least recently used
// first): nothing here follows the page table. One thread at a time; the port's lock sees to that.
#ifndef DMAKIT_DMA_TRANSLATION_CACHE_H_
#define DMAKIT_DMA_TRANSLATION_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dmakit::dma::internal {

template <typename Value>
class TranslationCache {
 public:
  // `entries` and `ways` are powers of two, ways <= entries. No entries: finds and keeps nothing.
  TranslationCache(size_t entries, size_t ways) : entries_(entries), ways_(ways) {}

  // The entry whose block of 2^shift bytes holds `iova`, or null. Valid until the next Insert.
  Value* Find(uint64_t iova, int shift) {
    const size_t set = SetOf(iova, shift);
    for (size_t i = set; i < set + WaysIn(); ++i) {
      Entry& entry = entries_[i];
      if (entry.shift == shift && entry.block == iova >> shift) {
        entry.used = ++clock_;
        return &entry.value;
      }
    }
    return nullptr;
  }

  // Needs that Find has just found nothing.
  void Insert(uint64_t iova, int shift, const Value& value) {
    if (entries_.empty()) return;
    const size_t set = SetOf(iova, shift);
    Entry* victim = &entries_[set];
    for (size_t i = set; i < set + ways_; ++i) {
      if (entries_[i].used < victim->used) victim = &entries_[i];
    }
    *victim = {iova >> shift, ++clock_, shift, value};
  }

  // Drops every entry with a byte in [first, last].
  void DropOverlapping(uint64_t first, uint64_t last) {
    for (Entry& entry : entries_) {
      if (entry.shift != kNone && entry.First() <= last && first <= entry.Last()) entry = {};
    }
  }

  // Drops the entries that lie in [first, last] whole.
  void DropInside(uint64_t first, uint64_t last) {
    for (Entry& entry : entries_) {
      if (entry.shift != kNone && first <= entry.First() && entry.Last() <= last) entry = {};
    }
  }

  void Clear() {
    for (Entry& entry : entries_) entry = {};
  }

 private:
  static constexpr int kNone = -1;

  struct Entry {
    uint64_t block = 0;
    uint64_t used = 0;  // 0: free, and so the first to be taken
    int shift = kNone;
    Value value{};

    uint64_t First() const { return block << shift; }
    uint64_t Last() const { return First() | ((uint64_t{1} << shift) - 1); }
  };

  size_t WaysIn() const { return entries_.empty() ? 0 : ways_; }
  size_t SetOf(uint64_t iova, int shift) const {
    return entries_.empty() ? 0 : ((iova >> shift) & (entries_.size() / ways_ - 1)) * ways_;
  }

  std::vector<Entry> entries_;
  size_t ways_;
  uint64_t clock_ = 0;
};

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_TRANSLATION_CACHE_H_
