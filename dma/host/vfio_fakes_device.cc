// SPDX-License-Identifier: Apache-2.0
//
// Devices of the fake kernel: what vfio-pci lets a process do with one.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "dma/host/vfio_fakes_impl.h"

namespace dmakit::dma::host {
namespace {

using fake_vfio::CopyIn, fake_vfio::File, fake_vfio::Function, fake_vfio::kPage,
    fake_vfio::kRegionShift;

constexpr uint32_t kRegionReadWrite = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;

// Whether a descriptor of the process is an eventfd; else -errno.
int CheckEventFd(int fd) {
  char target[64] = {};
  if (fcntl(fd, F_GETFD) < 0) return -EBADF;
  const std::string link = absl::StrCat("/proc/self/fd/", fd);
  if (readlink(link.c_str(), target, sizeof(target) - 1) < 0) return -EBADF;
  return std::string_view(target) == "anon_inode:[eventfd]" ? 0 : -EINVAL;
}

}  // namespace

fake_vfio::FakeBar::FakeBar(size_t size) : size_(size), fd_(memfd_create("fake-bar", MFD_CLOEXEC)) {
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(size)) != 0) std::abort();
  view_ = Map(size, true);
  if (view_ == nullptr) std::abort();
}

fake_vfio::FakeBar::~FakeBar() {
  munmap(view_, size_);
  close(fd_);
}

void* fake_vfio::FakeBar::Map(size_t size, bool writable) const {
  void* const at = mmap(nullptr, size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd_, 0);
  return at == MAP_FAILED ? nullptr : at;
}

// --- Devices: vfio-pci --------------------------------------------------------------------------

int FakeVfioKernel::Impl::DeviceIoctl(Function& device, unsigned long request, void* argument) {
  switch (request) {
    case VFIO_DEVICE_GET_INFO: {
      vfio_device_info info{};
      const size_t least = offsetof(vfio_device_info, cap_offset);
      if (!CopyIn(argument, &info, least)) return -EINVAL;
      info.flags = VFIO_DEVICE_FLAGS_PCI | (device.shape.resettable ? VFIO_DEVICE_FLAGS_RESET : 0u);
      info.num_regions = VFIO_PCI_NUM_REGIONS;
      info.num_irqs = VFIO_PCI_NUM_IRQS;
      std::memcpy(argument, &info, least);
      return 0;
    }
    case VFIO_DEVICE_GET_REGION_INFO:
      return RegionInfo(device, argument);
    case VFIO_DEVICE_GET_IRQ_INFO: {
      vfio_irq_info info{};
      if (!CopyIn(argument, &info) || info.index >= VFIO_PCI_NUM_IRQS) return -EINVAL;
      info.flags = VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE;
      info.count = info.index == VFIO_PCI_MSIX_IRQ_INDEX ? device.shape.msix_vectors : 0;
      std::memcpy(argument, &info, sizeof(info));
      return 0;
    }
    case VFIO_DEVICE_SET_IRQS:
      return SetIrqs(device, argument);
    case VFIO_DEVICE_RESET:
      if (!device.shape.resettable) return -EINVAL;
      ++device.resets;
      return 0;
    default:
      return -ENOTTY;
  }
}

int FakeVfioKernel::Impl::RegionInfo(const Function& device, void* argument) const {
  vfio_region_info info{};
  if (!CopyIn(argument, &info) || info.index >= VFIO_PCI_NUM_REGIONS) return -EINVAL;
  const uint32_t room = info.argsz;
  const uint32_t index = info.index;
  info.flags = 0;
  info.cap_offset = 0;
  info.size = 0;
  info.offset = uint64_t{index} << kRegionShift;
  if (index == VFIO_PCI_CONFIG_REGION_INDEX) {
    info.size = device.config.size();
    info.flags = kRegionReadWrite;
  } else if (index <= VFIO_PCI_BAR5_REGION_INDEX && device.bars[index] != nullptr) {
    info.size = device.shape.bars[index];
    info.flags = kRegionReadWrite;
    if ((device.shape.io_bars >> index & 1) == 0) info.flags |= VFIO_REGION_INFO_FLAG_MMAP;
    if ((device.shape.sparse_bars >> index & 1) != 0) {
      info.flags |= VFIO_REGION_INFO_FLAG_CAPS;
      vfio_region_info_cap_sparse_mmap head{};
      head.header = {VFIO_REGION_INFO_CAP_SPARSE_MMAP, 1, 0};
      head.nr_areas = 1;
      const vfio_region_sparse_mmap_area area{0, kPage};
      const uint32_t need = sizeof(info) + sizeof(head) + sizeof(area);
      if (room < need) {
        info.argsz = need;
      } else {
        auto* const to = static_cast<std::byte*>(argument) + sizeof(info);
        info.cap_offset = sizeof(info);
        std::memcpy(to, &head, sizeof(head));
        std::memcpy(to + sizeof(head), &area, sizeof(area));
      }
    }
  }
  std::memcpy(argument, &info, sizeof(info));
  return 0;
}

int FakeVfioKernel::Impl::SetIrqs(Function& device, const void* argument) {
  vfio_irq_set set{};
  const size_t least = offsetof(vfio_irq_set, data);
  if (!CopyIn(argument, &set, least)) return -EINVAL;
  constexpr uint32_t kKnown = VFIO_IRQ_SET_DATA_TYPE_MASK | VFIO_IRQ_SET_ACTION_TYPE_MASK;
  const uint32_t vectors = set.index == VFIO_PCI_MSIX_IRQ_INDEX ? device.shape.msix_vectors : 0;
  if ((set.flags & ~kKnown) != 0 || set.start >= vectors || set.count > vectors - set.start) {
    return -EINVAL;
  }
  const uint32_t data = set.flags & VFIO_IRQ_SET_DATA_TYPE_MASK;
  const uint32_t action = set.flags & VFIO_IRQ_SET_ACTION_TYPE_MASK;
  if (std::popcount(data) != 1 || std::popcount(action) != 1) return -EINVAL;
  if (action != VFIO_IRQ_SET_ACTION_TRIGGER) return -ENOTTY;
  if (data == VFIO_IRQ_SET_DATA_NONE) {
    if (set.count != 0 || device.vectors.empty()) return -EINVAL;
    DisableVectors(device);
    return 0;
  }
  if (data != VFIO_IRQ_SET_DATA_EVENTFD) return -EINVAL;
  if (set.count == 0 || set.argsz - least < set.count * sizeof(int32_t)) return -EINVAL;
  std::vector<int32_t> fds(set.count);
  std::memcpy(fds.data(), static_cast<const std::byte*>(argument) + least,
              fds.size() * sizeof(int32_t));
  if (!device.vectors.empty()) return ConnectVectors(device, set.start, fds);
  if (const int result = EnableVectors(device, set.start + set.count); result != 0) return result;
  const int result = ConnectVectors(device, set.start, fds);
  if (result != 0) DisableVectors(device);
  return result;
}

int FakeVfioKernel::Impl::EnableVectors(Function& device, uint32_t count) {
  if (count > options.vectors_left) {
    return options.vectors_left == 0 ? -ENOSPC : static_cast<int>(options.vectors_left);
  }
  options.vectors_left -= count;
  device.vectors.assign(count, -1);
  return 0;
}

int FakeVfioKernel::Impl::ConnectVectors(Function& device, uint32_t start,
                                         std::span<const int32_t> fds) {
  if (start >= device.vectors.size() || fds.size() > device.vectors.size() - start) return -EINVAL;
  for (size_t i = 0; i < fds.size(); ++i) {
    int& vector = device.vectors[start + i];
    if (vector >= 0) close(std::exchange(vector, -1));
    if (fds[i] < 0) continue;
    if (const int result = CheckEventFd(fds[i]); result != 0) return result;
    vector = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
  }
  return 0;
}

void FakeVfioKernel::Impl::DisableVectors(Function& device) {
  if (device.vectors.empty()) return;
  for (const int vector : device.vectors) {
    if (vector >= 0) close(vector);
  }
  options.vectors_left += static_cast<uint32_t>(device.vectors.size());
  device.vectors.clear();
  Log("msix off " + device.shape.address);
}

void FakeVfioKernel::Impl::SetCommand(Function& device, uint16_t value) {
  const uint16_t before = device.command();
  device.set_command(value);
  if (((before ^ value) & PCI_COMMAND_MASTER) != 0) {
    Log(absl::StrCat("bus master ", (value & PCI_COMMAND_MASTER) != 0 ? "on " : "off ",
                     device.shape.address));
  }
}

// The command register takes the bits it has; the identity takes none.
void FakeVfioKernel::Impl::WriteConfig(Function& device, size_t offset,
                                       std::span<const std::byte> from) {
  constexpr uint16_t kBits = PCI_COMMAND_IO | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER |
                             PCI_COMMAND_PARITY | PCI_COMMAND_SERR | PCI_COMMAND_INTX_DISABLE;
  uint16_t command = device.command();
  for (size_t i = 0; i < from.size(); ++i) {
    const size_t at = offset + i;
    if (at == PCI_COMMAND || at == PCI_COMMAND + 1) {
      std::memcpy(reinterpret_cast<std::byte*>(&command) + (at - PCI_COMMAND), &from[i], 1);
    } else if (at >= PCI_CACHE_LINE_SIZE) {
      device.config[at] = from[i];
    }
  }
  SetCommand(device, command & kBits);
}

// --- Regions ------------------------------------------------------------------------------------

int FakeVfioKernel::Mmap(int fd, uint64_t offset, size_t size, bool writable, void** address) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->Fails()) return -impl_->options.fail_errno;
  const File* const file = impl_->Find(fd);
  if (file == nullptr) return -EBADF;
  const uint64_t index = offset >> kRegionShift;
  if (file->device == nullptr || index >= 6 || offset != index << kRegionShift) return -EINVAL;
  const Function& device = *file->device;
  const bool sparse = (device.shape.sparse_bars >> index & 1) != 0;
  if (device.bars[index] == nullptr || size == 0 || (device.shape.io_bars >> index & 1) != 0 ||
      size > (sparse ? kPage : device.shape.bars[index])) {
    return -EINVAL;
  }
  void* const at = device.bars[index]->Map(size, writable);
  if (at == nullptr) return -ENOMEM;
  const std::string name = absl::StrCat("bar ", index, " ", device.shape.address);
  impl_->regions.emplace(at, std::pair(size, name));
  impl_->Log("map " + name);
  *address = at;
  return 0;
}

int FakeVfioKernel::Munmap(void* address, size_t size) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  const auto at = impl_->regions.find(address);
  if (at == impl_->regions.end() || at->second.first != size) return -EINVAL;
  munmap(address, size);
  impl_->Log("unmap " + at->second.second);
  impl_->regions.erase(at);
  return 0;
}

// The bytes of configuration space at `offset` of a device's descriptor, or -errno.
int FakeVfioKernel::Impl::FindConfig(int fd, uint64_t offset, size_t size, Function** device,
                                     size_t* at) {
  const File* const file = Find(fd);
  if (file == nullptr) return -EBADF;
  if (file->device == nullptr || offset >> kRegionShift != VFIO_PCI_CONFIG_REGION_INDEX) {
    return -EINVAL;
  }
  *device = file->device;
  *at = offset & ((uint64_t{1} << kRegionShift) - 1);
  const size_t room = file->device->config.size();
  return *at < room && size <= room - *at ? 0 : -EFAULT;
}

int64_t FakeVfioKernel::PRead(int fd, uint64_t offset, std::span<std::byte> to) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->Fails()) return -impl_->options.fail_errno;
  Function* device = nullptr;
  size_t at = 0;
  if (const int error = impl_->FindConfig(fd, offset, to.size(), &device, &at)) return error;
  std::memcpy(to.data(), device->config.data() + at, to.size());
  return static_cast<int64_t>(to.size());
}

int64_t FakeVfioKernel::PWrite(int fd, uint64_t offset, std::span<const std::byte> from) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->Fails()) return -impl_->options.fail_errno;
  Function* device = nullptr;
  size_t at = 0;
  if (const int error = impl_->FindConfig(fd, offset, from.size(), &device, &at)) return error;
  impl_->WriteConfig(*device, at, from);
  return static_cast<int64_t>(from.size());
}

}  // namespace dmakit::dma::host
