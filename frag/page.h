// SPDX-License-Identifier: Apache-2.0
//
// A Page is packet memory that was mapped once: 4 KiB to 2 MiB, one IOVA on every device of its
// address space. Fragments are cut from it; it becomes free when as many references came back as
// were handed out.
//
//   page->base                                      page->base + size
//   | fragment | fragment | fragment | ...   | rest |
//   ^ iova       ^ iova + offset
//
// Metadata lives here, outside of the memory that devices can write. Pages belong to their
// PagePool. Metadata and memory live until the last fragment came back, or, if it never does, until
// the page's quarantine is released (see ~PagePool).
//
// Threads. `outstanding` is the owner thread's. Any other thread gives references back through
// `returned`, by way of a Returner, and the owner folds that count in: see returner.h.
#ifndef DMAKIT_FRAG_PAGE_H_
#define DMAKIT_FRAG_PAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "iova/types.h"

namespace dmakit::frag {

class PagePool;
namespace internal {
class PoolCore;
}

struct Page {
  // Constant while the page is in circulation.
  std::byte* base = nullptr;
  Iova iova{0};
  uint32_t size = 0;
  uint8_t order = 0;  // size is 4096 << order
  internal::PoolCore* pool = nullptr;

  // Owner thread only. References handed out and not folded back, and one more (`cutting`) while a
  // FragAllocator cuts from the page: that one nobody else can give back.
  uint32_t outstanding = 0;
  uint32_t cutting = 0;
  Page* next_free = nullptr;

  // Written by other threads: references given back and not yet folded. Whoever raises it from 0
  // queues the page.
  alignas(64) std::atomic<uint32_t> returned{0};
  Page* next_returned = nullptr;
};

// A piece of a page: one reference to it, owned by whoever holds the value. Plain data so that it
// can live in a descriptor ring's shadow; giving it back exactly once is the holder's duty (to
// PagePool::Release on the owner thread, to a Returner elsewhere).
struct Fragment {
  Page* page = nullptr;
  uint32_t offset = 0;  // in the page, bytes
  uint32_t size = 0;    // bytes

  bool empty() const { return page == nullptr; }
  std::byte* data() const { return page->base + offset; }
  Iova iova() const { return page->iova + Bytes{offset}; }
  std::span<std::byte> bytes() const { return {data(), size}; }
};

inline constexpr uint32_t kBasePageSize = 4096;
inline constexpr unsigned kMaxOrder = 9;  // 2 MiB

}  // namespace dmakit::frag

#endif  // DMAKIT_FRAG_PAGE_H_
