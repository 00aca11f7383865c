// SPDX-License-Identifier: Apache-2.0
//
// VfioDevice is a PCI device in this process's hands: registers, configuration space, interrupts,
// reset. What it may reach by DMA is its container's domain. It knows nothing of any kind of NIC.
//
//   auto container = VfioContainer::Open(kernel);
//   auto device = VfioDevice::Open(**container, "0000:00:04.0");
//   auto domain = (*container)->domain();                    // for AddressSpace::Attach
//   auto registers = (*device)->MapBar(0);
//   ... reset the NIC, set its rings up ...
//   (*device)->EnableBusMaster();                            // from here on it does DMA
//
// A device is handed over with bus mastering off and leaves the same way; the reset of VFIO need
// not clear a single register of the device (it does not on all), so a driver resets its NIC
// itself before it enables bus mastering.
//
// The end of it: bus mastering off, interrupts off, BARs unmapped (no MmioRegion may be used any
// more), device closed. Devices of one group, and groups of one container, end in any order, all
// before the container. One thread at a time, except that MmioRegions are for any thread.
#ifndef DMAKIT_DMA_HOST_VFIO_DEVICE_H_
#define DMAKIT_DMA_HOST_VFIO_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/host/vfio_container.h"
#include "dma/host/vfio_error.h"
#include "dma/host/vfio_kernel.h"
#include "dma/mmio.h"
#include "iova/types.h"

namespace dmakit::dma::host {

class VfioDevice {
 public:
  static constexpr size_t kBars = 6;

  struct Options {
    // Of the MSI-X vectors the device has, no more are used: the kernel sets all of them up at
    // once, and each takes one of the machine's.
    uint32_t most_vectors = 2048;
  };

  // `address` in full, "0000:00:04.0". Looks its IOMMU group up, adds that to the container, opens
  // the device and switches its memory space on, so that registers answer; bus mastering stays off.
  // Errors: kShape, kNoDevice, kNoIommu, kDriver, kUnsupported (no PCI device of VFIO's), those of
  // VfioContainer::AddGroup, and kBusy.
  static absl::StatusOr<std::unique_ptr<VfioDevice>> Open(VfioContainer& container,
                                                          const std::string& address,
                                                          const Options& options);
  static absl::StatusOr<std::unique_ptr<VfioDevice>> Open(VfioContainer& container,
                                                          const std::string& address) {
    return Open(container, address, Options{});
  }
  ~VfioDevice();
  VfioDevice(const VfioDevice&) = delete;
  VfioDevice& operator=(const VfioDevice&) = delete;

  const std::string& address() const { return address_; }
  VfioContainer& container() const { return container_; }
  uint32_t group() const { return group_; }
  uint16_t vendor_id() const { return vendor_id_; }
  uint16_t device_id() const { return device_id_; }

  // The whole BAR, mapped at the first call; valid until the device ends. kShape: there are six;
  // kUnsupported: it is not implemented, is I/O ports, or the kernel lets only parts be mapped.
  absl::StatusOr<MmioRegion> MapBar(size_t bar);

  // Configuration space, in the CPU's byte order. kShape: not aligned, or outside of
  // config_size(); kKernel: the kernel would not. What is written goes through the kernel's filter.
  absl::StatusOr<uint8_t> ReadConfig8(size_t offset) const;
  absl::StatusOr<uint16_t> ReadConfig16(size_t offset) const;
  absl::StatusOr<uint32_t> ReadConfig32(size_t offset) const;
  absl::Status WriteConfig8(size_t offset, uint8_t value);
  absl::Status WriteConfig16(size_t offset, uint16_t value);
  absl::Status WriteConfig32(size_t offset, uint32_t value);
  size_t config_size() const { return config_.size; }

  // Enable: memory space too. Disable: the device starts no DMA, nor an MSI-X message, after it.
  absl::Status EnableBusMaster();
  absl::Status DisableBusMaster();

  // VFIO_DEVICE_RESET. kUnsupported where has_reset() is false. Configuration space and connected
  // vectors are as before afterwards, as far as the kernel restores them; registers are the
  // device's matter.
  bool has_reset() const { return has_reset_; }
  absl::Status Reset();

  // The kernel signals the eventfd (dma/host/event_fd.h, which keeps owning it) at each message of
  // the vector; it replaces the one before. -1: none any more. The first connection sets up
  // vectors [0, msix_vectors()), which cannot grow later. kShape: no such vector, or no eventfd;
  // kBudget: the machine has not as many vectors left, see Options::most_vectors.
  uint32_t msix_vectors() const { return msix_vectors_; }
  absl::Status ConnectMsix(uint32_t vector, int event_fd);
  // All vectors, and MSI-X itself. OK if none is connected.
  absl::Status DisableMsix();

 private:
  struct Region {
    uint64_t offset = 0;
    uint64_t size = 0;
    uint32_t flags = 0;
    bool whole = true;  // no part is held back from mmap
  };
  // A mapped BAR, or none.
  class Bar;

  VfioDevice(VfioContainer& container, std::string address, uint32_t group, VfioFd fd);
  absl::Status ReadShape(const Options& options);
  absl::StatusOr<Region> ReadRegion(uint32_t index) const;
  absl::Status Failed(VfioProblem problem, std::string_view text) const;
  template <typename T>
  absl::StatusOr<T> ReadConfigAs(size_t offset) const;
  absl::Status ReadConfig(size_t offset, std::span<std::byte> to) const;
  absl::Status WriteConfig(size_t offset, std::span<const std::byte> from);
  absl::Status CheckConfig(size_t offset, size_t width) const;
  absl::Status ChangeCommand(uint16_t set, uint16_t clear);
  int SetIrqs(uint32_t start, std::span<const int32_t> fds);

  VfioContainer& container_;
  const std::string address_;
  const uint32_t group_;
  VfioFd fd_;
  Region config_{};
  bool has_reset_ = false;
  uint16_t vendor_id_ = 0;
  uint16_t device_id_ = 0;
  uint32_t msix_vectors_ = 0;
  bool msix_enabled_ = false;
  bool entered_ = false;  // the container knows
  std::array<std::unique_ptr<Bar>, kBars> bars_{};
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_VFIO_DEVICE_H_
