// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/model_tx.h"

#include <optional>
#include <span>

namespace dmakit::nic::enic {

bool ModelWorkQueue::Step(Wire* wire, uint32_t budget) {
  if (!running()) return false;
  bool worked = false;
  uint32_t available = Available();
  for (; running() && available > 0 && budget > 0; --budget) {
    const Gathered gathered = Gather(available);
    if (gathered == Gathered::kIncomplete) return worked;
    worked = true;
    if (gathered == Gathered::kStopped) return true;
    if (!Send(wire)) return true;
    const uint32_t last = SlotAt(descriptors_ - 1);
    Advance(descriptors_);
    available -= descriptors_;
    if (!wants_entry_) continue;
    CqEnetWqDesc entry;
    entry.completed_index = static_cast<uint16_t>(last);
    entry.q_number = static_cast<uint16_t>(index());
    if (!Complete(Encode(entry), entry.type)) return true;
  }
  return worked;
}

// Enic sheet 7: from fetch_index to EOP.
ModelWorkQueue::Gathered ModelWorkQueue::Gather(uint32_t available) {
  frame_.clear();
  for (descriptors_ = 0; descriptors_ < available;) {
    const bool tso = descriptors_ > 0 && first_.offload_mode == OffloadMode::kTso;
    if (const uint32_t most = tso ? kMaxTsoDescriptors : kMaxTxDescriptors; descriptors_ == most) {
      Violate(Rule::kTooManyDescriptors, descriptors_ + 1, most);
      return Fail(QueueError::kTooManyDescriptors);
    }
    const std::optional<Words> words = Fetch(descriptors_);
    if (!words) return Gathered::kStopped;
    const WqEnetDesc descriptor = DecodeWq(*words);
    if (!Check(descriptor, *words, descriptors_ == 0, SlotAt(descriptors_))) {
      return Gathered::kStopped;
    }
    const size_t have = frame_.size();
    const uint32_t length = LengthOf(descriptor.length);
    if (descriptors_ == 0) first_ = descriptor;
    const bool cut = first_.offload_mode == OffloadMode::kTso;
    if (const uint32_t most = cut ? kMaxTsoPacket : kMaxTxFrame; have + length > most) {
      Violate(Rule::kFrameTooLong, have + length, most);
      return Fail(QueueError::kFrameTooLong);
    }
    frame_.resize(have + length);
    if (!port_.Read(Iova{descriptor.address}, std::span(frame_).subspan(have))) {
      return Fail(QueueError::kAddressFault);
    }
    ++descriptors_;
    wants_entry_ = descriptor.cq_entry;
    if (descriptor.eop) return Gathered::kPacket;
  }
  return Gathered::kIncomplete;
}

// What a packet asks for is in its first descriptor; later ones may repeat it or not (sheet 1.1).
bool ModelWorkQueue::Check(const WqEnetDesc& d, const Words& words, bool first, uint32_t slot) {
  if ((words.high & kWqReservedHigh) != 0) {
    Violate(Rule::kReservedBits, words.high & kWqReservedHigh);
  }
  if (d.cq_entry && !d.eop) Violate(Rule::kCqEntryWithoutEop, slot);
  if (!first) return true;
  if (d.offload_mode == OffloadMode::kReserved) {
    Violate(Rule::kOffloadMode, static_cast<uint64_t>(d.offload_mode));
    Stop(QueueError::kOffloadMode);
    return false;
  }
  return true;
}

// False: the request does not fit the packet, and the queue has stopped.
bool ModelWorkQueue::Send(Wire* wire) {
  const OffloadFault fault = finisher_.Run(frame_, first_, [wire](std::span<const std::byte> f) {
    if (wire != nullptr) wire->Accept(f);
  });
  const uint64_t asked = Encode(first_).high >> 16;  // mss, header length, mode, tag
  switch (fault) {
    case OffloadFault::kNone:
      return true;
    case OffloadFault::kHeaders:
      Violate(Rule::kOffloadHeaders, asked);
      break;
    case OffloadFault::kPreload:
      Violate(Rule::kChecksumPreload, asked);
      break;
    case OffloadFault::kTooLong:
      Violate(Rule::kFrameTooLong, uint64_t{first_.header_length} + first_.mss, kMaxTxFrame);
      Stop(QueueError::kFrameTooLong);
      return false;
    case OffloadFault::kUnknown:
      Violate(Rule::kUnsupportedOffload, asked);
      break;
  }
  Stop(QueueError::kOffloadMode);
  return false;
}

}  // namespace dmakit::nic::enic
