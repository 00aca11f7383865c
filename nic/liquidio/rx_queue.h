// SPDX-License-Identifier: Apache-2.0
//
// RxQueue: one output queue (liquidio sheet 5). Buffers are posted (posted_ring.h), come back as
// packets of one or several, and are replaced.
//
// The device says how many packets it has delivered, and in front of each how long it is. It is not
// trusted: counts, lengths and headers are read once and checked against what was posted. What
// cannot be is counted. In info mode a slot that says nothing waits (its length was 0 when it was
// posted), and the next one that does sets the queue right again.
//
// Receive: one thread at a time. The rest: one control thread, while nobody receives.
#ifndef DMAKIT_NIC_LIQUIDIO_RX_QUEUE_H_
#define DMAKIT_NIC_LIQUIDIO_RX_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "nic/kept_packets.h"
#include "nic/liquidio/device_counter.h"
#include "nic/liquidio/received_packets.h"
#include "nic/liquidio/rings.h"
#include "nic/liquidio/slot_memory.h"
#include "nic/packet.h"
#include "nic/queue.h"
#include "nic/queue_counters.h"
#include "nic/ring_watch.h"
#include "nic/rx_kept.h"

namespace dmakit::nic::liquidio {

template <RxBufferSource Source, SlotMemory Infos = CoherentSlots>
class RxQueue {
 public:
  // `max_frame`: longer ones are dropped and counted as truncated.
  RxQueue(uint32_t max_frame, Source source) : ring_(std::move(source)), max_frame_(max_frame) {}

  // --- Datapath ---

  // Hands out up to burst.size() packets. Buffers are posted when kRefillBatch are missing, and
  // whenever there was nothing to hand out: none waits for a packet. Looks at one lap of the ring
  // at most.
  size_t Receive(std::span<Packet> burst) {
    if (!kept_.empty()) [[unlikely]]
      return ReceiveKept(kept_, counters_, burst);
    const bool watched = ring_.watched();
    if (pending_ < burst.size()) Look();
    size_t got = 0;
    uint64_t bytes = 0;
    for (uint32_t n = ring_.size(); n > 0 && pending_ > 0 && got < burst.size(); --n) {
      const Found found = Next(burst[got], watched);
      if (found == Found::kNothing) break;
      if (found == Found::kFrame) [[likely]]
        bytes += burst[got++].length;
    }
    if (got != 0) {
      counters_.frames.Add(got);
      counters_.bytes.Add(bytes);
    }
    if (got == 0 || ring_.size() - ring_.posted() >= kRefillBatch) Refill(watched);
    return got;
  }

  // Sheet 5.4: takes off the counter what was received and has the device raise its interrupt again
  // if there is more; the look that follows only saves a wake-up. False: there is more to receive,
  // or the queue has no interrupt (now: it may be stopped).
  bool Arm() {
    if (!interrupt_) return false;
    delivered_.SubtractWith(std::exchange(owed_, 0), kPktCntsResend);
    Look();
    return kept_.empty() && pending_ == 0;
  }

  // --- Control ---

  // Takes over an empty ring whose registers are programmed, its credits clear and its counter at
  // `set_up.counter_start`.
  void Attach(OutputMemory<Infos> memory, const dma::MmioRegion& registers, RingWatch watch,
              const OutputSetUp& set_up) {
    ring_.Attach(std::move(memory), std::move(watch), set_up.mode, set_up.buffer_bytes);
    counters_.ring_allocations.Add();
    CountMaps();
    registers_ = registers;
    delivered_ = DeviceCounter(registers, RingReg::kPktCnts, set_up.counter_start);
    interrupt_ = set_up.interrupt;
    pending_ = owed_ = 0;
  }
  // Once the ring runs (sheet 1: enable, then give credits). Buffers posted.
  uint32_t Fill() {
    Refill(ring_.watched());
    return ring_.posted();
  }
  // Before the ring is reset, which clears the counter: what was delivered.
  void BeforeReset() { Look(); }
  // After it: gives the posted buffers back. Frames that nobody has asked for are kept for the next
  // Receive, or counted.
  void Reclaim(bool keep) {
    KeepUnread();
    if (!keep) DropKept();
    for (const bool watched = ring_.watched(); ring_.posted() > 0;) {
      ring_.TakeInfo();
      ring_.PutBack(watched);
    }
    Forget();
  }
  // The device may still write to them: buffers stay out, for the pool's end to quarantine them.
  OutputMemory<Infos> Abandon() {
    DropKept();
    return Forget();
  }
  // Gives up what Reclaim kept, and counts it. It may have come from another queue, and its pool.
  void DropKept() { nic::DropKept(kept_, counters_); }
  bool attached() const { return ring_.size() != 0; }
  Source& source() { return ring_.source(); }
  // While it is not attached. The old one ends.
  void ReplaceSource(Source source) { ring_.source() = std::move(source); }
  void SetMaxFrame(uint32_t max_frame) { max_frame_ = max_frame; }
  void MoveKept(RxQueue& to) { nic::MoveKept(kept_, counters_, to.kept_, to.counters_); }

  // Any thread. device_no_buffer and device_error are the driver's to add.
  RxQueueStats stats() const { return counters_.Get(); }
  // Any thread: the device's counter was last seen where it cannot be.
  bool counter_lies() const { return delivered_.lies(); }

 private:
  // A packet takes a buffer at least, so there are never more packets than buffers. What was
  // counted for slots that say nothing does not keep others from being counted.
  void Look() {
    const uint32_t posted = ring_.posted();
    if (posted == 0) return;
    const uint32_t added = delivered_.Advance(posted, counters_.bad_completions);
    if (added == 0) return;
    if (pending_ + added > posted) [[unlikely]]
      counters_.bad_completions.Add(pending_ + added - posted);
    pending_ = std::min(pending_ + added, posted);
    ring_.LookAgain();
  }
  // Takes the oldest packet that was counted; there is one.
  Found Next(Packet& packet, bool watched) {
    const Found found = ring_.TakePacket(packet, max_frame_, counters_, watched);
    if (found == Found::kNothing) return found;
    pending_ = std::min(pending_ - 1, ring_.posted());
    ++owed_;
    return found;
  }

  // Stops at the first buffer that is not to be had: what the device gets has no hole (sheet 5.3).
  // What was received comes off the counter in the same go.
  void Refill(bool watched) {
    const uint32_t before = ring_.posted();
    while (ring_.posted() < ring_.size()) {
      if (ring_.Post(watched)) continue;
      counters_.refill_failed.Add();
      break;
    }
    if (owed_ != 0) delivered_.Subtract(std::exchange(owed_, 0));
    if (const uint32_t fresh = ring_.posted() - before; fresh != 0) {
      registers_.Write32(OffsetOf(RingReg::kSlistDoorbell), fresh);
      counters_.doorbells.Add();
    }
    counters_.posted.Set(ring_.posted());
  }

  // What was counted, and in info mode what was delivered after the last look, too.
  void KeepUnread() {
    const bool watched = ring_.watched();
    Packet packet;
    ring_.LookAgain();
    while (ring_.posted() > 0) {
      if (pending_ == 0) {
        if (!ring_.SaysSomething()) break;
        pending_ = 1;
      }
      const Found found = Next(packet, watched);
      if (found == Found::kNothing) break;
      if (found == Found::kFrame) kept_.Keep(packet);
    }
    counters_.kept.Set(kept_.size());
  }

  // At the start and the end of a ring, as in TxQueue.
  void CountMaps() {
    counters_.info_maps.Add(ring_.info_maps() - std::exchange(told_, ring_.info_maps()));
  }
  OutputMemory<Infos> Forget() {
    CountMaps();
    told_ = 0;
    pending_ = owed_ = 0;
    interrupt_ = false;
    counters_.posted.Set(0);
    return ring_.Detach();
  }

  ReceivedPackets<Source, Infos> ring_;
  uint32_t max_frame_;
  bool interrupt_ = false;
  uint32_t pending_ = 0;  // packets that were counted and not taken
  uint32_t owed_ = 0;     // packets taken, and still in the device's counter
  uint64_t told_ = 0;     // of ring_.info_maps()
  KeptPackets kept_;
  DeviceCounter delivered_;
  dma::MmioRegion registers_;

  RxCounters counters_;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_RX_QUEUE_H_
