// SPDX-License-Identifier: Apache-2.0
//
// PostedRing: the buffers that an output queue has given to the device (liquidio sheet 5.1, 5.3):
// its ring, what stands in each slot, and in info mode the info buffers beside it. First posted,
// first taken; the whole ring may be posted. It knows nothing of packets and registers.
//
//   slots   free           posted: the device owns them               free
//          |      |  oldest ..................................  next  |      |
//
// Thread: the queue's.
#ifndef DMAKIT_NIC_LIQUIDIO_POSTED_RING_H_
#define DMAKIT_NIC_LIQUIDIO_POSTED_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "dma/types.h"
#include "nic/liquidio/ring_slots.h"
#include "nic/liquidio/rings.h"
#include "nic/liquidio/slot_memory.h"
#include "nic/queue.h"
#include "nic/ring_watch.h"

namespace dmakit::nic::liquidio {

template <RxBufferSource Source, SlotMemory Infos>
class PostedRing {
 public:
  explicit PostedRing(Source source) : source_(std::move(source)) {}

  void Attach(OutputMemory<Infos> memory, RingWatch watch, ReceiveMode mode,
              uint32_t buffer_bytes) {
    memory_ = std::move(memory);
    watch_ = std::move(watch);
    mode_ = mode;
    buffer_bytes_ = buffer_bytes;
    size_ = memory_.ring.count();
    if (slots_size_ != size_) slots_ = std::make_unique<RxBuffer[]>(size_);
    slots_size_ = size_;
    oldest_ = next_ = posted_ = 0;
  }
  OutputMemory<Infos> Detach() {
    size_ = posted_ = oldest_ = next_ = 0;
    return std::move(memory_);
  }

  uint32_t size() const { return size_; }  // 0: not attached
  uint32_t posted() const { return posted_; }
  uint32_t buffer_bytes() const { return buffer_bytes_; }
  Source& source() { return source_; }
  ReceiveMode mode() const { return mode_; }
  bool watched() const { return watch_.on(); }
  uint64_t info_maps() const { return memory_.infos.maps(); }

  // Fills the next slot; there is a free one. The device may not know before its credits say so.
  // False: no buffer is to be had now, and there is no hole.
  bool Post(bool watched) {
    RxBuffer& slot = slots_[next_];
    if (!source_.Take(slot)) return false;
    Iova info{0};
    if (slot.capacity < buffer_bytes_ || !GiveInfo(info)) [[unlikely]] {
      source_.Put(slot);
      return false;
    }
    if (watched) [[unlikely]]
      watch_.Posted(slot.iova, buffer_bytes_, dma::Direction::kFromDevice, RedZonesOf(source_));
    BufferSlot& to = *memory_.ring.at(next_);
    to.buffer.Store(slot.iova.value());
    to.info.Store(info.value());
    next_ = Behind(next_);
    ++posted_;
    return true;
  }

  // --- The oldest slot, of which there must be one ---

  const RxBuffer& oldest() const { return slots_[oldest_]; }
  const std::byte* oldest_data() const { return oldest().page->base + oldest().offset; }

  // Info mode. What the device says of it; both words are read once.
  uint64_t info_length() const { return Info(oldest_)->length.Load(); }
  uint64_t info_header() const { return Info(oldest_)->header.Load(); }
  // Its info buffer becomes the CPU's; or goes back to the device.
  void TakeInfo() {
    if (mode_ == ReceiveMode::kInfo) memory_.infos.Take(oldest_);
  }
  void GiveInfoBack() {
    Iova same;
    if (mode_ == ReceiveMode::kInfo) static_cast<void>(memory_.infos.Give(oldest_, same));
  }

  // The device has let go of the buffer, and says it wrote `written`; once, before the CPU looks.
  void Complete(uint32_t written, bool watched) {
    if (watched) [[unlikely]]
      watch_.Completed(oldest().iova, written);
    source_.OnReceived(oldest(), written);
  }
  // It leaves the ring; whoever calls has the buffer now.
  const RxBuffer& Pop() {
    const RxBuffer& buffer = slots_[oldest_];
    oldest_ = Behind(oldest_);
    --posted_;
    __builtin_prefetch(&slots_[oldest_]);
    return buffer;
  }
  // It leaves the ring unused.
  void PutBack(bool watched) {
    if (watched) [[unlikely]]
      watch_.Completed(oldest().iova, 0);
    source_.Put(Pop());
  }

  // Info mode: how many slots ahead of the oldest is the next of which the device says anything;
  // posted() if there is none. The oldest says nothing.
  uint32_t SilentAhead() {
    uint32_t slot = Behind(oldest_);
    uint32_t ahead = 1;
    for (; ahead < posted_; ++ahead, slot = Behind(slot)) {
      Iova same;
      memory_.infos.Take(slot);
      if (Info(slot)->length.Load() != 0) break;
      static_cast<void>(memory_.infos.Give(slot, same));
    }
    return ahead;
  }

 private:
  uint32_t Behind(uint32_t slot) const { return slot + 1 == size_ ? 0 : slot + 1; }
  InfoSlot* Info(uint32_t slot) const {
    return reinterpret_cast<InfoSlot*>(memory_.infos.at(slot));
  }
  // Length 0 says nothing (sheet 5.2); never touched again until it was taken back.
  bool GiveInfo(Iova& iova) {
    if (mode_ != ReceiveMode::kInfo) return true;
    Info(next_)->header.Store(0);
    Info(next_)->length.Store(0);
    return memory_.infos.Give(next_, iova);
  }

  Source source_;
  uint32_t size_ = 0;
  uint32_t buffer_bytes_ = 0;
  ReceiveMode mode_ = ReceiveMode::kInfo;
  uint32_t oldest_ = 0;
  uint32_t next_ = 0;
  uint32_t posted_ = 0;
  std::unique_ptr<RxBuffer[]> slots_;
  uint32_t slots_size_ = 0;
  RingWatch watch_;
  OutputMemory<Infos> memory_;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_POSTED_RING_H_
