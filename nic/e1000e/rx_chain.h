// SPDX-License-Identifier: Apache-2.0
//
// RxChain: the buffers of a frame that takes more than one, until its last one has come. What is
// wrong with the frame ends it: the buffers it had are given up, and those still to come are told
// to be dropped, up to the end of the packet. Thread: the queue's.
#ifndef DMAKIT_NIC_E1000E_RX_CHAIN_H_
#define DMAKIT_NIC_E1000E_RX_CHAIN_H_

#include <array>
#include <cstdint>

#include "nic/packet.h"
#include "nic/queue.h"

namespace dmakit::nic::e1000e {

class RxChain {
 public:
  // No frame is begun, and none is being dropped.
  bool idle() const { return count_ == 0 && !dropping_; }
  bool dropping() const { return dropping_; }
  uint32_t count() const { return count_; }
  uint32_t length() const { return length_; }
  bool full() const { return count_ == Packet::kMaxSegments; }

  // While it is not full.
  void Add(const RxBuffer& buffer, uint32_t length) {
    pieces_[count_++] = {buffer, length};
    length_ += length;
  }

  // All of it as a packet; there is at least one piece. The buffers are the packet's.
  template <typename Source>
  void Finish(Source& source, Packet& packet) {
    for (uint32_t i = 0; i < count_; ++i) {
      const auto& [buffer, length] = pieces_[i];
      source.OnReceived(buffer, length);
      packet.segments[i] = {buffer.page, buffer.offset, length};
    }
    packet.segment_count = static_cast<uint16_t>(count_);
    packet.length = length_;
    packet.tx = TxFlags::kNone;
    count_ = length_ = 0;
  }

  // Gives the buffers back. `last`: the frame has ended.
  template <typename Source>
  void Break(Source& source, bool last) {
    for (uint32_t i = 0; i < count_; ++i) source.Put(pieces_[i].buffer);
    count_ = length_ = 0;
    dropping_ = !last;
  }

 private:
  struct Piece {
    RxBuffer buffer;
    uint32_t length = 0;
  };
  std::array<Piece, Packet::kMaxSegments> pieces_;
  uint32_t count_ = 0;
  uint32_t length_ = 0;
  bool dropping_ = false;
};

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_RX_CHAIN_H_
