// SPDX-License-Identifier: Apache-2.0
//
// The control side of a queue: its ring and completion ring, the registers that describe them to
// the device, and how the device is made to let go of them (enic sheet 2.2 to 2.4, 3.4). Set-up
// and stop only; one control thread. The datapaths are in rx_queue.h and tx_queue.h.
#ifndef DMAKIT_NIC_ENIC_RINGS_H_
#define DMAKIT_NIC_ENIC_RINGS_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/mmio.h"
#include "dma/poll.h"
#include "dma/ring_pool.h"
#include "nic/enic/descriptors.h"
#include "nic/enic/ring_slots.h"

namespace dmakit::nic::enic {

// A completion queue serves one ring and has as many entries: one slot of the ring stays unused, so
// there are never more completions outstanding than it holds (sheet 3).
struct QueueMemory {
  dma::RingPool<DescriptorSlot> ring;
  dma::RingPool<CqSlot> completions;
};

// The ring is poisoned: a slot that the device reads before it was filled is seen as nonsense and
// not as zeros. The completion ring is zero: that is what its first lap is told from.
absl::StatusOr<QueueMemory> AllocateQueue(dma::Device& device, uint32_t entries,
                                          std::string_view label);

// The registers of one queue, its own and its completion queue's.
struct QueueRegisters {
  dma::MmioRegion queue;
  dma::MmioRegion completions;
  uint32_t completion_index = 0;
  std::optional<uint32_t> interrupt{};  // that completions raise
};

// Both need a queue that does not run (see Quiesce).
void ProgramRq(const QueueRegisters& registers, const QueueMemory& memory);
void ProgramWq(const QueueRegisters& registers, const QueueMemory& memory);

enum class Halt : uint8_t {
  kStopped,       // the device owns nothing of the queue any more
  kStillRunning,  // the time is up
  kGone,          // registers read all ones
};
std::string_view Describe(Halt halt);

// Before set-up: whoever used the queue earlier must have stopped.
Halt Quiesce(const dma::MmioRegion& queue, dma::Waiter& waiter, dma::Nanos timeout);
// A receive queue is disabled twice (the device may have descriptors cached), then resynchronised.
Halt HaltRq(const dma::MmioRegion& rq, dma::Waiter& waiter, dma::Nanos timeout);
Halt HaltWq(const dma::MmioRegion& wq, dma::Waiter& waiter, dma::Nanos timeout);
// After a stopped WQ's packets were released.
void CleanWq(const dma::MmioRegion& wq);

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_RINGS_H_
