// SPDX-License-Identifier: Apache-2.0
//
// Chip: an 82574L apart from its queues: a reset that trusts nothing which an earlier driver left,
// the MAC address, what it accepts, the registers of its rings, interrupts, link and statistics,
// and how it is made to let go of memory (e1000e sheet 1, 2). Set-up and stop: one control thread.
// link_up and counters: any thread, while registers are there.
#ifndef DMAKIT_NIC_E1000E_CHIP_H_
#define DMAKIT_NIC_E1000E_CHIP_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "dma/mmio.h"
#include "dma/poll.h"
#include "dma/types.h"
#include "iova/types.h"
#include "nic/e1000e/registers.h"

namespace dmakit::nic::e1000e {

enum class Halt : uint8_t {
  kStopped,       // the device does no DMA any more
  kStillRunning,  // the time is up
  kGone,          // registers read all ones
};
std::string_view Describe(Halt halt);

// Ends whatever DMA the device does, without a reset: to be called before bus mastering is switched
// on for a device that somebody else has used. DeadlineExceeded; Unavailable if it is gone.
absl::Status Quiesce(const dma::MmioRegion& registers, dma::Waiter& waiter);

// What the chip has counted, for all of its queues together, since the driver was made.
struct ChipCounters {
  uint64_t received = 0;
  uint64_t sent = 0;
  uint64_t missed = 0;  // lost: no room for them in the chip
  // Came while no buffer was posted; those that the chip could keep until one was are not lost.
  uint64_t no_buffer = 0;
  uint64_t crc_errors = 0;  // this and what follows: never given to a queue
  uint64_t alignment_errors = 0;
  uint64_t symbol_errors = 0;
  uint64_t rx_errors = 0;
  uint64_t sequence_errors = 0;
  uint64_t carrier_errors = 0;
  uint64_t length_errors = 0;
  uint64_t undersize = 0;
  uint64_t fragments = 0;  // undersize, with a wrong CRC
  uint64_t oversize = 0;
  uint64_t jabbers = 0;  // oversize, with a wrong CRC
};

class Chip {
 public:
  // Registers and waiter outlive the chip. `registers` is BAR 0.
  Chip(const dma::MmioRegion& registers, dma::Waiter& waiter)
      : registers_(registers), waiter_(&waiter) {}

  // Sheet 2, steps 1 to 6, and every register that a reset may have left: afterwards both
  // directions are off, interrupts masked, filters empty. Errors: Unavailable (gone),
  // DeadlineExceeded (the reset does not end).
  absl::Status Reset();
  // Reads the MAC address (step 7) and writes it to the first receive address. NotFound if the
  // device has none.
  absl::Status LoadMac();
  const std::array<uint8_t, 6>& mac() const { return mac_; }

  struct Settings {
    uint32_t rx_queues = 1;
    uint32_t tx_queues = 1;
    bool vlan_strip = false;
    bool long_packets = false;
    uint32_t buffer_bytes = kMaxRxBuffer;  // of a receive buffer, as RxBufferBytes says
    bool interrupts = false;
    dma::Nanos coalescing{0};
  };
  // What is the same for all queues, both directions still off.
  void Configure(const Settings& settings);
  // Base and length, head and tail 0. `bytes`: of the ring.
  void ProgramRx(size_t queue, Iova base, uint64_t bytes) const;
  void ProgramTx(size_t queue, Iova base, uint64_t bytes) const;
  void EnableTx() const;
  // Everything is accepted: this is a driver that forwards.
  void EnableRx(const Settings& settings) const;
  // For `limit` at most. False: it is still down, which is no error; frames wait.
  bool WaitForLink(dma::Nanos limit) const;

  void MaskInterrupts() const;
  // Both directions off, and no DMA any more. Until `timeout`.
  Halt Stop(dma::Nanos timeout) const;

  bool link_up() const;
  // Since this object was made. The registers start anew when they are read: `read` only while the
  // device is in use.
  ChipCounters counters(bool read) const;
  const dma::MmioRegion& registers() const { return registers_; }

 private:
  uint32_t Read(Reg reg) const { return registers_.Read32(OffsetOf(reg)); }
  void Write(Reg reg, uint32_t value) const { registers_.Write32(OffsetOf(reg), value); }
  void ClearArray(Reg first, size_t words) const;
  void TakeOwnership() const;
  void ClearSettings() const;
  absl::Status ReadMacFromNvm();
  void SpreadOverQueues(uint32_t rx_queues) const;
  void SetUpInterrupts(const Settings& settings) const;
  void Errata() const;

  dma::MmioRegion registers_;
  dma::Waiter* waiter_;
  std::array<uint8_t, 6> mac_{};
  mutable std::array<std::atomic<uint64_t>, sizeof(ChipCounters) / sizeof(uint64_t)> counts_{};
};

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_CHIP_H_
