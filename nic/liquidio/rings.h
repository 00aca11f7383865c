// SPDX-License-Identifier: Apache-2.0
//
// The control side of a ring pair: memory, the registers that describe it to the device, and how
// the device is made to let go of it (liquidio sheet 1). One reset serves both directions of a
// ring. Set-up and stop only; one control thread. The datapaths are in rx_queue.h and tx_queue.h.
#ifndef DMAKIT_NIC_LIQUIDIO_RINGS_H_
#define DMAKIT_NIC_LIQUIDIO_RINGS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/mmio.h"
#include "dma/poll.h"
#include "dma/ring_pool.h"
#include "iova/types.h"
#include "nic/liquidio/descriptors.h"
#include "nic/liquidio/gather_list.h"
#include "nic/liquidio/registers.h"
#include "nic/liquidio/ring_slots.h"
#include "nic/liquidio/slot_memory.h"
#include "nic/teardown.h"

namespace dmakit::nic::liquidio {

// Both drivers' alignments are at least this; the sheet (1) knows of no rule.
inline constexpr uint32_t kRingAlignment = 128;

// Instructions per doorbell (sheet 4.2), and buffers per credit write (sheet 5.3).
inline constexpr uint32_t kDoorbellBatch = 8;
inline constexpr uint32_t kRefillBatch = 16;

// Where a packet's length is: in an info buffer beside the ring, or in front of its bytes.
enum class ReceiveMode : uint8_t { kInfo, kBuffer };

// Bytes of a receive buffer, unless asked otherwise (sheet 7).
inline constexpr uint32_t kInfoModeBuffer = 1536;
inline constexpr uint32_t kBufferModeBuffer = 1664;
inline constexpr uint32_t kMinBuffer = 128;  // more than stands in front of a frame
inline constexpr uint32_t kMaxBuffer = 65535;

template <SlotMemory Lists>
struct InputMemory {
  dma::RingPool<InstructionSlot> ring;
  Lists lists;

  void Quarantine(dma::Device& device, std::string_view owner, std::string_view reason) && {
    QuarantineRing(device, owner, reason, std::move(ring));
    std::move(lists).Quarantine(device, owner, reason);
  }
};
template <SlotMemory Infos>
struct OutputMemory {
  dma::RingPool<BufferSlot> ring;
  Infos infos;  // none in buffer mode

  void Quarantine(dma::Device& device, std::string_view owner, std::string_view reason) && {
    QuarantineRing(device, owner, reason, std::move(ring));
    std::move(infos).Quarantine(device, owner, reason);
  }
};

// What makes an output ring, beside its memory.
struct OutputSetUp {
  ReceiveMode mode = ReceiveMode::kInfo;
  uint32_t buffer_bytes = 0;
  uint32_t counter_start = 0;
  bool interrupt = false;
  dma::Nanos coalescing{0};
};

// What the instructions of every data packet of a queue have in common.
struct PacketWords {
  uint64_t ih3 = 0;
  uint64_t pki_ih3 = 0;
  uint64_t irh = 0;
};
PacketWords WordsOf(uint32_t queue);

// What ih3 says of a packet's length: pointers of a gather list, or bytes.
constexpr uint64_t LengthBits(bool gather, uint32_t n) {
  return Encode(Ih3{.gather = gather, .dlengsz = static_cast<uint16_t>(n)});
}

// --- Memory --------------------------------------------------------------------------------------

namespace internal {
// A slot that the device reads before it was filled is seen as nonsense and not as zeros.
void Poison(std::byte* data, Bytes size);

template <typename Slot>
absl::StatusOr<dma::RingPool<Slot>> AllocateRing(dma::Device& device, uint32_t entries,
                                                 const std::string& label) {
  auto ring = dma::RingPool<Slot>::Create(
      device, {.count = entries, .alignment = Bytes{kRingAlignment}, .label = label});
  if (ring.ok()) Poison(ring->data(), ring->size());
  return ring;
}
}  // namespace internal

template <SlotMemory Lists>
absl::StatusOr<InputMemory<Lists>> AllocateInput(dma::Device& device, uint32_t entries,
                                                 const std::string& label) {
  auto ring = internal::AllocateRing<InstructionSlot>(device, entries, label);
  if (!ring.ok()) return ring.status();
  auto lists = Lists::Create(device, {.count = entries,
                                      .entry_size = Bytes{kListBytes},
                                      .direction = dma::Direction::kToDevice,
                                      .label = label + " gather lists"});
  if (!lists.ok()) return lists.status();
  return InputMemory<Lists>{*std::move(ring), *std::move(lists)};
}

template <SlotMemory Infos>
absl::StatusOr<OutputMemory<Infos>> AllocateOutput(dma::Device& device, uint32_t entries,
                                                   const std::string& label, ReceiveMode mode) {
  auto ring = internal::AllocateRing<BufferSlot>(device, entries, label);
  if (!ring.ok()) return ring.status();
  OutputMemory<Infos> memory{*std::move(ring), {}};
  if (mode == ReceiveMode::kBuffer) return memory;
  auto infos = Infos::Create(device, {.count = entries,
                                      .entry_size = Bytes{kInfoBytes},
                                      .direction = dma::Direction::kFromDevice,
                                      .label = label + " info buffers"});
  if (!infos.ok()) return infos.status();
  memory.infos = *std::move(infos);
  return memory;
}

// --- Registers -----------------------------------------------------------------------------------

enum class Halt : uint8_t {
  kStopped,       // the device owns nothing of the ring any more
  kStillRunning,  // the time is up
  kGone,          // registers read all ones
};
std::string_view Describe(Halt halt);

// Sheet 1, step 1: both directions of the ring; its indices, counters and enables are gone.
Halt ResetRing(const dma::MmioRegion& ring, dma::Waiter& waiter, dma::Nanos timeout);

// Steps 2 and 3, 4: of every ring that was reset, used or not. Counters are left at
// `counter_start`.
void ClearInput(const dma::MmioRegion& ring, uint32_t counter_start);
void ClearOutput(const dma::MmioRegion& ring, uint32_t counter_start);

// Steps 5 and 7, 4, 6 and 7. Enabled is enabled until the next reset.
void EnableInput(const dma::MmioRegion& ring, Iova base, uint32_t entries);
void EnableOutput(const dma::MmioRegion& ring, Iova base, uint32_t entries,
                  const OutputSetUp& set_up);

// Whether a ring that was enabled runs: 0; 1: the device has stopped it; all ones: it is gone.
uint32_t InputError(const dma::MmioRegion& ring);
uint32_t OutputError(const dma::MmioRegion& ring);

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_RINGS_H_
