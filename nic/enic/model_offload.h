// SPDX-License-Identifier: Apache-2.0
//
// What the enic does to a packet on its way out: checksums, segmentation, a VLAN tag (enic sheet
// 1.1). Pure functions on bytes; for the model.
#ifndef DMAKIT_NIC_ENIC_MODEL_OFFLOAD_H_
#define DMAKIT_NIC_ENIC_MODEL_OFFLOAD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nic/enic/descriptors.h"

namespace dmakit::nic::enic {

// What can be wrong with a request, as the packet's bytes show it.
enum class OffloadFault : uint8_t {
  kNone,
  kHeaders,  // no such header in the frame, or the offsets lie outside of it
  kPreload,  // a checksum field does not hold what the mode wants preloaded
  kTooLong,  // a frame longer than kMaxTxFrame would be sent
  kUnknown,  // FCoE, loopback, encapsulation: not modelled
};

// Finishes the packet `frame` as its first descriptor asks: changes it in place, or, with TSO, cuts
// it into frames. `send` gets each frame that goes out, in order. After a fault nothing was sent.
class TxFinisher {
 public:
  template <typename Send>
  OffloadFault Run(std::vector<std::byte>& frame, const WqEnetDesc& first, Send&& send) {
    const OffloadFault fault = Prepare(frame, first);
    if (fault != OffloadFault::kNone) return fault;
    if (first.offload_mode != OffloadMode::kTso) {
      InsertTag(frame, first);
      send(std::span<const std::byte>(frame));
      return fault;
    }
    for (size_t at = first.header_length; at < frame.size(); at += first.mss) {
      Cut(frame, first, at);
      InsertTag(piece_, first);
      send(std::span<const std::byte>(piece_));
    }
    return fault;
  }

 private:
  static OffloadFault Prepare(std::vector<std::byte>& frame, const WqEnetDesc& first);
  static void InsertTag(std::vector<std::byte>& frame, const WqEnetDesc& first);
  // The frame whose payload begins at `at`, into piece_.
  void Cut(std::span<const std::byte> frame, const WqEnetDesc& first, size_t at);

  std::vector<std::byte> piece_;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_MODEL_OFFLOAD_H_
