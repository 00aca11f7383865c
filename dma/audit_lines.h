// SPDX-License-Identifier: Apache-2.0
//
// Internal: which live mappings touch a cache line of the program's memory. Spans are kept by the
// power of two of their length, so that all that overlap a range are found by one search per length
// in use, however the spans overlap each other. Not a lock: one thread at a time.
#ifndef DMAKIT_DMA_AUDIT_LINES_H_
#define DMAKIT_DMA_AUDIT_LINES_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>

#include "absl/container/btree_set.h"

namespace dmakit::dma::internal {

struct AuditRecord;

inline constexpr uintptr_t kCacheLine = 64;

class CacheLines {
 public:
  // Rounded to whole cache lines.
  struct Span {
    uintptr_t first = 0;
    uintptr_t last = 0;
    AuditRecord* record = nullptr;
    friend bool operator<(const Span& a, const Span& b) {
      return std::tie(a.first, a.last, a.record) < std::tie(b.first, b.last, b.record);
    }
  };
  static Span Cover(std::span<const std::byte> bytes, AuditRecord* record) {
    const auto first = reinterpret_cast<uintptr_t>(bytes.data());
    return {first & ~(kCacheLine - 1), (first + (bytes.size() - 1)) | (kCacheLine - 1), record};
  }

  void Insert(const Span& span) {
    const int k = ClassOf(span);
    by_length_[k].insert(span);
    in_use_ |= uint64_t{1} << k;
  }
  void Erase(const Span& span) {
    const int k = ClassOf(span);
    if (auto it = by_length_[k].find(span); it != by_length_[k].end()) by_length_[k].erase(it);
    if (by_length_[k].empty()) in_use_ &= ~(uint64_t{1} << k);
  }
  // `visit(record)` for each span that overlaps, until it returns false.
  template <typename Visit>
  void ForOverlapping(const Span& where, Visit visit) const {
    for (uint64_t rest = in_use_; rest != 0; rest &= rest - 1) {
      const int k = std::countr_zero(rest);
      const uintptr_t reach = (uintptr_t{1} << k) - 1;  // no span of the class is longer
      const Span from{where.first > reach ? where.first - reach : 0, 0, nullptr};
      const auto& spans = by_length_[k];
      for (auto it = spans.lower_bound(from); it != spans.end() && it->first <= where.last; ++it) {
        if (it->last >= where.first && !visit(it->record)) return;
      }
    }
  }

 private:
  static int ClassOf(const Span& span) { return std::bit_width(span.last - span.first) % 64; }

  std::array<absl::btree_multiset<Span>, 64> by_length_;
  uint64_t in_use_ = 0;
};

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_AUDIT_LINES_H_
