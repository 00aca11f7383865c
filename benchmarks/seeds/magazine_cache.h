// SPDX-License-Identifier: Apache-2.0
//
// MagazineCache: what Linux puts before its IOVA tree, to be compared with. For each size of 1 to
// 32 pages (powers of two) every CPU has two magazines of 128 ranges, behind a lock of its own, and
// all CPUs share a depot of 32 magazines, behind another. What is larger goes to the tree.
//
// Any thread; `cpu` says whose magazines are used. The tree outlives it. Ranges that are parked
// when it ends go back.
#ifndef DMAKIT_BENCHMARKS_SEEDS_MAGAZINE_CACHE_H_
#define DMAKIT_BENCHMARKS_SEEDS_MAGAZINE_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "benchmarks/seeds/linear_tree.h"

namespace dmakit::seeds {

class MagazineCache {
 public:
  static constexpr size_t kMagazine = 128;
  static constexpr size_t kDepot = 32;
  static constexpr size_t kClasses = 6;  // 1, 2, 4, ... 32 pages

  MagazineCache(LinearTree& tree, size_t cpus);
  ~MagazineCache();
  MagazineCache(const MagazineCache&) = delete;
  MagazineCache& operator=(const MagazineCache&) = delete;

  // `pages` is rounded up to a power of two where it is cached; Free is told the same number.
  std::optional<uint64_t> Allocate(size_t cpu, uint32_t pages);
  void Free(size_t cpu, uint64_t page, uint32_t pages);

 private:
  struct Magazine {
    std::array<uint64_t, kMagazine> pages{};
    size_t size = 0;
  };
  struct Cpu {
    std::mutex mutex;
    std::unique_ptr<Magazine> loaded = std::make_unique<Magazine>();
    std::unique_ptr<Magazine> previous = std::make_unique<Magazine>();
  };
  struct Class {
    std::vector<std::unique_ptr<Cpu>> cpus;
    std::mutex mutex;  // of the depot
    std::vector<std::unique_ptr<Magazine>> depot;
  };

  void Empty(Magazine& magazine);

  LinearTree& tree_;
  std::array<Class, kClasses> classes_;
};

}  // namespace dmakit::seeds

#endif  // DMAKIT_BENCHMARKS_SEEDS_MAGAZINE_CACHE_H_
