// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/forward_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dmakit::nic::cmd {
namespace {

// Bounds one piece of work, so that a device which never runs out of it cannot hold the loop.
constexpr int kStepsPerRound = 1024;

// Rounds without work before a thread gives the processor away.
constexpr int kSpins = 16;
constexpr dma::Nanos kNap{50'000};
// How often the watching thread looks.
constexpr dma::Nanos kWatchInterval{1'000'000};

std::vector<LimitedWire*> Sources(LimitedWire& source, LimitedWire* back) {
  if (back == nullptr) return {&source};
  return {&source, back};
}

}  // namespace

ForwardLoop::ForwardLoop(Side in, Side out, LimitedWire& source, LimitedWire* back,
                         dma::host::Clock& clock, Options options)
    : in_(in),
      out_(out),
      sources_(Sources(source, back)),
      clock_(clock),
      options_(std::move(options)) {
  for (uint32_t i = 0; i < std::max(options_.threads, 1u); ++i) {
    workers_.push_back(std::make_unique<ForwardWorker>(options_.burst));
  }
  for (uint32_t queue = 0; queue < options_.queues; ++queue) {
    ForwardWorker& worker = *workers_[queue % workers_.size()];
    worker.AddLane(*in_.port, *out_.port, queue, in_.real ? &source : nullptr);
    if (back != nullptr) {
      worker.AddLane(*out_.port, *in_.port, queue, out_.real ? back : nullptr);
    }
  }
}

ForwardLoop::~ForwardLoop() = default;

ForwardLoop::Result ForwardLoop::Run() {
  start_ = last_good_ = clock_.Now();
  next_progress_ = start_ + options_.progress_interval;
  if (options_.threads == 0) {
    RunStepped();
  } else {
    RunThreaded();
  }
  result_.elapsed = clock_.Now() - start_;
  result_.forwarded = Forwarded();
  for (const auto& worker : workers_) result_.driver_time += worker->driver_time();
  return result_;
}

// Stops the sources when it is time to, and reports progress.
void ForwardLoop::Watch(dma::Nanos now) {
  const bool interrupted = options_.interrupted && options_.interrupted();
  if (interrupted) result_.interrupted = true;
  if (interrupted || (options_.duration && now - start_ >= *options_.duration)) {
    for (LimitedWire* const source : sources_) source->Stop();
  }
  if (!told_exhausted_ && SourcesExhausted()) {
    told_exhausted_ = true;
    if (options_.exhausted) options_.exhausted();
  }
  if (options_.progress && now >= next_progress_) {
    next_progress_ = now + options_.progress_interval;
    options_.progress(now - start_, Forwarded());
  }
}

// Nothing has moved for too long, although there was something to move all the time.
bool ForwardLoop::Stalled(bool worked, dma::Nanos now) {
  if (worked || !(SourcesExhausted() || FrameWaiting())) last_good_ = now;
  return now - last_good_ >= options_.stall_limit;
}

bool ForwardLoop::SourcesExhausted() const {
  return std::all_of(sources_.begin(), sources_.end(), [](auto* s) { return s->exhausted(); });
}

bool ForwardLoop::FrameWaiting() const {
  return std::any_of(sources_.begin(), sources_.end(), [](auto* s) { return s->frame_waiting(); });
}

uint64_t ForwardLoop::Forwarded() const {
  uint64_t packets = 0;
  for (const auto& worker : workers_) packets += worker->forwarded();
  return packets;
}

std::string ForwardLoop::DescribeStall(uint64_t in_flight) const {
  const bool both = sources_.size() > 1;
  return absl::StrCat("nothing moves: ",
                      !FrameWaiting() ? ""
                      : both          ? "a frame waits that a port does not take, "
                                      : "a frame waits that the in port does not take, ",
                      in_flight, " frames in flight were not finished by ",
                      both ? "the ports" : "the out port");
}

// --- In the caller's thread ----------------------------------------------------------------------

void ForwardLoop::RunStepped() {
  for (int idle = 0;;) {
    const bool worked = Round();
    const dma::Nanos now = clock_.Now();
    Watch(now);
    idle = worked ? 0 : idle + 1;
    if (!worked && Finished()) return;
    if (Stalled(worked, now)) {
      result_.stalled = DescribeStall(InFlight());
      return;
    }
    if (idle > kSpins) clock_.Sleep(kNap);
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

uint64_t ForwardLoop::InFlight() const {
  uint64_t packets = workers_.front()->held();
  for (const Side& side : {in_, out_}) {
    for (const QueueStats& queue : side.port->stats().queues) packets += queue.tx.in_flight;
  }
  return packets;
}

// Only after a round without work: whatever was received has then been handed over.
bool ForwardLoop::Finished() {
  // Finds out whether they have run dry; this thread is the one that steps the models.
  for (LimitedWire* const source : sources_) source->Peek();
  return SourcesExhausted() && InFlight() == 0;
}

// --- In threads ----------------------------------------------------------------------------------

void ForwardLoop::RunThreaded() {
  std::vector<std::jthread> threads;  // told to end and waited for when it goes
  if (const absl::Status s = StartThreads(threads); !s.ok()) {
    result_.stalled = std::string(s.message());
    return;
  }
  Tally before;
  for (;;) {
    clock_.Sleep(kWatchInterval);
    const dma::Nanos now = clock_.Now();
    Watch(now);
    // Asked first: what the sources have offered is final then.
    const bool exhausted = SourcesExhausted();
    const Tally tally = Count();
    if (exhausted && tally.offered == tally.received &&
        tally.received - tally.dropped == tally.forwarded && tally.forwarded == tally.sent) {
      return;
    }
    if (Stalled(tally != before, now)) {
      const uint64_t held = tally.received - tally.dropped - tally.forwarded;
      // A device may lose a frame without a trace: the wires' counters will show that.
      if (exhausted && held == 0 && tally.in_flight == 0) return;
      result_.stalled = DescribeStall(held + tally.in_flight);
      return;
    }
    before = tally;
  }
}

absl::Status ForwardLoop::StartThreads(std::vector<std::jthread>& threads) {
  for (const auto& worker : workers_) {
    auto thread = options_.starter->Start(
        "dmakit-queue", [this, &worker](const std::stop_token& stop) { Serve(*worker, stop); });
    if (!thread.ok()) return thread.status();
    threads.push_back(*std::move(thread));
  }
  return absl::OkStatus();
}

void ForwardLoop::Serve(ForwardWorker& worker, const std::stop_token& stop) {
  for (int idle = 0; !stop.stop_requested();) {
    if (worker.Drain()) {
      idle = 0;
    } else if (++idle <= kSpins) {
      std::this_thread::yield();
    } else {
      clock_.Sleep(kNap);
    }
  }
}

ForwardLoop::Tally ForwardLoop::Count() const {
  Tally tally;
  for (const Side& side : {in_, out_}) {
    for (const QueueStats& queue : side.port->stats().queues) {
      tally.received += queue.rx.frames + queue.rx.dropped;
      tally.dropped += queue.rx.dropped;
      tally.sent += queue.tx.frames + queue.tx.dropped;
      tally.in_flight += queue.tx.in_flight;
    }
  }
  tally.forwarded = Forwarded();
  for (const LimitedWire* const source : sources_) tally.offered += source->stats().frames_to_nic;
  return tally;
}

}  // namespace dmakit::nic::cmd
