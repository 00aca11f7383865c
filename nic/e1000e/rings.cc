// SPDX-License-Identifier: Apache-2.0

#include "nic/e1000e/rings.h"

#include <string>
#include <utility>

#include "nic/e1000e/registers.h"

namespace dmakit::nic::e1000e {
namespace {

void Write(const dma::MmioRegion& queue, QueueReg reg, uint32_t value) {
  queue.Write32(OffsetOf(reg), value);
}

// Length and indices first: between the two halves of a base there is no ring.
void ProgramMemory(const dma::MmioRegion& queue, const Ring* ring) {
  Write(queue, QueueReg::kLength, 0);
  Write(queue, QueueReg::kHead, 0);
  Write(queue, QueueReg::kTail, 0);
  const uint64_t base = ring == nullptr ? 0 : ring->slots.iova().value();
  Write(queue, QueueReg::kBaseLow, static_cast<uint32_t>(base));
  Write(queue, QueueReg::kBaseHigh, static_cast<uint32_t>(base >> 32));
  Write(queue, QueueReg::kLength,
        ring == nullptr ? 0 : ring->entries * static_cast<uint32_t>(kDescriptorBytes));
  // No delay: a write-back is told of at once.
  Write(queue, QueueReg::kDelay, 0);
  Write(queue, QueueReg::kAbsoluteDelay, 0);
}

}  // namespace

absl::StatusOr<Ring> AllocateRing(dma::Device& device, uint32_t entries, std::string_view label) {
  auto slots = dma::RingPool<DescriptorSlot>::Create(
      device,
      {.count = entries + 1, .alignment = Bytes{kRingAlignment}, .label = std::string(label)});
  if (!slots.ok()) return slots.status();
  for (uint32_t i = 0; i < entries; ++i) slots->at(i)->Store({~uint64_t{0}, ~uint64_t{0}});
  return Ring{*std::move(slots), entries};
}

void ProgramRx(const dma::MmioRegion& queue, const Ring* ring) {
  ProgramMemory(queue, ring);
  Write(queue, QueueReg::kControl, dctl::kRx);
}

// Both queues have the same TXDCTL (sheet 2, an erratum).
void ProgramTx(const dma::MmioRegion& queue, const Ring* ring, uint32_t index) {
  ProgramMemory(queue, ring);
  Write(queue, QueueReg::kControl, dctl::kTx);
  uint32_t arbitration = tarc::kCount | tarc::kEnable;
  if (index == 0) arbitration |= tarc::kErratum26;
  Write(queue, QueueReg::kArbitration, arbitration);
}

}  // namespace dmakit::nic::e1000e
