// SPDX-License-Identifier: Apache-2.0
//
// PageTable is the memory-resident half of SoftwareIommu: four levels of 512 entries, every entry
// one atomic word, with leaves at the levels that `page_sizes` names. It knows no mappings, ports
// or caches: who calls Map has checked that nothing is mapped there, and who calls Clear names
// whole mappings.
//
//   level   3 (root)   2        1        0
//   covers  512 GiB    1 GiB    2 MiB    4 KiB   per entry
//
// A word is 0 (not present), a table's address, or a leaf: the *device view* pointer of the memory
// with permissions and a generation in its low bits. The generation differs between two mappings
// with an unmap between them (except by chance, 1 in 251), so that an old leaf does not pass for a
// new one of the same memory. Walk may run on any thread beside the writers; Map, Clear
// and the rest one at a time. A table that Walk may have seen is freed only by FreeEmptyTables, and
// used again only after RecycleRetired; the callers of both have seen to it that nobody knows it.
#ifndef DMAKIT_DMA_PAGE_TABLE_H_
#define DMAKIT_DMA_PAGE_TABLE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma::internal {

class PageTable {
 public:
  static constexpr int kLevels = 4;
  static constexpr int kRoot = kLevels - 1;
  static constexpr size_t kEntries = 512;
  static constexpr int ShiftOf(int level) { return 12 + 9 * level; }
  static constexpr uint64_t SizeOf(int level) { return uint64_t{1} << ShiftOf(level); }

  struct alignas(4096) Table {
    std::array<std::atomic<uint64_t>, kEntries> entries{};
  };

  // A present leaf, or word 0.
  struct Leaf {
    uint64_t word = 0;
    int level = 0;

    bool present() const { return word != 0; }
    Access access() const { return static_cast<Access>(word & kAccessBits); }
    std::byte* memory() const { return reinterpret_cast<std::byte*>(word & ~kLowBits); }
    friend bool operator==(const Leaf&, const Leaf&) = default;
  };

  // What a walk saw on its way: tables[l] is the table of level l, where it came to one.
  struct Walked {
    Leaf leaf;
    std::array<const Table*, kLevels> tables{};
    unsigned entries_read = 0;
  };

  // `allow` is asked before each table page is allocated (empty: always yes).
  PageTable(uint64_t page_sizes, std::function<bool()> allow);
  ~PageTable();
  // False: not even the root could be had, and nothing but the destructor may be called.
  bool ok() const { return root_ != nullptr; }

  // Writes the leaves, with the largest pages that fit. On ResourceExhausted nothing has changed.
  // Empty tables in the way of a larger leaf are unlinked and kept (has_retired()) until
  // RecycleRetired, once no walker and no walk cache can know them.
  absl::Status Map(Range range, std::byte* memory, Access access);
  void Clear(Range range);

  bool has_retired() const { return !retired_.empty(); }
  void RecycleRetired();

  // Walks from `from`, a table of `level`.
  Walked Walk(uint64_t iova, const Table* from, int level) const;
  const Table* root() const { return root_.get(); }

  // Changes after every Clear. A leaf seen by a walk that began at this epoch is still in the table
  // as long as the epoch is the same.
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  size_t table_pages() const { return pages_.load(std::memory_order_relaxed); }
  // Needs walkers and their caches to be quiet.
  void FreeEmptyTables();

 private:
  static constexpr uint64_t kAccessBits = 7;
  static constexpr uint64_t kTableBit = 8;  // absent in a leaf, which has an access bit
  static constexpr int kGenerationShift = 4;
  // Eight bits; a prime, because pools recycle in powers of two.
  static constexpr uint64_t kGenerations = 251;
  static constexpr uint64_t kLowBits = 4095;

  struct Piece;  // what is left to map, at one level

  static Table* TableOf(uint64_t word) {
    return (word & kTableBit) != 0 ? reinterpret_cast<Table*>(word & ~kLowBits) : nullptr;
  }
  bool FitsLeaf(const Piece& piece, int level) const;
  size_t CountMissing(const Table* table, int level, Piece piece) const;
  void Fill(Table* table, int level, Piece piece, uint64_t bits);
  void Erase(Table* table, int level, uint64_t first, uint64_t last);
  bool Prune(Table* table, int level);
  void Retire(Table* table, int level);
  void DeleteTree(Table* table, int level);
  std::unique_ptr<Table> NewTable();
  std::unique_ptr<Table> TakeSpare();

  const uint64_t page_sizes_;
  const std::function<bool()> allow_;
  std::unique_ptr<Table> root_;
  std::vector<std::unique_ptr<Table>> spares_;   // zeroed and unknown to everybody
  std::vector<std::unique_ptr<Table>> retired_;  // all entries 0, perhaps still known to a walker
  std::atomic<uint64_t> epoch_{1};
  std::atomic<size_t> pages_{0};  // all of the above and everything linked
};

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_PAGE_TABLE_H_
