// SPDX-License-Identifier: Apache-2.0
//
// FakeVfioKernel: VFIO owned by a test. It has a machine of PCI devices and IOMMU groups, with a
// sysfs of its own in a temporary directory, and enforces what <linux/vfio.h> and the kernel's
// Type1 v2 and vfio-pci enforce: sizes and flags of every structure, what descriptor a call is for,
// the order of set-up, alignment, width and reserved ranges, overlaps, cuts, budget, locked memory,
// the rules of interrupts. It can fail its k-th call, and shorten an unmap. Memory that devices
// reach is looked up with Translate; there is no device behind the registers, which are plain
// memory.
//
// When it dies with a descriptor open or a region mapped, it aborts the test with a message.
// Any thread, except where a call says otherwise.
#ifndef DMAKIT_DMA_HOST_VFIO_FAKES_H_
#define DMAKIT_DMA_HOST_VFIO_FAKES_H_

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dma/host/fakes.h"
#include "dma/host/vfio_container.h"
#include "dma/host/vfio_kernel.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma::host {

// A function on the fake's PCI bus.
struct FakeVfioFunction {
  std::string address = "0000:00:04.0";
  std::optional<uint32_t> group = 1;  // nullopt: no IOMMU translates for it
  uint16_t vendor = 0x8086;
  uint16_t device = 0x10d3;
  std::string driver = "vfio-pci";                       // empty: none
  std::array<uint64_t, 6> bars = {uint64_t{128} << 10};  // sizes, whole pages; 0: not there
  uint32_t io_bars = 0;                                  // bit n: BAR n is ports, not for mmap
  uint32_t sparse_bars = 0;  // bit n: of BAR n only the first page may be mapped
  uint32_t config_size = 4096;
  uint32_t msix_vectors = 5;
  bool resettable = true;
};

class FakeVfioKernel final : public VfioKernel {
 public:
  struct Options {
    std::vector<FakeVfioFunction> functions = {FakeVfioFunction{}};
    AddressBits width{39};
    std::vector<Interval> reserved{{Iova(0xfee00000), Iova(0xfeefffff)}};
    uint64_t page_sizes = (1u << 12) | (1u << 21) | (1u << 30);
    uint32_t max_mappings = 65'535;
    bool root = true;                            // may lock anything
    std::optional<Bytes> memlock_limit{MiB(8)};  // nullopt: unlimited
    Bytes locked{};                              // by other means than VFIO
    bool intremap = true;
    bool allow_unsafe_interrupts = false;
    uint32_t vectors_left = 2048;  // of the machine's
    // What old or other kernels lack.
    bool loaded = true;  // there is a /dev/vfio/vfio
    int api_version = 0;
    bool type1v2 = true;
    bool tells_sizes = true;   // page sizes
    bool tells_ranges = true;  // capabilities of VFIO_IOMMU_GET_INFO
    bool tells_avail = true;

    FailPoint* fail = nullptr;  // every call that can fail
    int fail_errno = EIO;
    FailPoint* short_unmap = nullptr;  // the chosen unmap leaves its last page mapped
  };
  explicit FakeVfioKernel(Options options);
  FakeVfioKernel() : FakeVfioKernel(Options{}) {}
  ~FakeVfioKernel() override;

  // What a container of it is opened with; `options` without paths.
  VfioContainer::Options ContainerOptions(VfioContainer::Options options) const;
  VfioContainer::Options ContainerOptions() const {
    return ContainerOptions(VfioContainer::Options{});
  }
  std::string sysfs() const;

  int Open(const std::string& path) override;
  void Close(int fd) override;
  int Mmap(int fd, uint64_t offset, size_t size, bool writable, void** address) override;
  int Munmap(void* address, size_t size) override;
  int64_t PRead(int fd, uint64_t offset, std::span<std::byte> to) override;
  int64_t PWrite(int fd, uint64_t offset, std::span<const std::byte> from) override;
  std::optional<Bytes> MemlockLimit() override;
  Bytes LockedBytes() override;
  bool MayLockAnything() override;

  // What happens elsewhere in the machine.
  void SetDenied(uint32_t group, bool denied);       // its file belongs to somebody else
  void SetTaken(uint32_t group, bool taken);         // another process has it open
  void SetLocked(Bytes locked);                      // see Options::locked
  void SetReserved(std::vector<Interval> reserved);  // as groups with other needs join

  struct Mapping {
    Range range{};
    std::byte* memory = nullptr;
    Access access = Access::kNone;
  };
  std::vector<Mapping> mappings() const;  // of all containers
  // Where a device's access goes, nullptr where it would be a fault: bus mastering is off, nothing
  // is mapped there, or not for this. Until the memory is unmapped.
  std::byte* Translate(const std::string& address, Range range, Access access) const;
  // A device's registers, as BARs show them.
  std::span<std::byte> Bar(const std::string& address, size_t index) const;
  uint16_t Command(const std::string& address) const;
  uint32_t resets(const std::string& address) const;
  // The device sends the vector's message. Whether somebody was signalled.
  bool Interrupt(const std::string& address, uint32_t vector);
  // How many vectors are set up; 0: MSI-X is off.
  uint32_t enabled_vectors(const std::string& address) const;

  size_t open_descriptors() const;
  size_t mapped_regions() const;
  // One line per event of set-up and end, in order:
  //   "open /dev/vfio/1", "close device 0000:00:04.0", "close group 1", "close container",
  //   "bus master on 0000:00:04.0", "bus master off 0000:00:04.0", "msix off 0000:00:04.0",
  //   "map bar 0 0000:00:04.0", "unmap bar 0 0000:00:04.0", "iommu set"
  std::vector<std::string> log() const;

 protected:
  int DoIoctl(int fd, unsigned long request, void* argument) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_VFIO_FAKES_H_
