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
  bool coherent = true;
  bool trusted = true;
  Waiter* waiter = nullptr;  // nullptr: SystemWaiter()
};

struct MapOptions {
  std::string_view owner = "?";  // ring or call site; copied, for errors and reports
  iova::Cache* cache = nullptr;  // the calling thread's own IOVA cache; nullptr: the space itself
  RedZones red_zones{};          // for checkers, see observer.h; within the memory's granules
  bool resource = false;         // registers of another device, not memory
};

// Monotonic, per device.
struct DeviceStats {
  uint64_t maps = 0;
  uint64_t unmaps = 0;
  uint64_t map_failures = 0;
  uint64_t live_mappings = 0;  // streaming and coherent ones now
  uint64_t coherent_bytes = 0;
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
  absl::StatusOr<Mapping> Map(std::span<std::byte> memory, Direction direction,
                              const MapOptions& options = {});
  // For data the device only reads.
  absl::StatusOr<Mapping> MapToDevice(std::span<const std::byte> memory,
                                      const MapOptions& options = {});
  absl::StatusOr<SgMapping> MapSg(std::span<const std::span<std::byte>> entries,
                                  Direction direction, const MapOptions& options = {});

  // Ends a mapping. OK: the ticket tells from when the memory may be reused (strict: at once). On
  // failure the range is quarantined, and the memory must be kept until
  // Quarantine::ReleaseAfterReset. `local` is what the calling thread has of its own: the cache
  // takes the IOVA back (strict: at once; deferred: with a later unmap, after the flush), the lane
  // takes the unmap where it is deferred. InvalidArgument, and the mapping stays, if it is another
  // device's.
  absl::StatusOr<FlushTicket> Unmap(Mapping&& mapping, const Local& local = {});
  absl::StatusOr<FlushTicket> Unmap(SgMapping&& mapping, const Local& local = {});

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
  std::shared_ptr<internal::DeviceState> state_;
  const std::atomic<Observer*>* watch_;  // in state_
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_DEVICE_H_
