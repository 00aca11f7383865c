// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/rings.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/enic/registers.h"

namespace dmakit::nic::enic {
namespace {

constexpr Words kPoison = {~uint64_t{0}, ~uint64_t{0}};

template <typename Reg>
void Write(const dma::MmioRegion& block, Reg reg, uint32_t value) {
  block.Write32(OffsetOf(reg), value);
}

// Enic sheet 2.4: the ring memory is zero before tail and color are written.
void ProgramCq(const QueueRegisters& registers, const dma::RingPool<CqSlot>& ring) {
  const dma::MmioRegion& cq = registers.completions;
  cq.Write64(OffsetOf(CqReg::kRingBase), ring.iova().value());
  Write(cq, CqReg::kRingSize, ring.count());
  Write(cq, CqReg::kFlowControlEnable, 0);
  Write(cq, CqReg::kColorEnable, 1);
  Write(cq, CqReg::kHead, 0);
  Write(cq, CqReg::kTail, 0);
  Write(cq, CqReg::kTailColor, 1);
  Write(cq, CqReg::kInterruptEnable, registers.interrupt ? 1 : 0);
  Write(cq, CqReg::kEntryEnable, 1);
  Write(cq, CqReg::kMessageEnable, 0);
  Write(cq, CqReg::kInterruptOffset, registers.interrupt.value_or(0));
  cq.Write64(OffsetOf(CqReg::kMessageAddr), 0);
}

// `running` has one offset in both kinds of queue.
static_assert(OffsetOf(RqReg::kEnable) == OffsetOf(WqReg::kEnable));
static_assert(OffsetOf(RqReg::kRunning) == OffsetOf(WqReg::kRunning));

Halt Disable(const dma::MmioRegion& queue, dma::Waiter& waiter, dma::Nanos timeout) {
  Write(queue, RqReg::kEnable, 0);
  uint32_t running = 0;
  const bool answered = dma::PollUntil(waiter, timeout, [&] {
    running = queue.Read32(OffsetOf(RqReg::kRunning));
    return running == 0 || running == kAllOnes;
  });
  if (running == kAllOnes) return Halt::kGone;
  return answered ? Halt::kStopped : Halt::kStillRunning;
}

}  // namespace

absl::StatusOr<QueueMemory> AllocateQueue(dma::Device& device, uint32_t entries,
                                          std::string_view label) {
  const std::string name(label);
  auto ring = dma::RingPool<DescriptorSlot>::Create(
      device, {.count = entries, .alignment = Bytes{kRingAlignment}, .label = name});
  if (!ring.ok()) return ring.status();
  auto completions =
      dma::RingPool<CqSlot>::Create(device, {.count = entries,
                                             .alignment = Bytes{kRingAlignment},
                                             .label = absl::StrCat(name, " completions")});
  if (!completions.ok()) return completions.status();
  for (uint32_t i = 0; i < entries; ++i) ring->at(i)->Store(kPoison);
  return QueueMemory{*std::move(ring), *std::move(completions)};
}

void ProgramRq(const QueueRegisters& registers, const QueueMemory& memory) {
  ProgramCq(registers, memory.completions);
  const dma::MmioRegion& rq = registers.queue;
  rq.Write64(OffsetOf(RqReg::kRingBase), memory.ring.iova().value());
  Write(rq, RqReg::kRingSize, memory.ring.count());
  Write(rq, RqReg::kFetchIndex, 0);
  Write(rq, RqReg::kPostedIndex, 0);
  Write(rq, RqReg::kCqIndex, registers.completion_index);
  Write(rq, RqReg::kErrorInterruptEnable, 0);
  Write(rq, RqReg::kErrorInterruptOffset, 0);
  Write(rq, RqReg::kErrorStatus, 0);
}

void ProgramWq(const QueueRegisters& registers, const QueueMemory& memory) {
  ProgramCq(registers, memory.completions);
  const dma::MmioRegion& wq = registers.queue;
  wq.Write64(OffsetOf(WqReg::kRingBase), memory.ring.iova().value());
  Write(wq, WqReg::kRingSize, memory.ring.count());
  Write(wq, WqReg::kFetchIndex, 0);
  Write(wq, WqReg::kPostedIndex, 0);
  Write(wq, WqReg::kCqIndex, registers.completion_index);
  Write(wq, WqReg::kDcaValue, 0);
  Write(wq, WqReg::kErrorInterruptEnable, 0);
  Write(wq, WqReg::kErrorInterruptOffset, 0);
  Write(wq, WqReg::kErrorStatus, 0);
}

std::string_view Describe(Halt halt) {
  switch (halt) {
    case Halt::kStopped:
      return "stopped";
    case Halt::kStillRunning:
      return "still running when the stop deadline passed";
    case Halt::kGone:
      return "the device is gone: its registers read all ones";
  }
  return "?";
}

Halt Quiesce(const dma::MmioRegion& queue, dma::Waiter& waiter, dma::Nanos timeout) {
  return Disable(queue, waiter, timeout);
}

// Enic sheet 3.4.
Halt HaltRq(const dma::MmioRegion& rq, dma::Waiter& waiter, dma::Nanos timeout) {
  for (int pass = 0; pass < 2; ++pass) {
    const Halt halt = Disable(rq, waiter, timeout);
    if (halt != Halt::kStopped) return halt;
  }
  uint32_t fetch = rq.Read32(OffsetOf(RqReg::kFetchIndex));
  if (fetch == kAllOnes) fetch = 0;
  Write(rq, RqReg::kPostedIndex, fetch);
  Write(rq, RqReg::kEnable, 0);
  return Halt::kStopped;
}

Halt HaltWq(const dma::MmioRegion& wq, dma::Waiter& waiter, dma::Nanos timeout) {
  return Disable(wq, waiter, timeout);
}

void CleanWq(const dma::MmioRegion& wq) {
  Write(wq, WqReg::kFetchIndex, 0);
  Write(wq, WqReg::kPostedIndex, 0);
  Write(wq, WqReg::kErrorStatus, 0);
}

}  // namespace dmakit::nic::enic
