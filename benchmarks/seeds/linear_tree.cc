// SPDX-License-Identifier: Apache-2.0

#include "benchmarks/seeds/linear_tree.h"

#include <bit>
#include <iterator>

namespace dmakit::seeds {
namespace {

// The highest aligned start of `pages` that ends at or below `last`; 0 if it would begin below 1.
uint64_t HighestStart(uint64_t last, uint64_t pages, uint64_t alignment) {
  if (last + 1 < pages) return 0;
  return (last + 1 - pages) & ~(alignment - 1);
}

}  // namespace

std::optional<uint64_t> LinearTree::Allocate(uint32_t pages, uint64_t highest) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t alignment = std::bit_ceil(uint64_t{pages});
  visits_last_ = 0;
  uint64_t last = highest;
  // `above` is the range that the search has gone below; it goes on with the one before it.
  auto above = ranges_.end();
  if (highest == kHighest32 && remembered_ != ranges_.end()) {
    above = remembered_;
    last = above->first - 1;
    ++visits_last_;
  }
  std::optional<uint64_t> found;
  for (;;) {
    const bool bottom = above == ranges_.begin();
    const auto below = bottom ? ranges_.end() : std::prev(above);
    if (!bottom) ++visits_last_;
    const uint64_t start = HighestStart(last, pages, alignment);
    const uint64_t floor = bottom ? lowest_ : below->second + 1;
    if (start >= floor && start != 0) {
      found = start;
      break;
    }
    if (bottom) break;
    if (below->first <= last) last = below->first - 1;
    above = below;
  }
  visits_total_ += visits_last_;
  if (!found) return std::nullopt;
  const auto made = ranges_.emplace(*found, *found + pages - 1).first;
  if (highest == kHighest32) remembered_ = made;
  return found;
}

bool LinearTree::Free(uint64_t page) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = ranges_.find(page);
  if (it == ranges_.end()) return false;
  if (remembered_ != ranges_.end() && it->first >= remembered_->first) {
    const auto next = std::next(it);
    remembered_ = next != ranges_.end() && next->first <= kHighest32 ? next : ranges_.end();
  }
  ranges_.erase(it);
  return true;
}

size_t LinearTree::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ranges_.size();
}

uint64_t LinearTree::visits_last() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return visits_last_;
}

uint64_t LinearTree::visits_total() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return visits_total_;
}

}  // namespace dmakit::seeds
