// SPDX-License-Identifier: Apache-2.0
//
// Internal: one IOVA range as it stands in the domains it was mapped in, and what is still to be
// done before nothing translates it any more. A failed or short unmap leaves the rest here, so that
// it can be tried again after a reset. Not a lock: one thread at a time.
#ifndef DMAKIT_DMA_TRANSLATION_H_
#define DMAKIT_DMA_TRANSLATION_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "dma/domain.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma::internal {

class Translation {
 public:
  struct Part {
    Domain* domain = nullptr;
    uint64_t mapped = 0;  // bytes the tables still translate
    bool owed = false;    // something was unmapped and not invalidated since
  };

  explicit Translation(Range range) : range_(range) {}
  // A range that is mapped in `domain`, all of it.
  Translation(Range range, Domain& domain) : range_(range) {
    parts_.push_back({&domain, range.size.value(), false});
  }

  const Range& range() const { return range_; }
  const absl::InlinedVector<Part, 2>& parts() const { return parts_; }
  bool gone() const { return parts_.empty(); }

  // Maps `piece`, a part of the range. On failure nothing has changed.
  absl::Status Map(Domain& domain, const Range& piece, MemoryView memory, Access access);

  // Each tries every domain (or only the one given) and returns the first error; what succeeded
  // stays done, what did not can be tried again. A short unmap is an error.
  absl::Status Unmap(const Domain* only = nullptr);
  absl::Status Invalidate(const Domain* only = nullptr);
  // Both: OK means that nothing translates the range any more, in tables or caches.
  absl::Status Remove(const Domain* only = nullptr);

  // Someone else has invalidated `only` (null: all) since the unmap.
  void Invalidated(const Domain* only = nullptr);
  // The invalidation after an unmap was tried by someone else, and failed.
  void Owe(Domain& domain);
  bool Translates(const Domain* domain) const;

 private:
  Part* Find(const Domain* domain);
  void DropFinished();

  Range range_;
  absl::InlinedVector<Part, 2> parts_;
};

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_TRANSLATION_H_
