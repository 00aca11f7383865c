// SPDX-License-Identifier: Apache-2.0
//
// SoftwareIommu: the Domain behind software devices, as strict as silicon. Real page tables of four
// levels with 4 KiB, 2 MiB and 1 GiB leaves, permissions, and per device port a translation cache
// (IOTLB) that stays stale until it is invalidated, a page-walk cache of stated geometry, and fault
// records.
//
// A port of a device that is not coherent has a cache of its own on the memory side of the
// translation: a bounded number of lines of 64 bytes, of which each byte is absent, read or
// written. A read finds a byte there for as long as it is not forgotten, however stale; a write
// stays there until SyncForCpu, or until the line is evicted (the oldest of its set), and then
// exactly the bytes written go to memory. Bytes next to those accessed are never fetched or written
// back, so whoever owns them does not notice. An invalidation drops the lines whose translation is
// gone, dirty or not: they reach no memory that may be in other use. Accesses to ranges mapped with
// kSnoop go past it.
//
// Threads: Map, Unmap and Invalidate from any thread (one at a time inside); every port by one
// thread at a time. Each port holds its own lock over translate-and-copy, and Invalidate takes it:
// when Invalidate returns, no access through the old entry is running. Table pages are freed only
// by FreeUnusedTables(), with all ports quiet; unmapping frees none. Invalidate(range) drops every
// IOTLB entry with a byte in the range, and the walk-cache entries that lie in it whole: those that
// cover more stay, because unmapping changes no table above the leaves.
//
// Where a device port is stricter than silicon: a Publish or LoadAcquire that is not a naturally
// aligned word of 1, 2, 4 or 8 bytes is a fault (kMisaligned). A stale access that is blocked is
// recorded as StaleUse only, not also as a fault. An entry from before an unmap is stale even when
// the same memory was mapped there again: the invalidation in between was forgotten all the same.
#ifndef DMAKIT_DMA_SOFTWARE_IOMMU_H_
#define DMAKIT_DMA_SOFTWARE_IOMMU_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/device_port.h"
#include "dma/domain.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma {

class SoftwareIommu final : public Domain {
 public:
  // What a device does through an IOTLB entry whose page-table entry is gone or changed. It is
  // always recorded.
  enum class StaleAccess : uint8_t { kPerform, kBlock };

  struct Options {
    std::string name = "iommu";
    AddressBits width{48};                                       // 13 to 48 (four levels)
    std::vector<Interval> reserved{};                            // for example the MSI window
    uint64_t page_sizes = (1u << 12) | (1u << 21) | (1u << 30);  // any subset with 4 KiB in it
    uint64_t max_mappings = 0;                                   // 0 = no limit
    size_t iotlb_entries = 64;                                   // per port; power of two
    size_t iotlb_ways = 4;
    size_t walk_cache_entries = 16;             // per port and level, 4 ways; 0 = none
    StaleAccess stale = StaleAccess::kPerform;  // silicon performs it
    size_t fault_records = 256;                 // kept of each kind; the counts go on beyond
    std::function<bool()> allow_table{};        // asked before each table page is allocated, under
                                                // the map lock; false = no memory. Empty: yes
  };

  struct Fault {
    enum class Reason : uint8_t {
      kNotPresent,
      kNoPermission,
      kBeyondWidth,
      kReserved,
      kMisaligned
    };
    std::string device;
    Iova iova{0};
    Access access = Access::kNone;
    Reason reason = Reason::kNotPresent;
  };
  struct StaleUse {
    std::string device;
    Iova iova{0};
    Access access = Access::kNone;
  };
  struct WalkStats {
    uint64_t accesses = 0;  // port calls, split at page boundaries
    uint64_t iotlb_hits = 0;
    uint64_t walks = 0;        // IOTLB misses
    uint64_t levels_read = 0;  // table entries read by walks
    uint64_t walk_cache_hits = 0;
    uint64_t faults = 0;
    uint64_t stale_uses = 0;
    uint64_t lines_evicted = 0;  // from the caches of ports that are not coherent
  };

  static absl::StatusOr<std::unique_ptr<SoftwareIommu>> Create(Options options);
  ~SoftwareIommu() override;

  struct PortOptions {
    bool coherent = true;
    size_t cache_lines = 256;  // if not coherent; rounded up to a power of two, 4 ways
  };

  // A device behind this IOMMU. The port must die before the IOMMU; what its cache has not written
  // back is lost then.
  std::unique_ptr<DevicePort> NewPort(std::string name, PortOptions options);
  std::unique_ptr<DevicePort> NewPort(std::string name) {
    return NewPort(std::move(name), PortOptions{});
  }

  std::string_view name() const override;
  const DomainFacts& facts() const override;
  absl::Status Map(Range range, MemoryView memory, Access access) override;
  absl::StatusOr<Bytes> Unmap(Range range) override;
  absl::Status Invalidate(Range range) override;
  absl::Status InvalidateAll() override;
  DomainStats stats() const override;
  void SyncForCpu(Range range) override;
  void SyncForDevice(Range range) override;
  bool AddFaultListener(FaultListener* listener) override;
  void RemoveFaultListener(FaultListener* listener) override;

  WalkStats walk_stats() const;
  std::vector<Fault> faults() const;  // the newest Options::fault_records
  std::vector<StaleUse> stale_uses() const;
  size_t table_pages() const;
  // Gives empty table pages back. FailedPrecondition while a port is in an access.
  absl::Status FreeUnusedTables();

 private:
  struct Impl;
  class Port;
  explicit SoftwareIommu(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

std::string_view Name(SoftwareIommu::Fault::Reason reason);

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_SOFTWARE_IOMMU_H_
