// SPDX-License-Identifier: Apache-2.0
//
// What LiquidIO's driver did before (the first source system): gather lists that are streaming
// mappings of their own, one per ring slot with two syncs a packet (physical function), or one per
// packet (virtual function), in place of one coherent block per ring; and packet data mapped with
// IOVAs of the kernel of that time. Arguments of nic/liquidio's driver, for comparison only.
//
// One thread. Device, domain and allocator outlive what uses them.
#ifndef DMAKIT_BENCHMARKS_SEEDS_LIQUIDIO_BEFORE_H_
#define DMAKIT_BENCHMARKS_SEEDS_LIQUIDIO_BEFORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/seeds/magazine_cache.h"
#include "dma/address_space.h"
#include "dma/device.h"
#include "dma/domain.h"
#include "dma/mapping.h"
#include "dma/quarantine.h"
#include "nic/liquidio/slot_memory.h"
#include "nic/packet.h"
#include "nic/queue.h"

namespace dmakit::seeds {

// The CPU zeroes lengths in what the device writes: both directions.
inline dma::Direction DirectionOf(const nic::liquidio::SlotOptions& options) {
  return options.direction == dma::Direction::kFromDevice ? dma::Direction::kBidirectional
                                                          : options.direction;
}

// The memory of a ring's structures, as a driver of that time took it: in one piece, unmapped.
class SlotBytes {
 public:
  SlotBytes() = default;
  SlotBytes(uint32_t count, size_t size)
      : size_(size), bytes_(std::make_unique<std::byte[]>(count * size)) {}
  std::byte* at(uint32_t slot) const { return bytes_.get() + slot * size_; }
  std::span<std::byte> bytes(uint32_t slot) const { return {at(slot), size_}; }

 private:
  size_t size_ = 0;
  std::unique_ptr<std::byte[]> bytes_{};
};

struct SlotCounts {
  uint64_t maps = 0;
  uint64_t unmaps = 0;
  uint64_t syncs = 0;
};

// Holds mappings, and the memory behind them, until the device was reset.
inline void HoldSlots(dma::Device& device, std::string_view owner, std::string_view reason,
                      SlotBytes bytes, std::vector<dma::Mapping> mappings) {
  auto held = std::make_shared<std::pair<SlotBytes, std::vector<dma::Mapping>>>(
      std::move(bytes), std::move(mappings));
  device.address_space().quarantine().Hold({.device = std::string(device.name()),
                                            .owner = std::string(owner),
                                            .reason = std::string(reason),
                                            .release = [held]() -> absl::Status {
                                              held->second.clear();
                                              return absl::OkStatus();
                                            }});
}

// Physical function: each slot mapped when the ring is made, and synced there and back.
class MapPerSlot {
 public:
  static absl::StatusOr<MapPerSlot> Create(dma::Device& device,
                                           const nic::liquidio::SlotOptions& options) {
    MapPerSlot slots;
    slots.bytes_ = SlotBytes(options.count, options.entry_size.value());
    slots.counts_ = std::make_unique<SlotCounts>();
    for (uint32_t i = 0; i < options.count; ++i) {
      auto mapping =
          device.Map(slots.bytes_.bytes(i), DirectionOf(options), {.owner = options.label});
      if (!mapping.ok()) return mapping.status();
      slots.mappings_.push_back(*std::move(mapping));
      ++slots.counts_->maps;
    }
    return slots;
  }

  std::byte* at(uint32_t slot) const { return bytes_.at(slot); }
  bool Give(uint32_t slot, Iova& iova) {
    dma::Mapping& mapping = mappings_[slot];
    ++counts_->syncs;
    iova = mapping.iova();
    return mapping.SyncForDevice(0, mapping.bytes().size()).ok();
  }
  void Take(uint32_t slot) {
    dma::Mapping& mapping = mappings_[slot];
    ++counts_->syncs;
    (void)mapping.SyncForCpu(0, mapping.bytes().size());
  }
  uint64_t maps() const { return counts_ == nullptr ? 0 : counts_->maps; }
  const SlotCounts& counts() const { return *counts_; }
  void Quarantine(dma::Device& device, std::string_view owner, std::string_view reason) && {
    HoldSlots(device, owner, reason, std::move(bytes_), std::move(mappings_));
  }

 private:
  SlotBytes bytes_;
  std::vector<dma::Mapping> mappings_;
  std::unique_ptr<SlotCounts> counts_;
};
static_assert(nic::liquidio::SlotMemory<MapPerSlot>);

// Virtual function: a map and an unmap for each packet.
class MapPerPacket {
 public:
  static absl::StatusOr<MapPerPacket> Create(dma::Device& device,
                                             const nic::liquidio::SlotOptions& options) {
    MapPerPacket slots;
    slots.device_ = &device;
    slots.options_ = options;
    slots.bytes_ = SlotBytes(options.count, options.entry_size.value());
    slots.mappings_.resize(options.count);
    slots.counts_ = std::make_unique<SlotCounts>();
    return slots;
  }

  std::byte* at(uint32_t slot) const { return bytes_.at(slot); }
  bool Give(uint32_t slot, Iova& iova) {
    auto mapping =
        device_->Map(bytes_.bytes(slot), DirectionOf(options_), {.owner = options_.label});
    if (!mapping.ok()) return false;
    ++counts_->maps;
    iova = mapping->iova();
    mappings_[slot] = *std::move(mapping);
    return true;
  }
  void Take(uint32_t slot) {
    ++counts_->unmaps;
    device_->Unmap(std::move(mappings_[slot])).IgnoreError();
  }
  uint64_t maps() const { return counts_ == nullptr ? 0 : counts_->maps; }
  const SlotCounts& counts() const { return *counts_; }
  void Quarantine(dma::Device& device, std::string_view owner, std::string_view reason) && {
    HoldSlots(device, owner, reason, std::move(bytes_), std::move(mappings_));
  }

 private:
  dma::Device* device_ = nullptr;
  nic::liquidio::SlotOptions options_;
  SlotBytes bytes_;
  std::vector<dma::Mapping> mappings_;
  std::unique_ptr<SlotCounts> counts_;
};
static_assert(nic::liquidio::SlotMemory<MapPerPacket>);

// Packet data, mapped per packet, with IOVAs from a kernel-style allocator: strict, one
// invalidation each. For packet memory that has one view.
class KernelMapped {
 public:
  KernelMapped(dma::Domain& domain, MagazineCache& iovas, size_t cpu)
      : domain_(&domain), iovas_(&iovas), cpu_(cpu) {}

  bool Address(const nic::Segment& segment, Iova& out, uint64_t& token) {
    const auto address = reinterpret_cast<uintptr_t>(segment.data());
    const size_t before = address % kPage;
    const auto pages = static_cast<uint32_t>((before + segment.length + kPage - 1) / kPage);
    const auto page = iovas_->Allocate(cpu_, pages);
    if (!page) return false;
    std::byte* const start = segment.data() - before;
    const absl::Status mapped = domain_->Map(
        RangeOf(*page, pages), dma::MemoryView::Of({start, pages * kPage}), dma::Access::kRead);
    if (!mapped.ok()) {
      iovas_->Free(cpu_, *page, pages);
      return false;
    }
    out = Iova{*page * kPage + before};
    token = *page << 8 | pages;
    return true;
  }
  void Done(const nic::Segment&, uint64_t token) {
    const uint64_t page = token >> 8;
    const auto pages = static_cast<uint32_t>(token & 0xff);
    domain_->Unmap(RangeOf(page, pages)).IgnoreError();
    domain_->Invalidate(RangeOf(page, pages)).IgnoreError();
    iovas_->Free(cpu_, page, pages);
  }

 private:
  static constexpr uint64_t kPage = 4096;
  static Range RangeOf(uint64_t page, uint32_t pages) {
    return {Iova{page * kPage}, Bytes{pages * kPage}};
  }

  dma::Domain* domain_;
  MagazineCache* iovas_;
  size_t cpu_;
};
static_assert(nic::TxAddressing<KernelMapped>);

// The same with this library's allocation: an owner's cache before its tree.
class DmakitMapped {
 public:
  DmakitMapped(dma::Device& device, iova::Cache& cache) : device_(&device), cache_(&cache) {}

  bool Address(const nic::Segment& segment, Iova& out, uint64_t& token) {
    auto mapping = device_->Map(segment.bytes(), dma::Direction::kToDevice,
                                {.owner = "packet", .cache = cache_});
    if (!mapping.ok()) return false;
    out = mapping->iova();
    if (free_.empty()) {
      free_.push_back(mappings_.size());
      mappings_.emplace_back();
    }
    token = free_.back();
    free_.pop_back();
    mappings_[token] = *std::move(mapping);
    return true;
  }
  void Done(const nic::Segment&, uint64_t token) {
    device_->Unmap(std::move(mappings_[token]), {.cache = cache_}).IgnoreError();
    free_.push_back(token);
  }

 private:
  dma::Device* device_;
  iova::Cache* cache_;
  std::vector<dma::Mapping> mappings_;
  std::vector<uint64_t> free_;
};
static_assert(nic::TxAddressing<DmakitMapped>);

}  // namespace dmakit::seeds

#endif  // DMAKIT_BENCHMARKS_SEEDS_LIQUIDIO_BEFORE_H_
