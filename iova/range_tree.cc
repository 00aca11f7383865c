// SPDX-License-Identifier: Apache-2.0
//
// Changing the tree. Searching is in range_tree_search.cc, validation and walks in
// range_tree_walk.cc.

#include "iova/range_tree.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace dmakit::iova::internal {

RangeTree::RangeTree(std::pmr::memory_resource* memory, unsigned orders)
    : memory_(memory), orders_(orders) {}

RangeTree::~RangeTree() {
  ReleaseSpares();
  if (root_ != nullptr) DeleteTree(root_);
}

Outcome RangeTree::Append(Extent extent) {
  Begin();
  if (root_ == nullptr) {
    if (!ReserveNodes(1, 0)) return Outcome::kNoMemory;
    root_ = TakeSpareLeaf();
    height_ = 1;
  }
  Path path;
  DescendTo(extent.base, &path);
  if (!Reserve(path, 1)) return Outcome::kNoMemory;
  Leaf* leaf = AsLeaf(path.node[0]);
  leaf->entries[leaf->count++] = Entry{extent.base, extent.end, 0};
  ++stats_.free;
  stats_.free_granules += extent.end - extent.base;
  Grow(&path);
  return Outcome::kDone;
}

Outcome RangeTree::Allocate(const Search& search, uint64_t* base) {
  Begin();
  Path path;
  uint64_t ceiling = search.end;
  bool found = false;
  if (search.preferred_end != 0 && search.preferred_end < search.end) {
    ceiling = search.preferred_end;
    found = FindHighest(search, ceiling, &path);
    if (!found) {
      ++stats_.preferred_misses;
      ceiling = search.end;
    }
  }
  if (!found) found = FindHighest(search, ceiling, &path);
  if (!found) return End(Outcome::kNoFit);
  const Entry& entry = AsLeaf(path.node[0])->entries[path.index[0]];
  const uint64_t end = std::min<uint64_t>(entry.end, ceiling);
  *base = (end - search.size) >> search.order << search.order;
  return End(Carve(&path, Extent{*base, *base + search.size}));
}

Outcome RangeTree::Take(Extent extent) {
  Begin();
  Path path;
  DescendTo(extent.base, &path);
  const Leaf* leaf = AsLeaf(path.node[0]);
  const int i = LastAtMost(leaf, extent.base);
  if (i < 0) return End(Outcome::kInUse);
  const Entry& entry = leaf->entries[i];
  if (entry.used || entry.end < extent.end) return End(Outcome::kInUse);
  path.index[0] = static_cast<unsigned>(i);
  return End(Carve(&path, extent));
}

Outcome RangeTree::Free(Extent extent) {
  Begin();
  Path path;
  DescendTo(extent.base, &path);
  Leaf* leaf = AsLeaf(path.node[0]);
  const int found = LastAtMost(leaf, extent.base);
  if (found < 0) return End(Outcome::kNotLive);
  const unsigned i = static_cast<unsigned>(found);
  const Entry entry = leaf->entries[i];
  if (!entry.used || entry.base != extent.base || entry.end != extent.end) {
    return End(Outcome::kNotLive);
  }
  --stats_.used;
  ++stats_.free;
  stats_.free_granules += extent.end - extent.base;

  // Free neighbours in this leaf: entries first..last become one.
  const auto touches = [](const Entry& low, const Entry& high) { return low.end == high.base; };
  unsigned first = i;
  unsigned last = i;
  if (i > 0 && !leaf->entries[i - 1].used && touches(leaf->entries[i - 1], entry)) --first;
  if (i + 1 < leaf->count && !leaf->entries[i + 1].used && touches(entry, leaf->entries[i + 1])) {
    ++last;
  }
  const Entry merged{leaf->entries[first].base, leaf->entries[last].end, 0};
  stats_.free -= last - first;

  // A free neighbour in the next leaf takes all of it over, so that only this leaf gets smaller. At
  // most one side has another leaf, as a leaf beside others holds more than one entry.
  Path side;
  unsigned common = 0;
  bool absorbed = false;
  if (i == 0 && (common = Step(path, false, &side)) != 0) {
    Entry& low = AsLeaf(side.node[0])->entries[side.index[0]];
    if ((absorbed = !low.used && touches(low, merged))) low.end = merged.end;
  } else if (i + 1 == leaf->count && (common = Step(path, true, &side)) != 0) {
    Entry& high = AsLeaf(side.node[0])->entries[0];
    if ((absorbed = !high.used && touches(merged, high))) high.base = merged.base;
  }
  if (absorbed) {
    --stats_.free;
    RemoveEntries(leaf, first, last - first + 1);
    for (unsigned level = 1; level <= common; ++level) {
      Refresh(AsInner(side.node[level]), side.index[level]);
    }
  } else {
    leaf->entries[first] = merged;
    RemoveEntries(leaf, first + 1, last - first);
  }
  Shrink(&path, absorbed ? common : 0);
  return End(Outcome::kDone);
}

// --- Counting visits ---

void RangeTree::Begin() {
  ++operation_;
  visits_ = 0;
}

Outcome RangeTree::End(Outcome outcome) {
  ++stats_.operations;
  stats_.visits_last = visits_;
  stats_.visits_max = std::max(stats_.visits_max, visits_);
  stats_.visits_total += visits_;
  return outcome;
}

RangeTree::Node* RangeTree::Touch(Node* node) {
  if (node->touched != operation_) {
    node->touched = operation_;
    ++visits_;
  }
  return node;
}

// --- Nodes ---

// What the resource gives holds anything; every field that is read later is set here or on
// insertion.
RangeTree::Node* RangeTree::NewNode(bool leaf) {
  const size_t size = leaf ? sizeof(Leaf) : sizeof(Inner);
  void* memory = nullptr;
  try {
    memory = memory_->allocate(size, alignof(Node));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  if (memory == nullptr) return nullptr;
  Node* node;
  if (leaf) {
    node = new (memory) Leaf;
  } else {
    Inner* inner = new (memory) Inner;
    inner->child[0] = nullptr;
    node = inner;
  }
  node->touched = 0;
  node->level = 0;
  node->count = 0;
  return node;
}

void RangeTree::DeleteNode(Node* node) {
  --stats_.nodes;
  memory_->deallocate(node, node->level == 0 ? sizeof(Leaf) : sizeof(Inner), alignof(Node));
}

void RangeTree::DeleteTree(Node* node) {
  if (node->level != 0) {
    for (unsigned i = 0; i < node->count; ++i) DeleteTree(AsInner(node)->child[i]);
  }
  DeleteNode(node);
}

bool RangeTree::Reserve(const Path& path, unsigned extra) {
  if (path.node[0]->count + extra <= kMaxEntries) return true;
  unsigned inners = 0;
  unsigned level = 1;
  while (level < height_ && path.node[level]->count == kMaxChildren) {
    ++inners;
    ++level;
  }
  if (level == height_) ++inners;  // a new root
  return ReserveNodes(1, inners);
}

bool RangeTree::ReserveNodes(unsigned leaves, unsigned inners) {
  bool complete = true;
  if (leaves != 0) {
    spare_leaf_ = static_cast<Leaf*>(NewNode(true));
    complete = spare_leaf_ != nullptr;
  }
  for (unsigned i = 0; complete && i < inners; ++i) {
    Inner* inner = static_cast<Inner*>(NewNode(false));
    if (inner == nullptr) {
      complete = false;
    } else {
      inner->child[0] = spare_inner_;
      spare_inner_ = inner;
    }
  }
  if (!complete) ReleaseSpares();
  return complete;
}

void RangeTree::ReleaseSpares() {
  if (spare_leaf_ != nullptr) memory_->deallocate(spare_leaf_, sizeof(Leaf), alignof(Node));
  spare_leaf_ = nullptr;
  while (spare_inner_ != nullptr) {
    Inner* inner = spare_inner_;
    spare_inner_ = static_cast<Inner*>(inner->child[0]);
    memory_->deallocate(inner, sizeof(Inner), alignof(Node));
  }
}

RangeTree::Leaf* RangeTree::TakeSpareLeaf() {
  Leaf* leaf = spare_leaf_;
  spare_leaf_ = nullptr;
  ++stats_.nodes;
  Touch(leaf);
  return leaf;
}

RangeTree::Inner* RangeTree::TakeSpareInner(unsigned level) {
  Inner* inner = spare_inner_;
  spare_inner_ = static_cast<Inner*>(inner->child[0]);
  inner->level = level;
  ++stats_.nodes;
  Touch(inner);
  return inner;
}

// --- Aggregates ---

uint64_t RangeTree::Fit(uint64_t base, uint64_t end, unsigned order) {
  const uint64_t low = (uint64_t{1} << order) - 1;
  const uint64_t aligned = (base + low) & ~low;
  return aligned < end ? end - aligned : 0;
}

uint64_t RangeTree::FirstKey(const Node* node) {
  return node->level == 0 ? AsLeaf(node)->entries[0].base : AsInner(node)->key[0];
}

// Two chains, as each step waits for the one before.
uint64_t RangeTree::Largest(const uint64_t* values, unsigned count) {
  uint64_t a = 0;
  uint64_t b = 0;
  unsigned i = 0;
  for (; i + 1 < count; i += 2) {
    a = std::max(a, values[i]);
    b = std::max(b, values[i + 1]);
  }
  if (i < count) a = std::max(a, values[i]);
  return std::max(a, b);
}

// The fits of a node for (at least) the given orders.
void RangeTree::FitsOf(const Node* node, uint32_t orders, Row* row) const {
  if (node->level == 0) {
    const Leaf* leaf = AsLeaf(node);
    std::fill_n(row->begin(), orders_, 0);
    for (unsigned i = 0; i < leaf->count; ++i) {
      const Entry& entry = leaf->entries[i];
      // Fits shrink with the order: a range no longer than the smallest of them adds nothing, and
      // once one is 0 so are the rest.
      if (entry.used || entry.end - entry.base <= (*row)[orders_ - 1]) continue;
      for (unsigned order = 0; order < orders_; ++order) {
        const uint64_t fit = Fit(entry.base, entry.end, order);
        if (fit == 0) break;
        (*row)[order] = std::max((*row)[order], fit);
      }
    }
    return;
  }
  const Inner* inner = AsInner(node);
  for (unsigned order = 0; order < orders_; ++order) {
    if ((orders >> order & 1) != 0) (*row)[order] = Largest(inner->fit[order], inner->count);
  }
}

// Brings what `parent` knows about one child up to date, of whose fits only the given orders may
// have changed. Returns the orders that did, and kKey if the child's key did; 0: nothing.
uint32_t RangeTree::Refresh(Inner* parent, unsigned slot, uint32_t orders) {
  const Node* child = parent->child[slot];
  Row row;
  if ((orders & kAllOrders) != 0) FitsOf(child, orders, &row);
  uint32_t changed = 0;
  for (unsigned order = 0; order < orders_; ++order) {
    if ((orders >> order & 1) == 0 || parent->fit[order][slot] == row[order]) continue;
    parent->fit[order][slot] = row[order];
    changed |= uint32_t{1} << order;
  }
  if (parent->key[slot] != FirstKey(child)) {
    parent->key[slot] = FirstKey(child);
    changed |= kKey;
  }
  return changed;
}

// --- Growing ---

// Cuts `extent` out of the free entry at `path` and marks it used.
Outcome RangeTree::Carve(Path* path, Extent extent) {
  Leaf* leaf = AsLeaf(path->node[0]);
  const unsigned i = path->index[0];
  const Entry entry = leaf->entries[i];
  const unsigned below = entry.base < extent.base ? 1 : 0;
  const unsigned above = extent.end < entry.end ? 1 : 0;
  const unsigned extra = below + above;
  if (!Reserve(*path, extra)) return Outcome::kNoMemory;
  std::copy_backward(leaf->entries + i + 1, leaf->entries + leaf->count,
                     leaf->entries + leaf->count + extra);
  leaf->count += extra;
  if (below != 0) leaf->entries[i] = Entry{entry.base, extent.base, 0};
  leaf->entries[i + below] = Entry{extent.base, extent.end, 1};
  if (above != 0) leaf->entries[i + below + 1] = Entry{extent.end, entry.end, 0};
  ++stats_.used;
  stats_.free += extra;
  --stats_.free;
  stats_.free_granules -= extent.end - extent.base;
  Grow(path);
  return Outcome::kDone;
}

// After entries were added or changed in the leaf of `path`: splits what is too full and brings the
// aggregates above up to date. Uses the reserved nodes, so it cannot fail.
void RangeTree::Grow(Path* path) {
  Node* right = nullptr;
  if (path->node[0]->count > kMaxEntries) right = SplitLeaf(AsLeaf(path->node[0]));
  uint32_t changed = kAllOrders;
  for (unsigned level = 1; level < height_; ++level) {
    Inner* inner = AsInner(path->node[level]);
    const unsigned slot = path->index[level];
    changed = Refresh(inner, slot, changed);
    if (right == nullptr) {
      if (changed == 0) return;
      continue;
    }
    InsertChild(inner, slot + 1, right);
    Refresh(inner, slot + 1);
    right = inner->count > kMaxChildren ? SplitInner(inner) : nullptr;
    changed = kAllOrders;
  }
  if (right == nullptr) return;
  Inner* root = TakeSpareInner(height_);
  root->count = 2;
  root->child[0] = root_;
  root->child[1] = right;
  Refresh(root, 0);
  Refresh(root, 1);
  root_ = root;
  ++height_;
}

RangeTree::Leaf* RangeTree::SplitLeaf(Leaf* leaf) {
  Leaf* right = TakeSpareLeaf();
  MoveEntries(leaf, right, leaf->count / 2);
  return right;
}

RangeTree::Inner* RangeTree::SplitInner(Inner* inner) {
  Inner* right = TakeSpareInner(inner->level);
  MoveChildren(inner, right, inner->count / 2);
  return right;
}

// Opens `slot`; `Refresh` fills in key and fits.
void RangeTree::InsertChild(Inner* inner, unsigned slot, Node* child) {
  const unsigned moved = inner->count - slot;
  std::memmove(inner->key + slot + 1, inner->key + slot, moved * sizeof(inner->key[0]));
  std::memmove(inner->child + slot + 1, inner->child + slot, moved * sizeof(inner->child[0]));
  for (auto& fits : inner->fit) {
    std::memmove(fits + slot + 1, fits + slot, moved * sizeof(fits[0]));
  }
  inner->child[slot] = child;
  ++inner->count;
}

// --- Shrinking ---

void RangeTree::RemoveEntries(Leaf* leaf, unsigned first, unsigned count) {
  std::copy(leaf->entries + first + count, leaf->entries + leaf->count, leaf->entries + first);
  leaf->count -= count;
}

void RangeTree::RemoveChild(Inner* inner, unsigned slot) {
  const unsigned moved = inner->count - slot - 1;
  std::memmove(inner->key + slot, inner->key + slot + 1, moved * sizeof(inner->key[0]));
  std::memmove(inner->child + slot, inner->child + slot + 1, moved * sizeof(inner->child[0]));
  for (auto& fits : inner->fit) {
    std::memmove(fits + slot, fits + slot + 1, moved * sizeof(fits[0]));
  }
  --inner->count;
}

// After entries were removed or changed in the leaf of `path`. The node at `changed_level` has
// another changed child beside the path, so the walk up must not end before its parent knows.
void RangeTree::Shrink(Path* path, unsigned changed_level) {
  uint32_t changed = kAllOrders;
  for (unsigned level = 1; level < height_; ++level) {
    Inner* inner = AsInner(path->node[level]);
    const unsigned least = level == 1 ? kMinEntries : kMinChildren;
    if (path->node[level - 1]->count < least) {
      Rebalance(inner, path->index[level]);
      changed = kAllOrders;
    } else {
      changed = Refresh(inner, path->index[level], changed);
    }
    if (level <= changed_level) {
      changed = kAllOrders;
    } else if (changed == 0) {
      return;
    }
  }
  if (height_ > 1 && root_->count == 1) {
    Node* old = root_;
    root_ = AsInner(old)->child[0];
    --height_;
    DeleteNode(old);
  }
}

// The child in `slot` is too small: merges it with a sibling, or levels the two out.
void RangeTree::Rebalance(Inner* parent, unsigned slot) {
  const unsigned left = slot > 0 ? slot - 1 : slot;
  Node* low = Touch(parent->child[left]);
  Node* high = Touch(parent->child[left + 1]);
  const unsigned total = low->count + high->count;
  const bool leaves = low->level == 0;
  const bool merge = total <= (leaves ? kMergeEntries : kMergeChildren);
  const unsigned keep = merge ? total : total / 2;
  if (leaves) {
    MoveEntries(AsLeaf(low), AsLeaf(high), keep);
  } else {
    MoveChildren(AsInner(low), AsInner(high), keep);
  }
  if (merge) {
    RemoveChild(parent, left + 1);
    DeleteNode(high);
  } else {
    Refresh(parent, left + 1);
  }
  Refresh(parent, left);
}

// Moves entries across so that `left` has `keep_left` of them.
void RangeTree::MoveEntries(Leaf* left, Leaf* right, unsigned keep_left) {
  if (left->count > keep_left) {
    const unsigned moved = left->count - keep_left;
    std::copy_backward(right->entries, right->entries + right->count,
                       right->entries + right->count + moved);
    std::copy(left->entries + keep_left, left->entries + left->count, right->entries);
    right->count += moved;
  } else {
    const unsigned moved = keep_left - left->count;
    std::copy(right->entries, right->entries + moved, left->entries + left->count);
    std::copy(right->entries + moved, right->entries + right->count, right->entries);
    right->count -= moved;
  }
  left->count = keep_left;
}

void RangeTree::CopyChild(const Inner* from, unsigned source, Inner* to, unsigned target) {
  to->key[target] = from->key[source];
  to->child[target] = from->child[source];
  for (unsigned order = 0; order < orders_; ++order) {
    to->fit[order][target] = from->fit[order][source];
  }
}

void RangeTree::MoveChildren(Inner* left, Inner* right, unsigned keep_left) {
  if (left->count > keep_left) {
    const unsigned moved = left->count - keep_left;
    for (unsigned i = right->count; i-- > 0;) CopyChild(right, i, right, i + moved);
    for (unsigned i = 0; i < moved; ++i) CopyChild(left, keep_left + i, right, i);
    right->count += moved;
  } else {
    const unsigned moved = keep_left - left->count;
    for (unsigned i = 0; i < moved; ++i) CopyChild(right, i, left, left->count + i);
    for (unsigned i = moved; i < right->count; ++i) CopyChild(right, i, right, i - moved);
    right->count -= moved;
  }
  left->count = keep_left;
}

}  // namespace dmakit::iova::internal
