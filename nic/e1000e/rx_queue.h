// SPDX-License-Identifier: Apache-2.0
//
// RxQueue: one receive ring of extended entries (e1000e sheet 3.2). Buffers come from a source, are
// posted, come back written over as packets of one or more segments, and are replaced; one slot of
// the ring stays unused, as a full ring would look empty.
//
//   slots   free           posted: the device owns them               free
//          |      |  to_clean_ ............................  to_use_ |      |
//
// The device is not trusted: an entry's status is read once, its length checked against what was
// posted, and nothing else of it is believed. A frame that cannot be is counted and its buffers are
// posted again.
//
// Receive, Arm: one thread at a time. The rest: one control thread, while nobody receives.
#ifndef DMAKIT_NIC_E1000E_RX_QUEUE_H_
#define DMAKIT_NIC_E1000E_RX_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "dma/mmio.h"
#include "frag/returner.h"
#include "nic/e1000e/descriptors.h"
#include "nic/e1000e/registers.h"
#include "nic/e1000e/rings.h"
#include "nic/e1000e/rx_chain.h"
#include "nic/e1000e/rx_flags.h"
#include "nic/e1000e/rx_interrupt.h"
#include "nic/kept_packets.h"
#include "nic/packet.h"
#include "nic/queue.h"
#include "nic/queue_counters.h"
#include "nic/ring_watch.h"

namespace dmakit::nic::e1000e {

struct RxSettings {
  uint32_t buffer_size = 2048;  // what RCTL says; buffers of the source hold at least that
  uint32_t max_frame = 1518;    // bytes, without FCS; at most kMaxSegments buffers
  RxForm form = RxForm::kIpId;
  bool vlan_strip = false;
};

template <RxBufferSource Source>
class RxQueue {
 public:
  explicit RxQueue(Source source) : source_(std::move(source)) {}

  // --- Datapath ---

  // Hands out up to burst.size() packets and posts as many buffers as it can get. Looks at one lap
  // of the ring at most, so a device that completes without end cannot hold it.
  size_t Receive(std::span<Packet> burst) {
    if (!kept_.empty()) [[unlikely]]
      return ReceiveKept(burst);
    size_t got = 0;
    uint64_t bytes = 0;
    const bool watched = watch_.on();
    for (uint32_t left = posted_; left > 0 && got < burst.size(); --left) {
      const DescriptorSlot& slot = *ring_.at(to_clean_);
      const uint32_t status = slot.lower.LoadAcquire();
      if ((status & kRxDone) == 0) break;
      if (Deliver(slot, status, burst[got], watched)) bytes += burst[got++].length;
    }
    if (got != 0) {
      counters_.frames.Add(got);
      counters_.bytes.Add(bytes);
    }
    Refill(watched);
    return got;
  }

  // The interrupt may come from now on. False: there is more to receive, or the queue has no
  // interrupt (now: it may be stopped).
  bool Arm() {
    if (!interrupt_.there()) return false;
    interrupt_.Unmask();
    return kept_.empty() && !Ready();
  }

  // --- Control ---

  // Takes over an empty ring whose registers are programmed. `registers`: the queue's block.
  void Attach(Ring ring, const dma::MmioRegion& registers, const RxSettings& settings,
              RingWatch watch, RxInterrupt interrupt = {}) {
    ring_ = std::move(ring);
    registers_ = registers;
    settings_ = settings;
    watch_ = std::move(watch);
    interrupt_ = interrupt;
    size_ = ring_.entries;
    most_posted_ = size_ - 1;
    if (slots_size_ != size_) slots_ = std::make_unique<RxBuffer[]>(size_);
    slots_size_ = size_;
    to_clean_ = to_use_ = posted_ = 0;
  }
  // Once the device receives. Buffers posted.
  uint32_t Fill() {
    Refill(watch_.on());
    return posted_;
  }
  // The device has let go: gives the posted buffers back. Frames that nobody has asked for are kept
  // for the next Receive, or counted.
  void Reclaim(bool keep) {
    KeepUnread();
    if (!keep) DropKept();
    for (const bool watched = watch_.on(); posted_ > 0; --posted_) {
      const RxBuffer& buffer = TakeSlot();
      if (watched) [[unlikely]]
        watch_.Completed(buffer.iova, 0);
      source_.Put(buffer);
    }
    Forget();
  }
  // The device may still write to them: buffers stay out, for the pool's end to quarantine them.
  Ring Abandon() {
    DropKept();
    Ring ring = std::move(ring_);
    Forget();
    return ring;
  }
  // Gives up what Reclaim kept, and counts it. It may have come from another queue, and its pool.
  void DropKept() {
    if (kept_.empty()) return;
    frag::Returner returner(nullptr);
    kept_.Drop([&](Packet& packet) {
      ReleaseSegments(packet, returner);
      counters_.left_at_stop.Add();
    });
    counters_.kept.Set(0);
  }
  bool attached() const { return size_ != 0; }
  Source& source() { return source_; }
  // While it is not attached. The old one ends.
  void ReplaceSource(Source source) { source_ = std::move(source); }
  void MoveKept(RxQueue& to) {
    kept_.MoveTo(to.kept_);
    counters_.kept.Set(0);
    to.counters_.kept.Set(to.kept_.size());
  }

  // Any thread. device_no_buffer and device_error are the driver's to add.
  RxQueueStats stats() const { return counters_.Get(); }

 private:
  uint32_t Next(uint32_t slot) const { return slot + 1 == size_ ? 0 : slot + 1; }
  const RxBuffer& TakeSlot() {
    const RxBuffer& buffer = slots_[to_clean_];
    to_clean_ = Next(to_clean_);
    return buffer;
  }
  bool Ready() const {
    return posted_ != 0 && (ring_.at(to_clean_)->lower.LoadAcquire() & kRxDone) != 0;
  }

  // Takes the oldest entry, which is done. True: it was the last of a good frame.
  bool Deliver(const DescriptorSlot& slot, uint32_t status, Packet& packet, bool watched) {
    const uint32_t length_vlan = slot.upper.Load();
    const uint32_t length = length_vlan & 0xffff;
    const uint64_t low = slot.address.Load();
    const RxBuffer buffer = TakeSlot();
    --posted_;
    __builtin_prefetch(&slots_[to_clean_]);
    if (watched) [[unlikely]]
      watch_.Completed(buffer.iova, length);
    if ((status & kRxEndOfPacket) == 0 || !chain_.idle()) [[unlikely]] {
      if (!DeliverPiece(buffer, status, length, packet)) return false;
    } else {
      if (!CheckWhole(status, length)) [[unlikely]] {
        source_.Put(buffer);
        return false;
      }
      source_.OnReceived(buffer, length);
      packet.ResetTo({buffer.page, buffer.offset, length});
    }
    __builtin_prefetch(packet.segments[0].data());
    packet.rx = RxFlagsOf(status, settings_.vlan_strip);
    packet.vlan = static_cast<uint16_t>(length_vlan >> 16);
    packet.hash_type = static_cast<uint8_t>(low & 0xf);
    if (settings_.form == RxForm::kHash && packet.hash_type != 0) {
      packet.hash = static_cast<uint32_t>(low >> 32);
      packet.rx = packet.rx | RxFlags::kRssHash;
    }
    return true;
  }

  bool CheckWhole(uint32_t status, uint32_t length) {
    if (length == 0 || length > settings_.buffer_size) [[unlikely]] {
      counters_.bad_completions.Add();
    } else if ((status & kRxFrameErrors) != 0) [[unlikely]] {
      counters_.bad_fcs.Add();
    } else if (length > settings_.max_frame) [[unlikely]] {
      counters_.truncated.Add();
    } else {
      return true;
    }
    return false;
  }

  // Every entry but the last of a frame is full. Where the stripped FCS was all that the last one
  // had, that one is empty.
  [[gnu::noinline]] bool DeliverPiece(const RxBuffer& buffer, uint32_t status, uint32_t length,
                                      Packet& packet) {
    const bool last = (status & kRxEndOfPacket) != 0;
    Counter* reason = nullptr;
    if (!chain_.dropping()) {
      if (last ? length > settings_.buffer_size : length != settings_.buffer_size) {
        reason = &counters_.bad_completions;
      } else if (last && (status & kRxFrameErrors) != 0) {
        reason = &counters_.bad_fcs;
      } else if (chain_.full() || chain_.length() + length > settings_.max_frame) {
        reason = &counters_.truncated;
      }
    }
    if (reason != nullptr || chain_.dropping()) {
      if (reason != nullptr) reason->Add();
      source_.Put(buffer);
      chain_.Break(source_, last);
      return false;
    }
    if (length == 0) {
      source_.Put(buffer);
    } else {
      chain_.Add(buffer, length);
    }
    if (!last) return false;
    chain_.Finish(source_, packet);
    return true;
  }

  // The write-back lies over the address and the zeros behind it, so both are written each time.
  void Refill(bool watched) {
    const uint32_t before = posted_;
    while (posted_ < most_posted_) {
      RxBuffer& slot = slots_[to_use_];
      if (!source_.Take(slot)) {
        counters_.refill_failed.Add();
        break;
      }
      // The device writes as much as RCTL says, whatever the buffer is.
      if (slot.capacity < settings_.buffer_size) [[unlikely]] {
        source_.Put(slot);
        counters_.refill_failed.Add();
        break;
      }
      if (watched) [[unlikely]] {
        watch_.Posted(slot.iova, settings_.buffer_size, dma::Direction::kFromDevice,
                      RedZonesOf(source_));
      }
      ring_.at(to_use_)->Store(Encode(RxRead{.address = slot.iova.value()}));
      to_use_ = Next(to_use_);
      ++posted_;
    }
    // Always up to the last one: none waits unseen for more to come.
    if (posted_ != before) {
      registers_.Write32(OffsetOf(QueueReg::kTail), to_use_);
      counters_.doorbells.Add();
    }
    counters_.posted.Set(posted_);
  }

  // What the device has completed, and the frame that it had begun.
  void KeepUnread() {
    const bool watched = watch_.on();
    Packet packet;
    while (Ready()) {
      const DescriptorSlot& slot = *ring_.at(to_clean_);
      if (Deliver(slot, slot.lower.LoadAcquire(), packet, watched)) kept_.Keep(packet);
    }
    EndChain();
    counters_.kept.Set(kept_.size());
  }
  void EndChain() {
    if (chain_.count() != 0) counters_.left_at_stop.Add();
    chain_.Break(source_, /*last=*/true);
  }
  size_t ReceiveKept(std::span<Packet> burst) {
    uint64_t bytes = 0;
    const size_t got = kept_.Take(burst, bytes);
    counters_.frames.Add(got);
    counters_.bytes.Add(bytes);
    counters_.kept.Set(kept_.size());
    return got;
  }

  void Forget() {
    EndChain();
    ring_ = {};
    size_ = most_posted_ = posted_ = to_clean_ = to_use_ = 0;
    interrupt_ = {};
    counters_.posted.Set(0);
  }

  Source source_;
  RxSettings settings_;
  uint32_t size_ = 0;  // 0: not attached
  uint32_t most_posted_ = 0;
  uint32_t to_clean_ = 0;  // the oldest buffer the device has
  uint32_t to_use_ = 0;    // the next slot to fill: the tail
  uint32_t posted_ = 0;
  std::unique_ptr<RxBuffer[]> slots_;
  uint32_t slots_size_ = 0;
  Ring ring_;
  dma::MmioRegion registers_;
  RxInterrupt interrupt_;
  RingWatch watch_;
  RxChain chain_;
  KeptPackets kept_;

  RxCounters counters_;
};

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_RX_QUEUE_H_
