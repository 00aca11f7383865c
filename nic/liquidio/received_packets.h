// SPDX-License-Identifier: Apache-2.0
//
// ReceivedPackets: how the buffers of a PostedRing become packets again (liquidio sheet 5.2). What
// the device says in front of a packet is read once and checked against what is posted.
//
// In info mode a slot that says nothing waits (its length was 0 when it was posted), and the next
// one that does sets the ring right again. In buffer mode there is nothing to tell such a slot by.
//
// Thread: the queue's.
#ifndef DMAKIT_NIC_LIQUIDIO_RECEIVED_PACKETS_H_
#define DMAKIT_NIC_LIQUIDIO_RECEIVED_PACKETS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "nic/liquidio/posted_ring.h"
#include "nic/liquidio/rings.h"
#include "nic/liquidio/rx_header.h"
#include "nic/liquidio/slot_memory.h"
#include "nic/packet.h"
#include "nic/queue.h"
#include "nic/queue_counters.h"

namespace dmakit::nic::liquidio {

// kNothing: the device has said nothing yet, the packet is still there.
enum class Found : uint8_t { kFrame, kNoFrame, kNothing };

template <RxBufferSource Source, SlotMemory Infos>
class ReceivedPackets : public PostedRing<Source, Infos> {
  using Posted = PostedRing<Source, Infos>;

 public:
  using Posted::Posted;

  // Takes the oldest packet, of which there must be one, and its buffers out of the ring. What is
  // no frame for the application is counted, and its buffers go back. `max_frame`: longer ones are
  // truncated.
  Found TakePacket(Packet& packet, uint32_t max_frame, RxCounters& counters, bool watched) {
    RxHeader header;
    const bool info = this->mode() == ReceiveMode::kInfo;
    if (info) [[likely]] {
      this->TakeInfo();
      uint64_t length = this->info_length();
      if (length == 0 && !SkipSilent(length, counters, watched)) [[unlikely]]
        return Found::kNothing;
      header = ParseInfo(this->info_header(), length, this->buffer_bytes(), this->posted());
    } else {
      // The length is in the buffer, so all of it is taken before it is known.
      this->Complete(this->buffer_bytes(), watched);
      const std::byte* const data = this->oldest_data();
      const uint64_t length = LoadWord(data);
      header = ParseBuffer(LoadWord(data + 8), length, this->buffer_bytes(), this->posted());
    }
    if (header.buffers != 0 && IsFrame(header.rh) && Fits(header, max_frame)) [[likely]] {
      Assemble(header, packet, watched);
      return Found::kFrame;
    }
    Discard(header, counters, watched);
    return Found::kNoFrame;
  }

  // The device's counter has moved: a slot that said nothing may say something now.
  void LookAgain() { silent_ = false; }
  // Info mode: the device has delivered the oldest slot, whatever its counter says.
  bool SaysSomething() const {
    return this->mode() == ReceiveMode::kInfo && this->info_length() != 0;
  }

 private:
  static bool Fits(const RxHeader& header, uint32_t max_frame) {
    return header.buffers <= Packet::kMaxSegments && header.used - header.skip <= max_frame;
  }

  // Takes the packet's buffers out of the ring. What comes with the first has been taken; the info
  // buffers of the others say nothing.
  template <typename Use>
  void TakeBuffers(const RxHeader& header, bool watched, Use&& use) {
    const bool info = this->mode() == ReceiveMode::kInfo;
    uint32_t left = header.used;
    for (uint32_t i = 0; i < std::max(header.buffers, 1u); ++i) {
      const uint32_t here = std::min(left, this->buffer_bytes());
      if (i != 0) this->TakeInfo();
      if (i != 0 || info) this->Complete(here, watched);
      use(this->Pop(), here);
      left -= here;
    }
  }

  void Assemble(const RxHeader& header, Packet& packet, bool watched) {
    packet.segment_count = 0;
    TakeBuffers(header, watched, [&](const RxBuffer& buffer, uint32_t here) {
      if (packet.segment_count != 0) {
        packet.segments[packet.segment_count++] = {buffer.page, buffer.offset, here};
        packet.length += here;
        return;
      }
      packet.ResetTo({buffer.page, buffer.offset + header.skip, here - header.skip});
      __builtin_prefetch(packet.segments[0].data());
      if (header.hashed) {
        packet.hash = ReadHash(header, this->mode(), buffer.page->base + buffer.offset);
      }
    });
    packet.rx = RxFlagsOf(header.rh);
    packet.vlan = TciOf(header.rh);
    packet.hash_type = 0;
  }

  // A packet that is no good, or no frame. How many buffers an impossible one took nobody knows; it
  // costs one.
  void Discard(const RxHeader& header, RxCounters& counters, bool watched) {
    if (header.buffers == 0) {
      counters.bad_completions.Add();
    } else if (IsFrame(header.rh)) {
      counters.truncated.Add();
    } else {
      counters.skipped.Add(header.buffers);
    }
    TakeBuffers(header, watched,
                [&](const RxBuffer& buffer, uint32_t) { this->source().Put(buffer); });
  }

  // The oldest slot says nothing although a packet was counted. Looks for one that does, once for
  // each time the counter moved; the slots before it come back unused. False: there is none.
  [[gnu::noinline]] bool SkipSilent(uint64_t& length, RxCounters& counters, bool watched) {
    const uint32_t ahead = silent_ ? this->posted() : this->SilentAhead();
    if (ahead == this->posted()) {
      if (!silent_) counters.bad_completions.Add();
      silent_ = true;
      this->GiveInfoBack();
      return false;
    }
    for (uint32_t i = 0; i < ahead; ++i) {
      if (i != 0) this->TakeInfo();
      this->PutBack(watched);
      counters.skipped.Add();
    }
    length = this->info_length();
    if (length == 0) this->GiveInfoBack();
    return length != 0;
  }

  bool silent_ = false;  // no slot said anything, and the counter has not moved since
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_RECEIVED_PACKETS_H_
