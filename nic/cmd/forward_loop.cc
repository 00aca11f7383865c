// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/forward_loop.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frag/returner.h"

namespace dmakit::nic::cmd {
namespace {

// Both bound one piece of work, so that a device which never runs out of it cannot hold the loop:
// the largest ring, several times over.
constexpr int kStepsPerRound = 1024;
constexpr uint32_t kPacketsPerDrain = 16384;

// Rounds without work before the loop gives the processor away.
constexpr int kSpins = 16;
constexpr dma::Nanos kNap{50'000};

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

ForwardLoop::ForwardLoop(Side in, Side out, LimitedWire& source, dma::host::Clock& clock,
                         Options options)
    : in_(in),
      out_(out),
      source_(source),
      clock_(clock),
      options_(std::move(options)),
      lanes_(options_.queues) {
  for (Lane& lane : lanes_) lane.packets.resize(options_.burst);
}

ForwardLoop::~ForwardLoop() {
  for (uint32_t queue = 0; queue < options_.queues; ++queue) {
    Lane& lane = lanes_[queue];
    frag::Returner returner(&in_.port->rx_pool(queue));
    for (; !lane.empty(); ++lane.begin) ReleaseSegments(lane.packets[lane.begin], returner);
  }
}

ForwardLoop::Result ForwardLoop::Run() {
  timer_cost_ = TimerCost();
  start_ = clock_.Now();
  next_progress_ = start_ + options_.progress_interval;
  dma::Nanos last_work = start_;
  dma::Nanos now = start_;
  for (int idle = 0;;) {
    const bool worked = Round();
    now = clock_.Now();
    Watch(now);
    if (worked) {
      idle = 0;
      last_work = now;
      continue;
    }
    if (Finished()) break;
    const bool due = source_.exhausted() || source_.frame_waiting();
    if (due && now - last_work >= options_.stall_limit) {
      result_.stalled = DescribeStall();
      break;
    }
    if (++idle > kSpins) clock_.Sleep(kNap);
  }
  result_.elapsed = now - start_;
  return result_;
}

// Stops the source when it is time to, and reports progress.
void ForwardLoop::Watch(dma::Nanos now) {
  if (options_.interrupted && options_.interrupted()) {
    result_.interrupted = true;
    source_.Stop();
  }
  if (options_.duration && now - start_ >= *options_.duration) source_.Stop();
  if (options_.progress && now >= next_progress_) {
    next_progress_ = now + options_.progress_interval;
    options_.progress(now - start_, result_.forwarded);
  }
}

bool ForwardLoop::Round() {
  const bool received = Step(in_.model);
  const bool moved = Drain();
  const bool sent = Step(out_.model);
  // What was sent can be reaped now, and its buffers posted for the next step of the in model.
  const bool reaped = Drain();
  return received || moved || sent || reaped;
}

bool ForwardLoop::Step(Model* model) {
  if (model == nullptr) return false;
  int steps = 0;
  while (steps < kStepsPerRound && model->Step()) ++steps;
  return steps > 0;
}

bool ForwardLoop::Drain() {
  const dma::Nanos begin = ThreadTime();
  bool moved = false;
  for (uint32_t queue = 0; queue < options_.queues; ++queue) moved |= DrainQueue(queue);
  // A drain that found nothing is waiting, not service.
  if (moved) {
    const dma::Nanos spent = ThreadTime() - begin - timer_cost_;
    result_.driver_time += std::max(spent, dma::Nanos{0});
  }
  return moved;
}

bool ForwardLoop::DrainQueue(uint32_t queue) {
  Lane& lane = lanes_[queue];
  bool moved = out_.port->Reap(queue) > 0;
  for (uint32_t packets = 0; packets < kPacketsPerDrain;) {
    if (lane.empty()) {
      lane.begin = 0;
      lane.end = in_.port->Receive(queue, lane.packets);
      if (lane.empty()) break;
      moved = true;
    }
    const std::span<Packet> rest(lane.packets.data() + lane.begin, lane.end - lane.begin);
    const size_t taken = out_.port->Transmit(queue, rest);
    lane.begin += taken;
    result_.forwarded += taken;
    moved |= taken > 0;
    if (taken < rest.size()) break;  // the ring is full: the device's turn
    packets += static_cast<uint32_t>(taken);
  }
  return moved;
}

uint64_t ForwardLoop::InFlight() const {
  uint64_t packets = 0;
  for (const Lane& lane : lanes_) packets += lane.end - lane.begin;
  for (const QueueStats& queue : out_.port->stats().queues) packets += queue.tx.in_flight;
  return packets;
}

// Only after a round without work: whatever was received has then been handed over.
bool ForwardLoop::Finished() {
  source_.Peek();  // finds out whether it has run dry; this thread is the one that steps the model
  return source_.exhausted() && InFlight() == 0;
}

std::string ForwardLoop::DescribeStall() const {
  return absl::StrCat(
      "nothing moves: ",
      source_.frame_waiting() ? "a frame waits that the in port does not take, " : "", InFlight(),
      " frames in flight were not finished by the out port");
}

}  // namespace dmakit::nic::cmd
