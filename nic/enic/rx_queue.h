// SPDX-License-Identifier: Apache-2.0
//
// RxQueue: one receive queue (enic sheet 3.1, 3.2). Buffers come from a source, are posted, come
// back through completions as packets, and are replaced; one slot of the ring stays unused.
//
//   slots   free           posted: the device owns them               free
//          |      |  to_clean_ ............................  to_use_ |      |
//
// The device is not trusted: every index and length in a completion is read once and checked
// against what was posted. A completion that cannot be is counted and changes nothing.
//
// Receive: one thread at a time. The rest: one control thread, while nobody receives.
#ifndef DMAKIT_NIC_ENIC_RX_QUEUE_H_
#define DMAKIT_NIC_ENIC_RX_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "dma/mmio.h"
#include "nic/enic/completion_ring.h"
#include "nic/enic/descriptors.h"
#include "nic/enic/interrupt_credits.h"
#include "nic/enic/registers.h"
#include "nic/enic/rings.h"
#include "nic/enic/rx_flags.h"
#include "nic/kept_packets.h"
#include "nic/packet.h"
#include "nic/queue.h"
#include "nic/queue_counters.h"
#include "nic/ring_watch.h"
#include "nic/rx_kept.h"

namespace dmakit::nic::enic {

template <RxBufferSource Source>
class RxQueue {
 public:
  RxQueue(uint32_t index, Source source) : source_(std::move(source)), index_(index) {}

  // --- Datapath ---

  // Hands out up to burst.size() packets and posts as many buffers as it can get. Looks at one
  // lap of completions at most, so a device that completes without end cannot hold it.
  size_t Receive(std::span<Packet> burst) {
    if (!kept_.empty()) [[unlikely]]
      return ReceiveKept(kept_, counters_, burst);
    size_t got = 0;
    uint64_t bytes = 0;
    Words entry;
    const bool watched = watch_.on();
    uint32_t looked = 0;
    for (; looked < size_ && got < burst.size(); ++looked) {
      if (!completions_.Next(entry)) break;
      if (Deliver(DecodeCqRq(entry), burst[got], watched)) bytes += burst[got++].length;
    }
    if (got != 0) {
      counters_.frames.Add(got);
      counters_.bytes.Add(bytes);
    }
    credits_.Add(looked);
    Refill(watched);
    return got;
  }

  // Enic sheet 2.5: gives back the credits of what was received and unmasks. What came too late to
  // be received has credits left, for which the device asserts at once; that is what makes no
  // wake-up lost, and the second look only saves one. False: there is more to receive, or the queue
  // has no interrupt (now: it may be stopped).
  bool Arm() {
    if (!credits_.there()) return false;
    credits_.Return(/*unmask=*/true);
    return kept_.empty() && !completions_.Ready();
  }

  // --- Control ---

  // Takes over an empty ring whose registers are programmed.
  // `interrupt`: its control block, if it has one.
  void Attach(QueueMemory memory, const dma::MmioRegion& registers, RingWatch watch,
              std::optional<dma::MmioRegion> interrupt = std::nullopt) {
    memory_ = std::move(memory);
    counters_.ring_allocations.Add(2);
    registers_ = registers;
    credits_ = InterruptCredits(interrupt);
    watch_ = std::move(watch);
    size_ = memory_.ring.count();
    most_posted_ = size_ - 1;
    completions_ = CompletionRing(memory_.completions.at(0), size_);
    if (slots_size_ != size_) slots_ = std::make_unique<RxBuffer[]>(size_);
    slots_size_ = size_;
    to_clean_ = to_use_ = posted_ = 0;
  }
  // Once the device has been told to run (sheet 3.1: enable first, then post). Buffers posted.
  uint32_t Fill() {
    Refill(watch_.on());
    return posted_;
  }
  // The device has let go: gives the posted buffers back. Frames that nobody has asked for are kept
  // for the next Receive, or counted.
  void Reclaim(bool keep) {
    if (keep) {
      KeepUnread();
    } else {
      CountUnread();
      DropKept();
    }
    for (const bool watched = watch_.on(); posted_ > 0; --posted_) PutUnused(TakeSlot(), watched);
    Forget();
  }
  // The device may still write to them: buffers stay out, for the pool's end to quarantine them.
  QueueMemory Abandon() {
    DropKept();
    QueueMemory memory = std::move(memory_);
    Forget();
    return memory;
  }
  // Gives up what Reclaim kept, and counts it. It may have come from another queue, and its pool.
  void DropKept() { nic::DropKept(kept_, counters_); }
  bool attached() const { return size_ != 0; }
  Source& source() { return source_; }
  // While it is not attached. The old one ends.
  void ReplaceSource(Source source) { source_ = std::move(source); }
  void MoveKept(RxQueue& to) { nic::MoveKept(kept_, counters_, to.kept_, to.counters_); }

  // Any thread. device_no_buffer and device_error are the driver's to add.
  RxQueueStats stats() const { return counters_.Get(); }

 private:
  uint32_t Next(uint32_t slot) const { return slot + 1 == size_ ? 0 : slot + 1; }
  // Slots from to_clean_ up to `slot`, which is below size_.
  uint32_t Ahead(uint32_t slot) const {
    return slot >= to_clean_ ? slot - to_clean_ : slot + size_ - to_clean_;
  }
  const RxBuffer& TakeSlot() {
    const RxBuffer& buffer = slots_[to_clean_];
    to_clean_ = Next(to_clean_);
    return buffer;
  }

  void PutUnused(const RxBuffer& buffer, bool watched) {
    if (watched) [[unlikely]]
      watch_.Completed(buffer.iova, 0);
    source_.Put(buffer);
  }

  // Whether the entry names a buffer that the device has.
  bool Possible(const CqEnetRqDesc& done) const {
    return done.type == CqType::kRqEnet && done.q_number == index_ &&
           done.completed_index < size_ && Ahead(done.completed_index) < posted_;
  }

  bool Deliver(const CqEnetRqDesc& done, Packet& packet, bool watched) {
    if (!Possible(done)) [[unlikely]] {
      counters_.bad_completions.Add();
      return false;
    }
    // Sheet 3.2: buffers before the completed one were skipped, they come back unused.
    for (; to_clean_ != done.completed_index; --posted_) {
      PutUnused(TakeSlot(), watched);
      counters_.skipped.Add();
    }
    const RxBuffer buffer = TakeSlot();
    --posted_;
    __builtin_prefetch(&slots_[to_clean_]);
    const uint32_t bytes = done.bytes_written;
    if (watched) [[unlikely]]
      watch_.Completed(buffer.iova, bytes);
    if (done.truncated || !done.sop || !done.eop || bytes == 0 || bytes > buffer.capacity)
        [[unlikely]] {
      CountError(done);
      source_.Put(buffer);
      return false;
    }
    source_.OnReceived(buffer, bytes);
    packet.ResetTo({buffer.page, buffer.offset, bytes});
    __builtin_prefetch(packet.segments[0].data());
    packet.rx = RxFlagsOf(done);
    packet.vlan = done.vlan;
    packet.hash = done.rss_hash;
    packet.hash_type = static_cast<uint8_t>(done.rss_type);
    return true;
  }

  // Sheet 1.5, packet judgement. The buffer is consumed in every case.
  void CountError(const CqEnetRqDesc& done) {
    if (!done.truncated || done.fcs_ok) {
      counters_.bad_completions.Add();
    } else if (done.bytes_written > 0) {
      counters_.bad_fcs.Add();
    } else {
      counters_.truncated.Add();
    }
  }

  void Refill(bool watched) {
    const uint32_t before = posted_;
    while (posted_ < most_posted_) {
      RxBuffer& slot = slots_[to_use_];
      if (!source_.Take(slot)) {
        counters_.refill_failed.Add();
        break;
      }
      if (watched) [[unlikely]] {
        watch_.Posted(slot.iova, slot.capacity, dma::Direction::kFromDevice, RedZonesOf(source_));
      }
      memory_.ring.at(to_use_)->Store(
          Encode(RqEnetDesc{slot.iova.value(), LengthField(slot.capacity), RqType::kOnlySop}));
      to_use_ = Next(to_use_);
      ++posted_;
    }
    // Always up to the last one: none waits unseen for more to come.
    if (posted_ != before) {
      registers_.Write32(OffsetOf(RqReg::kPostedIndex), to_use_);
      counters_.doorbells.Add();
    }
    counters_.posted.Set(posted_);
  }

  void CountUnread() {
    Words entry;
    for (uint32_t looked = 0; looked < size_ && completions_.Next(entry); ++looked) {
      const CqEnetRqDesc done = DecodeCqRq(entry);
      if (!Possible(done)) {
        counters_.bad_completions.Add();
      } else if (!done.truncated && done.eop) {
        counters_.left_at_stop.Add();
      }
    }
  }

  void KeepUnread() {
    const bool watched = watch_.on();
    Words entry;
    Packet packet;
    for (uint32_t looked = 0; looked < size_ && completions_.Next(entry); ++looked) {
      if (Deliver(DecodeCqRq(entry), packet, watched)) kept_.Keep(packet);
    }
    counters_.kept.Set(kept_.size());
  }

  void Forget() {
    memory_ = {};
    size_ = most_posted_ = posted_ = to_clean_ = to_use_ = 0;
    credits_ = {};
    counters_.posted.Set(0);
  }

  Source source_;
  const uint32_t index_;
  uint32_t size_ = 0;  // 0: not attached
  uint32_t most_posted_ = 0;
  uint32_t to_clean_ = 0;  // the oldest buffer the device has
  uint32_t to_use_ = 0;    // the next slot to fill: posted_index
  uint32_t posted_ = 0;
  InterruptCredits credits_;
  std::unique_ptr<RxBuffer[]> slots_;
  uint32_t slots_size_ = 0;
  KeptPackets kept_;
  CompletionRing completions_;
  dma::MmioRegion registers_;
  RingWatch watch_;
  QueueMemory memory_;

  RxCounters counters_;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_RX_QUEUE_H_
