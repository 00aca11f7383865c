// SPDX-License-Identifier: Apache-2.0
//
// ForwardLoop moves frames from the receive queues of one port to the transmit queues of another,
// queue q to queue q, and, if it is told to, the other way at the same time.
//
// Without threads of its own it does all in the caller's, and steps the software NICs too:
//
//   wire -> in model steps | drain: reap, receive, transmit | out model steps -> wire | drain again
//
// With threads, queue q (of both directions) is served by thread q modulo their number, the models
// run elsewhere (nic::ModelThread), and the caller's thread only watches: it stops the sources in
// time and finds out when everything has arrived.
#ifndef DMAKIT_NIC_CMD_FORWARD_LOOP_H_
#define DMAKIT_NIC_CMD_FORWARD_LOOP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dma/host/clock.h"
#include "dma/types.h"
#include "nic/cmd/forward_worker.h"
#include "nic/model.h"
#include "nic/port.h"
#include "nic/wire/limited_wire.h"

namespace dmakit::nic::cmd {

class ForwardLoop {
 public:
  // A started port, and the model behind it if this loop is to step it.
  struct Side {
    Port* port = nullptr;
    Model* model = nullptr;
    bool real = false;  // silicon: its source limits what is received, not what arrives
  };

  struct Options {
    uint32_t queues = 1;
    uint32_t burst = 32;
    uint32_t threads = 0;                         // at most `queues`; 0: the caller's thread
    dma::host::ThreadStarter* starter = nullptr;  // of those threads
    std::optional<dma::Nanos> duration{};         // then the sources are stopped
    // With frames waiting or in flight, and none moving for this long, the run has failed.
    dma::Nanos stall_limit{2'000'000'000};
    std::function<bool()> interrupted{};  // asked once per round; true stops the sources
    // Called once, when no frame will be taken any more; what was taken is still under way.
    std::function<void()> exhausted{};
    // Called about every `progress_interval` with the time since the start.
    std::function<void(dma::Nanos, uint64_t forwarded)> progress{};
    dma::Nanos progress_interval{1'000'000'000};
  };

  struct Result {
    uint64_t forwarded = 0;     // packets the transmit sides took
    dma::Nanos driver_time{0};  // of the processor, summed over the threads
    dma::Nanos elapsed{0};
    bool interrupted = false;
    std::string stalled{};  // empty, or what does not move
  };

  // All must outlive the loop. `source` is what the NIC of `in` is plugged into; `back`, that of
  // `out`: not nullptr to move frames from `out` to `in` as well.
  ForwardLoop(Side in, Side out, LimitedWire& source, LimitedWire* back, dma::host::Clock& clock,
              Options options);
  // Ends its threads and gives back what Run left behind when it stalled; destroy the loop before
  // the ports are stopped.
  ~ForwardLoop();
  ForwardLoop(const ForwardLoop&) = delete;
  ForwardLoop& operator=(const ForwardLoop&) = delete;

  // Returns when the sources have run dry, or were stopped, and everything in flight has left; or
  // when nothing moves any more.
  Result Run();

 private:
  // What has got how far, both directions together: each figure is at most the one before, and all
  // are equal when everything has arrived.
  struct Tally {
    uint64_t offered = 0;    // by the wires, and taken by the NICs
    uint64_t received = 0;   // by the drivers, dropped ones included
    uint64_t forwarded = 0;  // from a receive to a transmit queue, dropped ones included
    uint64_t sent = 0;       // and reaped, dropped ones included
    uint64_t dropped = 0;    // by receive queues; part of the first two only
    uint64_t in_flight = 0;  // now, in transmit queues
    bool operator==(const Tally&) const = default;
  };

  void RunStepped();
  void RunThreaded();
  absl::Status StartThreads(std::vector<std::jthread>& threads);
  void Serve(ForwardWorker& worker, const std::stop_token& stop);
  bool Round();
  bool Step(Model* model);
  bool Drain() { return workers_.front()->Drain(); }
  bool Finished();
  bool SourcesExhausted() const;
  bool FrameWaiting() const;
  uint64_t Forwarded() const;
  uint64_t InFlight() const;
  Tally Count() const;
  bool Stalled(bool worked, dma::Nanos now);
  void Watch(dma::Nanos now);
  std::string DescribeStall(uint64_t in_flight) const;

  const Side in_;
  const Side out_;
  const std::vector<LimitedWire*> sources_;
  dma::host::Clock& clock_;
  const Options options_;
  std::vector<std::unique_ptr<ForwardWorker>> workers_;
  dma::Nanos start_{0};
  dma::Nanos last_good_{0};  // when something moved last, or nothing had to
  dma::Nanos next_progress_{0};
  bool told_exhausted_ = false;
  Result result_;
};

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_FORWARD_LOOP_H_
