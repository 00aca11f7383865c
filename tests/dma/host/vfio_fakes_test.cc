// SPDX-License-Identifier: Apache-2.0
//
// The fake kernel is as strict as the real one: each rule of <linux/vfio.h>, call by call.
#include "dma/host/vfio_fakes.h"

#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <sys/mman.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "dma/host/event_fd.h"
#include "tests/catch.h"
#include "tests/dma/host/child.h"
#include "tests/dma/host/vfio_testing.h"

namespace dmakit::dma::host {
namespace {

using testing::kPage;
using testing::Pages;

const std::string kAddress = "0000:00:04.0";

// Container and group by hand, as far as `steps` says: 1 opened, 2 joined, 3 IOMMU set, 4 device.
struct Hand {
  explicit Hand(FakeVfioKernel& k, int steps) : kernel(k) {
    container = kernel.Open("/dev/vfio/vfio");
    group = kernel.Open("/dev/vfio/1");
    REQUIRE(container >= 0);
    REQUIRE(group >= 0);
    if (steps >= 2) REQUIRE(Join() == 0);
    if (steps >= 3) REQUIRE(SetIommu() == 0);
    if (steps >= 4) REQUIRE((device = OpenDevice(kAddress)) >= 0);
  }
  ~Hand() {
    for (const int fd : {device, group, container}) {
      if (fd >= 0) kernel.Close(fd);
    }
  }
  int Join() { return kernel.Ioctl(group, VFIO_GROUP_SET_CONTAINER, &container); }
  int SetIommu(unsigned long type = VFIO_TYPE1v2_IOMMU) {
    return kernel.IoctlValue(container, VFIO_SET_IOMMU, type);
  }
  int OpenDevice(const std::string& address) {
    return kernel.Ioctl(group, VFIO_GROUP_GET_DEVICE_FD, const_cast<char*>(address.c_str()));
  }
  int Map(uint64_t iova, uint64_t size, const void* memory, uint32_t flags = VFIO_DMA_MAP_FLAG_READ,
          uint32_t argsz = 0) {
    vfio_iommu_type1_dma_map map{};
    map.argsz = argsz != 0 ? argsz : sizeof(map);
    map.flags = flags;
    map.vaddr = reinterpret_cast<uintptr_t>(memory);
    map.iova = iova;
    map.size = size;
    return kernel.Ioctl(container, VFIO_IOMMU_MAP_DMA, &map);
  }
  // The size that went, or -errno.
  int64_t Unmap(uint64_t iova, uint64_t size, uint32_t flags = 0) {
    vfio_iommu_type1_dma_unmap unmap{};
    unmap.argsz = sizeof(unmap);
    unmap.flags = flags;
    unmap.iova = iova;
    unmap.size = size;
    const int result = kernel.Ioctl(container, VFIO_IOMMU_UNMAP_DMA, &unmap);
    return result < 0 ? result : static_cast<int64_t>(unmap.size);
  }
  int SetIrqs(uint32_t flags, uint32_t start, uint32_t count, std::vector<int32_t> fds,
              uint32_t index = VFIO_PCI_MSIX_IRQ_INDEX) {
    std::vector<std::byte> buffer(sizeof(vfio_irq_set) + 4 * fds.size());
    vfio_irq_set set{};
    set.argsz = static_cast<uint32_t>(buffer.size());
    set.flags = flags;
    set.index = index;
    set.start = start;
    set.count = count;
    std::memcpy(buffer.data(), &set, sizeof(set));
    if (!fds.empty()) std::memcpy(buffer.data() + sizeof(set), fds.data(), 4 * fds.size());
    return kernel.Ioctl(device, VFIO_DEVICE_SET_IRQS, buffer.data());
  }

  FakeVfioKernel& kernel;
  int container = -1;
  int group = -1;
  int device = -1;
};

TEST_CASE("the order of set-up is enforced") {
  FakeVfioKernel kernel;
  Hand hand(kernel, 1);
  CHECK(hand.SetIommu() == -EINVAL);            // no group yet
  CHECK(hand.OpenDevice(kAddress) == -EINVAL);  // not in a container
  CHECK(hand.Map(0, kPage, nullptr) == -EINVAL);
  vfio_iommu_type1_info info{};
  info.argsz = sizeof(info);
  CHECK(kernel.Ioctl(hand.container, VFIO_IOMMU_GET_INFO, &info) == -EINVAL);
  REQUIRE(hand.Join() == 0);
  CHECK(hand.Join() == -EINVAL);                // twice
  CHECK(hand.OpenDevice(kAddress) == -EINVAL);  // no IOMMU yet
  CHECK(hand.SetIommu(VFIO_TYPE1_IOMMU) == -ENODEV);
  REQUIRE(hand.SetIommu() == 0);
  CHECK(hand.SetIommu() == -EINVAL);
  CHECK(hand.OpenDevice("0000:00:05.0") == -ENODEV);
  hand.device = hand.OpenDevice(kAddress);
  CHECK(hand.device >= 0);
  CHECK(kernel.Ioctl(hand.group, VFIO_GROUP_UNSET_CONTAINER, nullptr) == -EBUSY);
}

TEST_CASE("descriptors have types") {
  FakeVfioKernel kernel;
  Hand hand(kernel, 4);
  CHECK(kernel.Open("/dev/vfio/1") == -EBUSY);
  CHECK(kernel.Open("/dev/vfio/2") == -ENOENT);
  CHECK(kernel.Open("/dev/null") == -ENOENT);
  CHECK(kernel.Ioctl(hand.device, VFIO_IOMMU_MAP_DMA, nullptr) == -ENOTTY);
  CHECK(kernel.Ioctl(hand.group, VFIO_DEVICE_RESET, nullptr) == -ENOTTY);
  CHECK(kernel.Ioctl(hand.container, VFIO_DEVICE_RESET, nullptr) == -ENOTTY);
  CHECK(kernel.Ioctl(7, VFIO_DEVICE_RESET, nullptr) == -EBADF);
  std::byte byte{};
  CHECK(kernel.PRead(hand.group, 0, {&byte, 1}) == -EINVAL);
  void* address = nullptr;
  CHECK(kernel.Mmap(hand.container, 0, kPage, true, &address) == -EINVAL);
  int32_t group = hand.group;
  CHECK(kernel.Ioctl(hand.group, VFIO_GROUP_SET_CONTAINER, &group) == -EINVAL);
}

TEST_CASE("structures that are too short, and flags that do not exist, are refused") {
  FakeVfioKernel kernel;
  Hand hand(kernel, 4);
  vfio_group_status status{};
  status.argsz = 4;
  CHECK(kernel.Ioctl(hand.group, VFIO_GROUP_GET_STATUS, &status) == -EINVAL);
  vfio_iommu_type1_info info{};
  info.argsz = 8;
  CHECK(kernel.Ioctl(hand.container, VFIO_IOMMU_GET_INFO, &info) == -EINVAL);
  vfio_device_info device{};
  device.argsz = 8;
  CHECK(kernel.Ioctl(hand.device, VFIO_DEVICE_GET_INFO, &device) == -EINVAL);
  vfio_region_info region{};
  region.argsz = sizeof(region);
  region.index = VFIO_PCI_NUM_REGIONS;
  CHECK(kernel.Ioctl(hand.device, VFIO_DEVICE_GET_REGION_INFO, &region) == -EINVAL);
  region.index = 0;
  region.argsz = 8;
  CHECK(kernel.Ioctl(hand.device, VFIO_DEVICE_GET_REGION_INFO, &region) == -EINVAL);
  vfio_irq_info irq{};
  irq.argsz = sizeof(irq);
  irq.index = VFIO_PCI_NUM_IRQS;
  CHECK(kernel.Ioctl(hand.device, VFIO_DEVICE_GET_IRQ_INFO, &irq) == -EINVAL);
  const Pages pages(1);
  CHECK(hand.Map(kPage, kPage, pages.At(0).cpu, VFIO_DMA_MAP_FLAG_READ, 8) == -EINVAL);
  CHECK(hand.Map(kPage, kPage, pages.At(0).cpu, 0) == -EINVAL);
  CHECK(hand.Map(kPage, kPage, pages.At(0).cpu, 1u << 7) == -EINVAL);
  CHECK(hand.Unmap(kPage, kPage, 1u << 7) == -EINVAL);
}

TEST_CASE("information is given in two steps, and not beyond what was offered") {
  FakeVfioKernel kernel;
  Hand hand(kernel, 3);
  struct {
    vfio_iommu_type1_info info;
    uint64_t guard[32];
  } buffer{};
  std::memset(buffer.guard, 0x5a, sizeof(buffer.guard));
  buffer.info.argsz = sizeof(buffer.info);
  REQUIRE(kernel.Ioctl(hand.container, VFIO_IOMMU_GET_INFO, &buffer.info) == 0);
  CHECK((buffer.info.flags & VFIO_IOMMU_INFO_CAPS) != 0);
  CHECK(buffer.info.cap_offset == 0);
  CHECK(buffer.info.argsz > sizeof(buffer.info));
  CHECK(buffer.guard[0] == 0x5a5a5a5a5a5a5a5a);
  REQUIRE(buffer.info.argsz < sizeof(buffer));
  REQUIRE(kernel.Ioctl(hand.container, VFIO_IOMMU_GET_INFO, &buffer.info) == 0);
  CHECK(buffer.info.cap_offset == sizeof(buffer.info));
}

TEST_CASE("mappings: alignment, place, overlap, cuts, and memory that is there") {
  FakeVfioKernel kernel({.width = AddressBits(39)});
  Hand hand(kernel, 3);
  const Pages pages(8);
  const std::byte* const memory = pages.At(0).cpu;
  CHECK(hand.Map(kPage + 1, kPage, memory) == -EINVAL);
  CHECK(hand.Map(kPage, kPage - 1, memory) == -EINVAL);
  CHECK(hand.Map(kPage, 0, memory) == -EINVAL);
  CHECK(hand.Map(kPage, kPage, memory + 1) == -EINVAL);
  CHECK(hand.Map(~uint64_t{0} - kPage + 1, 2 * kPage, memory) == -EINVAL);
  CHECK(hand.Map(uint64_t{1} << 39, kPage, memory) == -EINVAL);
  CHECK(hand.Map((uint64_t{1} << 39) - kPage, 2 * kPage, memory) == -EINVAL);
  CHECK(hand.Map(0xfee00000, kPage, memory) == -EINVAL);
  CHECK(hand.Map(0xfeeff000, 2 * kPage, memory) == -EINVAL);
  CHECK(hand.Map((uint64_t{1} << 39) - kPage, kPage, memory) == 0);
  REQUIRE(hand.Map(0x10000, 4 * kPage, memory) == 0);
  CHECK(hand.Map(0x10000, 4 * kPage, memory) == -EEXIST);
  CHECK(hand.Map(0x13000, kPage, memory) == -EEXIST);
  CHECK(hand.Map(0xf000, 8 * kPage, memory) == -EEXIST);
  REQUIRE(hand.Map(0x14000, kPage, memory) == 0);
  CHECK(hand.Unmap(0x10000, kPage) == -EINVAL);
  CHECK(hand.Unmap(0x11000, 4 * kPage) == -EINVAL);
  CHECK(hand.Unmap(0x12000, kPage) == -EINVAL);
  CHECK(hand.Unmap(0x10001, kPage) == -EINVAL);
  CHECK(hand.Unmap(0x10000, 0) == -EINVAL);
  CHECK(hand.Unmap(0x20000, kPage) == 0);
  CHECK(hand.Unmap(0xf000, 8 * kPage) == 5 * static_cast<int64_t>(kPage));
  CHECK(hand.Unmap(0xf000, 8 * kPage) == 0);
  void* const hole = mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(hole, kPage);
  CHECK(hand.Map(0x10000, kPage, hole) == -EFAULT);
}

TEST_CASE("mappings: the number and the locked bytes") {
  const Pages pages(4);
  FakeVfioKernel few({.max_mappings = 2});
  Hand hand(few, 3);
  CHECK(hand.Map(0x1000, kPage, pages.At(0).cpu) == 0);
  CHECK(hand.Map(0x2000, kPage, pages.At(0).cpu) == 0);
  CHECK(hand.Map(0x3000, kPage, pages.At(0).cpu) == -ENOSPC);
  CHECK(few.LockedBytes() == Bytes(2 * kPage));  // once per mapping
  FakeVfioKernel user({.root = false, .memlock_limit = KiB(12), .locked = KiB(4)});
  Hand small(user, 3);
  CHECK(small.Map(0x1000, 3 * kPage, pages.At(0).cpu) == -ENOMEM);
  CHECK(small.Map(0x1000, 2 * kPage, pages.At(0).cpu) == 0);
  CHECK(small.Map(0x9000, kPage, pages.At(0).cpu) == -ENOMEM);
  CHECK(small.Unmap(0x1000, 2 * kPage) == 2 * static_cast<int64_t>(kPage));
  CHECK(user.LockedBytes() == KiB(4));
}

TEST_CASE("interrupts: one kind of data, in range, eventfds, and no growing") {
  FakeVfioKernel kernel;
  Hand hand(kernel, 4);
  const EventFd event = *EventFd::Create();
  constexpr uint32_t kTrigger = VFIO_IRQ_SET_ACTION_TRIGGER;
  constexpr uint32_t kEvents = VFIO_IRQ_SET_DATA_EVENTFD | kTrigger;
  constexpr uint32_t kNone = VFIO_IRQ_SET_DATA_NONE | kTrigger;
  CHECK(hand.SetIrqs(kNone, 0, 0, {}) == -EINVAL);  // nothing is set up
  CHECK(hand.SetIrqs(kEvents | VFIO_IRQ_SET_DATA_NONE, 0, 1, {-1}) == -EINVAL);
  CHECK(hand.SetIrqs(VFIO_IRQ_SET_DATA_EVENTFD, 0, 1, {-1}) == -EINVAL);
  CHECK(hand.SetIrqs(VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_MASK, 0, 1, {-1}) == -ENOTTY);
  CHECK(hand.SetIrqs(kEvents, 0, 6, std::vector<int32_t>(6, -1)) == -EINVAL);
  CHECK(hand.SetIrqs(kEvents, 5, 1, {-1}) == -EINVAL);
  CHECK(hand.SetIrqs(kEvents, 0, 2, {-1}) == -EINVAL);  // fewer descriptors than said
  CHECK(hand.SetIrqs(kEvents, 0, 1, {-1}, VFIO_PCI_MSI_IRQ_INDEX) == -EINVAL);
  CHECK(hand.SetIrqs(kEvents, 0, 1, {0}) == -EINVAL);  // no eventfd
  CHECK(hand.SetIrqs(kEvents, 0, 1, {hand.device}) == -EBADF);
  CHECK(kernel.enabled_vectors(kAddress) == 0);
  REQUIRE(hand.SetIrqs(kEvents, 0, 2, {event.fd(), -1}) == 0);
  CHECK(kernel.enabled_vectors(kAddress) == 2);
  CHECK(hand.SetIrqs(kEvents, 2, 1, {event.fd()}) == -EINVAL);  // only two were set up
  CHECK(hand.SetIrqs(kEvents, 1, 1, {event.fd()}) == 0);
  CHECK(hand.SetIrqs(kNone, 0, 0, {}) == 0);
  CHECK(kernel.enabled_vectors(kAddress) == 0);
}

TEST_CASE("a device is handed over with bus mastering off, and leaves so") {
  FakeVfioKernel kernel;
  CHECK((kernel.Command(kAddress) & PCI_COMMAND_MASTER) != 0);  // from before
  {
    Hand hand(kernel, 4);
    CHECK((kernel.Command(kAddress) & PCI_COMMAND_MASTER) == 0);
    const uint16_t on = PCI_COMMAND_MASTER;
    std::byte bytes[2];
    std::memcpy(bytes, &on, 2);
    const uint64_t config = uint64_t{VFIO_PCI_CONFIG_REGION_INDEX} << 40;
    CHECK(kernel.PWrite(hand.device, config + PCI_COMMAND, bytes) == 2);
    CHECK((kernel.Command(kAddress) & PCI_COMMAND_MASTER) != 0);
    CHECK(kernel.PRead(hand.device, config + 4095, bytes) == -EFAULT);
    CHECK(kernel.PWrite(hand.device, config + 4096, bytes) == -EFAULT);
  }
  CHECK((kernel.Command(kAddress) & PCI_COMMAND_MASTER) == 0);
}

TEST_CASE("mappings end with the last group, whoever closes first") {
  FakeVfioKernel kernel;
  const Pages pages(1);
  Hand hand(kernel, 4);
  REQUIRE(hand.Map(0x1000, kPage, pages.At(0).cpu) == 0);
  kernel.Close(std::exchange(hand.group, -1));
  CHECK(kernel.mappings().size() == 1);  // the device keeps its group
  kernel.Close(std::exchange(hand.device, -1));
  CHECK(kernel.mappings().empty());
  CHECK(hand.Map(0x1000, kPage, pages.At(0).cpu) == -EINVAL);
}

TEST_CASE("a fake that dies with something open ends the test") {
  CHECK(testing::InChild([] {
          FakeVfioKernel kernel;
          return kernel.Open("/dev/vfio/vfio") >= 0 ? 0 : 1;
        }) == -SIGABRT);
  CHECK(testing::InChild([] {
          FakeVfioKernel kernel;
          kernel.Close(12345);
          return 0;
        }) == -SIGABRT);
}

}  // namespace
}  // namespace dmakit::dma::host
