// SPDX-License-Identifier: Apache-2.0
//
// What VFIO asks of the kernel, call by call: VfioKernel is the seam, SystemVfioKernel the real
// one. It knows nothing of containers or devices; who calls does (vfio_container.h). Calls return
// what the system call does, or -errno: errors are values. Ioctls are counted, so that a test can
// tell what a packet costs the kernel: nothing.
//
// Any thread.
#ifndef DMAKIT_DMA_HOST_VFIO_KERNEL_H_
#define DMAKIT_DMA_HOST_VFIO_KERNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "iova/types.h"

namespace dmakit::dma::host {

// Since the kernel object was made; failed ones included.
struct VfioCallCounts {
  uint64_t ioctls = 0;
  uint64_t dma_maps = 0;    // of them, VFIO_IOMMU_MAP_DMA
  uint64_t dma_unmaps = 0;  // and VFIO_IOMMU_UNMAP_DMA
};

class VfioKernel {
 public:
  virtual ~VfioKernel() = default;
  VfioKernel(const VfioKernel&) = delete;
  VfioKernel& operator=(const VfioKernel&) = delete;

  // For reading and writing; a descriptor, closed by Close.
  virtual int Open(const std::string& path) = 0;
  virtual void Close(int fd) = 0;

  int Ioctl(int fd, unsigned long request, void* argument) {
    Count(request);
    return DoIoctl(fd, request, argument);
  }
  // For requests whose argument is a number.
  int IoctlValue(int fd, unsigned long request, unsigned long value) {
    return Ioctl(fd, request, reinterpret_cast<void*>(value));
  }

  // Device regions, at `offset` of the device's descriptor; shared. `writable`: or to read only.
  // On success 0 and the address, for Munmap with the same size.
  virtual int Mmap(int fd, uint64_t offset, size_t size, bool writable, void** address) = 0;
  virtual int Munmap(void* address, size_t size) = 0;
  // Bytes read or written.
  virtual int64_t PRead(int fd, uint64_t offset, std::span<std::byte> to) = 0;
  virtual int64_t PWrite(int fd, uint64_t offset, std::span<const std::byte> from) = 0;

  // RLIMIT_MEMLOCK, the soft one. nullopt: unlimited.
  virtual std::optional<Bytes> MemlockLimit() = 0;
  // What this process has locked, as the kernel compares it with that limit. Type1 counts what it
  // pins here too, once per mapping.
  virtual Bytes LockedBytes() = 0;
  // The limit does not hold for this process (CAP_IPC_LOCK).
  virtual bool MayLockAnything() = 0;

  VfioCallCounts counts() const {
    const auto value = [](const std::atomic<uint64_t>& n) {
      return n.load(std::memory_order_relaxed);
    };
    return {value(ioctls_), value(dma_maps_), value(dma_unmaps_)};
  }

 protected:
  VfioKernel() = default;
  virtual int DoIoctl(int fd, unsigned long request, void* argument) = 0;

 private:
  void Count(unsigned long request);

  std::atomic<uint64_t> ioctls_{0};
  std::atomic<uint64_t> dma_maps_{0};
  std::atomic<uint64_t> dma_unmaps_{0};
};

class SystemVfioKernel final : public VfioKernel {
 public:
  // `proc`: where procfs is; a test's to change.
  explicit SystemVfioKernel(std::string proc) : proc_(std::move(proc)) {}
  SystemVfioKernel() : SystemVfioKernel("/proc") {}

  int Open(const std::string& path) override;
  void Close(int fd) override;
  int Mmap(int fd, uint64_t offset, size_t size, bool writable, void** address) override;
  int Munmap(void* address, size_t size) override;
  int64_t PRead(int fd, uint64_t offset, std::span<std::byte> to) override;
  int64_t PWrite(int fd, uint64_t offset, std::span<const std::byte> from) override;
  std::optional<Bytes> MemlockLimit() override;
  Bytes LockedBytes() override;
  bool MayLockAnything() override;

 protected:
  int DoIoctl(int fd, unsigned long request, void* argument) override;

 private:
  const std::string proc_;
};

// A descriptor of a VfioKernel, closed at its end. Move-only; one thread at a time.
class VfioFd {
 public:
  VfioFd() = default;
  VfioFd(VfioKernel& kernel, int fd) : kernel_(&kernel), fd_(fd) {}
  VfioFd(VfioFd&& other) noexcept : kernel_(other.kernel_), fd_(std::exchange(other.fd_, -1)) {}
  VfioFd& operator=(VfioFd&& other) noexcept {
    std::swap(kernel_, other.kernel_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~VfioFd() {
    if (fd_ >= 0) kernel_->Close(fd_);
  }
  int get() const { return fd_; }

 private:
  VfioKernel* kernel_ = nullptr;
  int fd_ = -1;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_VFIO_KERNEL_H_
