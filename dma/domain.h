// SPDX-License-Identifier: Apache-2.0
//
// A Domain is a translation: what an IOMMU does for the devices behind it. It maps IOVAs to host
// memory, unmaps them, and forgets what its caches still hold (invalidates). It is not an
// allocator: whoever calls Map has chosen the IOVA.
//
//   facts()        what this translation can do. Constant for the life of the domain.
//   Map            adds one mapping. All or nothing.
//   Unmap          removes whole mappings. Until Invalidate has returned a device may still use the
//   old translation,
//                  unless facts().unmap_invalidates.
//   Invalidate     when it returns, no access through a translation removed before the call is
//   running or can start.
//
// Slow path only: virtual calls, no per-packet use. All methods may be called from any thread; the
// implementation locks.
#ifndef DMAKIT_DMA_DOMAIN_H_
#define DMAKIT_DMA_DOMAIN_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma {

struct DomainFacts {
  std::vector<Interval> apertures{};  // usable IOVAs, [first, last] inclusive, ascending
  std::vector<Interval> reserved{};   // holes in them (MSI windows, firmware)
  uint64_t page_sizes = 4096;      // bit set of leaf sizes in bytes; the lowest bit is the granule
  AddressBits width{48};           // IOVAs have at most this many bits
  uint64_t max_mappings = 0;       // live mappings allowed; 0 = no limit
  bool splittable = false;         // whether part of one mapping may be unmapped
  bool unmap_invalidates = false;  // whether Unmap implies Invalidate (VFIO, vhost)
  bool fixed_memory = false;       // whether only memory registered up front can be mapped (AF_XDP)

  Bytes granule() const { return Bytes{page_sizes & (~page_sizes + 1)}; }
};

// Monotonic event counts; what tests and `--stats` compare. Read with relaxed loads: a snapshot,
// not a transaction.
struct DomainStats {
  uint64_t maps = 0;
  uint64_t unmaps = 0;
  uint64_t invalidations = 0;
  uint64_t live_mappings = 0;
  uint64_t mapped_bytes = 0;
};

// An access that the translation refused, or that went through a translation unmapped before.
struct DomainFault {
  std::string_view device{};  // as the domain knows it
  Iova iova{0};
  Access access = Access::kNone;
  std::string_view reason{};
  bool stale = false;  // through a cached translation that is gone from the tables
};

class FaultListener {
 public:
  virtual ~FaultListener() = default;
  // On any thread, with locks of the domain held: note it down, and call nothing of dma/.
  virtual void OnFault(const DomainFault& fault) = 0;
};

class Domain {
 public:
  virtual ~Domain() = default;
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  virtual std::string_view name() const = 0;
  virtual const DomainFacts& facts() const = 0;

  // Maps `range` to `memory`. Both are multiples of the granule in base and size, and of one size
  // (the memory's *address* must be granule-aligned too). The memory stays the caller's and must
  // live, and stay where it is, until the range was unmapped and invalidated. `access` grants to
  // read, to write or both, and may add kSnoop. Errors (nothing changed): InvalidArgument
  // (alignment, size, zero, overflow, no access), AlreadyExists (overlap), OutOfRange (aperture,
  // width), ResourceExhausted (budget, table memory).
  virtual absl::Status Map(Range range, MemoryView memory, Access access) = 0;

  // Removes every mapping that lies in `range`, and returns how many bytes of translation went
  // away: less than range.size() where part of it was not mapped, which is an error of the caller's
  // or of the domain's, to be treated as such. InvalidArgument with nothing removed when `range`
  // cuts a mapping of a domain that cannot split.
  [[nodiscard]] virtual absl::StatusOr<Bytes> Unmap(Range range) = 0;

  // See the head of this file. Any range that is not empty; a page touched in part is forgotten
  // whole. InvalidateAll is one operation however much is live.
  virtual absl::Status Invalidate(Range range) = 0;
  virtual absl::Status InvalidateAll() = 0;

  virtual DomainStats stats() const = 0;

  // For devices that are not coherent, which see what the CPU wrote, and show what they wrote, only
  // after a sync. SyncForCpu: what devices wrote to these bytes before the call is in memory when
  // it returns. SyncForDevice: devices see what is in memory now; bytes that they wrote and nobody
  // synced for the CPU are lost. Neither touches a byte outside of `range`, nor one that no device
  // wrote. Any range, mapped or not; nothing happens for ranges mapped with Access::kSnoop.
  virtual void SyncForCpu(Range range) { (void)range; }
  virtual void SyncForDevice(Range range) { (void)range; }

  // Whether the domain can give devices this memory: false where memory must be registered (or
  // pinned) first, and this was not. Asked before each map if facts().fixed_memory; what cannot be
  // reached is then bounced (dma/device.h).
  virtual bool Reachable(MemoryView memory) const {
    (void)memory;
    return true;
  }
  // Several may listen. False: this domain hears of no faults. When RemoveFaultListener returns, no
  // call is running or can start.
  virtual bool AddFaultListener(FaultListener* listener) {
    (void)listener;
    return false;
  }
  virtual void RemoveFaultListener(FaultListener* listener) { (void)listener; }

 protected:
  Domain() = default;
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_DOMAIN_H_
