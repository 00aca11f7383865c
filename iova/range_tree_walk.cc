// SPDX-License-Identifier: Apache-2.0
//
// What looks at the tree without changing it or counting visits: look-up, listing, validation.

#include <algorithm>
#include <string>

#include "iova/range_tree.h"

namespace dmakit::iova::internal {

std::optional<Extent> RangeTree::FindUsed(uint64_t granule) const {
  const Node* node = root_;
  while (node->level != 0) {
    const int i = LastAtMost(AsInner(node), granule);
    if (i < 0) return std::nullopt;
    node = AsInner(node)->child[i];
  }
  const int i = LastAtMost(AsLeaf(node), granule);
  if (i < 0) return std::nullopt;
  const Entry& entry = AsLeaf(node)->entries[i];
  if (!entry.used || granule >= entry.end) return std::nullopt;
  return Extent{entry.base, entry.end};
}

void RangeTree::ForEachUsed(const std::function<void(Extent)>& visit) const {
  VisitUsed(root_, visit);
}

void RangeTree::VisitUsed(const Node* node, const std::function<void(Extent)>& visit) const {
  for (unsigned i = 0; i < node->count; ++i) {
    if (node->level != 0) {
      VisitUsed(AsInner(node)->child[i], visit);
    } else if (const Entry& entry = AsLeaf(node)->entries[i]; entry.used) {
      visit(Extent{entry.base, entry.end});
    }
  }
}

uint64_t RangeTree::LargestFit(unsigned order) const {
  Row row;
  FitsOf(root_, kAllOrders, &row);
  return row[order];
}

RangeTree::Stats RangeTree::stats() const {
  Stats stats = stats_;
  stats.height = height_;
  return stats;
}

// What a full walk finds, to compare with what the tree believes.
struct RangeTree::Check {
  uint64_t nodes = 0;
  uint64_t used = 0;
  uint64_t free = 0;
  uint64_t free_granules = 0;
  bool started = false;
  Entry previous{};
};

std::string RangeTree::Validate() const {
  Check check;
  Row fits;
  if (root_ == nullptr) return "no root";
  if (root_->level + 1 != height_) return "height differs from the root's level";
  if (spare_leaf_ != nullptr || spare_inner_ != nullptr) return "spare nodes left over";
  std::string error = ValidateNode(root_, true, &check, &fits);
  if (!error.empty()) return error;
  const auto compare = [&error](const char* what, uint64_t found, uint64_t counted) {
    if (found == counted || !error.empty()) return;
    error = std::string(what) + ": found " + std::to_string(found) + ", counted " +
            std::to_string(counted);
  };
  compare("nodes", check.nodes, stats_.nodes);
  compare("used ranges", check.used, stats_.used);
  compare("free ranges", check.free, stats_.free);
  compare("free granules", check.free_granules, stats_.free_granules);
  return error;
}

// `fits` becomes the aggregates of the node, computed from nothing but the entries below it.
std::string RangeTree::ValidateNode(const Node* node, bool root, Check* check, Row* fits) const {
  ++check->nodes;
  fits->fill(0);
  const bool leaf = node->level == 0;
  const unsigned least = root ? (leaf ? 1 : 2) : (leaf ? kMinEntries : kMinChildren);
  const std::string where = "node of level " + std::to_string(node->level) + ": ";
  if (node->count < least || node->count > (leaf ? kMaxEntries : kMaxChildren)) {
    return where + "bad count " + std::to_string(node->count);
  }
  const std::string error =
      leaf ? ValidateLeaf(AsLeaf(node), check, fits) : ValidateInner(AsInner(node), check, fits);
  return error.empty() ? "" : where + error;
}

std::string RangeTree::ValidateLeaf(const Leaf* leaf, Check* check, Row* fits) const {
  for (unsigned i = 0; i < leaf->count; ++i) {
    const Entry& entry = leaf->entries[i];
    const std::string name = "entry " + std::to_string(i) + " ";
    if (entry.base >= entry.end) return name + "is empty";
    if (check->started) {
      const Entry& previous = check->previous;
      if (previous.end > entry.base) return name + "overlaps the one before";
      if (previous.end == entry.base && !previous.used && !entry.used) {
        return name + "is free beside a free one";
      }
    }
    check->started = true;
    check->previous = entry;
    if (entry.used) {
      ++check->used;
      continue;
    }
    ++check->free;
    check->free_granules += entry.end - entry.base;
    for (unsigned order = 0; order < orders_; ++order) {
      (*fits)[order] = std::max((*fits)[order], Fit(entry.base, entry.end, order));
    }
  }
  return "";
}

std::string RangeTree::ValidateInner(const Inner* inner, Check* check, Row* fits) const {
  for (unsigned i = 0; i < inner->count; ++i) {
    const Node* child = inner->child[i];
    const std::string name = "child " + std::to_string(i) + " ";
    if (child->level + 1 != inner->level) return name + "has the wrong level";
    Row below;
    const std::string error = ValidateNode(child, false, check, &below);
    if (!error.empty()) return error;
    if (inner->key[i] != FirstKey(child)) return name + "has a stale key";
    for (unsigned order = 0; order < orders_; ++order) {
      if (inner->fit[order][i] != below[order]) {
        return name + "has a stale fit for order " + std::to_string(order);
      }
      (*fits)[order] = std::max((*fits)[order], below[order]);
    }
  }
  return "";
}

}  // namespace dmakit::iova::internal
