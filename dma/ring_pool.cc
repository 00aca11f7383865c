// SPDX-License-Identifier: Apache-2.0
//
// RingPool: the checks that do not depend on the entry's type.
#include "dma/ring_pool.h"

#include "absl/strings/str_cat.h"

namespace dmakit::dma::internal {

absl::Status CheckRing(const RingPoolOptions& options, size_t type_size, size_t type_alignment) {
  auto bad = [&options](auto&&... message) {
    return absl::InvalidArgumentError(absl::StrCat("ring '", options.label, "': ", message...));
  };
  if (options.count == 0) return bad("count 0: must be at least 1");
  uint64_t entry = options.entry_size.value();
  if (entry == 0) entry = type_size;
  if (entry < type_size) {
    return bad("entry_size ", entry, ": must be at least the ", type_size,
               " bytes of the entry's type, or 0 for exactly that");
  }
  if (entry % type_alignment != 0) {
    return bad("entry_size ", entry, ": must be a multiple of ", type_alignment,
               ", the alignment of the entry's type");
  }
  if (entry > std::numeric_limits<uint64_t>::max() / options.count) {
    return bad("count ", options.count, " x entry_size ", entry,
               ": the product must fit in 64 bits; use fewer or smaller entries");
  }
  if (!IsPowerOfTwo(options.alignment) || options.alignment.value() < type_alignment) {
    return bad("alignment ", options.alignment.value(), ": must be a power of two, at least ",
               type_alignment);
  }
  return absl::OkStatus();  // the rest is AllocateCoherent's to check
}

}  // namespace dmakit::dma::internal
