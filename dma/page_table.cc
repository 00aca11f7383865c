// SPDX-License-Identifier: Apache-2.0
//
// Mapping is done in two passes, so that it needs no undo: the first counts the tables that are
// missing, then all of them are allocated, and the second pass cannot fail.
#include "dma/page_table.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dmakit::dma::internal {

// [first, last] is left to be mapped; `memory` is the device view of `first`.
struct PageTable::Piece {
  uint64_t first;
  uint64_t last;
  uintptr_t memory;

  uint64_t size_less_one() const { return last - first; }
  // The part inside the entry of `level` that holds `first`.
  Piece Head(int level) const {
    return {first, std::min(last, first | (SizeOf(level) - 1)), memory};
  }
  bool Advance(const Piece& head) {
    if (head.last == last) return false;
    memory += head.size_less_one() + 1;
    first = head.last + 1;
    return true;
  }
};

namespace {

size_t IndexOf(uint64_t iova, int level) {
  return (iova >> PageTable::ShiftOf(level)) & (PageTable::kEntries - 1);
}

uint64_t Load(const PageTable::Table* table, size_t index) {
  return table->entries[index].load(std::memory_order_acquire);
}

void Store(PageTable::Table* table, size_t index, uint64_t word) {
  table->entries[index].store(word, std::memory_order_release);
}

}  // namespace

PageTable::PageTable(uint64_t page_sizes, std::function<bool()> allow)
    : page_sizes_(page_sizes), allow_(std::move(allow)) {
  root_ = NewTable();
}

PageTable::~PageTable() {
  if (root_ != nullptr) DeleteTree(root_.release(), kRoot);
}

std::unique_ptr<PageTable::Table> PageTable::NewTable() {
  if (allow_ && !allow_()) return nullptr;
  std::unique_ptr<Table> table(new (std::nothrow) Table());
  if (table != nullptr) pages_.fetch_add(1, std::memory_order_relaxed);
  return table;
}

std::unique_ptr<PageTable::Table> PageTable::TakeSpare() {
  std::unique_ptr<Table> table = std::move(spares_.back());
  spares_.pop_back();
  return table;
}

bool PageTable::FitsLeaf(const Piece& head, int level) const {
  const uint64_t size = SizeOf(level);
  return (page_sizes_ & size) != 0 && head.size_less_one() == size - 1 &&
         (head.memory & (size - 1)) == 0;
}

// `table` may be null: one that is missing itself.
size_t PageTable::CountMissing(const Table* table, int level, Piece piece) const {
  size_t missing = table == nullptr ? 1 : 0;
  if (level == 0) return missing;
  for (;;) {
    const Piece head = piece.Head(level);
    if (!FitsLeaf(head, level)) {
      const uint64_t word = table == nullptr ? 0 : Load(table, IndexOf(head.first, level));
      missing += CountMissing(TableOf(word), level - 1, head);
    }
    if (!piece.Advance(head)) return missing;
  }
}

void PageTable::Fill(Table* table, int level, Piece piece, uint64_t bits) {
  for (;;) {
    const Piece head = piece.Head(level);
    const size_t index = IndexOf(head.first, level);
    Table* child = TableOf(Load(table, index));
    if (FitsLeaf(head, level)) {
      Store(table, index, head.memory | bits);
      if (child != nullptr) Retire(child, level - 1);
    } else {
      if (child == nullptr) {
        child = TakeSpare().release();
        Store(table, index, reinterpret_cast<uintptr_t>(child) | kTableBit);
      }
      Fill(child, level - 1, head, bits);
    }
    if (!piece.Advance(head)) return;
  }
}

absl::Status PageTable::Map(Range range, std::byte* memory, Access access) {
  const Piece piece{range.base.value(), range.last().value(), reinterpret_cast<uintptr_t>(memory)};
  const size_t missing = CountMissing(root_.get(), kRoot, piece);
  std::vector<std::unique_ptr<Table>> fresh;
  while (spares_.size() + fresh.size() < missing) {
    std::unique_ptr<Table> table = NewTable();
    if (table == nullptr) {
      pages_.fetch_sub(fresh.size(), std::memory_order_relaxed);
      return absl::ResourceExhaustedError(absl::StrCat(
          "no memory for page tables: ", missing, " table pages of 4096 bytes needed for ",
          ToString(range), "; free memory, or map with larger pages"));
    }
    fresh.push_back(std::move(table));
  }
  std::move(fresh.begin(), fresh.end(), std::back_inserter(spares_));
  const uint64_t generation = (epoch() % kGenerations) << kGenerationShift;
  Fill(root_.get(), kRoot, piece, static_cast<uint64_t>(access) | generation);
  return absl::OkStatus();
}

void PageTable::Erase(Table* table, int level, uint64_t first, uint64_t last) {
  for (;;) {
    const uint64_t head_last = std::min(last, first | (SizeOf(level) - 1));
    const size_t index = IndexOf(first, level);
    const uint64_t word = Load(table, index);
    if (Table* child = TableOf(word)) {
      Erase(child, level - 1, first, head_last);
    } else if (word != 0) {
      Store(table, index, 0);
    }
    if (head_last == last) return;
    first = head_last + 1;
  }
}

void PageTable::Clear(Range range) {
  Erase(root_.get(), kRoot, range.base.value(), range.last().value());
  // After the stores: a walk that saw an old word must have begun at an older epoch.
  epoch_.fetch_add(1, std::memory_order_acq_rel);
}

PageTable::Walked PageTable::Walk(uint64_t iova, const Table* from, int level) const {
  Walked walked;
  for (;;) {
    walked.tables[level] = from;
    const uint64_t word = Load(from, IndexOf(iova, level));
    ++walked.entries_read;
    if (word == 0) return walked;
    if ((word & kTableBit) == 0) {
      walked.leaf = {word, level};
      return walked;
    }
    from = TableOf(word);
    --level;
  }
}

// Its leaves are gone already: the caller maps over it.
void PageTable::Retire(Table* table, int level) {
  if (level > 0) {
    for (size_t i = 0; i < kEntries; ++i) {
      if (Table* child = TableOf(Load(table, i))) {
        Store(table, i, 0);
        Retire(child, level - 1);
      }
    }
  }
  retired_.emplace_back(table);
}

void PageTable::RecycleRetired() {
  std::move(retired_.begin(), retired_.end(), std::back_inserter(spares_));
  retired_.clear();
}

// True when nothing is left in `table`.
bool PageTable::Prune(Table* table, int level) {
  bool empty = true;
  for (size_t i = 0; i < kEntries; ++i) {
    const uint64_t word = Load(table, i);
    Table* child = TableOf(word);
    if (child != nullptr && Prune(child, level - 1)) {
      Store(table, i, 0);
      delete child;
      pages_.fetch_sub(1, std::memory_order_relaxed);
    } else if (word != 0) {
      empty = false;
    }
  }
  return empty;
}

void PageTable::FreeEmptyTables() {
  Prune(root_.get(), kRoot);
  pages_.fetch_sub(spares_.size() + retired_.size(), std::memory_order_relaxed);
  spares_.clear();
  retired_.clear();
}

void PageTable::DeleteTree(Table* table, int level) {
  if (level > 0) {
    for (size_t i = 0; i < kEntries; ++i) {
      if (Table* child = TableOf(Load(table, i))) DeleteTree(child, level - 1);
    }
  }
  delete table;
}

}  // namespace dmakit::dma::internal
