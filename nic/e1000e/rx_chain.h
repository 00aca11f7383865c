// SPDX-License-Identifier: Apache-2.0
//
// RxChain: the buffers of a frame whose last entry has not come yet (e1000e sheet 3.6). They are
// bounded by what a packet can have. Between two frames it is empty. Thread: the queue's.
#ifndef DMAKIT_NIC_E1000E_RX_CHAIN_H_
#define DMAKIT_NIC_E1000E_RX_CHAIN_H_

#include <array>
#include <cstdint>

#include "nic/packet.h"
#include "nic/queue.h"

namespace dmakit::nic::e1000e {

class RxChain {
 public:
  bool empty() const { return count_ == 0; }
  // Whether a part of `length` bytes may follow, in a frame of at most `max_frame`.
  bool Takes(uint32_t length, uint32_t max_frame) const {
    return (count_ < buffers_.size() || length == 0) && bytes_ + length <= max_frame;
  }

  // A part that Takes. One without bytes goes back: a last entry may hold nothing but a CRC, which
  // was stripped.
  template <RxBufferSource Source>
  void Add(Source& source, const RxBuffer& buffer, uint32_t length) {
    if (length == 0) return source.Put(buffer);
    buffers_[count_] = buffer;
    lengths_[count_++] = length;
    bytes_ += length;
  }
  // All parts are there: hands them over as `packet`, which has no more than them.
  template <RxBufferSource Source>
  void Assemble(Source& source, Packet& packet) {
    for (uint32_t i = 0; i < count_; ++i) {
      const RxBuffer& part = buffers_[i];
      source.OnReceived(part, lengths_[i]);
      const Segment segment = {part.page, part.offset, lengths_[i]};
      if (i == 0) {
        packet.ResetTo(segment);
      } else {
        (void)packet.Append(segment);  // there are at most as many
      }
    }
    Forget();
  }
  template <RxBufferSource Source>
  void Drop(Source& source) {
    for (uint32_t i = 0; i < count_; ++i) source.Put(buffers_[i]);
    Forget();
  }

 private:
  void Forget() { count_ = bytes_ = 0; }

  uint32_t count_ = 0;
  uint32_t bytes_ = 0;
  std::array<RxBuffer, Packet::kMaxSegments> buffers_{};
  std::array<uint32_t, Packet::kMaxSegments> lengths_{};
};

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_RX_CHAIN_H_
