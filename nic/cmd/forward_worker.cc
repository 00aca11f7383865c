// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/forward_worker.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "frag/returner.h"

namespace dmakit::nic::cmd {
namespace {

// Bounds one drain of a lane, so that a device which never runs out of work cannot hold it: the
// largest ring, several times over.
constexpr uint32_t kPacketsPerDrain = 16384;

dma::Nanos ThreadTime() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + dma::Nanos(now.tv_nsec);
}

// What a timer pair with nothing between measures: the least of several.
dma::Nanos TimerCost() {
  dma::Nanos least = dma::Nanos::max();
  for (int i = 0; i < 64; ++i) {
    const dma::Nanos begin = ThreadTime();
    least = std::min(least, ThreadTime() - begin);
  }
  return least;
}

}  // namespace

ForwardWorker::ForwardWorker(uint32_t burst) : burst_(burst), timer_cost_(TimerCost()) {}

ForwardWorker::~ForwardWorker() {
  for (Lane& lane : lanes_) {
    frag::Returner returner(&lane.from->rx_pool(lane.queue));
    for (; !lane.empty(); ++lane.begin) ReleaseSegments(lane.packets[lane.begin], returner);
  }
}

void ForwardWorker::AddLane(Port& from, Port& to, uint32_t queue, LimitedWire* gate) {
  Lane lane{.from = &from, .to = &to, .queue = queue, .gate = gate};
  lane.packets.resize(burst_);
  lanes_.push_back(std::move(lane));
}

bool ForwardWorker::Drain() {
  const dma::Nanos begin = ThreadTime();
  bool moved = false;
  for (Lane& lane : lanes_) moved |= DrainLane(lane);
  // A drain that found nothing is waiting, not service.
  if (moved) {
    const dma::Nanos spent = ThreadTime() - begin - timer_cost_;
    driver_ns_.Add(static_cast<uint64_t>(std::max(spent, dma::Nanos{0}).count()));
  }
  return moved;
}

bool ForwardWorker::DrainLane(Lane& lane) {
  bool moved = lane.to->Reap(lane.queue) > 0;
  for (uint32_t packets = 0; packets < kPacketsPerDrain;) {
    if (lane.empty()) {
      lane.begin = 0;
      lane.end = Receive(lane);
      if (lane.empty()) break;
      moved = true;
    }
    const std::span<Packet> rest(lane.packets.data() + lane.begin, lane.end - lane.begin);
    const size_t taken = lane.to->Transmit(lane.queue, rest);
    lane.begin += taken;
    forwarded_.Add(taken);
    moved |= taken > 0;
    if (taken < rest.size()) break;  // the ring is full: the device's turn
    packets += static_cast<uint32_t>(taken);
  }
  return moved;
}

size_t ForwardWorker::Receive(Lane& lane) {
  const std::span<Packet> burst(lane.packets);
  if (lane.gate == nullptr) return lane.from->Receive(lane.queue, burst);
  const size_t most = lane.gate->Admit(burst.size());
  if (most == 0) return 0;
  const size_t got = lane.from->Receive(lane.queue, burst.first(most));
  lane.gate->Admitted(got);
  return got;
}

uint64_t ForwardWorker::held() const {
  uint64_t packets = 0;
  for (const Lane& lane : lanes_) packets += lane.end - lane.begin;
  return packets;
}

}  // namespace dmakit::nic::cmd
