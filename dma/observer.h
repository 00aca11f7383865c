// SPDX-License-Identifier: Apache-2.0
//
// The seam through which a checker follows everything done to the memory of one Device (the DMA
// audit is one such checker). A device without an observer pays one predictable branch per call.
// Calls come on the thread that does the work, after the operation succeeded (before it, where the
// name says so), page events with the address space's topology held. So an observer may ask the
// Device and its Domain for statistics, not the AddressSpace; nor may it map, unmap, attach, detach
// or flush.
#ifndef DMAKIT_DMA_OBSERVER_H_
#define DMAKIT_DMA_OBSERVER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma {

class Device;

enum class MappingKind : uint8_t { kSingle, kScatterGather, kCoherent, kPage, kResource };
enum class AuditCode : uint8_t;  // audit_code.h

// Bytes on both sides of what the device was given that are the caller's own, and that nobody uses
// while the device has them: a checker may fill them, and looks whether they were written.
struct RedZones {
  uint32_t before = 0;
  uint32_t after = 0;
};

struct MappingEvent {
  MappingKind kind = MappingKind::kSingle;
  Range range{};        // whole granules, as mapped
  MemoryView memory{};  // what it maps to; empty for scatter-gather
  Direction direction = Direction::kBidirectional;
  size_t entries = 1;        // scatter-gather: entries passed in, not segments made
  std::string_view owner{};  // ring, pool or call site
  // Scatter-gather: the entries; empty when it is the device's end that unmaps them. Valid during
  // the call only.
  std::span<const std::span<std::byte>> list{};
  Range used{};  // the bytes asked for, within `range`
  RedZones red_zones{};
  // How many of the entries are bounced: `memory` and `list` are the caller's all the same, but the
  // device never touches those bytes.
  size_t bounced = 0;
  bool skip_sync = false;  // OnBeforeUnmap: UnmapOptions::skip_sync
};

// A driver hands a buffer to a ring; from here until it is completed the device may use it.
struct PostEvent {
  Range range{};  // one segment, as the descriptor has it
  Direction direction = Direction::kFromDevice;
  std::string_view ring{};
  RedZones red_zones{};
};

// A mistake that the library itself found, and refused.
struct Misuse {
  AuditCode code;
  std::string_view owner{};  // of the mapping or page concerned; empty: there is none
  Range range{};             // what the caller gave
  std::string_view what{};   // the values, in words
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void OnMap(const Device& device, const MappingEvent& event) = 0;
  virtual void OnBeforeUnmap(const Device& device, const MappingEvent& event) = 0;
  // The translation is gone from tables and caches: from here any access by the device is a fault.
  virtual void OnRetired(const Device& device, Range range) = 0;
  virtual void OnSync(const Device& device, Range range, Direction direction, bool for_cpu) = 0;
  // The device ends, with this many of its mappings live.
  virtual void OnDetach(const Device& device, size_t live_mappings) = 0;

  // The domain refused.
  virtual void OnMapFailed(const Device& device, const MappingEvent& event) {
    (void)device, (void)event;
  }
  virtual void OnMisuse(const Device& device, const Misuse& misuse) { (void)device, (void)misuse; }
  // Asked before an unmap that may be deferred. True: invalidate at once, and keep the device's
  // own addresses out of use for a while, so that an access that comes late faults.
  virtual bool WantsStrict(const Device& device, Range range) {
    (void)device, (void)range;
    return false;
  }

  // Told by drivers: `if (Observer* o = device.observer()) o->OnPosted(...)`, before the device can
  // see the descriptor. `base` is that of the post, `written` what the device says it wrote there.
  virtual void OnPosted(const Device& device, const PostEvent& event) { (void)device, (void)event; }
  virtual void OnCompleted(const Device& device, Iova base, Bytes written) {
    (void)device, (void)base, (void)written;
  }
  // The last reference to a packet page came back; it may be handed out again from here on.
  virtual void OnRecycled(const Device& device, Range page, std::string_view owner) {
    (void)device, (void)page, (void)owner;
  }
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_OBSERVER_H_
