// SPDX-License-Identifier: Apache-2.0
//
// Why something of VFIO failed, for programs that want to react and not only print. The message
// of each error names the thing, the rule it broke and the command or kernel parameter that helps;
// VfioProblemOf says which rule it was. Plain functions; any thread.
#ifndef DMAKIT_DMA_HOST_VFIO_ERROR_H_
#define DMAKIT_DMA_HOST_VFIO_ERROR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace dmakit::dma::host {

enum class VfioProblem : uint8_t {
  kNoVfio,                // no /dev/vfio/vfio: the kernel's VFIO is not loaded
  kUnsupported,           // this kernel, device or region cannot do what was asked
  kNoDevice,              // no such PCI device, or it is not in this group
  kNoIommu,               // no IOMMU translates for the device
  kDriver,                // the device is bound to a driver that is not VFIO's, or to none
  kGroupNotViable,        // another device of the IOMMU group is in the kernel's hands
  kNoInterruptRemapping,  // a device could forge interrupts
  kPermission,            // /dev/vfio/N is somebody else's
  kBusy,                  // somebody else has the group or the device open
  kMemlock,               // RLIMIT_MEMLOCK
  kWidth,                 // an IOVA outside of what the IOMMU translates
  kBudget,                // no mapping (or vector) left
  kShape,                 // an argument no kernel takes: alignment, size, access, index
  kOverlap,               // a mapping is there already
  kMemory,                // the memory to map is not there, or may not be written
  kKernel,                // an error of the kernel that none of these rules explains
};

std::string_view Name(VfioProblem problem);  // "no interrupt remapping"

// An error with the problem's status code: InvalidArgument (kShape), AlreadyExists (kOverlap),
// OutOfRange (kWidth), ResourceExhausted (kBudget, kMemlock), NotFound (kNoVfio, kNoDevice),
// Unimplemented (kUnsupported), PermissionDenied (kPermission, kNoInterruptRemapping), Internal
// (kKernel), and FailedPrecondition for the others.
absl::Status VfioError(VfioProblem problem, std::string_view message);

// nullopt: OK, or no error of VFIO's.
std::optional<VfioProblem> VfioProblemOf(const absl::Status& status);

// For messages: "Operation not permitted (errno 1)".
std::string ErrnoText(int error);

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_VFIO_ERROR_H_
