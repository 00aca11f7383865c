// SPDX-License-Identifier: Apache-2.0
//
// ForwardWorker: the part of a ForwardLoop that one thread does. It has lanes, each from a receive
// queue of one port to the transmit queue of the same number of another, and drains them: reap,
// receive, transmit.
//
// What it measures is service demand: its thread's processor time over whole drains, one timer pair
// each (its own cost taken off), so that driver code is in it, and neither the device nor whoever
// else runs on the machine. Nothing is dropped here: packets that the transmit ring does not take
// wait in the lane's one burst, and the receive ring waits behind them, so everything is bounded.
//
// Drain: one thread. The counters: any thread. The rest: while nobody drains.
#ifndef DMAKIT_NIC_CMD_FORWARD_WORKER_H_
#define DMAKIT_NIC_CMD_FORWARD_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dma/types.h"
#include "iova/counter.h"
#include "nic/packet.h"
#include "nic/port.h"
#include "nic/wire/limited_wire.h"

namespace dmakit::nic::cmd {

class ForwardWorker {
 public:
  explicit ForwardWorker(uint32_t burst);
  // Gives back what the lanes hold; before the ports are stopped.
  ~ForwardWorker();
  ForwardWorker(const ForwardWorker&) = delete;
  ForwardWorker& operator=(const ForwardWorker&) = delete;

  // The ports outlive the worker, and so does `gate`: what limits a real NIC, which no wire can
  // hold back; nullptr: nothing is to be limited here.
  void AddLane(Port& from, Port& to, uint32_t queue, LimitedWire* gate = nullptr);

  // True: something moved.
  bool Drain();

  uint64_t forwarded() const { return forwarded_.Get(); }  // packets the transmit side took
  dma::Nanos driver_time() const { return dma::Nanos{static_cast<int64_t>(driver_ns_.Get())}; }
  // Packets between receive and transmit. The draining thread only.
  uint64_t held() const;

 private:
  // packets[begin..end) have been received and not yet transmitted.
  struct Lane {
    Port* from = nullptr;
    Port* to = nullptr;
    uint32_t queue = 0;
    LimitedWire* gate = nullptr;
    std::vector<Packet> packets{};
    size_t begin = 0;
    size_t end = 0;
    bool empty() const { return begin == end; }
  };

  bool DrainLane(Lane& lane);
  static size_t Receive(Lane& lane);

  const uint32_t burst_;
  const dma::Nanos timer_cost_;  // of one timer pair
  std::vector<Lane> lanes_;
  Counter forwarded_;
  Counter driver_ns_;
};

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_FORWARD_WORKER_H_
