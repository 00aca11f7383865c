// SPDX-License-Identifier: Apache-2.0

#include "benchmarks/seeds/magazine_cache.h"

#include <bit>
#include <utility>

namespace dmakit::seeds {
namespace {

// The class of a size, kClasses and above for one that is not cached.
size_t ClassOf(uint32_t pages) { return static_cast<size_t>(std::bit_width(pages - 1)); }

}  // namespace

MagazineCache::MagazineCache(LinearTree& tree, size_t cpus) : tree_(tree) {
  for (Class& c : classes_) {
    for (size_t i = 0; i < cpus; ++i) c.cpus.push_back(std::make_unique<Cpu>());
  }
}

MagazineCache::~MagazineCache() {
  for (Class& c : classes_) {
    for (const auto& cpu : c.cpus) {
      Empty(*cpu->loaded);
      Empty(*cpu->previous);
    }
    for (const auto& magazine : c.depot) Empty(*magazine);
  }
}

void MagazineCache::Empty(Magazine& magazine) {
  while (magazine.size > 0) tree_.Free(magazine.pages[--magazine.size]);
}

std::optional<uint64_t> MagazineCache::Allocate(size_t cpu, uint32_t pages) {
  const size_t index = ClassOf(pages);
  if (index >= kClasses) return tree_.Allocate(pages);
  Class& c = classes_[index];
  {
    Cpu& own = *c.cpus[cpu];
    const std::lock_guard<std::mutex> lock(own.mutex);
    if (own.loaded->size == 0 && own.previous->size != 0) std::swap(own.loaded, own.previous);
    if (own.loaded->size == 0) {
      const std::lock_guard<std::mutex> depot(c.mutex);
      if (!c.depot.empty()) {
        own.loaded = std::move(c.depot.back());
        c.depot.pop_back();
      }
    }
    if (own.loaded->size != 0) return own.loaded->pages[--own.loaded->size];
  }
  return tree_.Allocate(1u << index);
}

void MagazineCache::Free(size_t cpu, uint64_t page, uint32_t pages) {
  const size_t index = ClassOf(pages);
  if (index >= kClasses) {
    tree_.Free(page);
    return;
  }
  Class& c = classes_[index];
  std::unique_ptr<Magazine> full;
  {
    Cpu& own = *c.cpus[cpu];
    const std::lock_guard<std::mutex> lock(own.mutex);
    if (own.loaded->size == kMagazine && own.previous->size < kMagazine) {
      std::swap(own.loaded, own.previous);
    }
    if (own.loaded->size == kMagazine) {
      const std::lock_guard<std::mutex> depot(c.mutex);
      if (c.depot.size() < kDepot) {
        c.depot.push_back(std::move(own.loaded));
      } else {
        full = std::move(own.loaded);
      }
      own.loaded = std::make_unique<Magazine>();
    }
    own.loaded->pages[own.loaded->size++] = page;
  }
  if (full != nullptr) Empty(*full);
}

}  // namespace dmakit::seeds
