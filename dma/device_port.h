// SPDX-License-Identifier: Apache-2.0
//
// DevicePort is the only way a *software* device reaches memory: by IOVA, through the translation
// of its domain, with the domain's permissions. A device model holds one port and no pointer to the
// driver's memory.
//
// Ordering. Read and Write copy bytes with no ordering of their own. Publish and LoadAcquire are
// the two halves of an ownership hand-over: the device writes a body, then publishes the word that
// makes it visible (release); it looks at a driver's word with acquire before it reads what that
// word covers.
//
// Every call is whole or nothing: if any byte of the range faults, no byte was copied and the fault
// was recorded. A port is used by one thread at a time; invalidation from other threads waits for
// the access in progress.
#ifndef DMAKIT_DMA_DEVICE_PORT_H_
#define DMAKIT_DMA_DEVICE_PORT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "iova/types.h"

namespace dmakit::dma {

class DevicePort {
 public:
  virtual ~DevicePort() = default;
  DevicePort(const DevicePort&) = delete;
  DevicePort& operator=(const DevicePort&) = delete;

  virtual std::string_view name() const = 0;

  // False: the access faulted; the fault is on record in the domain.
  [[nodiscard]] virtual bool Read(Iova from, std::span<std::byte> to) = 0;
  [[nodiscard]] virtual bool Write(Iova to, std::span<const std::byte> from) = 0;

  // Stores the low `width` bytes (1, 2, 4 or 8; naturally aligned) of `word`, little-endian, as one
  // release store.
  [[nodiscard]] virtual bool Publish(Iova to, uint64_t word, size_t width) = 0;
  // Loads one naturally aligned little-endian word with acquire; nullopt: faulted.
  [[nodiscard]] virtual std::optional<uint64_t> LoadAcquire(Iova from, size_t width) = 0;

 protected:
  DevicePort() = default;
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_DEVICE_PORT_H_
