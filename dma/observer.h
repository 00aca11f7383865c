// SPDX-License-Identifier: Apache-2.0
//
// The seam through which a checker follows everything done to the memory of one Device (the DMA
// audit is one such checker). A device without an observer pays one predictable branch per call.
// Calls come on the thread that does the work, after the operation succeeded (before it, where the
// name says so). An observer may ask the Device and AddressSpace for statistics; it must not map,
// unmap, attach, detach or flush.
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

enum class MappingKind : uint8_t { kSingle, kScatterGather, kCoherent, kPage };

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
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_OBSERVER_H_
