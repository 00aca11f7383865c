// SPDX-License-Identifier: Apache-2.0
//
// What the work and receive queues of the enic model have in common: becoming enabled and disabled,
// the indices, fetching descriptors, and writing completions. Used by the stepping thread only.
#ifndef DMAKIT_NIC_ENIC_MODEL_QUEUE_H_
#define DMAKIT_NIC_ENIC_MODEL_QUEUE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "dma/device_port.h"
#include "nic/enic/descriptors.h"
#include "nic/enic/model_interrupt.h"
#include "nic/enic/model_registers.h"
#include "nic/enic/model_violations.h"
#include "nic/enic/registers.h"

namespace dmakit::nic::enic {

// What error_status says. The sheet knows only "not zero".
enum class QueueError : uint32_t {
  kNone = 0,
  kSetup = 1,         // base, size or completion queue impossible
  kAddressFault = 2,  // the IOMMU refused a descriptor, a buffer or a completion
  kPostedIndex = 3,
  kFrameTooLong = 4,
  kTooManyDescriptors = 5,
  kOffloadMode = 6,
  kDescriptorType = 7,
  kInternal = 8,  // a hostile device's own failure
};

class Hostile;
class ModelQueue;

// Writes completions. One per completion queue, and what it needs to see an overflow: a slot of a
// WQ or RQ that was posted again proves that its driver has read the completion of that slot's last
// use, so an entry that finds as many unproven ones as the ring holds may destroy an unread one.
class CompletionWriter {
 public:
  CompletionWriter(dma::DevicePort& port, RegisterFile& registers, ViolationLog& log,
                   std::deque<ModelInterrupt>& interrupts, uint32_t index)
      : port_(port), registers_(registers), log_(log), interrupts_(interrupts), index_(index) {}

  // Whether the registers describe a queue that can be used; what is wrong goes to the log.
  bool CheckSetup();
  // Bytes 0 to 14 of `entry` first, then byte 15, with the color, as a release. False: fault.
  // `sequence` counts the descriptors of `queue`; the entry is for that one.
  bool Write(Words entry, CqType type, const ModelQueue& queue, uint64_t sequence);
  // The same, without a look at whether there is room.
  bool Append(Words entry, CqType type);
  // Takes the slot at the tail, for who writes it himself.
  struct Slot {
    Iova at;
    bool color = false;
  };
  Slot Claim();
  void Forget(const ModelQueue& queue);

 private:
  struct Unproven {
    const ModelQueue* queue = nullptr;
    uint64_t sequence = 0;
  };
  dma::DevicePort& port_;
  RegisterFile& registers_;
  ViolationLog& log_;
  std::deque<ModelInterrupt>& interrupts_;
  const uint32_t index_;
  std::deque<Unproven> unproven_;
};

// The registers that both kinds of queue have at one place.
class ModelQueue {
 public:
  ModelQueue(Block kind, uint32_t index, dma::DevicePort& port, RegisterBlock& block,
             RegisterFile& registers, ViolationLog& log, std::deque<CompletionWriter>& completions)
      : place_{kind, index},
        port_(port),
        block_(block),
        registers_(registers),
        log_(log),
        completions_(completions) {}

  // Follows the enable register. True if something changed.
  bool UpdateEnable();
  // The device as a whole was reset.
  void Abandon();
  // The queue runs no more, until it was disabled.
  void Stop(QueueError error);
  // Completions go through it from now on. It outlives the queue.
  void set_hostile(Hostile* hostile) { hostile_ = hostile; }

  bool running() const { return running_; }
  bool in_error() const { return error_ != QueueError::kNone; }
  Place place() const { return place_; }
  uint32_t index() const { return place_.index; }
  uint32_t size() const { return size_; }
  uint64_t posted_sequence() const { return posted_sequence_; }

 protected:
  // Takes in posted_index. Descriptors that may be fetched; an index out of range stops the queue.
  uint32_t Available();
  // Reads the descriptor `ahead` of fetch_index. Nothing: fault, the queue has stopped.
  std::optional<Words> Fetch(uint32_t ahead);
  uint32_t SlotAt(uint32_t ahead) const { return (fetch_ + ahead) % size_; }
  // The device is done with `count` descriptors.
  void Advance(uint32_t count);
  // Completes the last descriptor that Advance went over.
  bool Complete(Words entry, CqType type);
  void Violate(Rule rule, uint64_t value, uint64_t limit = 0) {
    log_.Record(rule, place_, value, limit);
  }

  const Place place_;
  dma::DevicePort& port_;
  RegisterBlock& block_;

 private:
  bool CheckSetup();

  RegisterFile& registers_;
  ViolationLog& log_;
  std::deque<CompletionWriter>& completions_;
  Hostile* hostile_ = nullptr;

  bool running_ = false;
  QueueError error_ = QueueError::kNone;
  uint64_t base_ = 0;
  uint32_t size_ = 0;
  uint32_t cq_ = 0;
  uint32_t fetch_ = 0;
  uint32_t posted_ = 0;
  uint64_t fetch_sequence_ = 0;  // descriptors since the queue was enabled
  uint64_t posted_sequence_ = 0;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_MODEL_QUEUE_H_
