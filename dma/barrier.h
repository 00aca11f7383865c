// SPDX-License-Identifier: Apache-2.0
//
// Named barriers between ordinary memory and MMIO, and nothing else: order between CPUs is
// release/acquire on a flag (Shared<T>, std::atomic). Each name says what it separates; on x86
// write-back memory followed by an uncached store is ordered by the processor, so these are
// compiler barriers there.
#ifndef DMAKIT_DMA_BARRIER_H_
#define DMAKIT_DMA_BARRIER_H_

namespace dmakit::dma {

// Between filling descriptors and the register write (doorbell) that shows them to the device.
inline void BarrierBeforeMmioWrite() {
#if defined(__aarch64__)
  asm volatile("dmb oshst" ::: "memory");
#else
  asm volatile("" ::: "memory");
#endif
}

// Between a register read that says "done" and reading the memory the device wrote before it.
inline void BarrierAfterMmioRead() {
#if defined(__aarch64__)
  asm volatile("dmb oshld" ::: "memory");
#else
  asm volatile("" ::: "memory");
#endif
}

// Drains write-combined stores (a doorbell page mapped write-combining) so that they reach the
// device in order.
inline void BarrierAfterWriteCombining() {
#if defined(__aarch64__)
  asm volatile("dmb oshst" ::: "memory");
#elif defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#else
  asm volatile("" ::: "memory");
#endif
}

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_BARRIER_H_
