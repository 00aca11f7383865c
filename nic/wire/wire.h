// SPDX-License-Identifier: Apache-2.0
//
// Wire: the cable plugged into a software NIC. Frames come from it (a capture, a generator) and go
// to it (a capture, the void). Frames have no FCS. The wire paces nothing by itself: a model looks
// at the next frame and takes it only when it has room, so a replay is lossless unless the model is
// told to drop. Wires are opened by name in open.h.
//
// Used by the thread that steps the model; exhausted() and stats() from any thread.
#ifndef DMAKIT_NIC_WIRE_WIRE_H_
#define DMAKIT_NIC_WIRE_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"

namespace dmakit::nic {

// What a wire never offers to a NIC: less than an Ethernet header.
inline constexpr size_t kMinFrame = 14;

// Every frame that the wire had to offer is in exactly one of `frames_to_nic` and `refused`. Every
// frame it was sent is in `frames_from_nic`; those it could not keep are in `lost` as well.
struct WireStats {
  uint64_t frames_to_nic = 0;
  uint64_t bytes_to_nic = 0;
  uint64_t frames_from_nic = 0;
  uint64_t bytes_from_nic = 0;
  uint64_t refused = 0;  // never offered to the NIC: the sum of the two reasons
  uint64_t refused_bytes = 0;
  uint64_t refused_short = 0;  // shorter than kMinFrame
  uint64_t refused_cut = 0;    // the wire has only part of it: a capture's snap length
  uint64_t lost = 0;           // sent by the NIC and not kept: disk full, nobody to take it
  uint64_t lost_bytes = 0;
};

class Wire {
 public:
  virtual ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // The next frame for the NIC, valid until Pop; nullopt when there is none (now, or any more: see
  // exhausted()).
  virtual std::optional<std::span<const std::byte>> Peek() = 0;
  // Takes the frame that Peek showed.
  virtual void Pop() = 0;
  // No frame will ever come again. May turn true only at the Peek that finds nothing. Any thread.
  virtual bool exhausted() const = 0;

  // A frame the NIC sent. A failure (disk full) is kept and returned by Close; the frame counts as
  // lost.
  virtual void Accept(std::span<const std::byte> frame) = 0;
  // Writes out what is buffered. The first error of the wire's life: unreadable input, failed
  // output. Idempotent; no frame moves afterwards.
  virtual absl::Status Close() = 0;

  virtual WireStats stats() const = 0;

 protected:
  Wire() = default;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_WIRE_WIRE_H_
