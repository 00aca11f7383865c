// SPDX-License-Identifier: Apache-2.0
//
// TxQueue: one work queue (enic sheet 3.3). A packet takes one descriptor per segment that has
// bytes (and per 16384 of them, where it is to be segmented); its last one carries EOP and asks for
// a completion, which covers every descriptor up to it. One slot of the ring stays unused.
//
//   slots   free           in flight                              free
//          |      |  to_clean_ ............................  to_use_ |      |
//
// The device is not trusted: a completion must name the last descriptor of a packet in flight, or
// it is counted and changes nothing.
//
// Transmit, Reap: one thread at a time. The rest: one control thread, while nobody transmits.
#ifndef DMAKIT_NIC_ENIC_TX_QUEUE_H_
#define DMAKIT_NIC_ENIC_TX_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "dma/mmio.h"
#include "frag/returner.h"
#include "nic/enic/completion_ring.h"
#include "nic/enic/descriptors.h"
#include "nic/enic/registers.h"
#include "nic/enic/rings.h"
#include "nic/enic/tx_plan.h"
#include "nic/packet.h"
#include "nic/queue.h"
#include "nic/queue_counters.h"
#include "nic/ring_watch.h"

namespace dmakit::nic::enic {

template <TxAddressing Addressing>
class TxQueue {
 public:
  // `max_frame` is at most kMaxTxFrame.
  TxQueue(uint32_t index, uint32_t max_frame, Addressing addressing)
      : addressing_(std::move(addressing)), index_(index), max_frame_(max_frame) {
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
      Counter* reason = counters_.Reason(PlanTx(packet, max_frame_, most_used_, plan));
      if (reason == nullptr) {
        if (plan.pieces > most_used_ - used_) {
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
      registers_.Write32(OffsetOf(WqReg::kPostedIndex), to_use_);
      counters_.doorbells.Add();
    }
    if (dropped) returner_->Flush();
    counters_.in_flight.Set(packets_);
    return taken;
  }

  // Releases what the device has sent; returns the number of packets. Looks at one lap of
  // completions at most.
  size_t Reap() {
    size_t frames = 0;
    uint64_t bytes = 0;
    Words entry;
    const bool watched = watch_.on();
    for (uint32_t looked = 0; looked < size_; ++looked) {
      if (!completions_.Next(entry)) break;
      const CqEnetWqDesc done = DecodeCqWq(entry);
      if (!Possible(done)) [[unlikely]] {
        counters_.bad_completions.Add();
        continue;
      }
      for (uint32_t left = Ahead(done.completed_index) + 1; left > 0; --left) {
        if (const uint32_t length = ReleaseOldest(watched); length != 0) {
          ++frames;
          bytes += length;
        }
      }
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
  // Takes over an empty ring whose registers are programmed.
  void Attach(QueueMemory memory, const dma::MmioRegion& registers, RingWatch watch) {
    memory_ = std::move(memory);
    counters_.ring_allocations.Add(2);
    registers_ = registers;
    watch_ = std::move(watch);
    size_ = memory_.ring.count();
    most_used_ = size_ - 1;
    completions_ = CompletionRing(memory_.completions.at(0), size_);
    if (slots_size_ != size_) slots_ = std::make_unique<Slot[]>(size_);
    slots_size_ = size_;
    packets_ = to_clean_ = to_use_ = used_ = 0;
  }
  // The device has let go: releases what it did not send, too. Returns the packets it did not send.
  uint64_t Reclaim() {
    Reap();
    for (const bool watched = watch_.on(); used_ > 0;) {
      if (ReleaseOldest(watched) != 0) ++lost_now_;
    }
    returner_->Flush();
    return Forget(lost_now_);
  }
  // The device may still read from them: segments stay out, for their pools' end to quarantine
  // them.
  QueueMemory Abandon() {
    QueueMemory memory = std::move(memory_);
    Forget(packets_);
    return memory;
  }
  bool attached() const { return size_ != 0; }
  uint64_t packets_in_flight() const { return packets_; }
  Addressing& addressing() { return addressing_; }
  // While it is not attached.
  void SetMaxFrame(uint32_t max_frame) { max_frame_ = max_frame; }

  // Any thread. device_error is the driver's to add.
  TxQueueStats stats() const { return counters_.Get(); }

 private:
  // What a descriptor in flight stands for.
  struct Slot {
    Segment segment;  // no page: more of the segment is in the next slot
    uint64_t token = 0;
    uint32_t frame_bytes = 0;  // of its packet, on the last descriptor; else 0
  };

  uint32_t Next(uint32_t slot) const { return slot + 1 == size_ ? 0 : slot + 1; }
  uint32_t Ahead(uint32_t slot) const {
    return slot >= to_clean_ ? slot - to_clean_ : slot + size_ - to_clean_;
  }
  bool Possible(const CqEnetWqDesc& done) const {
    return done.type == CqType::kWqEnet && done.q_number == index_ &&
           done.completed_index < size_ && Ahead(done.completed_index) < used_ &&
           slots_[done.completed_index].frame_bytes != 0;
  }

  // Writes the packet's descriptors, which the device cannot see before posted_index moves. If a
  // segment has no address everything is undone, and the packet still the caller's.
  bool Place(Packet& packet, const TxPlan& plan, bool watched) {
    Placing now{.at = to_use_, .pieces = plan.pieces, .watched = watched};
    uint32_t segments = 0;
    for (const Segment& segment : packet.parts()) {
      if (segment.length == 0) continue;
      Iova iova;
      uint64_t token = 0;
      if (!addressing_.Address(segment, iova, token)) [[unlikely]] {
        Undo(now.placed, watched);
        return false;
      }
      // What is wanted stands in the first segment's (sheet, overrides).
      PlaceSegment(segment, iova, token, segments++ == 0 ? plan.first_high : 0, now);
    }
    slots_[now.last].frame_bytes = now.bytes;
    to_use_ = now.at;
    used_ += now.placed;
    ++packets_;
    if (segments != packet.segment_count) [[unlikely]]
      ReleaseEmptySegments(packet);
    packet.segment_count = 0;
    packet.length = 0;
    return true;
  }

  struct Placing {
    uint32_t at = 0;      // the next slot
    uint32_t pieces = 0;  // of the packet
    bool watched = false;
    uint32_t last = 0;  // the slot before
    uint32_t placed = 0;
    uint32_t bytes = 0;
  };
  void PlaceSegment(const Segment& segment, Iova iova, uint64_t token, uint64_t high,
                    Placing& now) {
    uint32_t left = segment.length;
    for (; left > kMaxPiece; left -= kMaxPiece) {
      PlacePiece(Segment{}, iova, 0, kMaxPiece, high, now);
      iova = iova + Bytes{kMaxPiece};
    }
    PlacePiece(segment, iova, token, left, high, now);
    now.bytes += segment.length;
  }
  void PlacePiece(const Segment& segment, Iova iova, uint64_t token, uint32_t length, uint64_t high,
                  Placing& now) {
    constexpr uint64_t kLast = Encode(WqEnetDesc{.eop = true, .cq_entry = true}).high;
    if (now.watched) [[unlikely]]
      watch_.Posted(iova, length, dma::Direction::kToDevice);
    slots_[now.at] = {segment, token, 0};
    high |= LengthField(length);
    if (++now.placed == now.pieces) high |= kLast;
    memory_.ring.at(now.at)->Store({iova.value(), high});
    now.last = now.at;
    now.at = Next(now.at);
  }

  void Undo(uint32_t placed, bool watched) {
    for (uint32_t at = to_use_; placed > 0; --placed, at = Next(at)) {
      if (watched) [[unlikely]]
        TellDone(at);
      const Slot& slot = slots_[at];
      if (slot.segment.page != nullptr) addressing_.Done(slot.segment, slot.token);
    }
  }

  // A segment without bytes gets no descriptor, but it holds its page.
  void ReleaseEmptySegments(const Packet& packet) {
    for (const Segment& segment : packet.parts()) {
      if (segment.length == 0) returner_->Return(segment.page);
    }
    returner_->Flush();
  }

  // The address is the one in the descriptor: a slot that kept it would grow for checkers only.
  void TellDone(uint32_t at) {
    watch_.Completed(Iova{DecodeWq(memory_.ring.at(at)->Load()).address}, 0);
  }

  // Returns the length of the packet that ended with it, or 0.
  uint32_t ReleaseOldest(bool watched) {
    if (watched) [[unlikely]]
      TellDone(to_clean_);
    const Slot& slot = slots_[to_clean_];
    if (slot.segment.page != nullptr) [[likely]] {
      addressing_.Done(slot.segment, slot.token);
      returner_->Return(slot.segment.page);
    }
    to_clean_ = Next(to_clean_);
    --used_;
    if (slot.frame_bytes != 0) --packets_;
    return slot.frame_bytes;
  }

  uint64_t Forget(uint64_t lost) {
    counters_.device_errors.Add(lost);
    lost_now_ = 0;
    memory_ = {};
    size_ = most_used_ = used_ = to_clean_ = to_use_ = 0;
    packets_ = 0;
    counters_.in_flight.Set(0);
    return lost;
  }

  Addressing addressing_;
  const uint32_t index_;
  uint32_t max_frame_;
  uint32_t size_ = 0;  // 0: not attached
  uint32_t most_used_ = 0;
  uint32_t to_clean_ = 0;  // the oldest descriptor in flight
  uint32_t to_use_ = 0;    // the next free one: posted_index
  uint32_t used_ = 0;      // descriptors in flight
  uint64_t packets_ = 0;   // packets in flight
  uint64_t lost_now_ = 0;
  std::unique_ptr<Slot[]> slots_;
  uint32_t slots_size_ = 0;
  CompletionRing completions_;
  dma::MmioRegion registers_;
  RingWatch watch_;
  QueueMemory memory_;
  std::optional<frag::Returner> returner_;

  TxCounters counters_;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_TX_QUEUE_H_
