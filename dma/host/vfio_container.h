// SPDX-License-Identifier: Apache-2.0
//
// VfioContainer is one address space of the kernel's IOMMU and the IOMMU groups that use it: the
// devices of all its groups see the same mappings, those of its domain().
//
// It outlives its devices (vfio_device.h) and whatever uses the domain; it ends with its domain,
// then the groups, then the container itself. Nothing here is specific to Type1 but the domain it
// makes: another implementation (iommufd, of which this kernel interface has no header yet) needs
// an address space with an identity, a way to add a device to it by address, and a dma::Domain;
// VfioDevice asks no more of a container than that.
//
// AddGroup, domain() and the devices of a container: one thread at a time. The domain: any thread.
#ifndef DMAKIT_DMA_HOST_VFIO_CONTAINER_H_
#define DMAKIT_DMA_HOST_VFIO_CONTAINER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/host/kernel_faults.h"
#include "dma/host/vfio_domain.h"
#include "dma/host/vfio_kernel.h"

namespace dmakit::dma::host {

class VfioContainer {
 public:
  struct Options {
    std::string name = "vfio";                       // the domain's
    std::function<void(std::string_view)> report{};  // see VfioDomain::Options
    std::unique_ptr<KernelFaultLog> faults{};        // nullptr: faults are not heard of
    // A test's to change.
    std::string sysfs = "/sys";
    std::string dev = "/dev/vfio";
  };

  // Opens /dev/vfio/vfio. kNoVfio, kPermission; kUnsupported if it does not have Type1v2. `kernel`
  // outlives the container.
  static absl::StatusOr<std::unique_ptr<VfioContainer>> Open(VfioKernel& kernel, Options options);
  static absl::StatusOr<std::unique_ptr<VfioContainer>> Open(VfioKernel& kernel) {
    return Open(kernel, Options{});
  }
  ~VfioContainer();
  VfioContainer(const VfioContainer&) = delete;
  VfioContainer& operator=(const VfioContainer&) = delete;

  // Takes an IOMMU group; OK if it has it already. The first one switches the IOMMU on. Errors,
  // nothing taken: kPermission, kBusy, kGroupNotViable (names the members and their drivers),
  // kNoInterruptRemapping, kNoIommu (no such group). Once domain() was called: kWidth if the group
  // can translate less than the domain has promised; so open all devices first.
  absl::Status AddGroup(uint32_t number);
  bool has_group(uint32_t number) const;

  // The translation of all groups. The first call makes it, of what the groups then have in common;
  // FailedPrecondition (kUnsupported) before the first group. Lives as long as the container.
  absl::StatusOr<VfioDomain*> domain();

  VfioKernel& kernel() const { return kernel_; }
  const Options& options() const { return options_; }

  // For VfioDevice. The descriptor of a device in `group`; and the devices that are open.
  absl::StatusOr<VfioFd> OpenDevice(uint32_t group, const std::string& address) const;
  bool has_device(const std::string& address) const;
  void Entered(const std::string& address);
  void Left(const std::string& address);

 private:
  // A group within the container, which it leaves when it closes.
  struct Group {
    uint32_t number = 0;
    VfioFd fd{};
  };

  VfioContainer(VfioKernel& kernel, Options options, VfioFd fd);
  absl::Status CheckViable(uint32_t number, int group) const;
  absl::StatusOr<VfioFd> OpenGroup(uint32_t number) const;
  absl::Status Join(uint32_t number, int group);
  absl::Status CheckFacts(uint32_t number) const;

  VfioKernel& kernel_;
  Options options_;
  VfioFd fd_;
  std::vector<Group> groups_{};
  bool iommu_set_ = false;
  std::vector<std::string> devices_{};
  std::unique_ptr<VfioDomain> domain_{};
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_VFIO_CONTAINER_H_
