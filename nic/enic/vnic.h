// SPDX-License-Identifier: Apache-2.0
//
// Vnic: the device as a whole, from a driver's side: its resources, and the commands that open,
// configure, enable and close it (enic sheet 4). Queues and packets are not its business. One
// control thread.
#ifndef DMAKIT_NIC_ENIC_VNIC_H_
#define DMAKIT_NIC_ENIC_VNIC_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/mmio.h"
#include "dma/ring_pool.h"
#include "dma/shared.h"
#include "nic/enic/devcmd.h"
#include "nic/enic/registers.h"
#include "nic/enic/resources.h"
#include "nic/enic/rings.h"

namespace dmakit::nic::enic {

class Vnic {
 public:
  // Reads the resource table; touches nothing else. `device` and the registers outlive the Vnic.
  static absl::StatusOr<Vnic> Probe(dma::Device& device, const dma::MmioRegion& bar0);
  Vnic(Vnic&&) = default;

  const std::string& name() const { return name_; }
  dma::Device& device() const { return *device_; }
  uint32_t rq_count() const { return resources_.rq.count; }
  uint32_t wq_count() const { return resources_.wq.count; }
  uint32_t cq_count() const { return resources_.cq.count; }
  uint32_t intr_count() const { return resources_.intr.count; }
  QueueRegisters rq(uint32_t index, uint32_t cq) const { return At(resources_.rq, index, cq); }
  QueueRegisters wq(uint32_t index, uint32_t cq) const { return At(resources_.wq, index, cq); }

  // OPEN, INIT, GET_MAC_ADDR, DEV_SPEC; masks all interrupts. What was begun is ended by Close,
  // also after a failure.
  absl::Status Open();
  // After Open.
  const DevSpec& spec() const { return spec_; }
  const std::array<uint8_t, 6>& mac() const { return mac_; }

  // NIC_CFG and, for more than one receive queue, RSS over `queues` of them: by addresses, and by
  // ports too for TCP and UDP.
  absl::Status ConfigureReceive(uint32_t queues, bool vlan_strip);
  // After Open. An interrupt that masks itself when it asserts, so long after the first of its
  // events (as far as the timer goes: InvalidArgument names the most). Masked until credits are
  // returned with unmask.
  absl::Status SetUpInterrupt(uint32_t index, dma::Nanos coalescing);
  dma::MmioRegion interrupt(uint32_t index) const {
    return bar0_.Sub(resources_.intr.offset + index * kBlockBytes, kBlockBytes);
  }
  void MaskInterrupts();
  // PACKET_FILTER: everything that is on the wire.
  absl::Status AcceptAll();
  absl::Status Enable();
  // OK if Enable was not called.
  absl::Status Disable();
  // CLOSE, and the end of the parameter block. OK if it is not open.
  absl::Status Close();

 private:
  Vnic(dma::Device& device, const dma::MmioRegion& bar0, const ResourceMap& resources);

  QueueRegisters At(const ResourceWindow& window, uint32_t index, uint32_t cq) const;
  absl::Status WaitOpen();
  absl::Status ReadSpec();
  absl::Status LoadRss(uint32_t queues);
  void WriteParameters(std::span<const std::byte> bytes);

  dma::Device* device_;
  std::string name_;
  dma::MmioRegion bar0_;
  ResourceMap resources_;
  CommandChannel commands_;
  bool open_ = false;     // or being opened
  bool enabled_ = false;  // or tried
  // What commands point to: one block of 256 bytes, in words.
  dma::RingPool<dma::SharedLe64> parameters_;
  DevSpec spec_;
  std::array<uint8_t, 6> mac_{};
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_VNIC_H_
