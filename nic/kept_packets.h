// SPDX-License-Identifier: Apache-2.0
//
// KeptPackets: what a receive queue had received, and nobody had asked for, when its ring was taken
// away. First in, first out; as many as the rings before held at most. Thread: the queue's.
#ifndef DMAKIT_NIC_KEPT_PACKETS_H_
#define DMAKIT_NIC_KEPT_PACKETS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nic/packet.h"

namespace dmakit::nic {

class KeptPackets {
 public:
  bool empty() const { return next_ == packets_.size(); }
  size_t size() const { return packets_.size() - next_; }

  void Keep(const Packet& packet) { Copy(packet, packets_.emplace_back()); }

  // Hands out the oldest; how many. Adds their bytes to `bytes`.
  [[gnu::noinline]] size_t Take(std::span<Packet> burst, uint64_t& bytes) {
    size_t got = 0;
    for (; got < burst.size() && !empty(); ++got) {
      Copy(packets_[next_++], burst[got]);
      bytes += burst[got].length;
    }
    return got;
  }

  // To another queue, behind what that one keeps.
  void MoveTo(KeptPackets& other) {
    for (; !empty(); ++next_) other.Keep(packets_[next_]);
    Clear();
  }

  // Gives each packet to `release`.
  template <typename Release>
  void Drop(Release&& release) {
    for (; !empty(); ++next_) release(packets_[next_]);
    Clear();
  }

 private:
  // What a received packet has; of the segments, those that are valid.
  static void Copy(const Packet& from, Packet& to) {
    to.ResetTo(from.segments[0]);
    for (size_t i = 1; i < from.segment_count; ++i) to.segments[i] = from.segments[i];
    to.segment_count = from.segment_count;
    to.length = from.length;
    to.rx = from.rx;
    to.vlan = from.vlan;
    to.hash = from.hash;
    to.hash_type = from.hash_type;
  }
  void Clear() {
    packets_.clear();
    next_ = 0;
  }

  std::vector<Packet> packets_;
  size_t next_ = 0;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_KEPT_PACKETS_H_
