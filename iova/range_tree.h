// SPDX-License-Identifier: Apache-2.0
//
// RangeTree is the data structure under Space: one B+-tree that partitions the usable addresses
// into used and free ranges. Free neighbours are merged, used ones never. All values are in
// granules; `end` is exclusive (at most 2^52, so nothing overflows). Internal to iova/; not
// thread-safe.
//
// Every inner node keeps, per child and per alignment, the largest fit below it. The fit of a free
// range for order o is what is left of it once its base is rounded up to 2^o granules; a range
// takes `size` granules at that alignment exactly if fit >= size, so a search never has to look
// twice.
//
// Visits. A visit is a distinct node read or written by one operation; each node carries the number
// of the last operation that touched it. Let h be the height (a lone leaf: 1).
//   Search    Down to the ceiling: h nodes. If that leaf has no fit, the deepest node of the path
//             with a fitting child left of it holds the highest fit, and the descent into that
//             child cannot fail: at most h - 1 more. Together 2h - 1.
//   Allocate  With a preferred ceiling two searches that share the root: 4h - 3. Then at most one
//             new node per level and a new root: h + 1. Aggregates change on the path only.
//             Together 5h - 2.
//   Take      One descent and the splits: 2h + 1.
//   Free      One descent: h. If the range is first or last in its leaf, the path to the leaf next
//             door: h - 1. Rebalancing reads one sibling per level below the root: h - 1. Together
//             3h - 2.
// Every node but the root has at least 12 entries or 6 children, an inner root at least 2. So with
// h >= 2 there are at least 2 * 6^(h-2) leaves, h <= 2 + log6(nodes / 2) <= 1.62 + 0.39 *
// log2(nodes) and 5h - 2 <= 6.1 + 1.95 * log2(nodes) < 8 + 4 * log2(nodes). With h = 1: 3 < 8.

#ifndef DMAKIT_IOVA_RANGE_TREE_H_
#define DMAKIT_IOVA_RANGE_TREE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <optional>
#include <string>

namespace dmakit::iova::internal {

// [base, end)
struct Extent {
  uint64_t base;
  uint64_t end;
};

enum class Outcome : uint8_t { kDone, kNoFit, kNoMemory, kInUse, kNotLive };

struct Search {
  uint64_t size = 0;
  unsigned order = 0;          // alignment: 2^order
  uint64_t end = 0;            // ceiling, exclusive
  uint64_t preferred_end = 0;  // tried first when lower; 0 = none
};

class RangeTree {
 public:
  static constexpr unsigned kOrders = 19;  // 4 KiB to 1 GiB

  struct Stats {
    uint64_t used = 0;
    uint64_t free = 0;
    uint64_t free_granules = 0;
    uint64_t nodes = 0;
    uint64_t height = 0;
    uint64_t operations = 0;
    uint64_t visits_last = 0;
    uint64_t visits_max = 0;
    uint64_t visits_total = 0;
    uint64_t preferred_misses = 0;
  };

  // Alignments up to 2^(orders - 1) granules.
  RangeTree(std::pmr::memory_resource* memory, unsigned orders);
  ~RangeTree();
  RangeTree(const RangeTree&) = delete;
  RangeTree& operator=(const RangeTree&) = delete;

  // Adds a free extent above all others and not touching them; only before the first operation.
  Outcome Append(Extent extent);

  // The highest fit: kDone and its base, kNoFit, or kNoMemory (nothing has changed).
  Outcome Allocate(const Search& search, uint64_t* base);
  // Exactly `extent`, which lies in the usable addresses: kDone, kInUse or kNoMemory.
  Outcome Take(Extent extent);
  // One whole used range: kDone or kNotLive. Never needs memory.
  Outcome Free(Extent extent);

  // The used range around `granule`.
  std::optional<Extent> FindUsed(uint64_t granule) const;
  void ForEachUsed(const std::function<void(Extent)>& visit) const;
  uint64_t LargestFit(unsigned order) const;
  Stats stats() const;
  // Empty, or the first broken invariant.
  std::string Validate() const;

 private:
  static constexpr unsigned kMaxEntries = 32;
  static constexpr unsigned kMinEntries = 12;
  static constexpr unsigned kMaxChildren = 16;
  static constexpr unsigned kMinChildren = 6;
  // Merging leaves room, so that a range taken and freed in turn does not split and merge each
  // time.
  static constexpr unsigned kMergeEntries = 28;
  static constexpr unsigned kMergeChildren = 13;
  static constexpr unsigned kMaxHeight = 24;  // 2^52 entries need 20

  struct Entry {
    uint64_t base;
    uint64_t end : 63;
    uint64_t used : 1;
  };
  struct Node {
    uint64_t touched;  // the last operation that visited it
    uint32_t level;    // 0: leaf
    uint32_t count;
  };
  // Both have room for what one insertion adds before the split.
  struct Leaf : Node {
    Entry entries[kMaxEntries + 2];
  };
  struct Inner : Node {
    uint64_t key[kMaxChildren + 1];  // lowest base below the child
    Node* child[kMaxChildren + 1];
    uint64_t fit[kOrders][kMaxChildren + 1];
  };
  using Row = std::array<uint64_t, kOrders>;
  // From the leaf (level 0) to the root: the nodes, and the entry or child taken in each.
  struct Path {
    Node* node[kMaxHeight];
    unsigned index[kMaxHeight];
  };

  static Leaf* AsLeaf(Node* node) { return static_cast<Leaf*>(node); }
  static Inner* AsInner(Node* node) { return static_cast<Inner*>(node); }
  static const Leaf* AsLeaf(const Node* node) { return static_cast<const Leaf*>(node); }
  static const Inner* AsInner(const Node* node) { return static_cast<const Inner*>(node); }
  static uint64_t Fit(uint64_t base, uint64_t end, unsigned order);
  static uint64_t FirstKey(const Node* node);
  static int LastAtMost(const Leaf* leaf, uint64_t base);
  static int LastAtMost(const Inner* inner, uint64_t base);

  void Begin();
  Outcome End(Outcome outcome);
  Node* Touch(Node* node);

  // Nodes. `Reserve` gets what an insertion of `extra` entries at `path` may need, or nothing.
  Node* NewNode(bool leaf);
  void DeleteNode(Node* node);
  void DeleteTree(Node* node);
  bool Reserve(const Path& path, unsigned extra);
  bool ReserveNodes(unsigned leaves, unsigned inners);
  void ReleaseSpares();
  Leaf* TakeSpareLeaf();
  Inner* TakeSpareInner(unsigned level);

  // Aggregates. A set of orders is a bit mask.
  static constexpr uint32_t kAllOrders = (uint32_t{1} << kOrders) - 1;
  static constexpr uint32_t kKey = uint32_t{1} << kOrders;
  static uint64_t Largest(const uint64_t* values, unsigned count);
  void FitsOf(const Node* node, uint32_t orders, Row* row) const;
  uint32_t Refresh(Inner* parent, unsigned slot, uint32_t orders = kAllOrders);

  // Searching.
  void DescendTo(uint64_t base, Path* path);
  bool FindHighest(const Search& search, uint64_t end, Path* path);
  bool FindInLeaf(const Search& search, uint64_t end, Path* path);
  int RightmostFit(const Inner* inner, int below, const Search& search) const;
  unsigned Step(const Path& path, bool up, Path* side);

  // Changing.
  Outcome Carve(Path* path, Extent extent);
  void Grow(Path* path);
  Leaf* SplitLeaf(Leaf* leaf);
  Inner* SplitInner(Inner* inner);
  static void InsertChild(Inner* inner, unsigned slot, Node* child);
  void RemoveEntries(Leaf* leaf, unsigned first, unsigned count);
  void RemoveChild(Inner* inner, unsigned slot);
  void Shrink(Path* path, unsigned changed_level);
  void Rebalance(Inner* parent, unsigned slot);
  static void MoveEntries(Leaf* left, Leaf* right, unsigned keep_left);
  void MoveChildren(Inner* left, Inner* right, unsigned keep_left);
  void CopyChild(const Inner* from, unsigned source, Inner* to, unsigned target);

  struct Check;
  std::string ValidateNode(const Node* node, bool root, Check* check, Row* fits) const;
  std::string ValidateLeaf(const Leaf* leaf, Check* check, Row* fits) const;
  std::string ValidateInner(const Inner* inner, Check* check, Row* fits) const;
  void VisitUsed(const Node* node, const std::function<void(Extent)>& visit) const;

  std::pmr::memory_resource* const memory_;
  const unsigned orders_;
  Node* root_ = nullptr;
  unsigned height_ = 0;
  uint64_t operation_ = 0;
  uint64_t visits_ = 0;
  Leaf* spare_leaf_ = nullptr;
  Inner* spare_inner_ = nullptr;  // linked through child[0]
  Stats stats_;
};

}  // namespace dmakit::iova::internal

#endif  // DMAKIT_IOVA_RANGE_TREE_H_
