// SPDX-License-Identifier: Apache-2.0

#include "nic/frag_source.h"

#include "absl/strings/str_cat.h"

namespace dmakit::nic {

absl::StatusOr<FragSource> FragSource::Create(frag::PagePool& pool, const Options& options) {
  if (options.headroom >= options.size || options.capacity == 0 ||
      options.capacity > options.size - options.headroom) {
    return absl::InvalidArgumentError(absl::StrCat(
        "receive buffers of pool ", pool.options().label, ": size ", options.size, ": must hold ",
        options.headroom, " bytes of headroom and ", options.capacity, " (at least 1) of data"));
  }
  absl::StatusOr<frag::FragAllocator> fragments =
      frag::FragAllocator::Create(pool, {.size = options.size});
  if (!fragments.ok()) return fragments.status();
  return FragSource(*std::move(fragments), options);
}

}  // namespace dmakit::nic
