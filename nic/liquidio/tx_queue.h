// SPDX-License-Identifier: Apache-2.0
//
// TxQueue: one input queue (liquidio sheet 4). Packets go into the ring (sent_ring.h), a doorbell
// says how many, and the device counts what it has fetched; that is the only completion there is.
//
// The device is not trusted: a count that exceeds what is in flight is counted and changes nothing.
//
// Transmit, Reap: one thread at a time. The rest: one control thread, while nobody transmits.
#ifndef DMAKIT_NIC_LIQUIDIO_TX_QUEUE_H_
#define DMAKIT_NIC_LIQUIDIO_TX_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "dma/mmio.h"
#include "frag/returner.h"
#include "nic/liquidio/device_counter.h"
#include "nic/liquidio/registers.h"
#include "nic/liquidio/rings.h"
#include "nic/liquidio/sent_ring.h"
#include "nic/liquidio/slot_memory.h"
#include "nic/liquidio/tx_plan.h"
#include "nic/packet.h"
#include "nic/queue.h"
#include "nic/queue_counters.h"
#include "nic/ring_watch.h"

namespace dmakit::nic::liquidio {

template <TxAddressing Addressing, SlotMemory Lists = CoherentSlots>
class TxQueue {
 public:
  // `max_frame` is at most kMaxTsoFrame.
  TxQueue(uint32_t max_frame, Addressing addressing)
      : ring_(std::move(addressing)), max_frame_(max_frame) {
    SetOwner(nullptr);
  }

  // --- Datapath ---

  // Reaps, then takes packets from the front of the burst. Those that can never be sent are
  // released and counted, and taken too. The doorbell is rung for every kDoorbellBatch of them, and
  // for what is left at the end of the burst.
  //
  // Once the ring is full nothing is taken until a batch has room (sheet 4.1: stop, and wake).
  size_t Transmit(std::span<Packet> burst) {
    Reap();
    size_t taken = 0;
    uint32_t unrung = 0;
    bool dropped = false;
    const bool watched = ring_.watched();
    for (Packet& packet : burst) {
      TxPlan plan;
      Counter* reason = counters_.Reason(PlanTx(packet, max_frame_, plan));
      if (reason == nullptr) {
        if (!HasRoom()) {
          counters_.ring_full.Add();
          break;
        }
        if (ring_.Place(packet, plan, *returner_, watched)) [[likely]] {
          if (++unrung == kDoorbellBatch) Ring(unrung);
        } else {
          reason = &counters_.addressing_failed;
        }
      }
      if (reason != nullptr) [[unlikely]] {
        reason->Add();
        ReleaseSegments(packet, *returner_);
        dropped = true;
      }
      ++taken;
    }
    if (unrung != 0) Ring(unrung);
    if (dropped) returner_->Flush();
    counters_.in_flight.Set(ring_.used());
    return taken;
  }

  // Releases what the device has fetched; returns the number of packets.
  size_t Reap() {
    if (ring_.used() == 0) return 0;
    const uint32_t done = fetched_.Advance(ring_.used(), counters_.bad_completions);
    if (done == 0) return 0;
    uint64_t bytes = 0;
    const bool watched = ring_.watched();
    for (uint32_t left = done; left > 0; --left) bytes += ring_.ReleaseOldest(*returner_, watched);
    returner_->Flush();
    counters_.frames.Add(done);
    counters_.bytes.Add(bytes);
    counters_.in_flight.Set(ring_.used());
    return done;
  }

  // --- Control ---

  // Whose thread transmits: fragments of `pool` go back without atomics.
  void SetOwner(frag::PagePool* pool) { returner_.emplace(pool); }
  // Takes over an empty ring whose registers are programmed, its doorbell clear and its counter at
  // `counter_start`.
  void Attach(InputMemory<Lists> memory, const dma::MmioRegion& registers, RingWatch watch,
              const PacketWords& words, uint32_t counter_start) {
    ring_.Attach(std::move(memory), std::move(watch), words);
    counters_.ring_allocations.Add();
    CountMaps();
    registers_ = registers;
    fetched_ = DeviceCounter(registers, RingReg::kInDoneCnts, counter_start);
    stop_at_ = ring_.size() - 2;
    wake_at_ = stop_at_ - kDoorbellBatch;
    stopped_ = false;
  }
  // After the ring was reset: releases what the device did not send, too. Returns the packets it
  // did not send. What it did was reaped before the reset, which clears the counter.
  uint64_t Reclaim() {
    const uint64_t lost = ring_.used();
    for (const bool watched = ring_.watched(); ring_.used() > 0;) {
      ring_.ReleaseOldest(*returner_, watched);
    }
    returner_->Flush();
    Forget(lost);
    return lost;
  }
  // The device may still read from them: segments stay out, for their pools' end to quarantine
  // them.
  InputMemory<Lists> Abandon() { return Forget(ring_.used()); }
  bool attached() const { return ring_.size() != 0; }
  uint64_t packets_in_flight() const { return ring_.used(); }
  Addressing& addressing() { return ring_.addressing(); }
  // While it is not attached.
  void SetMaxFrame(uint32_t max_frame) { max_frame_ = max_frame; }

  // Any thread. device_error is the driver's to add.
  TxQueueStats stats() const { return counters_.Get(); }
  // Any thread: the device's counter was last seen where it cannot be.
  bool counter_lies() const { return fetched_.lies(); }

 private:
  bool HasRoom() {
    const uint32_t used = ring_.used();
    if (used >= stop_at_) {
      stopped_ = true;
    } else if (used <= wake_at_) {
      stopped_ = false;
    }
    return !stopped_;
  }

  void Ring(uint32_t& unrung) {
    registers_.Write32(OffsetOf(RingReg::kInstrDoorbell), unrung);
    counters_.doorbells.Add();
    unrung = 0;
  }

  // At the start and the end of a ring: lists that are mapped meanwhile are told of at the end.
  void CountMaps() {
    const uint64_t now = ring_.list_maps();
    counters_.list_maps.Add(now - std::exchange(told_, now));
  }
  InputMemory<Lists> Forget(uint64_t lost) {
    counters_.device_errors.Add(lost);
    CountMaps();
    told_ = 0;
    stop_at_ = wake_at_ = 0;
    stopped_ = false;
    counters_.in_flight.Set(0);
    return ring_.Detach();
  }

  SentRing<Addressing, Lists> ring_;
  uint32_t max_frame_;
  uint32_t stop_at_ = 0;
  uint32_t wake_at_ = 0;
  bool stopped_ = false;
  uint64_t told_ = 0;  // of ring_.list_maps()
  DeviceCounter fetched_;
  dma::MmioRegion registers_;
  std::optional<frag::Returner> returner_;

  TxCounters counters_;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_TX_QUEUE_H_
