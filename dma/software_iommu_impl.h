// SPDX-License-Identifier: Apache-2.0
//
// The inside of SoftwareIommu, shared by its two sources: what belongs to the whole
// (software_iommu.cc) and to one port (software_iommu_port.cc).
//
// Locks, in the order in which they are taken: map_mutex (page table and list of mappings),
// ports_mutex (which ports exist), a port's mutex (its caches, and each access from translation to
// the last byte copied), records_mutex (fault and stale records).
#ifndef DMAKIT_DMA_SOFTWARE_IOMMU_IMPL_H_
#define DMAKIT_DMA_SOFTWARE_IOMMU_IMPL_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dma/line_cache.h"
#include "dma/page_table.h"
#include "dma/software_iommu.h"
#include "dma/translation_cache.h"
#include "iova/counter.h"

namespace dmakit::dma {

namespace internal {

// Written under the port's lock.
struct WalkCounts {
  Counter accesses, iotlb_hits, walks, levels_read, walk_cache_hits, faults, stale_uses,
      lines_evicted;

  void AddTo(SoftwareIommu::WalkStats& sum) const {
    sum.accesses += accesses.Get();
    sum.iotlb_hits += iotlb_hits.Get();
    sum.walks += walks.Get();
    sum.levels_read += levels_read.Get();
    sum.walk_cache_hits += walk_cache_hits.Get();
    sum.faults += faults.Get();
    sum.stale_uses += stale_uses.Get();
    sum.lines_evicted += lines_evicted.Get();
  }
};

}  // namespace internal

struct SoftwareIommu::Impl {
  explicit Impl(Options o);

  absl::Status Error(absl::StatusCode code, std::string_view what) const {
    return absl::Status(code, absl::StrCat("iommu \"", options.name, "\": ", std::string(what)));
  }
  absl::Status CheckShape(Range range, const MemoryView& memory, Access access) const;
  absl::Status CheckPlace(Range range) const;
  const Interval* ReservedAt(const Interval& where) const;

  template <typename Action>
  void ForEachPort(Action action);

  struct Live {
    uint64_t last;
    Access access;
  };
  // The first mapping that ends at or after `first`.
  std::map<uint64_t, Live>::iterator FirstFrom(uint64_t first);

  const Options options;
  const DomainFacts facts;
  const uint64_t last_iova;

  std::mutex map_mutex;
  internal::PageTable table;
  std::map<uint64_t, Live> live;  // by first address

  std::mutex ports_mutex;
  std::vector<Port*> ports;
  WalkStats of_dead_ports;

  std::mutex records_mutex;
  std::deque<Fault> faults;
  std::deque<StaleUse> stale_uses;

  std::mutex listeners_mutex;  // held while they are told; innermost but for their own
  std::vector<FaultListener*> listeners;
  void Tell(const DomainFault& fault);

  std::atomic<uint64_t> maps{0}, unmaps{0}, invalidations{0}, live_mappings{0}, mapped_bytes{0};
};

class SoftwareIommu::Port final : public DevicePort {
 public:
  Port(Impl& iommu, std::string name, PortOptions options);
  ~Port() override;

  std::string_view name() const override { return name_; }
  bool Read(Iova from, std::span<std::byte> to) override;
  bool Write(Iova to, std::span<const std::byte> from) override;
  bool Publish(Iova to, uint64_t word, size_t width) override;
  std::optional<uint64_t> LoadAcquire(Iova from, size_t width) override;

  std::mutex& mutex() { return mutex_; }
  const internal::WalkCounts& counts() const { return counts_; }

  // All of these need the mutex.
  void Invalidate(uint64_t first, uint64_t last);
  void InvalidateAll();
  void ForgetTables();
  void ForgetTables(uint64_t first, uint64_t last);
  internal::LineCache* lines() { return lines_.get(); }  // nullptr: coherent

 private:
  using PageTable = internal::PageTable;
  using Leaf = PageTable::Leaf;
  struct Entry {
    Leaf leaf;
    uint64_t epoch = 0;  // of the page table when the leaf was last seen in it
  };
  struct Piece {
    std::byte* memory;
    size_t size;
    uint64_t iova;
    Leaf leaf;
  };

  // Fills pieces_. False: recorded, and nothing may be copied.
  bool Translate(uint64_t iova, size_t length, Access access);
  const Piece* TranslateWord(Iova iova, size_t width, Access access);
  bool Cached(const Piece& piece) const {
    return lines_ != nullptr && !Allows(piece.leaf.access(), Access::kSnoop);
  }
  void Load(const Piece& piece, std::byte* to);
  void Store(const Piece& piece, const std::byte* from);
  void DropDeadLines(uint64_t first, uint64_t last);
  bool Lookup(uint64_t iova, Access access, Leaf* leaf);
  bool CheckFresh(uint64_t iova, Access access, Entry* entry);
  Entry WalkTable(uint64_t iova);
  Entry* FindCached(uint64_t iova);
  bool Fail(uint64_t iova, Access access, Fault::Reason reason);
  void RecordStale(uint64_t iova, Access access);

  Impl& iommu_;
  const std::string name_;
  std::mutex mutex_;
  internal::TranslationCache<Entry> iotlb_;
  // By level of the table that an entry points to; the root needs none.
  using WalkCache = internal::TranslationCache<const PageTable::Table*>;
  std::array<WalkCache, PageTable::kRoot> walk_cache_;
  const std::unique_ptr<internal::LineCache> lines_;
  std::vector<Piece> pieces_;  // of the access in progress; never shrinks
  internal::WalkCounts counts_;
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_SOFTWARE_IOMMU_IMPL_H_
