// SPDX-License-Identifier: Apache-2.0
//
// FragSource is the default RxBufferSource: buffers cut from pages that were mapped once. Every
// buffer keeps `headroom` free bytes in front of what the device writes.
//
//   | headroom | capacity: what the device may write | rounding |
//   ^ fragment  ^ RxBuffer::iova
//
// Owner thread of the pool, which outlives the source. No atomics, no map and no unmap per buffer.
#ifndef DMAKIT_NIC_FRAG_SOURCE_H_
#define DMAKIT_NIC_FRAG_SOURCE_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "frag/frag_allocator.h"
#include "frag/page_pool.h"
#include "nic/queue.h"

namespace dmakit::nic {

class FragSource {
 public:
  struct Options {
    uint32_t size = 0;      // of a buffer, headroom included
    uint32_t headroom = 0;  // below size
    uint32_t capacity = 0;  // at most size - headroom
  };

  static absl::StatusOr<FragSource> Create(frag::PagePool& pool, const Options& options);

  bool Take(RxBuffer& out) {
    const frag::Fragment fragment = fragments_.Allocate();
    if (fragment.empty()) [[unlikely]]
      return false;
    out.page = fragment.page;
    out.offset = fragment.offset + options_.headroom;
    out.capacity = options_.capacity;
    out.iova = fragment.page->iova + Bytes{out.offset};
    out.token = 0;
    return true;
  }
  // The page stays mapped and is shared with the device: nothing to hand over.
  void OnReceived(const RxBuffer&, uint32_t) {}
  void Put(const RxBuffer& buffer) { pool().Release(buffer.page); }
  dma::RedZones red_zones() const {
    return {options_.headroom, options_.size - options_.headroom - options_.capacity};
  }

  // Gives up the page it cuts from, so that the pool can be empty; Take goes on with another.
  void Rest() { fragments_.Retire(); }

  frag::PagePool& pool() const { return fragments_.pool(); }

 private:
  FragSource(frag::FragAllocator fragments, const Options& options)
      : fragments_(std::move(fragments)), options_(options) {}

  frag::FragAllocator fragments_;
  Options options_;
};
static_assert(RxBufferSource<FragSource>);

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_FRAG_SOURCE_H_
