// SPDX-License-Identifier: Apache-2.0
//
// The raw interface: addresses and sizes instead of handles, for drivers that bring their own
// memory and keep their own books. It is built on Device and remembers what it handed out, so wrong
// use corrupts nothing: it is refused with a Status that names what is wrong, the mapping stays,
// and an audit that is attached to the device reports it. Where the handles of mapping.h fit, use
// those: most of these mistakes cannot be written with them.
//
//   Iova a = raw.MapSingle(bytes, Direction::kToDevice, "tx0");
//   if (raw.IsError(a)) return raw.last_error();
//   ...
//   auto ticket = raw.UnmapSingle(a, Bytes(bytes.size()), Direction::kToDevice);
//
// Lifetime of the memory as in mapping.h: until the unmap's ticket is done. What is still mapped
// when a RawDma dies is reported (kLeaked, by owner) and unmapped. It dies before its device. Any
// thread.
#ifndef DMAKIT_DMA_RAW_H_
#define DMAKIT_DMA_RAW_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/flush_queue.h"
#include "dma/mapping.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma {

class RawDma {
 public:
  // What a map returns that failed; no mapping is ever there.
  static constexpr Iova kError{0};

  struct Coherent {
    std::byte* cpu = nullptr;
    Iova iova = kError;
  };

  explicit RawDma(Device& device);
  ~RawDma();
  RawDma(const RawDma&) = delete;
  RawDma& operator=(const RawDma&) = delete;

  // Every map must be asked for its error before its address is used; for a list, with the address
  // of its first segment. Coherent blocks need no question: their `cpu` is null.
  [[nodiscard]] bool IsError(Iova address);
  absl::Status last_error() const;  // why the last map of the calling threads failed

  Iova MapSingle(std::span<std::byte> memory, Direction direction, std::string_view owner);
  absl::StatusOr<FlushTicket> UnmapSingle(Iova address, Bytes size, Direction direction,
                                          const UnmapOptions& options = {});

  // One segment per entry at most. Empty: failed. An entry that the device cannot take as one
  // segment is refused.
  std::vector<SgSegment> MapSg(std::span<const std::span<std::byte>> entries, Direction direction,
                               std::string_view owner);
  // `address`: of the first segment. `entries`: how many were passed to MapSg.
  absl::StatusOr<FlushTicket> UnmapSg(Iova address, size_t entries, Direction direction,
                                      const UnmapOptions& options = {});

  Coherent AllocateCoherent(Bytes size, std::string_view owner);
  absl::Status FreeCoherent(Bytes size, std::byte* cpu, Iova address);

  // Registers of another device.
  Iova MapResource(std::span<std::byte> registers, Direction direction, std::string_view owner);
  absl::StatusOr<FlushTicket> UnmapResource(Iova address, Bytes size, Direction direction);

  // Any part of a single mapping, by its device address.
  absl::Status SyncForCpu(Iova address, Bytes size, Direction direction);
  absl::Status SyncForDevice(Iova address, Bytes size, Direction direction);
  absl::Status SyncSgForCpu(Iova address, size_t entries, Direction direction);
  absl::Status SyncSgForDevice(Iova address, size_t entries, Direction direction);

  size_t live() const;

 private:
  struct Entry;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_RAW_H_
