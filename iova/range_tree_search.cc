// SPDX-License-Identifier: Apache-2.0
//
// Finding the way in the tree: to an address, to the highest fit, to the leaf next door.

#include <algorithm>

#include "iova/range_tree.h"

namespace dmakit::iova::internal {

// The last entry (child) whose base (key) is at most `base`; -1 when all are above.
int RangeTree::LastAtMost(const Leaf* leaf, uint64_t base) {
  int i = static_cast<int>(leaf->count) - 1;
  while (i >= 0 && leaf->entries[i].base > base) --i;
  return i;
}

int RangeTree::LastAtMost(const Inner* inner, uint64_t base) {
  int i = static_cast<int>(inner->count) - 1;
  while (i >= 0 && inner->key[i] > base) --i;
  return i;
}

// To the leaf that holds `base`, if any does; the entry is the caller's to find.
void RangeTree::DescendTo(uint64_t base, Path* path) {
  Node* node = Touch(root_);
  for (unsigned level = height_ - 1; level > 0; --level) {
    path->node[level] = node;
    path->index[level] = static_cast<unsigned>(std::max(LastAtMost(AsInner(node), base), 0));
    node = Touch(AsInner(node)->child[path->index[level]]);
  }
  path->node[0] = node;
  path->index[0] = 0;
}

// The highest free range that takes the search below `end`. Children left of the boundary child lie
// wholly below the ceiling, so for them the aggregates are exact; only the boundary itself is
// clipped.
bool RangeTree::FindHighest(const Search& search, uint64_t end, Path* path) {
  if (search.size > end) return false;
  const uint64_t highest_base = end - search.size;
  Node* node = Touch(root_);
  unsigned candidate_level = 0;
  unsigned candidate = 0;
  unsigned level = height_ - 1;
  bool at_boundary = true;
  for (; level > 0; --level) {
    const Inner* inner = AsInner(node);
    path->node[level] = node;
    const int boundary = LastAtMost(inner, highest_base);
    const int left = RightmostFit(inner, boundary, search);
    if (left >= 0) {  // deeper candidates lie higher, so the last one found wins
      candidate_level = level;
      candidate = static_cast<unsigned>(left);
    }
    at_boundary = boundary >= 0 && inner->fit[search.order][boundary] >= search.size;
    if (!at_boundary) break;
    path->index[level] = static_cast<unsigned>(boundary);
    node = Touch(inner->child[boundary]);
  }
  if (at_boundary) {
    path->node[0] = node;
    if (FindInLeaf(search, end, path)) return true;
  }
  if (candidate_level == 0) return false;
  for (level = candidate_level; level > 0; --level) {
    const Inner* inner = AsInner(path->node[level]);
    if (level != candidate_level) {
      candidate =
          static_cast<unsigned>(RightmostFit(inner, static_cast<int>(inner->count), search));
    }
    path->index[level] = candidate;
    path->node[level - 1] = Touch(inner->child[candidate]);
  }
  return FindInLeaf(search, end, path);
}

bool RangeTree::FindInLeaf(const Search& search, uint64_t end, Path* path) {
  const Leaf* leaf = AsLeaf(path->node[0]);
  for (int i = LastAtMost(leaf, end - search.size); i >= 0; --i) {
    const Entry& entry = leaf->entries[i];
    if (entry.used) continue;
    if (Fit(entry.base, std::min<uint64_t>(entry.end, end), search.order) >= search.size) {
      path->index[0] = static_cast<unsigned>(i);
      return true;
    }
  }
  return false;
}

int RangeTree::RightmostFit(const Inner* inner, int below, const Search& search) const {
  const uint64_t* fit = inner->fit[search.order];
  int i = below - 1;
  while (i >= 0 && fit[i] < search.size) --i;
  return i;
}

// The path to the leaf before or after that of `path`, and the level where the two part; 0: none.
unsigned RangeTree::Step(const Path& path, bool up, Path* side) {
  unsigned level = 1;
  const auto at_edge = [&](unsigned l) {
    return up ? path.index[l] + 1 == path.node[l]->count : path.index[l] == 0;
  };
  while (level < height_ && at_edge(level)) ++level;
  if (level == height_) return 0;
  side->node[level] = path.node[level];
  side->index[level] = up ? path.index[level] + 1 : path.index[level] - 1;
  for (unsigned l = level; l > 0; --l) {
    Node* below = Touch(AsInner(side->node[l])->child[side->index[l]]);
    side->node[l - 1] = below;
    side->index[l - 1] = up ? 0 : below->count - 1;
  }
  return level;
}

}  // namespace dmakit::iova::internal
