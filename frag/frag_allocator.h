// SPDX-License-Identifier: Apache-2.0
//
// FragAllocator cuts fragments from the pages of a PagePool: one map per page, however many
// fragments. Same owner thread as the pool, and ends before it. Fragment size, alignment and
// tailroom hold on whatever page size the pool falls back to.
//
// For a ring of n buffers, FragmentsPerPage = f: ceil(n / f) pages fill it, and two more keep it
// going: one being cut, one of which some fragments are back. With max_bytes at that, buffers that
// are neither posted nor free (packets in a transmit ring) leave as many ring entries empty: reap
// transmit completions first, then refill, and take an empty fragment for "later".
#ifndef DMAKIT_FRAG_FRAG_ALLOCATOR_H_
#define DMAKIT_FRAG_FRAG_ALLOCATOR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "frag/page.h"
#include "frag/page_pool.h"

namespace dmakit::frag {

class FragAllocator {
 public:
  struct Options {
    uint32_t size = 0;        // usable bytes of a fragment; at least 1
    uint32_t alignment = 64;  // of every fragment; power of two, at most 4096
    uint32_t tailroom = 0;    // bytes kept free behind each fragment, not part of `size`
  };

  // InvalidArgument if one fragment with its tailroom does not fit a page of the pool's wanted
  // order. If the order is lowered later, pages that hold one fragment are taken all the same.
  static absl::StatusOr<FragAllocator> Create(PagePool& pool, Options options);
  FragAllocator(FragAllocator&& other) noexcept;
  FragAllocator& operator=(FragAllocator&& other) noexcept;
  ~FragAllocator();  // gives up the page it cuts from

  // An empty fragment when the pool has no page now. The caller owns the fragment's reference.
  Fragment Allocate() {
    if (offset_ + stride_ <= limit_) [[likely]]
      return Cut(stride_, options_.size);
    return AllocateSlow();
  }
  // Fragments of any size on the same pages: `size` + tailroom must fit a page of the pool's wanted
  // order (or of one fragment's size, if that is larger), else empty. For headers and copies. A
  // page without room for it is left, with its rest.
  Fragment AllocateSize(uint32_t size);

  // Gives up the page it cuts from (fragments that are out stay good), so that the pool can be
  // without a page in use. The next allocation takes another.
  void Retire();

  // Bytes from one fragment to the next: (size + tailroom) rounded up to the alignment.
  uint32_t stride() const { return stride_; }
  const Options& options() const { return options_; }
  PagePool& pool() const { return *pool_; }

  // How many fragments a page of 4096 << order gives; and the smallest order, from `least` to
  // `most`, that wastes at most 1/16 of the page (or, if none does, the one that wastes least). The
  // default of receive rings.
  static uint32_t FragmentsPerPage(uint32_t stride, unsigned order);
  static unsigned BestOrder(uint32_t stride, unsigned least, unsigned most);

 private:
  FragAllocator(PagePool& pool, const Options& options, uint32_t stride);

  Fragment Cut(uint32_t stride, uint32_t size) {
    const uint32_t at = offset_;
    offset_ += stride;
    ++page_->outstanding;
    return Fragment{page_, at, size};
  }
  Fragment AllocateSlow();
  bool NextPage(uint32_t stride);

  PagePool* pool_ = nullptr;
  Page* page_ = nullptr;
  uint32_t offset_ = 0;
  uint32_t limit_ = 0;   // page size, 0 without a page
  uint32_t stride_ = 0;  // 1 to 2 MiB, as offset_: their sum does not wrap
  Options options_;
};

}  // namespace dmakit::frag

#endif  // DMAKIT_FRAG_FRAG_ALLOCATOR_H_
