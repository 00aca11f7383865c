// SPDX-License-Identifier: Apache-2.0
//
// TxQueue: one transmit ring (e1000e sheet 3.3 to 3.6). A packet takes a context entry, if it needs
// one that differs from the last one sent, then a data entry per kMaxPiece bytes of each segment;
// the last one carries EOP and asks for a write-back, which covers the entries up to it. One slot
// of the ring stays unused.
//
//   slots   free           in flight                              free
//          |      |  to_clean_ ............................  to_use_ |      |
//
// Transmit, Reap: one thread at a time. The rest: one control thread, while nobody transmits.
#ifndef DMAKIT_NIC_E1000E_TX_QUEUE_H_
#define DMAKIT_NIC_E1000E_TX_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "dma/mmio.h"
#include "frag/returner.h"
#include "nic/e1000e/descriptors.h"
#include "nic/e1000e/registers.h"
#include "nic/e1000e/rings.h"
#include "nic/e1000e/tx_plan.h"
#include "nic/packet.h"
#include "nic/queue.h"
#include "nic/queue_counters.h"
#include "nic/ring_watch.h"

namespace dmakit::nic::e1000e {

template <TxAddressing Addressing>
class TxQueue {
 public:
  TxQueue(const TxLimits& limits, Addressing addressing)
      : addressing_(std::move(addressing)), limits_(limits) {
    SetOwner(nullptr);
  }

  // --- Datapath ---

  // Reaps, then takes packets from the front of the burst until the ring is full. Those that can
  // never be sent are released and counted, and taken too. One register write per burst.
  size_t Transmit(std::span<Packet> burst) {
    Reap();
    const uint32_t first = to_use_;
    size_t taken = 0;
    bool dropped = false;
    const bool watched = watch_.on();
    for (Packet& packet : burst) {
      TxPlan plan;
      Counter* reason = counters_.Reason(PlanTx(packet, limits_, plan));
      if (reason == nullptr) {
        if (plan.needs_context && context_ == plan.context) plan.needs_context = false;
        if (plan.pieces + plan.needs_context > most_used_ - used_) {
          counters_.ring_full.Add();
          break;
        }
        if (!Place(packet, plan, watched)) reason = &counters_.addressing_failed;
      }
      if (reason != nullptr) [[unlikely]] {
        reason->Add();
        ReleaseSegments(packet, *returner_);
        dropped = true;
      }
      ++taken;
    }
    if (to_use_ != first) {
      registers_.Write32(OffsetOf(QueueReg::kTail), to_use_);
      counters_.doorbells.Add();
    }
    if (dropped) returner_->Flush();
    counters_.in_flight.Set(packets_);
    return taken;
  }

  // Releases what the device has sent; returns the number of packets.
  size_t Reap() {
    size_t frames = 0;
    uint64_t bytes = 0;
    const bool watched = watch_.on();
    while (packets_ > 0) {
      const uint32_t last = slots_[to_clean_].last;
      if ((ring_.at(last)->upper.LoadAcquire() & kTxDone) == 0) break;
      ++frames;
      bytes += ReleaseOldest(watched);
    }
    if (frames == 0) return 0;
    returner_->Flush();
    counters_.frames.Add(frames);
    counters_.bytes.Add(bytes);
    counters_.in_flight.Set(packets_);
    return frames;
  }

  // --- Control ---

  // Whose thread transmits: fragments of `pool` go back without atomics.
  void SetOwner(frag::PagePool* pool) { returner_.emplace(pool); }
  // Takes over an empty ring whose registers are programmed. `registers`: the queue's block.
  void Attach(Ring ring, const dma::MmioRegion& registers, RingWatch watch) {
    ring_ = std::move(ring);
    registers_ = registers;
    watch_ = std::move(watch);
    size_ = ring_.entries;
    most_used_ = size_ - 1;
    if (slots_size_ != size_) slots_ = std::make_unique<Slot[]>(size_);
    slots_size_ = size_;
    to_clean_ = to_use_ = used_ = 0;
    packets_ = 0;
    context_.reset();  // the device was reset, and may have forgotten it
  }
  // The device has let go: releases what it did not send, too. Returns the packets it did not send.
  uint64_t Reclaim() {
    Reap();
    const uint64_t lost = packets_;
    for (const bool watched = watch_.on(); packets_ > 0;) ReleaseOldest(watched);
    returner_->Flush();
    return Forget(lost);
  }
  // The device may still read from them: segments stay out, for their pools' end to quarantine
  // them.
  Ring Abandon() {
    Ring ring = std::move(ring_);
    Forget(packets_);
    return ring;
  }
  bool attached() const { return size_ != 0; }
  uint64_t packets_in_flight() const { return packets_; }
  Addressing& addressing() { return addressing_; }
  // While it is not attached.
  void SetLimits(const TxLimits& limits) { limits_ = limits; }

  // Any thread. device_error is the driver's to add.
  TxQueueStats stats() const { return counters_.Get(); }

 private:
  // What an entry in flight stands for.
  struct Slot {
    Segment segment;  // no page: a context, padding, or more of the segment in the next slot
    uint64_t token = 0;
    uint32_t frame_bytes = 0;  // of its packet, on the first entry
    uint16_t last = 0;         // the packet's last entry, on the first
    bool bytes = false;        // its address is a segment's
  };

  uint32_t Next(uint32_t slot) const { return slot + 1 == size_ ? 0 : slot + 1; }

  // Where the packet being placed is.
  struct Placing {
    uint32_t at = 0;      // the next slot
    uint32_t left = 0;    // data entries still to come
    uint64_t every = 0;   // what each of them says
    uint32_t placed = 0;  // entries
    uint32_t bytes = 0;
    bool watched = false;
  };

  // Writes the packet's entries, which the device cannot see before the tail moves. If a segment
  // has no address everything is undone, and the packet still the caller's.
  bool Place(Packet& packet, const TxPlan& plan, bool watched) {
    Placing now{.at = to_use_, .left = plan.pieces, .every = plan.every, .watched = watched};
    if (plan.needs_context) PlaceEntry({}, plan.context, now);
    uint32_t segments = 0;
    for (const Segment& segment : packet.parts()) {
      if (segment.length == 0) continue;
      Iova iova;
      uint64_t token = 0;
      if (!addressing_.Address(segment, iova, token)) [[unlikely]] {
        Undo(now.placed, watched);
        return false;
      }
      PlaceSegment(segment, iova, token, now);
      ++segments;
    }
    if (plan.pad != 0) [[unlikely]]
      PlacePiece({}, ring_.zeros(), plan.pad, now);
    Slot& first = slots_[to_use_];
    first.frame_bytes = now.bytes;
    first.last = static_cast<uint16_t>(now.at == 0 ? size_ - 1 : now.at - 1);
    if (plan.needs_context) context_ = plan.context;
    to_use_ = now.at;
    used_ += now.placed;
    ++packets_;
    if (segments != packet.segment_count) [[unlikely]]
      ReleaseEmptySegments(packet);
    packet.segment_count = 0;
    packet.length = 0;
    return true;
  }

  void PlaceSegment(const Segment& segment, Iova iova, uint64_t token, Placing& now) {
    uint32_t left = segment.length;
    for (; left > kMaxPiece; left -= kMaxPiece) {
      PlacePiece({.segment = {}, .bytes = true}, iova, kMaxPiece, now);
      iova = iova + Bytes{kMaxPiece};
    }
    PlacePiece({.segment = segment, .token = token, .bytes = true}, iova, left, now);
    now.bytes += segment.length;
  }
  void PlacePiece(const Slot& slot, Iova iova, uint32_t length, Placing& now) {
    constexpr uint64_t kLast = Encode(TxData{.type = 0, .eop = true, .rs = true}).high;
    if (now.watched & slot.bytes) [[unlikely]]
      watch_.Posted(iova, length, dma::Direction::kToDevice);
    const uint64_t last = --now.left == 0 ? kLast : 0;
    PlaceEntry(slot, {iova.value(), now.every | length | last}, now);
  }
  void PlaceEntry(const Slot& slot, const Words& words, Placing& now) {
    slots_[now.at] = slot;
    ring_.at(now.at)->Store(words);
    now.at = Next(now.at);
    ++now.placed;
  }

  void Undo(uint32_t placed, bool watched) {
    for (uint32_t at = to_use_; placed > 0; --placed, at = Next(at)) {
      const Slot& slot = slots_[at];
      if (watched & slot.bytes) [[unlikely]]
        TellDone(at);
      if (slot.segment.page != nullptr) addressing_.Done(slot.segment, slot.token);
    }
  }

  // A segment without bytes gets no entry, but it holds its page.
  void ReleaseEmptySegments(const Packet& packet) {
    for (const Segment& segment : packet.parts()) {
      if (segment.length == 0) returner_->Return(segment.page);
    }
    returner_->Flush();
  }

  // The address is the one in the entry: a slot that kept it would grow for checkers only.
  void TellDone(uint32_t at) { watch_.Completed(Iova{ring_.at(at)->address.Load()}, 0); }

  // Of the oldest packet, all entries. Returns its length.
  uint32_t ReleaseOldest(bool watched) {
    const uint32_t last = slots_[to_clean_].last;
    const uint32_t length = slots_[to_clean_].frame_bytes;
    for (bool more = true; more; to_clean_ = Next(to_clean_), --used_) {
      const Slot& slot = slots_[to_clean_];
      if (watched & slot.bytes) [[unlikely]]
        TellDone(to_clean_);
      if (slot.segment.page != nullptr) [[likely]] {
        addressing_.Done(slot.segment, slot.token);
        returner_->Return(slot.segment.page);
      }
      more = to_clean_ != last;
    }
    --packets_;
    return length;
  }

  uint64_t Forget(uint64_t lost) {
    counters_.device_errors.Add(lost);
    ring_ = {};
    size_ = most_used_ = used_ = to_clean_ = to_use_ = 0;
    packets_ = 0;
    counters_.in_flight.Set(0);
    return lost;
  }

  Addressing addressing_;
  TxLimits limits_;
  uint32_t size_ = 0;  // 0: not attached
  uint32_t most_used_ = 0;
  uint32_t to_clean_ = 0;         // the oldest entry in flight
  uint32_t to_use_ = 0;           // the next free one: the tail
  uint32_t used_ = 0;             // entries in flight
  uint64_t packets_ = 0;          // packets in flight
  std::optional<Words> context_;  // the last one sent, which is in force
  std::unique_ptr<Slot[]> slots_;
  uint32_t slots_size_ = 0;
  Ring ring_;
  dma::MmioRegion registers_;
  RingWatch watch_;
  std::optional<frag::Returner> returner_;

  TxCounters counters_;
};

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_TX_QUEUE_H_
