// SPDX-License-Identifier: Apache-2.0

#include "dma/host/vfio_kernel.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <string_view>

namespace dmakit::dma::host {
namespace {

// Again when a signal came; -errno.
template <typename Call>
auto Retry(const Call& call) -> decltype(call()) {
  for (;;) {
    const auto result = call();
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

// The number behind `key` in /proc/self/status.
std::optional<uint64_t> StatusNumber(const std::string& proc, std::string_view key, int base) {
  std::ifstream in(proc + "/self/status");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t at = line.find_first_not_of(" \t", key.size());
    if (at == std::string::npos) return std::nullopt;
    uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(line.data() + at, line.data() + line.size(), value, base);
    if (error != std::errc{}) return std::nullopt;
    return value;
  }
  return std::nullopt;
}

}  // namespace

void VfioKernel::Count(unsigned long request) {
  ioctls_.fetch_add(1, std::memory_order_relaxed);
  if (request == VFIO_IOMMU_MAP_DMA) dma_maps_.fetch_add(1, std::memory_order_relaxed);
  if (request == VFIO_IOMMU_UNMAP_DMA) dma_unmaps_.fetch_add(1, std::memory_order_relaxed);
}

int SystemVfioKernel::Open(const std::string& path) {
  return Retry([&] { return open(path.c_str(), O_RDWR | O_CLOEXEC); });
}

void SystemVfioKernel::Close(int fd) { close(fd); }

int SystemVfioKernel::DoIoctl(int fd, unsigned long request, void* argument) {
  return Retry([&] { return ioctl(fd, request, argument); });
}

int SystemVfioKernel::Mmap(int fd, uint64_t offset, size_t size, bool writable, void** address) {
  const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  void* const at = mmap(nullptr, size, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return -errno;
  *address = at;
  return 0;
}

int SystemVfioKernel::Munmap(void* address, size_t size) {
  return munmap(address, size) == 0 ? 0 : -errno;
}

int64_t SystemVfioKernel::PRead(int fd, uint64_t offset, std::span<std::byte> to) {
  return Retry([&] { return pread(fd, to.data(), to.size(), static_cast<off_t>(offset)); });
}

int64_t SystemVfioKernel::PWrite(int fd, uint64_t offset, std::span<const std::byte> from) {
  return Retry([&] { return pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset)); });
}

std::optional<Bytes> SystemVfioKernel::MemlockLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  return Bytes(limit.rlim_cur);
}

// Type1 charges mm->locked_vm, which is VmLck. VmPin is another account (RDMA's, io_uring's), held
// against the same limit but not added up with this one.
Bytes SystemVfioKernel::LockedBytes() { return KiB(StatusNumber(proc_, "VmLck:", 10).value_or(0)); }

bool SystemVfioKernel::MayLockAnything() {
  const uint64_t effective = StatusNumber(proc_, "CapEff:", 16).value_or(0);
  return (effective >> CAP_IPC_LOCK & 1) != 0;
}

}  // namespace dmakit::dma::host
