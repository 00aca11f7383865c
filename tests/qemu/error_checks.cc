// SPDX-License-Identifier: Apache-2.0
//
// Each way in which a machine refuses a device to a program, met on machines that do: which problem
// it is, and that the message names the thing, the rule and the remedy.

#include <linux/vfio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "dma/host/vfio_container.h"
#include "dma/host/vfio_device.h"
#include "dma/host/vfio_domain.h"
#include "dma/host/vfio_error.h"
#include "tests/qemu/guest.h"

namespace dmakit::qemu {
namespace {

using absl::StrContains;
using dma::host::SystemVfioKernel;
using dma::host::VfioContainer;
using dma::host::VfioDevice;
using dma::host::VfioDomain;
using dma::host::VfioProblem;

constexpr uint64_t kPage = 4096;

// A device opened in a container of its own.
struct Opened {
  explicit Opened(SystemVfioKernel& kernel, const std::string& address = kAddress[0]) {
    VfioContainer::Options options;
    options.report = [this](std::string_view line) { reports.emplace_back(line); };
    auto made = VfioContainer::Open(kernel, std::move(options));
    status = made.status();
    if (!status.ok()) return;
    container = *std::move(made);
    auto opened = VfioDevice::Open(*container, address);
    status = opened.status();
    if (!status.ok()) return;
    device = *std::move(opened);
    auto translation = container->domain();
    status = translation.status();
    if (status.ok()) domain = *translation;
  }
  std::vector<std::string> reports;
  absl::Status status;
  std::unique_ptr<VfioContainer> container;
  std::unique_ptr<VfioDevice> device;
  VfioDomain* domain = nullptr;
};

// Prints it, so that the run's log shows what a user reads.
void CheckProblem(const absl::Status& status, VfioProblem problem,
                  std::initializer_list<const char*> words) {
  std::printf("%s\n", std::string(status.message()).c_str());
  INFO(status.message());
  REQUIRE(dma::host::VfioProblemOf(status).has_value());
  CHECK(dma::host::VfioProblemOf(status) == problem);
  for (const char* const word : words) {
    INFO(word);
    CHECK(StrContains(status.message(), word));
  }
}

// Runs `check` in a child process as an ordinary user with this limit of locked memory. Catch2
// reports in the parent whether it came through.
template <typename Check>
void AsUser(uint64_t memlock, Check&& check) {
  std::fflush(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit limit = {memlock, memlock};
    const bool dropped =
        setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && setgid(1000) == 0 && setuid(1000) == 0;
    const bool good = dropped && check();
    std::fflush(nullptr);
    _exit(good ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

bool Says(const absl::Status& status, VfioProblem problem,
          std::initializer_list<const char*> words) {
  std::printf("as a user: %s\n", std::string(status.message()).c_str());
  bool good = dma::host::VfioProblemOf(status) == problem;
  for (const char* const word : words) good &= StrContains(status.message(), word);
  return good;
}

int RawMap(SystemVfioKernel& kernel, int fd, uint64_t iova, void* memory, uint64_t size) {
  vfio_iommu_type1_dma_map map = {};
  map.argsz = sizeof(map);
  map.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
  map.vaddr = reinterpret_cast<uintptr_t>(memory);
  map.iova = iova;
  map.size = size;
  return kernel.Ioctl(fd, VFIO_IOMMU_MAP_DMA, &map);
}

// A container without this library.
class RawContainer {
 public:
  explicit RawContainer(SystemVfioKernel& kernel)
      : container_(kernel, kernel.Open("/dev/vfio/vfio")) {
    const auto link = std::filesystem::read_symlink(std::string("/sys/bus/pci/devices/") +
                                                    kAddress[0] + "/iommu_group");
    group_ = dma::host::VfioFd(kernel, kernel.Open("/dev/vfio/" + link.filename().string()));
    int fd = container_.get();
    REQUIRE(fd >= 0);
    REQUIRE(group_.get() >= 0);
    REQUIRE(kernel.Ioctl(group_.get(), VFIO_GROUP_SET_CONTAINER, &fd) == 0);
    REQUIRE(kernel.IoctlValue(fd, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) == 0);
  }
  int fd() const { return container_.get(); }

 private:
  dma::host::VfioFd container_;
  dma::host::VfioFd group_;
};

alignas(kPage) std::byte arena[64 * kPage];

TEST_CASE("the facts of the domain are the kernel's", "[facts]") {
  SystemVfioKernel kernel;
  Opened opened(kernel);
  INFO(opened.status.message());
  REQUIRE(opened.status.ok());
  const dma::DomainFacts& facts = opened.domain->facts();
  CHECK(facts.width == AddressBits(39));
  CHECK(facts.granule() == Bytes(kPage));
  CHECK((facts.page_sizes & (uint64_t{1} << 21)) != 0);
  CHECK(facts.max_mappings == 65'535);
  CHECK(facts.unmap_invalidates);
  CHECK_FALSE(facts.splittable);
  bool msi = false;
  for (const Interval& hole : facts.reserved) {
    msi |= hole.first == Iova(0xfee00000) && hole.last == Iova(0xfeefffff);
  }
  CHECK(msi);
}

TEST_CASE("an IOVA beyond the width is refused by us, as it would be by the kernel", "[errors]") {
  SystemVfioKernel kernel;
  Opened opened(kernel);
  REQUIRE(opened.status.ok());
  const Range beyond{Iova(uint64_t{1} << 39), Bytes(kPage)};
  const uint64_t before = kernel.counts().dma_maps;
  CheckProblem(opened.domain->Map(beyond, dma::MemoryView::Of(std::span(arena, kPage)),
                                  dma::Access::kReadWrite),
               VfioProblem::kWidth, {"0x8000000000", "0x7fffffffff"});
  CHECK(kernel.counts().dma_maps == before);
}

TEST_CASE("the 65,536th mapping is refused with the limit's name, and 90 % was told", "[errors]") {
  SystemVfioKernel kernel;
  Opened opened(kernel);
  REQUIRE(opened.status.ok());
  const dma::MemoryView page = dma::MemoryView::Of(std::span(arena, kPage));
  const auto at = [](uint64_t i) { return Range{Iova(0x10'0000'0000 + i * kPage), Bytes(kPage)}; };
  for (uint64_t i = 0; i < 65'535; ++i) {
    const absl::Status mapped = opened.domain->Map(at(i), page, dma::Access::kReadWrite);
    if (!mapped.ok()) FAIL("mapping " << i << ": " << mapped.message());
    if (i == 58'980) CHECK(opened.reports.empty());
  }
  REQUIRE(opened.reports.size() == 1);
  std::printf("%s\n", opened.reports[0].c_str());
  CHECK(StrContains(opened.reports[0], "65535"));
  CheckProblem(opened.domain->Map(at(65'535), page, dma::Access::kReadWrite), VfioProblem::kBudget,
               {"65535"});
  const auto removed = opened.domain->Unmap({at(0).base, Bytes(65'535 * kPage)});
  REQUIRE(removed.ok());
  CHECK(*removed == Bytes(65'535 * kPage));
  CHECK(opened.domain->stats().live_mappings == 0);
}

TEST_CASE("a device without VFIO's driver, and one that is not there", "[errors]") {
  SystemVfioKernel kernel;
  CheckProblem(Opened(kernel, "0000:00:1f.2").status, VfioProblem::kDriver,
               {"0000:00:1f.2", "driverctl set-override 0000:00:1f.2 vfio-pci"});
  CheckProblem(Opened(kernel, "0000:00:19.0").status, VfioProblem::kNoDevice, {"0000:00:19.0"});
}

TEST_CASE("a group that the kernel has a part of names its members and their drivers",
          "[shared-group]") {
  SystemVfioKernel kernel;
  CheckProblem(Opened(kernel, "0000:01:01.0").status, VfioProblem::kGroupNotViable,
               {"0000:01:02.0", "virtio-pci"});
}

TEST_CASE("somebody else's group", "[errors]") {
  // The scene has given the group of the first NIC to the user, and not that of the second.
  AsUser(RLIM_INFINITY, [] {
    SystemVfioKernel kernel;
    return Says(Opened(kernel, kAddress[1]).status, VfioProblem::kPermission, {"/dev/vfio/"});
  });
}

TEST_CASE("a group that is open already", "[errors]") {
  SystemVfioKernel kernel;
  Opened first(kernel);
  REQUIRE(first.status.ok());
  CheckProblem(Opened(kernel).status, VfioProblem::kBusy, {"/dev/vfio/"});
}

TEST_CASE("64 KiB of locked memory are not enough, and the need is named", "[errors]") {
  AsUser(64 * 1024, [] {
    SystemVfioKernel kernel;
    Opened opened(kernel);
    if (!opened.status.ok()) return Says(opened.status, VfioProblem::kMemlock, {"never"});
    std::memset(arena, 1, sizeof(arena));
    const uint64_t before = kernel.counts().dma_maps;
    const absl::Status refused =
        opened.domain->Map({Iova(0x100000), Bytes(sizeof(arena))},
                           dma::MemoryView::Of(std::span(arena)), dma::Access::kReadWrite);
    const bool asked = kernel.counts().dma_maps != before;
    const bool small =
        opened.domain
            ->Map({Iova(0x100000), Bytes(4 * kPage)},
                  dma::MemoryView::Of(std::span(arena, 4 * kPage)), dma::Access::kReadWrite)
            .ok();
    return Says(refused, VfioProblem::kMemlock, {"ulimit -l", "256"}) && !asked && small;
  });
}

TEST_CASE("a machine without an IOMMU", "[no-iommu]") {
  SystemVfioKernel kernel;
  CheckProblem(Opened(kernel).status, VfioProblem::kNoIommu, {"0000:00:04.0", "intel_iommu=on"});
}

TEST_CASE("interrupts that are not remapped", "[no-intremap]") {
  SystemVfioKernel kernel;
  CheckProblem(Opened(kernel).status, VfioProblem::kNoInterruptRemapping,
               {"allow_unsafe_interrupts"});
}

TEST_CASE("interrupts that are not remapped, and a machine that allows them", "[unsafe]") {
  SystemVfioKernel kernel;
  Opened opened(kernel);
  INFO(opened.status.message());
  CHECK(opened.status.ok());
}

// What every rule that the fake kernel enforces is taken from.
TEST_CASE("the kernel's own answers", "[facts]") {
  SystemVfioKernel kernel;
  const RawContainer raw(kernel);
  const int fd = raw.fd();
  CHECK(RawMap(kernel, fd, uint64_t{1} << 39, arena, kPage) == -EINVAL);
  CHECK(RawMap(kernel, fd, 0xfee00000, arena, kPage) == -EINVAL);
  CHECK(RawMap(kernel, fd, 0x100800, arena, kPage) == -EINVAL);
  REQUIRE(RawMap(kernel, fd, 0x100000, arena, 2 * kPage) == 0);
  CHECK(RawMap(kernel, fd, 0x101000, arena, kPage) == -EEXIST);
  vfio_iommu_type1_dma_unmap unmap = {};
  unmap.argsz = sizeof(unmap);
  unmap.iova = 0x100000;
  unmap.size = kPage;
  CHECK(kernel.Ioctl(fd, VFIO_IOMMU_UNMAP_DMA, &unmap) == -EINVAL);
  unmap.iova = 0x200000;
  CHECK(kernel.Ioctl(fd, VFIO_IOMMU_UNMAP_DMA, &unmap) == 0);
  CHECK(unmap.size == 0);
  unmap.iova = 0x100000;
  unmap.size = 2 * kPage;
  CHECK(kernel.Ioctl(fd, VFIO_IOMMU_UNMAP_DMA, &unmap) == 0);
  CHECK(unmap.size == 2 * kPage);
}

}  // namespace
}  // namespace dmakit::qemu
