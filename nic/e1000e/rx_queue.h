// SPDX-License-Identifier: Apache-2.0
//
// RxQueue: one receive ring of extended entries (e1000e sheet 3, 3.2, 3.6). Buffers come from a
// source, are posted, come back in order with their DD bit, and are replaced; one entry of the ring
// stays unused. A frame longer than a buffer comes in several entries, of which all but the last
// are full; it becomes a packet of as many segments.
//
//   entries  free           posted: the device owns them               free
//           |      |  to_clean_ ............................  to_use_ |      |
//
// The device is not trusted: every length is read once and checked; a chain that cannot be is
// dropped up to its end, and counted.
//
// Receive, Arm: one thread at a time. The rest: one control thread.
#ifndef DMAKIT_NIC_E1000E_RX_QUEUE_H_
#define DMAKIT_NIC_E1000E_RX_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "dma/mmio.h"
#include "dma/ring_pool.h"
#include "nic/e1000e/descriptors.h"
#include "nic/e1000e/registers.h"
#include "nic/e1000e/ring_slots.h"
#include "nic/e1000e/rx_chain.h"
#include "nic/e1000e/rx_flags.h"
#include "nic/kept_packets.h"
#include "nic/packet.h"
#include "nic/queue.h"
#include "nic/queue_counters.h"
#include "nic/ring_watch.h"
#include "nic/rx_kept.h"

namespace dmakit::nic::e1000e {

struct RxSettings {
  uint32_t max_frame = 0;     // longer ones are dropped as truncated
  uint32_t buffer_bytes = 0;  // what the device writes to a buffer at most: as in RCTL
  RxForm form = RxForm::kIpId;
  bool vlan_strip = false;
  bool interrupts = false;
};

template <RxBufferSource Source>
class RxQueue {
 public:
  RxQueue(uint32_t index, Source source) : source_(std::move(source)), index_(index) {}

  // --- Datapath ---

  // Hands out up to burst.size() packets and posts as many buffers as it can get. Looks at one lap
  // of entries at most, so a device that completes without end cannot hold it.
  size_t Receive(std::span<Packet> burst) {
    if (!kept_.empty()) [[unlikely]]
      return ReceiveKept(kept_, counters_, burst);
    size_t got = 0;
    uint64_t bytes = 0;
    const bool watched = watch_.on();
    for (uint32_t looked = 0; looked < size_ && got < burst.size(); ++looked) {
      if (posted_ == 0) break;
      const RxSlot& slot = *ring_.at(to_clean_);
      const uint32_t status = slot.status_error.LoadAcquire();
      if ((status & kRxDone) == 0) break;
      if (Deliver(DecodeRxWriteBack(slot.LoadRest(status), settings_.form), burst[got], watched)) {
        bytes += burst[got++].length;
      }
    }
    if (got != 0) {
      counters_.frames.Add(got);
      counters_.bytes.Add(bytes);
    }
    Refill(watched);
    return got;
  }

  // Unmasks the queue's interrupt, then looks again: what came before is seen here, what comes
  // after raises it. The cause is cleared first, or frames received long ago would raise it at
  // once; the read in between has both writes at the device before the look (sheet 3.7). False:
  // there is more to receive, or the queue has no interrupt (now: it may be stopped).
  bool Arm() {
    if (!settings_.interrupts || size_ == 0) return false;
    control_.Write32(OffsetOf(Reg::kIcr), RxCause(index_));
    control_.Write32(OffsetOf(Reg::kIms), RxCause(index_));
    (void)control_.Read32(OffsetOf(Reg::kStatus));
    return kept_.empty() && !Ready();
  }

  // --- Control ---

  // Takes over an empty ring whose registers are programmed. `control`: all registers.
  void Attach(dma::RingPool<RxSlot> ring, const dma::MmioRegion& control, RingWatch watch,
              const RxSettings& settings) {
    ring_ = std::move(ring);
    control_ = control;
    watch_ = std::move(watch);
    settings_ = settings;
    size_ = ring_.count();
    if (slots_size_ != size_) slots_ = std::make_unique<RxBuffer[]>(size_);
    slots_size_ = size_;
    to_clean_ = to_use_ = posted_ = 0;
    dropping_ = false;
    counters_.ring_allocations.Add();
  }
  // Once the device may receive. Buffers posted.
  uint32_t Fill() {
    Refill(watch_.on());
    return posted_;
  }
  // The device has let go: gives the posted buffers back. Frames that nobody has asked for are kept
  // for the next Receive, or counted.
  void Reclaim(bool keep) {
    KeepUnread();
    if (!keep) DropKept();
    chain_.Drop(source_);
    for (const bool watched = watch_.on(); posted_ > 0;) {
      const RxBuffer buffer = TakeSlot();
      if (watched) [[unlikely]]
        watch_.Completed(buffer.iova, 0);
      source_.Put(buffer);
    }
    Forget();
  }
  // The device may still write to them: buffers stay out, for the pool's end to quarantine them.
  dma::RingPool<RxSlot> Abandon() {
    DropKept();
    chain_.Drop(source_);  // these the device has completed
    dma::RingPool<RxSlot> ring = std::move(ring_);
    Forget();
    return ring;
  }
  // Gives up what Reclaim kept, and counts it. It may have come from another queue, and its pool.
  void DropKept() { nic::DropKept(kept_, counters_); }
  bool attached() const { return size_ != 0; }
  Source& source() { return source_; }
  // While it is not attached. The old one ends.
  void ReplaceSource(Source source) { source_ = std::move(source); }
  void MoveKept(RxQueue& to) { nic::MoveKept(kept_, counters_, to.kept_, to.counters_); }

  // Any thread. device_no_buffer is the driver's to add.
  RxQueueStats stats() const { return counters_.Get(); }

 private:
  bool Ready() const {
    return posted_ != 0 && (ring_.at(to_clean_)->status_error.LoadAcquire() & kRxDone) != 0;
  }
  uint32_t Next(uint32_t slot) const { return slot + 1 == size_ ? 0 : slot + 1; }
  RxBuffer TakeSlot() {
    const RxBuffer buffer = slots_[to_clean_];
    to_clean_ = Next(to_clean_);
    --posted_;
    return buffer;
  }

  // The oldest posted entry is done. True: with it a packet is.
  bool Deliver(const RxWriteBack& done, Packet& packet, bool watched) {
    const RxBuffer buffer = TakeSlot();
    __builtin_prefetch(&slots_[to_clean_]);
    const uint32_t length = done.length;
    if (watched) [[unlikely]]
      watch_.Completed(buffer.iova, length);
    const bool last = (done.status_error & kRxEndOfPacket) != 0;
    if (last && chain_.empty() && !dropping_ && Good(done, length)) [[likely]] {
      source_.OnReceived(buffer, length);
      packet.ResetTo({buffer.page, buffer.offset, length});
      __builtin_prefetch(packet.segments[0].data());
      Describe(done, packet);
      return true;
    }
    return DeliverPart(done, buffer, last, packet);
  }

  // A frame in one entry, as it should be.
  bool Good(const RxWriteBack& done, uint32_t length) const {
    return length != 0 && length <= settings_.buffer_bytes && length <= settings_.max_frame &&
           (done.status_error & kRxFrameErrors) == 0;
  }

  // Any other entry. Out of the way of those that are a frame each.
  [[gnu::noinline]] bool DeliverPart(const RxWriteBack& done, const RxBuffer& buffer, bool last,
                                     Packet& packet) {
    if (dropping_) {
      source_.Put(buffer);
      dropping_ = !last;
      return false;
    }
    if (Counter* const reason = WhyNot(done, last); reason != nullptr) {
      reason->Add();
      chain_.Drop(source_);
      source_.Put(buffer);
      dropping_ = !last;
      return false;
    }
    chain_.Add(source_, buffer, done.length);
    if (!last) return false;
    chain_.Assemble(source_, packet);
    Describe(done, packet);
    return true;
  }

  // Why the frame that this entry belongs to is dropped; nullptr: it is not, so far.
  Counter* WhyNot(const RxWriteBack& done, bool last) {
    const uint32_t length = done.length;
    // All but the last are full (sheet 3.6).
    const bool possible = last
                              ? length <= settings_.buffer_bytes && (length != 0 || !chain_.empty())
                              : length == settings_.buffer_bytes;
    if (!possible) return &counters_.bad_completions;
    if (last && (done.status_error & kRxFrameErrors) != 0) return &counters_.bad_fcs;
    return chain_.Takes(length, settings_.max_frame) ? nullptr : &counters_.truncated;
  }

  void Describe(const RxWriteBack& done, Packet& packet) const {
    packet.rx = RxFlagsOf(done, settings_.form, settings_.vlan_strip);
    packet.vlan = done.vlan;
    packet.hash = done.rss_hash;
    packet.hash_type = done.rss_type;
  }

  void Refill(bool watched) {
    const uint32_t before = posted_;
    while (posted_ + 1 < size_) {
      RxBuffer& buffer = slots_[to_use_];
      if (!source_.Take(buffer)) {
        counters_.refill_failed.Add();
        break;
      }
      // The device knows one size, and writes it: a smaller buffer is not posted.
      if (buffer.capacity < settings_.buffer_bytes) [[unlikely]] {
        source_.Put(buffer);
        counters_.refill_failed.Add();
        break;
      }
      if (watched) [[unlikely]] {
        watch_.Posted(buffer.iova, settings_.buffer_bytes, dma::Direction::kFromDevice,
                      RedZonesOf(source_));
      }
      ring_.at(to_use_)->Post(buffer.iova.value());
      to_use_ = Next(to_use_);
      ++posted_;
    }
    // Always up to the last one: none waits unseen for more to come.
    if (posted_ != before) {
      control_.Write32(OffsetOf(Reg::kRdt, index_), to_use_);
      counters_.doorbells.Add();
    }
    counters_.posted.Set(posted_);
  }

  void KeepUnread() {
    const bool watched = watch_.on();
    Packet packet;
    while (posted_ > 0) {
      const RxSlot& slot = *ring_.at(to_clean_);
      const uint32_t status = slot.status_error.LoadAcquire();
      if ((status & kRxDone) == 0) break;
      const RxWriteBack done = DecodeRxWriteBack(slot.LoadRest(status), settings_.form);
      if (Deliver(done, packet, watched)) kept_.Keep(packet);
    }
    counters_.kept.Set(kept_.size());
  }

  void Forget() {
    ring_ = {};
    size_ = posted_ = to_clean_ = to_use_ = 0;
    dropping_ = false;
    counters_.posted.Set(0);
  }

  Source source_;
  const uint32_t index_;
  RxSettings settings_;
  uint32_t size_ = 0;      // 0: not attached
  uint32_t to_clean_ = 0;  // the oldest buffer the device has
  uint32_t to_use_ = 0;    // the next entry to fill: the tail
  uint32_t posted_ = 0;
  bool dropping_ = false;  // up to the next end of a packet
  std::unique_ptr<RxBuffer[]> slots_;
  uint32_t slots_size_ = 0;
  dma::RingPool<RxSlot> ring_;
  dma::MmioRegion control_;
  RingWatch watch_;
  RxChain chain_;
  KeptPackets kept_;
  RxCounters counters_;
};

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_RX_QUEUE_H_
