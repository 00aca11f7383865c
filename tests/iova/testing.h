// SPDX-License-Identifier: Apache-2.0
//
// What the tests of iova/ share: a memory resource that poisons, fails and keeps accounts, the real
// asymmetric fence, a seeded random source, the visit bound.

#ifndef DMAKIT_TESTS_IOVA_TESTING_H_
#define DMAKIT_TESTS_IOVA_TESTING_H_

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory_resource>
#include <new>
#include <random>

#include "iova/fence.h"
#include "iova/space.h"

namespace dmakit::iova::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Fills what it gives and takes back with 0xFF, fails from the `fail_at`-th call on (0: never), and
// records any block that comes back with another size or twice.
class AccountingResource : public std::pmr::memory_resource {
 public:
  uint64_t calls = 0;
  uint64_t fail_at = 0;
  bool fail_once = false;
  uint64_t wrong_returns = 0;

  size_t blocks() const { return live_.size(); }
  uint64_t bytes() const {
    uint64_t total = 0;
    for (const auto& [block, size] : live_) total += size;
    return total;
  }

 private:
  void* do_allocate(size_t size, size_t alignment) override {
    ++calls;
    if (fail_at != 0 && (fail_once ? calls == fail_at : calls >= fail_at)) throw std::bad_alloc();
    void* block = ::operator new(size, std::align_val_t(alignment));
    std::memset(block, 0xFF, size);
    live_[block] = size;
    return block;
  }
  void do_deallocate(void* block, size_t size, size_t alignment) override {
    const auto found = live_.find(block);
    if (found == live_.end() || found->second != size) {
      ++wrong_returns;
      return;
    }
    live_.erase(found);
    std::memset(block, 0xFF, size);
    ::operator delete(block, std::align_val_t(alignment));
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::map<void*, size_t> live_;
};

// The kernel's barrier, for tests with threads.
class Membarrier : public AsymmetricFence {
 public:
  Membarrier()
      : available_(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0) {}
  bool available() const override { return available_; }
  void HeavyBarrier() override {
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0) std::abort();
  }

 private:
  const bool available_;
};

// Enough where one thread does everything; counts its calls.
class CountingFence : public AsymmetricFence {
 public:
  explicit CountingFence(bool available = true) : available_(available) {}
  bool available() const override { return available_; }
  void HeavyBarrier() override { ++barriers; }
  uint64_t barriers = 0;

 private:
  const bool available_;
};

// The same sequence on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t Below(uint64_t n) { return engine_() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

inline uint64_t Bound(uint64_t nodes, uint64_t live) {
  const double n = static_cast<double>(std::max<uint64_t>({nodes, live, 1}));
  return static_cast<uint64_t>(std::floor(4 * std::log2(n) + 8));
}

inline uint64_t VisitBound(const Space::Stats& stats) {
  return Bound(stats.tree_nodes, stats.live_ranges);
}

inline Interval Piece(uint64_t first, uint64_t last) { return {Iova(first), Iova(last)}; }

}  // namespace dmakit::iova::testing

#endif  // DMAKIT_TESTS_IOVA_TESTING_H_
