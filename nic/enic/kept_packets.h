// SPDX-License-Identifier: Apache-2.0
//
// KeptPackets: what a receive queue had received, and nobody had asked for, when its ring was taken
// away. First in, first out; as many as the rings before held at most. Thread: the queue's.
#ifndef DMAKIT_NIC_ENIC_KEPT_PACKETS_H_
#define DMAKIT_NIC_ENIC_KEPT_PACKETS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nic/packet.h"

namespace dmakit::nic::enic {

class KeptPackets {
 public:
  bool empty() const { return next_ == packets_.size(); }
  size_t size() const { return packets_.size() - next_; }

  // Packets of one segment, as all that are received here.
  void Keep(const Packet& packet) { packets_.push_back(packet); }

  // Hands out the oldest; how many. Adds their bytes to `bytes`.
  [[gnu::noinline]] size_t Take(std::span<Packet> burst, uint64_t& bytes) {
    size_t got = 0;
    for (; got < burst.size() && !empty(); ++got) {
      const Packet& from = packets_[next_++];
      Packet& to = burst[got];
      to.ResetTo(from.segments[0]);
      to.rx = from.rx;
      to.vlan = from.vlan;
      to.hash = from.hash;
      to.hash_type = from.hash_type;
      bytes += to.length;
    }
    return got;
  }

  // To another queue, behind what that one keeps.
  void MoveTo(KeptPackets& other) {
    for (; !empty(); ++next_) other.packets_.push_back(packets_[next_]);
    Clear();
  }

  // Gives each segment to `release`.
  template <typename Release>
  void Drop(Release&& release) {
    for (; !empty(); ++next_) release(packets_[next_].segments[0]);
    Clear();
  }

 private:
  void Clear() {
    packets_.clear();
    next_ = 0;
  }

  std::vector<Packet> packets_;
  size_t next_ = 0;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_KEPT_PACKETS_H_
