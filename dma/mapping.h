// SPDX-License-Identifier: Apache-2.0
//
// Streaming mappings: memory of the caller's, given to one device for one transfer. Move-only
// handles; a moved-from handle is empty. Made by Device::Map and Device::MapSg.
//
//   From Map until Unmap has returned *and* its ticket is done, the memory must live and stay where
//   it is, and belongs to the device except between SyncForCpu and SyncForDevice. Destroying a live
//   handle unmaps and invalidates at once, under every policy, as there is no ticket to wait for;
//   if that fails its range is quarantined, never reused. What the device wrote is copied back as
//   by Unmap where the mapping is bounced (Device::Map). A handle may outlive its device or address
//   space: it is then dead, and destroying it does nothing.
//
// Used by one thread at a time; different handles of one device may be used by different threads.
#ifndef DMAKIT_DMA_MAPPING_H_
#define DMAKIT_DMA_MAPPING_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma {

namespace internal {
struct DeviceState;
}

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  bool empty() const { return device_ == nullptr; }
  // Where the device finds the first byte of bytes().
  Iova iova() const { return iova_; }
  std::span<std::byte> bytes() const { return bytes_; }
  Direction direction() const { return direction_; }
  // The granules that are mapped: at least bytes(), and whatever else shares its first and last
  // granule.
  Range range() const { return range_; }

  // Hand the part [offset, offset + length) back and forth, and no byte around it. OutOfRange
  // beyond bytes(). For a coherent device and a mapping that is not bounced there is nothing to do.
  absl::Status SyncForCpu(size_t offset, size_t length);
  absl::Status SyncForDevice(size_t offset, size_t length);

 private:
  friend class Device;
  void Release();
  absl::Status CheckPart(size_t offset, size_t length) const;

  std::shared_ptr<internal::DeviceState> device_;
  Iova iova_{0};
  Range range_;
  std::span<std::byte> bytes_;
  Direction direction_ = Direction::kBidirectional;
  bool moves_ = false;  // a sync has something to do
};

// One piece of a scatter-gather mapping as the device must be told it.
struct SgSegment {
  Iova iova;
  Bytes length{0};
};

// A list of buffers as one contiguous IOVA range. Remembers the list it was made from, so it cannot
// be unmapped with the wrong count. Buffers that touch in memory, or meet at granule boundaries,
// are merged into one segment as far as the device's segment size and boundary allow.
class SgMapping {
 public:
  SgMapping() = default;
  SgMapping(SgMapping&& other) noexcept;
  SgMapping& operator=(SgMapping&& other) noexcept;
  ~SgMapping();

  bool empty() const { return device_ == nullptr; }
  std::span<const SgSegment> segments() const { return segments_; }
  std::span<const std::span<std::byte>> entries() const { return entries_; }
  Range range() const { return range_; }
  Direction direction() const { return direction_; }

  // The whole list.
  absl::Status SyncForCpu();
  absl::Status SyncForDevice();

 private:
  friend class Device;
  void Release();

  std::shared_ptr<internal::DeviceState> device_;
  Range range_;
  std::vector<std::span<std::byte>> entries_;
  std::vector<SgSegment> segments_;
  Direction direction_ = Direction::kBidirectional;
  bool moves_ = false;
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_MAPPING_H_
