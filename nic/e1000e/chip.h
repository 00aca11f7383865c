// SPDX-License-Identifier: Apache-2.0
//
// Chip: what is one for the whole 82574L and not a queue's (e1000e sheet 1, 2): reset, address,
// filters, offloads, link, interrupts, statistics, and making the device let go. It trusts nothing
// that an earlier driver left in a register. PCI, bus mastering included, is somebody else's.
//
// Set-up and stop: one control thread. Link and statistics: any thread.
#ifndef DMAKIT_NIC_E1000E_CHIP_H_
#define DMAKIT_NIC_E1000E_CHIP_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/mmio.h"
#include "dma/types.h"
#include "nic/e1000e/registers.h"

namespace dmakit::nic::e1000e {

// What the device counts, for all of its queues together, since the driver was made.
struct DeviceCounters {
  uint64_t good_received = 0;     // GPRC
  uint64_t good_transmitted = 0;  // GPTC
  uint64_t missed = 0;            // MPC: lost, the packet buffer was full
  // RNBC: came while no buffer was there; may have waited in the packet buffer and not be lost.
  uint64_t no_buffer = 0;
  uint64_t crc_errors = 0;
  uint64_t alignment_errors = 0;
  uint64_t symbol_errors = 0;
  uint64_t receive_errors = 0;
  uint64_t sequence_errors = 0;
  uint64_t carrier_errors = 0;
  uint64_t length_errors = 0;
  uint64_t undersize = 0;
  uint64_t fragments = 0;  // undersize, with a bad CRC
  uint64_t oversize = 0;
  uint64_t jabbers = 0;  // oversize, with a bad CRC
};

struct ChipSettings {
  uint32_t rx_queues = 1;
  uint32_t tx_queues = 1;
  uint32_t buffer_size = 2048;  // IsBufferSize
  uint32_t max_frame = 1518;    // bytes, without FCS
  bool vlan = false;            // strip and insert: one bit for both
  bool promiscuous = true;
  bool interrupts = false;
  dma::Nanos coalescing{0};
};

enum class Halt : uint8_t {
  kStopped,       // the device owns nothing any more
  kStillRunning,  // the time is up
  kGone,          // registers read all ones
};
std::string_view Describe(Halt halt);

class Chip {
 public:
  // Reads one register. FailedPrecondition: there is no such device behind `bar0`. Device and
  // registers outlive it.
  static absl::StatusOr<Chip> Probe(dma::Device& device, const dma::MmioRegion& bar0);

  dma::Device& device() const { return *device_; }
  const std::string& name() const { return name_; }
  dma::MmioRegion bar() const { return bar_; }
  dma::MmioRegion rx_registers(uint32_t queue) const {
    return bar_.Sub(RxQueueAt(queue), kQueueBytes);
  }
  dma::MmioRegion tx_registers(uint32_t queue) const {
    return bar_.Sub(TxQueueAt(queue), kQueueBytes);
  }

  // Sheet 2, 1 to 7: everything off, then reset, then the device's own address is known.
  absl::Status Reset();
  // Sheet 2, 8 and 9 and what belongs to no ring. Everything is still off.
  void Configure(const ChipSettings& settings);
  // The rings are programmed.
  void Enable(const ChipSettings& settings);
  // Whether there is a link, waiting for it up to `timeout`.
  bool WaitForLink(dma::Nanos timeout) const;
  bool link_up() const;
  bool gone() const { return Read(Reg::kStatus) == kAllOnes; }

  // Masks interrupts, stops both directions, and waits until the device masters the bus no more.
  Halt Stop(dma::Nanos timeout) const;

  const std::array<uint8_t, 6>& mac() const { return mac_; }
  DeviceCounters counters() const;

 private:
  static constexpr size_t kCounters = sizeof(DeviceCounters) / sizeof(uint64_t);

  Chip(dma::Device& device, const dma::MmioRegion& bar0);
  uint32_t Read(Reg reg) const { return bar_.Read32(OffsetOf(reg)); }
  void Write(Reg reg, uint32_t value) const { bar_.Write32(OffsetOf(reg), value); }
  void Write(Reg reg, uint32_t index, uint32_t value) const {
    bar_.Write32(OffsetOf(reg, index), value);
  }
  // What is waited for by the sheet without anything to look at.
  void Sleep(dma::Nanos time) const;
  absl::Status ResetMac() const;
  absl::Status ReadAddress();
  bool ReadNvm(uint32_t word, uint16_t& value) const;
  void ClearFilters() const;
  void SetUpSpreading(const ChipSettings& settings) const;
  void SetUpInterrupts(const ChipSettings& settings) const;
  // The registers count from zero after each look: their counts are added up here.
  void Collect() const;

  dma::Device* device_;
  dma::MmioRegion bar_;
  std::string name_;
  std::array<uint8_t, 6> mac_{};
  std::unique_ptr<std::array<std::atomic<uint64_t>, kCounters>> counts_;
};

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_CHIP_H_
