// SPDX-License-Identifier: Apache-2.0
//
// TxQueue: one transmit ring (e1000e sheet 3.3 to 3.6). A packet takes one data entry per segment
// that has bytes (and per 4 KiB page that they lie in), and before those a context entry when what
// the device is to finish differs from what the last context said. The last entry carries EOP and
// RS: its DD bit says that every entry up to it is done. One entry of the ring stays unused.
//
//   entries  free           in flight                              free
//           |      |  to_clean_ ............................  to_use_ |      |
//
// Transmit, Reap: one thread at a time. The rest: one control thread, while nobody transmits.
#ifndef DMAKIT_NIC_E1000E_TX_QUEUE_H_
#define DMAKIT_NIC_E1000E_TX_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "dma/mmio.h"
#include "dma/ring_pool.h"
#include "frag/returner.h"
#include "nic/e1000e/descriptors.h"
#include "nic/e1000e/registers.h"
#include "nic/e1000e/ring_slots.h"
#include "nic/e1000e/tx_plan.h"
#include "nic/packet.h"
#include "nic/queue.h"
#include "nic/queue_counters.h"
#include "nic/ring_watch.h"

namespace dmakit::nic::e1000e {

template <TxAddressing Addressing>
class TxQueue {
 public:
  TxQueue(uint32_t index, uint32_t max_frame, Addressing addressing)
      : addressing_(std::move(addressing)), index_(index), limits_{.max_frame = max_frame} {
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
        const bool context = plan.offload && !(context_known_ && plan.context == context_);
        if (plan.pieces + (context ? 1 : 0) > most_used_ - used_) {
          counters_.ring_full.Add();
          break;
        }
        if (!Place(packet, plan, context, watched)) reason = &counters_.addressing_failed;
      }
      if (reason != nullptr) [[unlikely]] {
        reason->Add();
        ReleaseSegments(packet, *returner_);
        dropped = true;
      }
      ++taken;
    }
    if (to_use_ != first) {
      control_.Write32(OffsetOf(Reg::kTdt, index_), to_use_);
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
      if (!ring_.at(last)->Done()) break;
      bytes += ReleaseOldest(watched);
      ++frames;
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
  // Takes over an empty ring whose registers are programmed, and the entry of zeros behind it.
  // `control`: all registers. `vlan`: the device inserts tags.
  void Attach(dma::RingPool<TxSlot> ring, const dma::MmioRegion& control, RingWatch watch,
              bool vlan) {
    ring_ = std::move(ring);
    control_ = control;
    watch_ = std::move(watch);
    size_ = ring_.count() - 1;
    most_used_ = size_ - 1;
    limits_.vlan = vlan;
    if (slots_size_ != size_) slots_ = std::make_unique<Slot[]>(size_);
    slots_size_ = size_;
    to_clean_ = to_use_ = used_ = 0;
    packets_ = 0;
    context_known_ = false;  // a reset forgets it
    counters_.ring_allocations.Add();
  }
  // The device has let go: releases what it did not send, too. Returns the packets it did not send.
  uint64_t Reclaim() {
    Reap();
    uint64_t lost = 0;
    for (const bool watched = watch_.on(); packets_ > 0; ++lost) ReleaseOldest(watched);
    returner_->Flush();
    return Forget(lost);
  }
  // The device may still read from them: segments stay out, for their pools' end to quarantine
  // them.
  dma::RingPool<TxSlot> Abandon() {
    dma::RingPool<TxSlot> ring = std::move(ring_);
    Forget(packets_);
    return ring;
  }
  bool attached() const { return size_ != 0; }
  uint64_t packets_in_flight() const { return packets_; }
  Addressing& addressing() { return addressing_; }
  // While it is not attached.
  void SetMaxFrame(uint32_t max_frame) { limits_.max_frame = max_frame; }

  // Any thread.
  TxQueueStats stats() const { return counters_.Get(); }

 private:
  // What an entry in flight stands for.
  struct Slot {
    Segment segment;  // no page: context, padding, or more of the segment is in the next entry
    Iova iova{0};
    uint64_t token = 0;
    // Of a packet, in its first entry.
    uint32_t last = 0;
    uint32_t frame_bytes = 0;
  };

  uint32_t Next(uint32_t slot) const { return slot + 1 == size_ ? 0 : slot + 1; }

  // What the last entry of a packet says too.
  static constexpr uint64_t kLast = Encode(TxData{.type = 0, .eop = true, .rs = true}).high;

  struct Placing {
    uint32_t at = 0;  // the next entry
    uint32_t last = 0;
    uint32_t placed = 0;
    uint64_t left = 0;  // bytes still to come
    uint64_t high = 0;
    bool watched = false;
  };

  // Writes the packet's entries, which the device cannot see before the tail moves. If a segment
  // has no address everything is undone, and the packet still the caller's.
  bool Place(Packet& packet, const TxPlan& plan, bool context, bool watched) {
    Placing now{
        .at = to_use_, .left = plan.bytes + plan.padding, .high = plan.high, .watched = watched};
    if (context) PlaceEntry({}, plan.context, now);
    uint32_t bytes = 0;
    uint32_t segments = 0;
    for (const Segment& segment : packet.parts()) {
      if (segment.length == 0) continue;
      Iova iova;
      uint64_t token = 0;
      if (!addressing_.Address(segment, iova, token)) [[unlikely]] {
        Undo(now);
        return false;
      }
      PlaceSegment(segment, iova, token, now);
      bytes += segment.length;
      ++segments;
    }
    if (plan.padding != 0) PlacePadding(plan.padding, now);
    if (context) {
      context_ = plan.context;
      context_known_ = true;
    }
    slots_[to_use_].last = now.last;
    slots_[to_use_].frame_bytes = bytes;
    to_use_ = now.at;
    used_ += now.placed;
    ++packets_;
    if (segments != packet.segment_count) [[unlikely]]
      ReleaseEmptySegments(packet);
    packet.segment_count = 0;
    packet.length = 0;
    return true;
  }

  // Always the last piece; its bytes are the ring's own.
  void PlacePadding(uint32_t length, Placing& now) {
    PlaceEntry({}, {ring_.iova(size_).value(), now.high | length | kLast}, now);
  }
  void PlaceSegment(const Segment& segment, Iova iova, uint64_t token, Placing& now) {
    for (uint32_t left = segment.length;;) {
      const auto room = static_cast<uint32_t>(kPieceBoundary - iova.value() % kPieceBoundary);
      if (left <= room) return PlacePiece(segment, iova, token, left, now);
      PlacePiece(Segment{}, iova, 0, room, now);
      iova = iova + Bytes{room};
      left -= room;
    }
  }
  void PlacePiece(const Segment& segment, Iova iova, uint64_t token, uint32_t length,
                  Placing& now) {
    if (now.watched) [[unlikely]]
      watch_.Posted(iova, length, dma::Direction::kToDevice);
    now.left -= length;
    const uint64_t last = now.left == 0 ? kLast : 0;
    PlaceEntry({segment, iova, token, 0, 0}, {iova.value(), now.high | length | last}, now);
  }
  void PlaceEntry(const Slot& slot, const Words& words, Placing& now) {
    slots_[now.at] = slot;
    ring_.at(now.at)->Store(words);
    now.last = now.at;
    now.at = Next(now.at);
    ++now.placed;
  }

  void Undo(const Placing& now) {
    for (uint32_t at = to_use_, n = now.placed; n > 0; --n, at = Next(at)) LetGo(at, now.watched);
  }
  // Of an entry: what its address was, and what it told a checker.
  void LetGo(uint32_t at, bool watched) {
    const Slot& slot = slots_[at];
    if (watched && slot.iova != Iova{0}) [[unlikely]]
      watch_.Completed(slot.iova, 0);
    if (slot.segment.page != nullptr) addressing_.Done(slot.segment, slot.token);
  }

  // A segment without bytes gets no entry, but it holds its page.
  void ReleaseEmptySegments(const Packet& packet) {
    for (const Segment& segment : packet.parts()) {
      if (segment.length == 0) returner_->Return(segment.page);
    }
    returner_->Flush();
  }

  // The oldest packet. Returns its length.
  uint32_t ReleaseOldest(bool watched) {
    const uint32_t last = slots_[to_clean_].last;
    const uint32_t bytes = slots_[to_clean_].frame_bytes;
    for (bool more = true; more;) {
      more = to_clean_ != last;
      LetGo(to_clean_, watched);
      if (slots_[to_clean_].segment.page != nullptr) {
        returner_->Return(slots_[to_clean_].segment.page);
      }
      to_clean_ = Next(to_clean_);
      --used_;
    }
    --packets_;
    return bytes;
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
  const uint32_t index_;
  TxLimits limits_;
  uint32_t size_ = 0;  // 0: not attached
  uint32_t most_used_ = 0;
  uint32_t to_clean_ = 0;  // the oldest entry in flight, always the first of a packet
  uint32_t to_use_ = 0;    // the next free one: the tail
  uint32_t used_ = 0;      // entries in flight
  uint64_t packets_ = 0;   // packets in flight
  bool context_known_ = false;
  Words context_{};  // in force at the device
  std::unique_ptr<Slot[]> slots_;
  uint32_t slots_size_ = 0;
  dma::RingPool<TxSlot> ring_;
  dma::MmioRegion control_;
  RingWatch watch_;
  std::optional<frag::Returner> returner_;
  TxCounters counters_;
};

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_TX_QUEUE_H_
