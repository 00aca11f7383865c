// SPDX-License-Identifier: Apache-2.0
//
// One receive queue of the enic model, and the choice of the queue: frames from the wire go through
// the packet filter and the RSS indirection to a queue, into the buffer its next descriptor names,
// and are completed with what the headers say about them. Used by the stepping thread only.
#ifndef DMAKIT_NIC_ENIC_MODEL_RX_H_
#define DMAKIT_NIC_ENIC_MODEL_RX_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nic/enic/commands.h"
#include "nic/enic/model_queue.h"
#include "nic/frame_info.h"

namespace dmakit::nic::enic {

// A frame on its way in, with what was decided about it.
struct Arrival {
  std::span<const std::byte> frame;
  FrameInfo info;
  uint32_t hash = 0;
  RssType hash_type = RssType::kNone;
  bool strip_vlan = false;
};

class ModelReceiveQueue : public ModelQueue {
 public:
  using ModelQueue::ModelQueue;

  enum class Outcome : uint8_t { kTaken, kNoBuffer, kStopped };
  Outcome Receive(const Arrival& arrival);
  // The frame could not be received: dropped_packet_count.
  void CountDrop();

 private:
  // Goes to the next buffer that may hold the start of a packet. False: there is none, or the queue
  // stopped.
  bool NextBuffer(RqEnetDesc& descriptor);
  bool WriteFrame(const Arrival& arrival, const RqEnetDesc& descriptor);
};

// What a received frame's completion says. Everything but index and queue.
CqEnetRqDesc DescribeFrame(const Arrival& arrival);

// The receive-side settings that commands change.
struct Steering {
  NicCfg config;
  std::array<std::byte, kRssKeyLength> key{};
  std::array<uint8_t, kRssCpuEntries> table{};

  // Hash and its type, as far as the configuration wants one.
  void Hash(Arrival& arrival) const;
  uint32_t Queue(const Arrival& arrival) const;
};

struct PacketFilter {
  uint32_t bits = 0;
  std::array<uint8_t, 6> mac{};
  bool Accepts(std::span<const std::byte> frame) const;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_MODEL_RX_H_
