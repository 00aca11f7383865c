// SPDX-License-Identifier: Apache-2.0
//
// vfio-pci's fixed regions and interrupts: BARs 0-5, configuration space, MSI-X.
#include "dma/host/vfio_device.h"

#include <linux/pci_regs.h>
#include <linux/vfio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dma/host/pci.h"
#include "dma/host/vfio_info.h"

namespace dmakit::dma::host {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kStandardHeader = 64;  // what every function has of configuration space

// Configuration space is little-endian; so it is here, on every CPU.
template <typename T>
T FromBytes(const std::array<std::byte, sizeof(T)>& bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
  return static_cast<T>(value);
}
template <typename T>
std::array<std::byte, sizeof(T)> ToBytes(T value) {
  std::array<std::byte, sizeof(T)> bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = std::byte(uint32_t{value} >> (8 * i));
  return bytes;
}

// What stands between a device and VFIO, as sysfs shows it.
absl::StatusOr<PciDevice> Find(const std::string& sysfs, const std::string& address) {
  if (!IsPciAddress(address)) {
    return VfioError(VfioProblem::kShape,
                     absl::StrCat("PCI address \"", address,
                                  "\": must be domain:bus:device.function in full, like "
                                  "0000:00:04.0; see lspci -D"));
  }
  absl::StatusOr<PciDevice> device = SysfsPci({.sysfs = sysfs}).Device(address);
  if (!device.ok()) {
    return VfioError(VfioProblem::kNoDevice, absl::StrCat("device ", address, ": not in ", sysfs,
                                                          "/bus/pci/devices; see lspci -D"));
  }
  if (!device->group) {
    return VfioError(VfioProblem::kNoIommu,
                     absl::StrCat("device ", address,
                                  ": has no IOMMU group, no IOMMU translates for it; switch the "
                                  "IOMMU on in the firmware and boot with intel_iommu=on (Intel) "
                                  "or amd_iommu=on (AMD)"));
  }
  if (!IsVfioDriver(device->driver)) {
    return VfioError(
        VfioProblem::kDriver,
        absl::StrCat("device ", address, ": ",
                     device->driver.empty() ? "has no driver" : "its driver is " + device->driver,
                     ": must be vfio-pci; driverctl set-override ", address, " vfio-pci"));
  }
  return device;
}

}  // namespace

class VfioDevice::Bar {
 public:
  Bar(VfioKernel& kernel, void* address, size_t size)
      : kernel_(kernel), address_(address), size_(size) {}
  ~Bar() { kernel_.Munmap(address_, size_); }
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;
  MmioRegion region() const { return MmioRegion::OfDevice(address_, size_); }

 private:
  VfioKernel& kernel_;
  void* const address_;
  const size_t size_;
};

VfioDevice::VfioDevice(VfioContainer& container, std::string address, uint32_t group, VfioFd fd)
    : container_(container), address_(std::move(address)), group_(group), fd_(std::move(fd)) {}

absl::Status VfioDevice::Failed(VfioProblem problem, std::string_view text) const {
  return VfioError(problem, absl::StrCat("device ", address_, ": ", std::string(text)));
}

absl::StatusOr<std::unique_ptr<VfioDevice>> VfioDevice::Open(VfioContainer& container,
                                                             const std::string& address,
                                                             const Options& options) {
  const absl::StatusOr<PciDevice> found = Find(container.options().sysfs, address);
  if (!found.ok()) return found.status();
  if (container.has_device(address)) {
    return VfioError(VfioProblem::kBusy, absl::StrCat("device ", address,
                                                      ": is open in this container already; use "
                                                      "that one, or end it first"));
  }
  const uint32_t group = found->group->number;
  if (absl::Status s = container.AddGroup(group); !s.ok()) return s;
  absl::StatusOr<VfioFd> fd = container.OpenDevice(group, address);
  if (!fd.ok()) return fd.status();
  std::unique_ptr<VfioDevice> device(new VfioDevice(container, address, group, *std::move(fd)));
  if (absl::Status s = device->ReadShape(options); !s.ok()) return s;
  // Off already, but for a kernel that left it on.
  if (absl::Status s = device->ChangeCommand(PCI_COMMAND_MEMORY, PCI_COMMAND_MASTER); !s.ok()) {
    return s;
  }
  container.Entered(address);
  device->entered_ = true;
  return device;
}

// Nothing more can be done about what fails here: closing the device ends it all the same.
VfioDevice::~VfioDevice() {
  if (config_.size != 0) DisableBusMaster().IgnoreError();
  DisableMsix().IgnoreError();
  bars_ = {};
  if (entered_) container_.Left(address_);
}

absl::Status VfioDevice::ReadShape(const Options& options) {
  vfio_device_info info{};
  info.argsz = sizeof(info);
  VfioKernel& kernel = container_.kernel();
  if (const int result = kernel.Ioctl(fd_.get(), VFIO_DEVICE_GET_INFO, &info); result < 0) {
    return Failed(VfioProblem::kKernel, absl::StrCat("VFIO_DEVICE_GET_INFO: ", ErrnoText(-result),
                                                     "; see the kernel's log"));
  }
  if ((info.flags & VFIO_DEVICE_FLAGS_PCI) == 0 ||
      info.num_regions <= VFIO_PCI_CONFIG_REGION_INDEX) {
    return Failed(VfioProblem::kUnsupported,
                  absl::StrCat("no PCI device of VFIO's (flags 0x", absl::Hex(info.flags), ", ",
                               info.num_regions, " regions); bind it to vfio-pci"));
  }
  has_reset_ = (info.flags & VFIO_DEVICE_FLAGS_RESET) != 0;
  absl::StatusOr<Region> config = ReadRegion(VFIO_PCI_CONFIG_REGION_INDEX);
  if (!config.ok()) return config.status();
  if (config->size < kStandardHeader) {
    return Failed(VfioProblem::kUnsupported,
                  absl::StrCat("configuration space of ", config->size, " bytes: must have ",
                               kStandardHeader, " or more; use another kernel"));
  }
  config_ = *config;
  if (info.num_irqs > VFIO_PCI_MSIX_IRQ_INDEX) {
    vfio_irq_info irq{};
    irq.argsz = sizeof(irq);
    irq.index = VFIO_PCI_MSIX_IRQ_INDEX;
    const int result = kernel.Ioctl(fd_.get(), VFIO_DEVICE_GET_IRQ_INFO, &irq);
    if (result < 0) {
      return Failed(
          VfioProblem::kKernel,
          absl::StrCat("VFIO_DEVICE_GET_IRQ_INFO: ", ErrnoText(-result), "; see the kernel's log"));
    }
    if ((irq.flags & VFIO_IRQ_INFO_EVENTFD) != 0) {
      msix_vectors_ = std::min({irq.count, options.most_vectors, uint32_t{2048}});
    }
  }
  const absl::StatusOr<uint16_t> vendor = ReadConfig16(PCI_VENDOR_ID);
  if (!vendor.ok()) return vendor.status();
  const absl::StatusOr<uint16_t> device = ReadConfig16(PCI_DEVICE_ID);
  if (!device.ok()) return device.status();
  vendor_id_ = *vendor;
  device_id_ = *device;
  return absl::OkStatus();
}

// --- Regions ------------------------------------------------------------------------------------

absl::StatusOr<VfioDevice::Region> VfioDevice::ReadRegion(uint32_t index) const {
  vfio_region_info ask{};
  ask.index = index;
  const auto answer = VfioQuery(container_.kernel(), fd_.get(), VFIO_DEVICE_GET_REGION_INFO, ask);
  if (answer.result < 0) {
    return Failed(VfioProblem::kKernel,
                  absl::StrCat("VFIO_DEVICE_GET_REGION_INFO of region ", index, ": ",
                               ErrnoText(-answer.result), "; see the kernel's log"));
  }
  const vfio_region_info& info = answer.info;
  Region region{info.offset, info.size, info.flags};
  if ((info.flags & VFIO_REGION_INFO_FLAG_CAPS) != 0) {
    const auto sparse =
        FindVfioCapability(answer.raw, info.cap_offset, VFIO_REGION_INFO_CAP_SPARSE_MMAP);
    // Several areas side by side would do as well; no kernel cuts a whole region so.
    if (!sparse.empty()) {
      const auto head = ReadAt<vfio_region_info_cap_sparse_mmap>(sparse, 0);
      const auto area = ReadAt<vfio_region_sparse_mmap_area>(sparse, sizeof(head));
      region.whole = head.nr_areas != 0 && area.offset == 0 && area.size >= info.size;
    }
  }
  return region;
}

absl::StatusOr<MmioRegion> VfioDevice::MapBar(size_t bar) {
  const std::string name = absl::StrCat("BAR ", bar, ": ");
  if (bar >= kBars) {
    return Failed(VfioProblem::kShape, absl::StrCat(name, "there are ", kBars, ", from 0 on"));
  }
  if (bars_[bar] != nullptr) return bars_[bar]->region();
  const absl::StatusOr<Region> region = ReadRegion(VFIO_PCI_BAR0_REGION_INDEX + bar);
  if (!region.ok()) return region.status();
  if (region->size == 0) {
    return Failed(VfioProblem::kUnsupported,
                  absl::StrCat(name,
                               "not implemented, or the upper half of the 64-bit one below; "
                               "see lspci -v"));
  }
  constexpr uint32_t kNeeded =
      VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE | VFIO_REGION_INFO_FLAG_MMAP;
  if ((region->flags & kNeeded) != kNeeded || region->offset % kPage != 0) {
    return Failed(VfioProblem::kUnsupported,
                  absl::StrCat(name, region->size, " bytes, flags 0x", absl::Hex(region->flags),
                               ": cannot be mapped: I/O ports, or smaller than a page; use a "
                               "memory BAR"));
  }
  if (!region->whole) {
    return Failed(VfioProblem::kUnsupported,
                  absl::StrCat(name, "of its ", region->size,
                               " bytes the kernel lets only parts be mapped (it holds the MSI-X "
                               "table back); use a kernel from 4.16 on"));
  }
  void* address = nullptr;
  const int result =
      container_.kernel().Mmap(fd_.get(), region->offset, region->size, true, &address);
  if (result < 0) {
    return Failed(VfioProblem::kKernel, absl::StrCat(name, "mmap of ", region->size, " bytes: ",
                                                     ErrnoText(-result), "; see the kernel's log"));
  }
  bars_[bar] = std::make_unique<Bar>(container_.kernel(), address, region->size);
  return bars_[bar]->region();
}

absl::Status VfioDevice::CheckConfig(size_t offset, size_t width) const {
  if (offset % width == 0 && offset < config_.size && width <= config_.size - offset) {
    return absl::OkStatus();
  }
  return Failed(VfioProblem::kShape,
                absl::StrCat("configuration space, ", width, " bytes at ", offset,
                             ": must be aligned and lie within ", config_.size, " bytes"));
}

absl::Status VfioDevice::ReadConfig(size_t offset, std::span<std::byte> to) const {
  if (absl::Status s = CheckConfig(offset, to.size()); !s.ok()) return s;
  const int64_t n = container_.kernel().PRead(fd_.get(), config_.offset + offset, to);
  if (n == static_cast<int64_t>(to.size())) return absl::OkStatus();
  return Failed(VfioProblem::kKernel,
                absl::StrCat("configuration space, ", to.size(), " bytes at ", offset, ": read: ",
                             n < 0 ? ErrnoText(static_cast<int>(-n)) : absl::StrCat(n, " bytes"),
                             "; is the device still there?"));
}

absl::Status VfioDevice::WriteConfig(size_t offset, std::span<const std::byte> from) {
  if (absl::Status s = CheckConfig(offset, from.size()); !s.ok()) return s;
  const int64_t n = container_.kernel().PWrite(fd_.get(), config_.offset + offset, from);
  if (n == static_cast<int64_t>(from.size())) return absl::OkStatus();
  return Failed(
      VfioProblem::kKernel,
      absl::StrCat("configuration space, ", from.size(), " bytes at ", offset,
                   ": write: ", n < 0 ? ErrnoText(static_cast<int>(-n)) : absl::StrCat(n, " bytes"),
                   "; is the device still there?"));
}

template <typename T>
absl::StatusOr<T> VfioDevice::ReadConfigAs(size_t offset) const {
  std::array<std::byte, sizeof(T)> bytes;
  if (absl::Status s = ReadConfig(offset, bytes); !s.ok()) return s;
  return FromBytes<T>(bytes);
}
absl::StatusOr<uint8_t> VfioDevice::ReadConfig8(size_t offset) const {
  return ReadConfigAs<uint8_t>(offset);
}
absl::StatusOr<uint16_t> VfioDevice::ReadConfig16(size_t offset) const {
  return ReadConfigAs<uint16_t>(offset);
}
absl::StatusOr<uint32_t> VfioDevice::ReadConfig32(size_t offset) const {
  return ReadConfigAs<uint32_t>(offset);
}
absl::Status VfioDevice::WriteConfig8(size_t offset, uint8_t value) {
  return WriteConfig(offset, ToBytes(value));
}
absl::Status VfioDevice::WriteConfig16(size_t offset, uint16_t value) {
  return WriteConfig(offset, ToBytes(value));
}
absl::Status VfioDevice::WriteConfig32(size_t offset, uint32_t value) {
  return WriteConfig(offset, ToBytes(value));
}

absl::Status VfioDevice::ChangeCommand(uint16_t set, uint16_t clear) {
  const absl::StatusOr<uint16_t> command = ReadConfig16(PCI_COMMAND);
  if (!command.ok()) return command.status();
  return WriteConfig16(PCI_COMMAND, static_cast<uint16_t>((*command & ~clear) | set));
}

absl::Status VfioDevice::EnableBusMaster() {
  return ChangeCommand(PCI_COMMAND_MASTER | PCI_COMMAND_MEMORY, 0);
}
absl::Status VfioDevice::DisableBusMaster() { return ChangeCommand(0, PCI_COMMAND_MASTER); }

absl::Status VfioDevice::Reset() {
  if (!has_reset_) {
    return Failed(VfioProblem::kUnsupported,
                  "the kernel knows no way to reset it; reset it by its own registers");
  }
  const int result = container_.kernel().Ioctl(fd_.get(), VFIO_DEVICE_RESET, nullptr);
  if (result >= 0) return absl::OkStatus();
  return Failed(result == -EAGAIN ? VfioProblem::kBusy : VfioProblem::kKernel,
                absl::StrCat("VFIO_DEVICE_RESET: ", ErrnoText(-result),
                             "; try again, or see the kernel's log"));
}

// --- Interrupts ---------------------------------------------------------------------------------

// The kernel's answer: 0, -errno, or how many vectors there would be, if not so many.
int VfioDevice::SetIrqs(uint32_t start, std::span<const int32_t> fds) {
  std::vector<std::byte> buffer(sizeof(vfio_irq_set) + fds.size_bytes());
  vfio_irq_set set{};
  set.argsz = static_cast<uint32_t>(buffer.size());
  set.flags = VFIO_IRQ_SET_ACTION_TRIGGER |
              (fds.empty() ? VFIO_IRQ_SET_DATA_NONE : VFIO_IRQ_SET_DATA_EVENTFD);
  set.index = VFIO_PCI_MSIX_IRQ_INDEX;
  set.start = start;
  set.count = static_cast<uint32_t>(fds.size());
  std::memcpy(buffer.data(), &set, sizeof(set));
  if (!fds.empty()) std::memcpy(buffer.data() + sizeof(set), fds.data(), fds.size_bytes());
  return container_.kernel().Ioctl(fd_.get(), VFIO_DEVICE_SET_IRQS, buffer.data());
}

absl::Status VfioDevice::ConnectMsix(uint32_t vector, int event_fd) {
  const std::string name = absl::StrCat("MSI-X vector ", vector, ": ");
  if (vector >= msix_vectors_) {
    return Failed(VfioProblem::kShape,
                  absl::StrCat(name, "there are ", msix_vectors_, ", from 0 on"));
  }
  if (event_fd < -1) {
    return Failed(VfioProblem::kShape, absl::StrCat(name, "descriptor ", event_fd,
                                                    ": must be an eventfd, or -1 for none"));
  }
  int result = 0;
  if (msix_enabled_) {
    result = SetIrqs(vector, std::span<const int32_t>(&event_fd, 1));
  } else if (event_fd >= 0) {
    // What is not set up now cannot be set up while others are connected.
    std::vector<int32_t> fds(msix_vectors_, -1);
    fds[vector] = event_fd;
    result = SetIrqs(0, fds);
    msix_enabled_ = result == 0;
  }
  if (result == 0) return absl::OkStatus();
  if (result > 0 || result == -ENOSPC) {
    return Failed(VfioProblem::kBudget,
                  absl::StrCat(name, "the machine has ", std::max(result, 0), " vectors left of ",
                               msix_vectors_, "; open the device with fewer (most_vectors)"));
  }
  const bool bad_fd = result == -EBADF || result == -EINVAL;
  return Failed(bad_fd ? VfioProblem::kShape : VfioProblem::kKernel,
                absl::StrCat(name, "VFIO_DEVICE_SET_IRQS: ", ErrnoText(-result), "; descriptor ",
                             event_fd, bad_fd ? ": must be an eventfd" : ", see the kernel's log"));
}

absl::Status VfioDevice::DisableMsix() {
  if (!msix_enabled_) return absl::OkStatus();
  const int result = SetIrqs(0, {});
  if (result < 0) {
    return Failed(VfioProblem::kKernel, absl::StrCat("MSI-X off: VFIO_DEVICE_SET_IRQS: ",
                                                     ErrnoText(-result), "; see the kernel's log"));
  }
  msix_enabled_ = false;
  return absl::OkStatus();
}

}  // namespace dmakit::dma::host
