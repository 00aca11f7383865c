// SPDX-License-Identifier: Apache-2.0
//
// One device's port: look up, walk, check, copy, all under the port's lock.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "dma/shared.h"
#include "dma/software_iommu_impl.h"

namespace dmakit::dma {
namespace {

constexpr size_t kWalkCacheWays = 4;
constexpr uint64_t kGranule = 4096;

template <typename T>
uint64_t LoadWord(std::byte* memory) {
  const T raw = std::atomic_ref<T>(*reinterpret_cast<T*>(memory)).load(std::memory_order_acquire);
  return internal::Convert<T, std::endian::little>(raw);
}

template <typename T>
void StoreWord(std::byte* memory, uint64_t word) {
  const T raw = internal::Convert<T, std::endian::little>(static_cast<T>(word));
  std::atomic_ref<T>(*reinterpret_cast<T*>(memory)).store(raw, std::memory_order_release);
}

template <typename Record>
void KeepNewest(std::deque<Record>& records, size_t bound, Record record) {
  if (bound == 0) return;
  if (records.size() == bound) records.pop_front();
  records.push_back(std::move(record));
}

}  // namespace

// ---------------------------------------------------------------------------------------

SoftwareIommu::Port::Port(Impl& iommu, std::string name, PortOptions options)
    : iommu_(iommu),
      name_(std::move(name)),
      iotlb_(iommu.options.iotlb_entries, iommu.options.iotlb_ways),
      walk_cache_{[&iommu] {
        const size_t entries = iommu.options.walk_cache_entries;
        const WalkCache cache(entries, std::min(entries, kWalkCacheWays));
        return std::array{cache, cache, cache};
      }()},
      lines_(options.coherent ? nullptr
                              : std::make_unique<internal::LineCache>(options.cache_lines)) {
  pieces_.reserve((size_t{64} << 10) / kGranule + 1);
  const std::lock_guard lock(iommu_.ports_mutex);
  iommu_.ports.push_back(this);
}

SoftwareIommu::Port::~Port() {
  const std::lock_guard lock(iommu_.ports_mutex);
  counts_.AddTo(iommu_.of_dead_ports);
  std::erase(iommu_.ports, this);
}

bool SoftwareIommu::Port::Read(Iova from, std::span<std::byte> to) {
  const std::lock_guard lock(mutex_);
  if (!Translate(from.value(), to.size(), Access::kRead)) return false;
  std::byte* at = to.data();
  for (const Piece& piece : pieces_) {
    Load(piece, at);
    at += piece.size;
  }
  return true;
}

bool SoftwareIommu::Port::Write(Iova to, std::span<const std::byte> from) {
  const std::lock_guard lock(mutex_);
  if (!Translate(to.value(), from.size(), Access::kWrite)) return false;
  const std::byte* at = from.data();
  for (const Piece& piece : pieces_) {
    Store(piece, at);
    at += piece.size;
  }
  return true;
}

void SoftwareIommu::Port::Load(const Piece& piece, std::byte* to) {
  if (!Cached(piece)) {
    std::memcpy(to, piece.memory, piece.size);
    return;
  }
  counts_.lines_evicted.Add(lines_->Read(piece.iova, piece.leaf, {to, piece.size}));
}

void SoftwareIommu::Port::Store(const Piece& piece, const std::byte* from) {
  if (!Cached(piece)) {
    std::memcpy(piece.memory, from, piece.size);
    return;
  }
  counts_.lines_evicted.Add(lines_->Write(piece.iova, piece.leaf, {from, piece.size}));
}

bool SoftwareIommu::Port::Publish(Iova to, uint64_t word, size_t width) {
  const std::lock_guard lock(mutex_);
  const Piece* piece = TranslateWord(to, width, Access::kWrite);
  if (piece == nullptr) return false;
  if (Cached(*piece)) {
    alignas(8) std::array<std::byte, 8> raw;
    StoreWord<uint64_t>(raw.data(), word);  // little-endian: the low bytes come first
    Store(*piece, raw.data());
    return true;
  }
  std::byte* const memory = piece->memory;
  switch (width) {
    case 1:
      StoreWord<uint8_t>(memory, word);
      break;
    case 2:
      StoreWord<uint16_t>(memory, word);
      break;
    case 4:
      StoreWord<uint32_t>(memory, word);
      break;
    default:
      StoreWord<uint64_t>(memory, word);
      break;
  }
  return true;
}

std::optional<uint64_t> SoftwareIommu::Port::LoadAcquire(Iova from, size_t width) {
  const std::lock_guard lock(mutex_);
  const Piece* piece = TranslateWord(from, width, Access::kRead);
  if (piece == nullptr) return std::nullopt;
  if (Cached(*piece)) {
    alignas(8) std::array<std::byte, 8> raw{};
    Load(*piece, raw.data());
    return LoadWord<uint64_t>(raw.data());
  }
  std::byte* const memory = piece->memory;
  switch (width) {
    case 1:
      return LoadWord<uint8_t>(memory);
    case 2:
      return LoadWord<uint16_t>(memory);
    case 4:
      return LoadWord<uint32_t>(memory);
    default:
      return LoadWord<uint64_t>(memory);
  }
}

const SoftwareIommu::Port::Piece* SoftwareIommu::Port::TranslateWord(Iova iova, size_t width,
                                                                     Access access) {
  const bool is_word = std::has_single_bit(width) && width <= 8;
  if (!is_word || !IsAligned(iova, Bytes(width))) {
    Fail(iova.value(), access, Fault::Reason::kMisaligned);
    return nullptr;
  }
  // Aligned, so one piece.
  return Translate(iova.value(), width, access) ? &pieces_.front() : nullptr;
}

bool SoftwareIommu::Port::Translate(uint64_t iova, size_t length, Access access) {
  pieces_.clear();
  if (length == 0) return true;
  if (iova > iommu_.last_iova || length - 1 > iommu_.last_iova - iova) {
    return Fail(std::max(iova, iommu_.last_iova + 1), access, Fault::Reason::kBeyondWidth);
  }
  while (length > 0) {
    Leaf leaf;
    if (!Lookup(iova, access, &leaf)) return false;
    const uint64_t offset = iova & (PageTable::SizeOf(leaf.level) - 1);
    const size_t size = std::min<uint64_t>(length, PageTable::SizeOf(leaf.level) - offset);
    pieces_.push_back({leaf.memory() + offset, size, iova, leaf});
    iova += size;
    length -= size;
  }
  return true;
}

bool SoftwareIommu::Port::Lookup(uint64_t iova, Access access, Leaf* leaf) {
  counts_.accesses.Add();
  if (Entry* entry = FindCached(iova)) {
    counts_.iotlb_hits.Add();
    if (!CheckFresh(iova, access, entry)) return false;
    *leaf = entry->leaf;
  } else {
    const Entry walked = WalkTable(iova);
    if (!walked.leaf.present()) {
      const Interval here{Iova(iova), Iova(iova)};
      const bool reserved = iommu_.ReservedAt(here) != nullptr;
      return Fail(iova, access, reserved ? Fault::Reason::kReserved : Fault::Reason::kNotPresent);
    }
    iotlb_.Insert(iova, PageTable::ShiftOf(walked.leaf.level), walked);
    *leaf = walked.leaf;
  }
  return Allows(leaf->access(), access) || Fail(iova, access, Fault::Reason::kNoPermission);
}

SoftwareIommu::Port::Entry* SoftwareIommu::Port::FindCached(uint64_t iova) {
  for (int level = 0; level < PageTable::kRoot; ++level) {
    if ((iommu_.facts.page_sizes & PageTable::SizeOf(level)) == 0) continue;
    if (Entry* entry = iotlb_.Find(iova, PageTable::ShiftOf(level))) return entry;
  }
  return nullptr;
}

// Compares a cached leaf with the page table, unless nothing was unmapped since it was last seen
// there. Not part of what silicon does, so not counted as a walk.
bool SoftwareIommu::Port::CheckFresh(uint64_t iova, Access access, Entry* entry) {
  const PageTable& table = iommu_.table;
  const uint64_t epoch = table.epoch();  // before the walk
  if (entry->epoch == epoch) return true;
  if (table.Walk(iova, table.root(), PageTable::kRoot).leaf == entry->leaf) {
    entry->epoch = epoch;
    return true;
  }
  RecordStale(iova, access);
  return iommu_.options.stale == StaleAccess::kPerform;
}

SoftwareIommu::Port::Entry SoftwareIommu::Port::WalkTable(uint64_t iova) {
  counts_.walks.Add();
  const uint64_t epoch = iommu_.table.epoch();  // before the walk
  const PageTable::Table* from = iommu_.table.root();
  int level = PageTable::kRoot;
  for (int l = 0; l < PageTable::kRoot; ++l) {  // the longest prefix first
    if (const auto* table = walk_cache_[l].Find(iova, PageTable::ShiftOf(l + 1))) {
      counts_.walk_cache_hits.Add();
      from = *table;
      level = l;
      break;
    }
  }
  const PageTable::Walked walked = iommu_.table.Walk(iova, from, level);
  counts_.levels_read.Add(walked.entries_read);
  for (int l = 0; l < level; ++l) {
    if (walked.tables[l] != nullptr) {
      walk_cache_[l].Insert(iova, PageTable::ShiftOf(l + 1), walked.tables[l]);
    }
  }
  return {walked.leaf, epoch};
}

bool SoftwareIommu::Port::Fail(uint64_t iova, Access access, Fault::Reason reason) {
  counts_.faults.Add();
  {
    const std::lock_guard lock(iommu_.records_mutex);
    KeepNewest(iommu_.faults, iommu_.options.fault_records, {name_, Iova(iova), access, reason});
  }
  iommu_.Tell({name_, Iova(iova), access, Name(reason), false});
  return false;
}

void SoftwareIommu::Port::RecordStale(uint64_t iova, Access access) {
  counts_.stale_uses.Add();
  {
    const std::lock_guard lock(iommu_.records_mutex);
    KeepNewest(iommu_.stale_uses, iommu_.options.fault_records, {name_, Iova(iova), access});
  }
  iommu_.Tell({name_, Iova(iova), access, "through a stale translation", true});
}

void SoftwareIommu::Port::Invalidate(uint64_t first, uint64_t last) {
  iotlb_.DropOverlapping(first, last);
  for (auto& cache : walk_cache_) cache.DropInside(first, last);
  DropDeadLines(first, last);
}

void SoftwareIommu::Port::InvalidateAll() {
  iotlb_.Clear();
  ForgetTables();
  DropDeadLines(0, iommu_.last_iova);
}

// Those of live mappings stay: an invalidation of everything is no sync.
void SoftwareIommu::Port::DropDeadLines(uint64_t first, uint64_t last) {
  if (lines_ == nullptr) return;
  const PageTable& table = iommu_.table;
  lines_->DropUnless(first, last, [&table](uint64_t iova, const Leaf& leaf) {
    return table.Walk(iova, table.root(), PageTable::kRoot).leaf == leaf;
  });
}

void SoftwareIommu::Port::ForgetTables() {
  for (auto& cache : walk_cache_) cache.Clear();
}

void SoftwareIommu::Port::ForgetTables(uint64_t first, uint64_t last) {
  for (auto& cache : walk_cache_) cache.DropInside(first, last);
}

}  // namespace dmakit::dma
