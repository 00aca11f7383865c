// SPDX-License-Identifier: Apache-2.0
//
// One work queue of the enic model: gathers packets from descriptors, finishes them as the first
// descriptor asks, and puts them on the wire. A request that does not fit the packet stops the
// queue and is a violation. Used by the stepping thread only.
#ifndef DMAKIT_NIC_ENIC_MODEL_TX_H_
#define DMAKIT_NIC_ENIC_MODEL_TX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nic/enic/model_offload.h"
#include "nic/enic/model_queue.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::enic {

class ModelWorkQueue : public ModelQueue {
 public:
  using ModelQueue::ModelQueue;

  // Sends up to `budget` packets to `wire` (nullptr: to nobody). True if it did anything.
  bool Step(Wire* wire, uint32_t budget);

 private:
  enum class Gathered : uint8_t { kPacket, kIncomplete, kStopped };

  Gathered Gather(uint32_t available);
  bool Check(const WqEnetDesc& descriptor, const Words& words, bool first, uint32_t slot);
  Gathered Fail(QueueError error) {
    Stop(error);
    return Gathered::kStopped;
  }

  bool Send(Wire* wire);

  std::vector<std::byte> frame_;
  WqEnetDesc first_;
  TxFinisher finisher_;
  uint32_t descriptors_ = 0;  // of the packet in frame_
  bool wants_entry_ = false;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_MODEL_TX_H_
