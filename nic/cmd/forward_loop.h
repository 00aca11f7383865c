// SPDX-License-Identifier: Apache-2.0
//
// ForwardLoop moves frames from the receive queues of one port to the transmit queues of another,
// queue q to queue q, in one thread, which also steps the software NICs:
//
//   wire -> in model steps | drain: reap, receive, transmit | out model steps -> wire | drain again
//
// What it measures is service demand: the thread's processor time over whole drains, one timer pair
// each (its own cost taken off), so that driver code is in it, and neither the device nor whoever
// else runs on the machine. Nothing is dropped here: packets that the transmit ring does not take
// wait in the queue's one burst, and the receive ring waits behind them, so everything is bounded.
#ifndef DMAKIT_NIC_CMD_FORWARD_LOOP_H_
#define DMAKIT_NIC_CMD_FORWARD_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dma/host/clock.h"
#include "dma/types.h"
#include "nic/model.h"
#include "nic/packet.h"
#include "nic/port.h"
#include "nic/wire/limited_wire.h"

namespace dmakit::nic::cmd {

class ForwardLoop {
 public:
  // A started port and the model behind it; nullptr where the device works by itself.
  struct Side {
    Port* port = nullptr;
    Model* model = nullptr;
  };

  struct Options {
    uint32_t queues = 1;
    uint32_t burst = 32;
    std::optional<dma::Nanos> duration;  // then the source is stopped
    // With frames waiting or in flight, and none moving for this long, the run has failed.
    dma::Nanos stall_limit{2'000'000'000};
    std::function<bool()> interrupted{};  // asked once per round; true stops the source
    // Called about every `progress_interval` with the time since the start.
    std::function<void(dma::Nanos, uint64_t forwarded)> progress{};
    dma::Nanos progress_interval{1'000'000'000};
  };

  struct Result {
    uint64_t forwarded = 0;     // packets the transmit side took
    dma::Nanos driver_time{0};  // of the processor
    dma::Nanos elapsed{0};
    bool interrupted = false;
    std::string stalled;  // empty, or what does not move
  };

  // All must outlive the loop. `source` is what the in model is plugged into.
  ForwardLoop(Side in, Side out, LimitedWire& source, dma::host::Clock& clock, Options options);
  // Gives back what Run left behind when it stalled; call it, or destroy the loop, before the ports
  // are stopped.
  ~ForwardLoop();
  ForwardLoop(const ForwardLoop&) = delete;
  ForwardLoop& operator=(const ForwardLoop&) = delete;

  // Returns when the source has run dry, or was stopped, and everything in flight has left; or when
  // nothing moves any more.
  Result Run();

 private:
  // Packets of one queue between receive and transmit: packets[begin..end).
  struct Lane {
    std::vector<Packet> packets;
    size_t begin = 0;
    size_t end = 0;
    bool empty() const { return begin == end; }
  };

  bool Round();
  bool Step(Model* model);
  bool Drain();
  bool DrainQueue(uint32_t queue);
  bool Finished();
  uint64_t InFlight() const;
  void Watch(dma::Nanos now);
  std::string DescribeStall() const;

  const Side in_;
  const Side out_;
  LimitedWire& source_;
  dma::host::Clock& clock_;
  const Options options_;
  std::vector<Lane> lanes_;
  dma::Nanos timer_cost_{0};  // of one timer pair
  dma::Nanos start_{0};
  dma::Nanos next_progress_{0};
  Result result_;
};

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_FORWARD_LOOP_H_
