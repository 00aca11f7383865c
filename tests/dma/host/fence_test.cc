// SPDX-License-Identifier: Apache-2.0
//
// The asymmetric fence against the pattern it exists for: two threads that each store their own
// flag and then look at the other's. Without a full barrier on both sides both may miss.
#include "dma/host/fence.h"

#include <atomic>
#include <memory>
#include <thread>

#include "tests/catch.h"

namespace dmakit::dma::host {
namespace {

struct alignas(64) Flag {
  std::atomic<int> value{0};
};
// Not on the stack: the one that AddressSanitizer checks use-after-return with is aligned to less.
struct Flags {
  Flag fast, slow, round, fast_done;
};

// Spins, so that both threads go on at the same moment; not for ever, when they share a processor.
void WaitFor(const Flag& flag, int value) {
  for (int spins = 0; flag.value.load(std::memory_order_acquire) != value; ++spins) {
    if (spins > 2000) std::this_thread::yield();
  }
}

TEST_CASE("membarrier: of two stores followed by loads one is always seen") {
  MembarrierFence fence;
  if (!fence.available()) {
    WARN("the kernel refuses membarrier here; locked caches are used then");
    return;
  }
  constexpr int kRounds = 3000;
  const auto flags = std::make_unique<Flags>();
  Flag &fast = flags->fast, &slow = flags->slow;
  Flag &round = flags->round, &fast_done = flags->fast_done;
  int fast_saw = 0;  // read after fast_done
  std::jthread thread([&] {
    for (int i = 1; i <= kRounds; ++i) {
      WaitFor(round, i);
      // The fast side: no barrier for the processor, only one for the compiler.
      fast.value.store(i, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      fast_saw = slow.value.load(std::memory_order_relaxed);
      fast_done.value.store(i, std::memory_order_release);
    }
  });
  int both_missed = 0;
  for (int i = 1; i <= kRounds; ++i) {
    round.value.store(i, std::memory_order_release);
    for (int wait = i % 64; wait > 0; --wait) std::atomic_signal_fence(std::memory_order_seq_cst);
    slow.value.store(i, std::memory_order_relaxed);
    fence.HeavyBarrier();
    const int slow_saw = fast.value.load(std::memory_order_relaxed);
    WaitFor(fast_done, i);
    if (slow_saw != i && fast_saw != i) ++both_missed;
  }
  CHECK(both_missed == 0);
}

TEST_CASE("membarrier: two fences in one process, from two threads") {
  MembarrierFence a;
  MembarrierFence b;
  CHECK(a.available() == b.available());
  if (!a.available()) return;
  std::jthread other([&b] {
    for (int i = 0; i < 100; ++i) b.HeavyBarrier();
  });
  for (int i = 0; i < 100; ++i) a.HeavyBarrier();
}

}  // namespace
}  // namespace dmakit::dma::host
