// SPDX-License-Identifier: Apache-2.0
//
// Functions whose machine code hot_path_test.cc reads. The first group is what an owner thread does
// per fragment or page and must be free of locked instructions; the second shows that the reader
// would find one.
#include <atomic>
#include <cstdint>

#include "frag/frag_allocator.h"
#include "frag/page_pool.h"
#include "frag/returner.h"

#define PROBE extern "C" [[gnu::noinline]]

using dmakit::frag::FragAllocator;
using dmakit::frag::Fragment;
using dmakit::frag::Page;
using dmakit::frag::PagePool;

PROBE void probe_allocate(FragAllocator& cutter, Fragment& to) { to = cutter.Allocate(); }
PROBE void probe_release(PagePool& pool, const Fragment& fragment) { pool.Release(fragment); }
PROBE void probe_release_many(PagePool& pool, Page* page, uint32_t count) {
  pool.Release(page, count);
}
PROBE Page* probe_take(PagePool& pool) { return pool.Take(); }
PROBE Page* probe_take_at_least(PagePool& pool, uint32_t bytes) { return pool.TakeAtLeast(bytes); }

PROBE void control_add(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_relaxed);
}
PROBE uint32_t control_exchange(std::atomic<uint32_t>& word) {
  return word.exchange(1, std::memory_order_relaxed);
}
PROBE void control_seq_cst_store(std::atomic<uint32_t>& word) { word.store(1); }
#if defined(__x86_64__)
PROBE void control_fence() { asm volatile("mfence" ::: "memory"); }
#else
PROBE void control_fence() {}
#endif
// One that is hidden behind a call.
PROBE void control_call(std::atomic<uint32_t>& word) {
  control_add(word);
  asm volatile("");
}
// A call that cannot be followed.
PROBE void control_indirect(void (*function)()) {
  function();
  asm volatile("");
}
// Plain loads and stores of atomics are none.
PROBE void control_clean(std::atomic<uint64_t>& word) {
  word.store(word.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

// Or the linker would drop them.
int main() {
  const void* volatile keep = nullptr;
  for (auto* function :
       {reinterpret_cast<void (*)()>(probe_allocate), reinterpret_cast<void (*)()>(probe_release),
        reinterpret_cast<void (*)()>(probe_release_many), reinterpret_cast<void (*)()>(probe_take),
        reinterpret_cast<void (*)()>(probe_take_at_least),
        reinterpret_cast<void (*)()>(control_add), reinterpret_cast<void (*)()>(control_exchange),
        reinterpret_cast<void (*)()>(control_seq_cst_store),
        reinterpret_cast<void (*)()>(control_fence), reinterpret_cast<void (*)()>(control_call),
        reinterpret_cast<void (*)()>(control_indirect),
        reinterpret_cast<void (*)()>(control_clean)}) {
    keep = reinterpret_cast<const void*>(function);
  }
  return keep == nullptr;
}
