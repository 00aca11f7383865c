// SPDX-License-Identifier: Apache-2.0
//
// SentRing: the packets that an input queue has given to the device (liquidio sheet 2, 3): its
// ring, the gather lists beside it, and what stands in each slot. A packet is one instruction,
// which points to its bytes, or, if they are in several pieces or too many for one pointer, to the
// list of its slot. First in, first out. It knows nothing of doorbells and counters.
//
//   slots   free           in flight                              free
//          |      |  oldest ..................................  next  |      |
//
// Thread: the queue's.
#ifndef DMAKIT_NIC_LIQUIDIO_SENT_RING_H_
#define DMAKIT_NIC_LIQUIDIO_SENT_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "dma/types.h"
#include "frag/returner.h"
#include "nic/liquidio/gather_list.h"
#include "nic/liquidio/ring_slots.h"
#include "nic/liquidio/rings.h"
#include "nic/liquidio/slot_memory.h"
#include "nic/liquidio/tx_plan.h"
#include "nic/packet.h"
#include "nic/queue.h"
#include "nic/ring_watch.h"

namespace dmakit::nic::liquidio {

template <TxAddressing Addressing, SlotMemory Lists>
class SentRing {
 public:
  explicit SentRing(Addressing addressing) : addressing_(std::move(addressing)) {}

  void Attach(InputMemory<Lists> memory, RingWatch watch, const PacketWords& words) {
    memory_ = std::move(memory);
    watch_ = std::move(watch);
    words_ = words;
    size_ = memory_.ring.count();
    if (slots_size_ != size_) {
      slots_ = std::make_unique<Slot[]>(size_);
      more_ = std::make_unique_for_overwrite<Piece[]>(size_t{size_} * kMorePieces);
    }
    slots_size_ = size_;
    oldest_ = next_ = used_ = 0;
  }
  InputMemory<Lists> Detach() {
    size_ = used_ = oldest_ = next_ = 0;
    return std::move(memory_);
  }

  uint32_t size() const { return size_; }  // 0: not attached
  uint32_t used() const { return used_; }
  bool watched() const { return watch_.on(); }
  uint64_t list_maps() const { return memory_.lists.maps(); }
  Addressing& addressing() { return addressing_; }

  // Writes the packet's instruction into the next slot, which is free; the device may not know
  // before the doorbell says so. If a segment or the list has no address everything is undone, and
  // the packet still the caller's. Flush the returner at the end of the burst.
  bool Place(Packet& packet, const TxPlan& plan, frag::Returner& returner, bool watched) {
    const bool gather = plan.pieces > 1 || plan.bytes > kMaxDirectBytes;
    Iova target;
    uint32_t placed = 0;
    if (gather) {
      GatherWriter list(List(next_));
      if (!Address(packet, watched, placed, [&](Iova at, uint32_t n) { list.Add(at, n); }) ||
          !memory_.lists.Give(next_, target)) [[unlikely]] {
        Undo(placed, watched);
        return false;
      }
    } else if (!Address(packet, watched, placed, [&](Iova at, uint32_t) { target = at; }))
        [[unlikely]] {
      return false;
    }
    Slot& slot = slots_[next_];
    slot.bytes = plan.bytes;
    slot.pieces = static_cast<uint16_t>(placed);
    slot.gather = gather;
    StoreInstruction(target, plan, gather);
    next_ = Behind(next_);
    ++used_;
    if (placed != packet.segment_count) [[unlikely]]
      ReleaseEmptySegments(packet, returner);
    packet.segment_count = 0;
    packet.length = 0;
    return true;
  }

  // The device is done with the oldest packet, of which there must be one: releases its segments.
  // Returns its length.
  uint32_t ReleaseOldest(frag::Returner& returner, bool watched) {
    const Slot& slot = slots_[oldest_];
    if (slot.gather) memory_.lists.Take(oldest_);
    if (watched) [[unlikely]]
      TellDone(oldest_, slot);
    for (uint32_t i = 0; i < slot.pieces; ++i) {
      const Piece& piece = PieceAt(oldest_, i);
      addressing_.Done(piece.segment, piece.token);
      returner.Return(piece.segment.page);
    }
    oldest_ = Behind(oldest_);
    --used_;
    return slot.bytes;
  }

 private:
  static constexpr uint32_t kMorePieces = Packet::kMaxSegments - 1;

  struct Piece {
    Segment segment;
    uint64_t token = 0;
  };
  // What an instruction in flight stands for; pieces beyond the first are in more_.
  struct Slot {
    Piece first;
    uint32_t bytes = 0;
    uint16_t pieces = 0;
    bool gather = false;
  };

  uint32_t Behind(uint32_t slot) const { return slot + 1 == size_ ? 0 : slot + 1; }
  Piece& PieceAt(uint32_t slot, uint32_t i) {
    return i == 0 ? slots_[slot].first : more_[size_t{slot} * kMorePieces + i - 1];
  }
  GatherEntrySlot* List(uint32_t slot) const {
    return reinterpret_cast<GatherEntrySlot*>(memory_.lists.at(slot));
  }

  void StoreInstruction(Iova target, const TxPlan& plan, bool gather) {
    InstructionSlot& to = *memory_.ring.at(next_);
    to.dptr.Store(target.value());
    to.ih3.Store(words_.ih3 | LengthBits(gather, gather ? plan.pieces : plan.bytes));
    to.pki_ih3.Store(words_.pki_ih3);
    to.irh.Store(words_.irh | plan.irh);
    to.ossp0.Store(plan.ossp0);
    to.ossp1.Store(0);
    to.rdp.Store(0);
    to.rptr.Store(0);
  }

  // Addresses the segments that have bytes, in order, and tells `add` of each. False: the packet's
  // first `placed` were addressed.
  template <typename Add>
  bool Address(const Packet& packet, bool watched, uint32_t& placed, Add&& add) {
    for (const Segment& segment : packet.parts()) {
      if (segment.length == 0) continue;
      Iova iova;
      uint64_t token = 0;
      if (!addressing_.Address(segment, iova, token)) [[unlikely]]
        return false;
      if (watched) [[unlikely]]
        watch_.Posted(iova, segment.length, dma::Direction::kToDevice);
      PieceAt(next_, placed++) = {segment, token};
      add(iova, segment.length);
    }
    return true;
  }

  void Undo(uint32_t placed, bool watched) {
    const GatherEntrySlot* const list = List(next_);
    for (uint32_t i = 0; i < placed; ++i) {
      if (watched) [[unlikely]]
        watch_.Completed(Iova{PointerOf(list, i)}, 0);
      const Piece& piece = PieceAt(next_, i);
      addressing_.Done(piece.segment, piece.token);
    }
  }

  // A segment without bytes is not told to the device, but it holds its page.
  void ReleaseEmptySegments(const Packet& packet, frag::Returner& returner) {
    for (const Segment& segment : packet.parts()) {
      if (segment.length == 0) returner.Return(segment.page);
    }
    returner.Flush();
  }

  // The addresses are those in ring and list: slots that kept them would grow for checkers only.
  void TellDone(uint32_t at, const Slot& slot) {
    if (!slot.gather) return watch_.Completed(Iova{memory_.ring.at(at)->dptr.Load()}, 0);
    const GatherEntrySlot* const list = List(at);
    for (uint32_t i = 0; i < slot.pieces; ++i) watch_.Completed(Iova{PointerOf(list, i)}, 0);
  }

  Addressing addressing_;
  uint32_t size_ = 0;
  uint32_t oldest_ = 0;
  uint32_t next_ = 0;
  uint32_t used_ = 0;
  PacketWords words_;
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<Piece[]> more_;
  uint32_t slots_size_ = 0;
  RingWatch watch_;
  InputMemory<Lists> memory_;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_SENT_RING_H_
