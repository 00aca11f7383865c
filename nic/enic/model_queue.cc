// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/model_queue.h"

#include <algorithm>
#include <array>
#include <span>

#include "nic/enic/model_hostile.h"

namespace dmakit::nic::enic {

// --- Completions ---------------------------------------------------------------------------------

// Enic sheet 2.4: color and entries on; messages and flow control are not modelled.
bool CompletionWriter::CheckSetup() {
  RegisterBlock& cq = registers_.cq(index_);
  const Place place{Block::kCq, index_};
  bool good = true;
  const auto check = [&](bool ok, Rule rule, uint64_t value) {
    if (ok) return;
    log_.Record(rule, place, value);
    good = false;
  };
  check(cq.Get(CqReg::kRingBase) % kRingAlignment == 0, Rule::kRingBase, cq.Get(CqReg::kRingBase));
  const uint64_t size = RingEntries(cq.Get(CqReg::kRingSize));
  check(IsRingSize(size), Rule::kRingSize, size);
  check(cq.Get(CqReg::kTail) < size, Rule::kFetchIndex, cq.Get(CqReg::kTail));
  const uint64_t bits = cq.Get(CqReg::kColorEnable) | cq.Get(CqReg::kEntryEnable) << 1 |
                        cq.Get(CqReg::kMessageEnable) << 2 | cq.Get(CqReg::kFlowControlEnable) << 3;
  check(bits == 3, Rule::kCqSetup, bits);
  if (cq.Get(CqReg::kInterruptEnable) != 0) {
    const uint64_t interrupt = cq.Get(CqReg::kInterruptOffset);
    check(interrupt < interrupts_.size(), Rule::kInterruptOffset, interrupt);
  }
  return good;
}

bool CompletionWriter::Write(Words entry, CqType type, const ModelQueue& queue, uint64_t sequence) {
  const uint64_t size = RingEntries(registers_.cq(index_).Get(CqReg::kRingSize));
  const auto proven = [](const Unproven& u) {
    return u.queue->posted_sequence() >= u.sequence + u.queue->size();
  };
  while (!unproven_.empty() && proven(unproven_.front())) unproven_.pop_front();
  // An idle queue's entry may hold up the others' behind it.
  if (unproven_.size() >= size) std::erase_if(unproven_, proven);
  if (unproven_.size() >= size) log_.Record(Rule::kCqOverflow, {Block::kCq, index_}, size);
  unproven_.push_back({&queue, sequence});

  return Append(entry, type);
}

bool CompletionWriter::Append(Words entry, CqType type) {
  const Slot slot = Claim();
  const std::array<std::byte, kDescriptorBytes> bytes = ToBytes(entry);
  return port_.Write(slot.at, std::span(bytes).first(kColorByte)) &&
         port_.Publish(slot.at + Bytes{kColorByte}, TypeColor(type, slot.color), 1);
}

CompletionWriter::Slot CompletionWriter::Claim() {
  RegisterBlock& cq = registers_.cq(index_);
  const uint64_t size = RingEntries(cq.Get(CqReg::kRingSize));
  const uint64_t tail = cq.Get(CqReg::kTail);
  const bool color = cq.Get(CqReg::kTailColor) != 0;
  const bool last = tail + 1 >= size;
  cq.Set(CqReg::kTail, last ? 0 : tail + 1);
  if (last) cq.Set(CqReg::kTailColor, color ? 0 : 1);
  if (cq.Get(CqReg::kInterruptEnable) != 0) interrupts_[cq.Get(CqReg::kInterruptOffset)].Credit();
  return {Iova{cq.Get(CqReg::kRingBase)} + Bytes{tail * kDescriptorBytes}, color};
}

void CompletionWriter::Forget(const ModelQueue& queue) {
  std::erase_if(unproven_, [&](const Unproven& u) { return u.queue == &queue; });
}

// --- Queues --------------------------------------------------------------------------------------

bool ModelQueue::UpdateEnable() {
  const bool enable = block_.Get(RqReg::kEnable) != 0;
  if (!enable) {
    if (!running_ && error_ == QueueError::kNone) return false;
    if (running_) {
      registers_.cq(cq_).users.fetch_sub(1, std::memory_order_acq_rel);
      completions_[cq_].Forget(*this);
    }
    running_ = false;
    error_ = QueueError::kNone;
    // Everything was done packet by packet, so there is none to finish.
    block_.Set(RqReg::kRunning, 0);
    return true;
  }
  if (running_ || error_ != QueueError::kNone) return false;
  if (!CheckSetup()) {
    Stop(QueueError::kSetup);
    return true;
  }
  fetch_sequence_ = posted_sequence_ = 0;
  posted_ = fetch_;
  running_ = true;
  registers_.cq(cq_).users.fetch_add(1, std::memory_order_acq_rel);
  block_.Set(RqReg::kRunning, 1);
  return true;
}

bool ModelQueue::CheckSetup() {
  base_ = block_.Get(RqReg::kRingBase);
  const uint64_t size = RingEntries(block_.Get(RqReg::kRingSize));
  const uint64_t fetch = block_.Get(RqReg::kFetchIndex);
  const uint64_t cq = block_.Get(RqReg::kCqIndex);
  bool good = true;
  const auto check = [&](bool ok, Rule rule, uint64_t value) {
    if (ok) return;
    Violate(rule, value);
    good = false;
  };
  check(base_ % kRingAlignment == 0, Rule::kRingBase, base_);
  check(IsRingSize(size), Rule::kRingSize, size);
  check(fetch < size, Rule::kFetchIndex, fetch);
  check(cq < completions_.size(), Rule::kCqIndex, cq);
  if (!good || !completions_[cq].CheckSetup()) return false;
  size_ = static_cast<uint32_t>(size);
  fetch_ = static_cast<uint32_t>(fetch);
  cq_ = static_cast<uint32_t>(cq);
  return true;
}

void ModelQueue::Abandon() {
  if (running_) completions_[cq_].Forget(*this);
  running_ = false;
  error_ = QueueError::kNone;
}

uint32_t ModelQueue::Available() {
  const uint64_t posted = block_.Get(RqReg::kPostedIndex);
  if (posted >= size_) {
    Stop(QueueError::kPostedIndex);
    return 0;
  }
  posted_sequence_ += (posted + size_ - posted_) % size_;
  posted_ = static_cast<uint32_t>(posted);
  const uint32_t available = (posted_ + size_ - fetch_) % size_;
  return hostile_ == nullptr ? available : std::min(available, hostile_->Room(*this));
}

std::optional<Words> ModelQueue::Fetch(uint32_t ahead) {
  std::array<std::byte, kDescriptorBytes> bytes;
  const Iova slot = Iova{base_} + Bytes{SlotAt(ahead) * kDescriptorBytes};
  if (!port_.Read(slot, bytes)) {
    Stop(QueueError::kAddressFault);
    return std::nullopt;
  }
  return FromBytes(bytes);
}

void ModelQueue::Advance(uint32_t count) {
  fetch_ = SlotAt(count);
  fetch_sequence_ += count;
  // Before the completion is published: a driver that has seen it may post up to this index.
  block_.Set(RqReg::kFetchIndex, fetch_);
}

bool ModelQueue::Complete(Words entry, CqType type) {
  CompletionWriter& cq = completions_[cq_];
  if (hostile_ != nullptr ? hostile_->Complete(cq, *this, entry, type)
                          : cq.Write(entry, type, *this, fetch_sequence_ - 1)) {
    return true;
  }
  Stop(QueueError::kAddressFault);
  return false;
}

void ModelQueue::Stop(QueueError error) {
  if (running_) {
    registers_.cq(cq_).users.fetch_sub(1, std::memory_order_acq_rel);
    completions_[cq_].Forget(*this);
  }
  running_ = false;
  error_ = error;
  const size_t status =
      place_.block == Block::kWq ? OffsetOf(WqReg::kErrorStatus) : OffsetOf(RqReg::kErrorStatus);
  block_.word(status).store(static_cast<uint64_t>(error), std::memory_order_release);
  block_.Set(RqReg::kRunning, 0);
}

}  // namespace dmakit::nic::enic
