// SPDX-License-Identifier: Apache-2.0
//
// Device is one device's view of memory: its domain, its address mask and segment limits, its NUMA
// node. Drivers make their streaming mappings and coherent rings here; packet pages come from
// frag::PagePool, which maps them for every device of the address space at once. Made by
// AddressSpace::Attach.
//
// Any thread, except where a call says otherwise. Destroying a Device detaches it: whatever of it
// is still mapped is reported with its owners, unmapped and invalidated, so that the device can
// reach nothing afterwards.
#ifndef DMAKIT_DMA_DEVICE_H_
#define DMAKIT_DMA_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/coherent.h"
#include "dma/domain.h"
#include "dma/flush_queue.h"
#include "dma/host/memory.h"
#include "dma/mapping.h"
#include "dma/observer.h"
#include "dma/poll.h"
#include "dma/types.h"
#include "iova/cache.h"
#include "iova/types.h"

namespace dmakit::dma {

class AddressSpace;

struct DeviceOptions {
  std::string name{};        // in messages and reports; unique within its address space, no comma
  Domain* domain = nullptr;  // required; must outlive the address space
  AddressMask mask{};        // highest address the device can emit; default: all 64 bits
  Bytes max_segment{uint64_t{1} << 32};  // longest scatter-gather segment
  Bytes segment_boundary{0};  // no segment crosses a multiple of it; power of two, 0 = none
  // What this device may do with packet pages. Devices that share a domain must agree.
  Access page_access = Access::kReadWrite;
  host::NumaPolicy numa{};
  // Whether the device and the CPU see each other's writes without a sync. If not, its domain is
  // told of syncs (Domain::SyncForCpu), and coherent blocks are mapped with Access::kSnoop.
  bool coherent = true;
  // Whether the device may be let near bytes that it was not given. If not, a buffer that does not
  // fill its granules by itself is bounced: see Device::Map.
  bool trusted = true;
  // On what bounce memory of this device adds up to, in whole granules, those that wait for a flush
  // or are in quarantine included. At the limit a map that needs more fails (ResourceExhausted).
  Bytes bounce_limit{uint64_t{64} << 20};
  Waiter* waiter = nullptr;  // nullptr: SystemWaiter()
};

struct MapOptions {
  std::string_view owner = "?";  // ring or call site; copied, for errors and reports
  iova::Cache* cache = nullptr;  // the calling thread's own IOVA cache; nullptr: the space itself
  RedZones red_zones{};          // for checkers, see observer.h; within the memory's granules
  bool resource = false;         // registers of another device, not memory; never bounced or cached
};

struct UnmapOptions {
  // What the calling thread has of its own: the cache takes the IOVA back (strict: at once;
  // deferred: with a later unmap, after the flush), the lane takes the unmap where it is deferred.
  iova::Cache* cache = nullptr;
  FlushLane* lane = nullptr;
  // The CPU is given nothing of what the device wrote and was not synced before, and what the CPU
  // wrote since its last sync stays: for buffers that were synced in part.
  bool skip_sync = false;

  Local local() const { return {cache, lane}; }
};

// Monotonic, per device.
struct DeviceStats {
  uint64_t maps = 0;
  uint64_t unmaps = 0;
  uint64_t map_failures = 0;
  uint64_t live_mappings = 0;  // streaming and coherent ones now
  uint64_t coherent_bytes = 0;
  uint64_t bounced_maps = 0;      // of those, with at least one entry bounced
  uint64_t bounced_bytes = 0;     // copied, to and fro
  uint64_t bounce_bytes_now = 0;  // of bounce memory in use, see DeviceOptions::bounce_limit
};

class Device {
 public:
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  std::string_view name() const;
  const DeviceOptions& options() const;
  AddressSpace& address_space() const;
  Waiter& waiter() const;

  // The error names device, owner, length and what was missing; nothing is mapped then.
  //
  // A buffer is bounced if the device is not trusted and others may have bytes in its granules, or
  // if the domain cannot reach it (facts().fixed_memory) but can reach the address space's memory
  // source: the device is given a copy there instead, at the same offset in its granule, with zeros
  // around it. The copy starts with the caller's bytes whatever the direction, so that bytes the
  // device does not write stay the caller's. A sync copies exactly its part, an unmap all that the
  // device may write. In a list only the entries that need it are bounced; entries that touch count
  // as one buffer.
  absl::StatusOr<Mapping> Map(std::span<std::byte> memory, Direction direction,
                              const MapOptions& options = {});
  // For data the device only reads.
  absl::StatusOr<Mapping> MapToDevice(std::span<const std::byte> memory,
                                      const MapOptions& options = {});
  absl::StatusOr<SgMapping> MapSg(std::span<const std::span<std::byte>> entries,
                                  Direction direction, const MapOptions& options = {});

  // Ends a mapping. OK: what the device wrote is in the caller's memory (but see UnmapOptions), and
  // the ticket tells from when the memory may be reused (strict: at once). On failure the range is
  // quarantined, and its memory, bounce memory too, must be kept until
  // Quarantine::ReleaseAfterReset; nothing is copied back then. InvalidArgument, and the mapping
  // stays, if it is another device's.
  absl::StatusOr<FlushTicket> Unmap(Mapping&& mapping, const UnmapOptions& options = {});
  absl::StatusOr<FlushTicket> Unmap(SgMapping&& mapping, const UnmapOptions& options = {});

  // Hand a part of a packet page back and forth, by its device addresses: for the CPU before it
  // reads what the device wrote, for the device before it is told of what the CPU wrote, and before
  // bytes are posted that the CPU has used. One branch if the device is coherent and not observed.
  // Mappings have syncs of their own. Any thread.
  void SyncForCpu(Range part) const { SyncPage(part, true); }
  void SyncForDevice(Range part) const { SyncPage(part, false); }

  // Zeroed memory that CPU and device share for as long as the block lives, mapped in this device's
  // domain only.
  absl::StatusOr<CoherentBlock> AllocateCoherent(const CoherentOptions& options);

  // At most one; nullptr: none. It outlives the device, or leaves first. Change it only while no
  // other thread maps, unmaps or syncs on this device (packet pages of the address space may come
  // and go meanwhile).
  void set_observer(Observer* observer);
  Observer* observer() const { return watch_->load(std::memory_order_relaxed); }
  // What this device can reach now, its own mappings and the packet pages; for an observer that
  // comes late. Calls back with no lock held, from a copy.
  void ForEachLive(const std::function<void(const MappingEvent&)>& visit) const;

  DeviceStats stats() const;

 private:
  friend class AddressSpace;
  explicit Device(std::shared_ptr<internal::DeviceState> state);
  void SyncPage(Range part, bool for_cpu) const {
    if ((observer() != nullptr) | cached_) [[unlikely]]
      SyncPageSlowly(part, for_cpu);
  }
  void SyncPageSlowly(Range part, bool for_cpu) const;

  std::shared_ptr<internal::DeviceState> state_;
  const std::atomic<Observer*>* watch_;  // in state_
  const bool cached_;                    // the device is not coherent
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_DEVICE_H_
