// SPDX-License-Identifier: Apache-2.0
//
// The real seam, as far as any machine has it: errors are values, calls are counted, and the
// process's limits are read.
#include "dma/host/vfio_kernel.h"

#include <fcntl.h>
#include <linux/vfio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "dma/host/vfio_info.h"
#include "tests/catch.h"

namespace dmakit::dma::host {
namespace {

std::string Directory() {
  const char* const directory = std::getenv("TEST_TMPDIR");
  return std::string(directory != nullptr ? directory : "/tmp") + "/vfio_kernel_test";
}

// A procfs in which the process has these lines in its status.
SystemVfioKernel WithStatus(const std::string& lines) {
  const std::string proc = Directory() + "/proc";
  std::filesystem::create_directories(proc + "/self");
  std::ofstream(proc + "/self/status") << "Name:\tx\n" << lines;
  return SystemVfioKernel(proc);
}

TEST_CASE("errors of the system are values") {
  SystemVfioKernel kernel;
  std::byte byte{};
  void* address = nullptr;
  CHECK(kernel.Open("/nowhere/vfio") == -ENOENT);
  CHECK(kernel.Ioctl(-1, VFIO_GET_API_VERSION, nullptr) == -EBADF);
  CHECK(kernel.Mmap(-1, 0, 4096, true, &address) == -EBADF);
  CHECK(kernel.PRead(-1, 0, {&byte, 1}) == -EBADF);
  CHECK(kernel.PWrite(-1, 0, {&byte, 1}) == -EBADF);
  CHECK(kernel.Munmap(reinterpret_cast<void*>(1), 4096) == -EINVAL);
}

TEST_CASE("regions of a descriptor are mapped, read and written") {
  SystemVfioKernel kernel;
  std::filesystem::create_directories(Directory());
  const std::string path = Directory() + "/region";
  std::ofstream(path) << std::string(8192, 'x');
  const VfioFd fd(kernel, kernel.Open(path));
  REQUIRE(fd.get() >= 0);
  void* address = nullptr;
  REQUIRE(kernel.Mmap(fd.get(), 4096, 4096, true, &address) == 0);
  static_cast<char*>(address)[7] = 'y';
  std::byte byte{};
  CHECK(kernel.PRead(fd.get(), 4096 + 7, {&byte, 1}) == 1);
  CHECK(byte == std::byte{'y'});
  byte = std::byte{'z'};
  CHECK(kernel.PWrite(fd.get(), 4096 + 8, {&byte, 1}) == 1);
  CHECK(static_cast<char*>(address)[8] == 'z');
  CHECK(kernel.Munmap(address, 4096) == 0);
}

TEST_CASE("a descriptor has one owner") {
  SystemVfioKernel kernel;
  int number = -1;
  {
    VfioFd first(kernel, kernel.Open("/dev/null"));
    number = first.get();
    REQUIRE(number >= 0);
    VfioFd second = std::move(first);
    CHECK(second.get() == number);
    VfioFd third;
    third = std::move(second);
    CHECK(third.get() == number);
    CHECK(fcntl(number, F_GETFD) >= 0);
  }
  CHECK(fcntl(number, F_GETFD) == -1);
}

TEST_CASE("ioctls are counted by kind, failed ones too") {
  SystemVfioKernel kernel;
  kernel.Ioctl(-1, VFIO_IOMMU_MAP_DMA, nullptr);
  kernel.Ioctl(-1, VFIO_IOMMU_MAP_DMA, nullptr);
  kernel.Ioctl(-1, VFIO_IOMMU_UNMAP_DMA, nullptr);
  kernel.IoctlValue(-1, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU);
  CHECK(kernel.counts().ioctls == 4);
  CHECK(kernel.counts().dma_maps == 2);
  CHECK(kernel.counts().dma_unmaps == 1);
}

TEST_CASE("locked memory and the right to lock any come from the process's status") {
  CHECK(WithStatus("VmPin:\t 7 kB\nVmLck:\t      12 kB\n").LockedBytes() == KiB(12));
  CHECK(WithStatus("VmPin:\t 7 kB\n").LockedBytes() == Bytes(0));
  CHECK(WithStatus("VmLck:\t x kB\n").LockedBytes() == Bytes(0));
  CHECK(WithStatus("CapEff:\t0000000000004000\n").MayLockAnything());
  CHECK_FALSE(WithStatus("CapEff:\t000001ffffffbfff\n").MayLockAnything());
  CHECK_FALSE(WithStatus("").MayLockAnything());
  CHECK(SystemVfioKernel("/nowhere").LockedBytes() == Bytes(0));
}

TEST_CASE("the real numbers follow what the process locks, and its limit") {
  SystemVfioKernel kernel;
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
  CHECK(kernel.MemlockLimit().has_value() == (limit.rlim_cur != RLIM_INFINITY));
  const Bytes before = kernel.LockedBytes();
  void* const page =
      mmap(nullptr, 65'536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  // Not mlock(), which the sanitizers make do nothing.
  if (syscall(SYS_mlock, page, 65'536) == 0) {
    CHECK(kernel.LockedBytes() == before + KiB(64));
    syscall(SYS_munlock, page, 65'536);
  } else {
    WARN("skipped, this process may lock nothing");
  }
  munmap(page, 65'536);
}

// --- Capability chains --------------------------------------------------------------------------

std::vector<std::byte> Chain(std::initializer_list<std::pair<uint32_t, vfio_info_cap_header>> all,
                             size_t size) {
  std::vector<std::byte> raw(size);
  for (const auto& [at, header] : all) std::memcpy(&raw[at], &header, sizeof(header));
  return raw;
}

TEST_CASE("a capability is found along the chain, in any order of addresses") {
  const auto raw = Chain({{32, {1, 1, 16}}, {16, {2, 1, 48}}, {48, {3, 1, 0}}}, 64);
  CHECK(FindVfioCapability(raw, 32, 3).data() == raw.data() + 48);
  CHECK(FindVfioCapability(raw, 32, 3).size() == 16);
  CHECK(FindVfioCapability(raw, 32, 2).size() == 48);
  CHECK(FindVfioCapability(raw, 32, 4).empty());
  CHECK(FindVfioCapability(raw, 0, 1).empty());
}

TEST_CASE("a chain that leaves the answer or goes in circles ends") {
  const auto circle = Chain({{16, {1, 1, 32}}, {32, {2, 1, 16}}}, 48);
  CHECK(FindVfioCapability(circle, 16, 9).empty());
  const auto away = Chain({{16, {1, 1, 44}}}, 48);
  CHECK(FindVfioCapability(away, 16, 9).empty());
  CHECK(FindVfioCapability(away, 0xffffffff, 9).empty());
  CHECK(FindVfioCapability({}, 16, 9).empty());
  CHECK(ReadAt<uint64_t>(away, 41) == 0);
  CHECK(ReadAt<uint64_t>(away, ~size_t{0}) == 0);
}

}  // namespace
}  // namespace dmakit::dma::host
