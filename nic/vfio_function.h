// SPDX-License-Identifier: Apache-2.0
//
// VfioFunction: one PCI function of real silicon in this program's hands, by VFIO, as every backend
// that drives silicon needs it: a container of its own, so that its mappings are its own, and its
// MSI-X vectors as a nic::InterruptSource. It knows nothing of any kind of NIC.
//
// Control thread. It outlives the address space that its domain is used in. What is lost when the
// kernel's log cannot be read is said once, to `report`.
#ifndef DMAKIT_NIC_VFIO_FUNCTION_H_
#define DMAKIT_NIC_VFIO_FUNCTION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/domain.h"
#include "dma/host/vfio_container.h"
#include "dma/host/vfio_device.h"
#include "dma/host/vfio_kernel.h"
#include "dma/mmio.h"
#include "nic/notifier.h"

namespace dmakit::nic {

struct PciId {
  uint16_t vendor = 0;
  uint16_t device = 0;
};

class VfioFunction final : public InterruptSource {
 public:
  struct Options {
    std::string name{};            // of the NIC: "e1000e0"; its domain is called after it
    std::string address{};         // "0000:00:04.0"
    std::span<const PciId> ids{};  // the device must be one of these
    uint32_t most_vectors = 8;
    // One line each; empty: written to stderr.
    std::function<void(std::string_view)> report{};
    std::string sysfs = "/sys";  // a test's to change
    std::string dev = "/dev/vfio";
    std::string kernel_log = "/dev/kmsg";
  };

  // `kernel` outlives it. Errors are VFIO's (dma/host/vfio_error.h) and name the address;
  // InvalidArgument if the device is none of `ids`. Bus mastering is off.
  static absl::StatusOr<std::unique_ptr<VfioFunction>> Open(dma::host::VfioKernel& kernel,
                                                            Options options);

  ~VfioFunction() override;

  dma::Domain& domain() { return *domain_; }
  dma::host::VfioDevice& device() { return *device_; }
  // Reads what the kernel has logged of late: faults of this device go to the domain's listeners
  // and into fault_count() and faults(), in words, the first of them.
  void PollFaults();
  uint64_t fault_count() const;
  std::vector<std::string> faults() const;

  uint32_t vectors() const override { return device_->msix_vectors(); }
  absl::Status Connect(uint32_t vector, Notifier* notifier) override;

 private:
  class Listener;

  explicit VfioFunction(Options options);

  Options options_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<dma::host::VfioContainer> container_;
  std::unique_ptr<dma::host::VfioDevice> device_;
  dma::host::VfioDomain* domain_ = nullptr;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_VFIO_FUNCTION_H_
