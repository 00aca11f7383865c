// SPDX-License-Identifier: Apache-2.0
//
// A device in this process's hands: set-up and its end, registers, configuration, interrupts.
#include "dma/host/vfio_device.h"

#include <linux/pci_regs.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dma/host/event_fd.h"
#include "dma/host/fakes.h"
#include "tests/catch.h"
#include "tests/dma/host/vfio_testing.h"

namespace dmakit::dma::host {
namespace {

using testing::At;
using testing::kPage;
using testing::Pages;
using testing::Says;

const std::string kAddress = "0000:00:04.0";

// A machine with one device, open.
struct Rig {
  explicit Rig(FakeVfioKernel::Options options = {}, const VfioDevice::Options& device_options = {})
      : kernel(std::move(options)),
        container(*VfioContainer::Open(kernel, kernel.ContainerOptions())) {
    auto opened = VfioDevice::Open(*container, kAddress, device_options);
    INFO(opened.status().ToString());
    REQUIRE(opened.ok());
    device = *std::move(opened);
  }
  uint16_t command() const { return kernel.Command(kAddress); }

  FakeVfioKernel kernel;
  std::unique_ptr<VfioContainer> container;
  std::unique_ptr<VfioDevice> device;
};

EventFd NewEvent() {
  auto event = EventFd::Create();
  REQUIRE(event.ok());
  return *std::move(event);
}

size_t IndexOf(const std::vector<std::string>& log, const std::string& line) {
  const auto at = std::find(log.begin(), log.end(), line);
  INFO("in the log: " << line);
  REQUIRE(at != log.end());
  return static_cast<size_t>(at - log.begin());
}

// With all that there is to undo.
std::unique_ptr<VfioDevice> Running(VfioContainer& container) {
  auto device = *VfioDevice::Open(container, kAddress);
  const EventFd event = NewEvent();
  REQUIRE(device->MapBar(0).ok());
  REQUIRE(device->ConnectMsix(0, event.fd()).ok());
  REQUIRE(device->EnableBusMaster().ok());
  return device;
}

// --- Set-up and the end -------------------------------------------------------------------------

TEST_CASE("an open device has its identity, memory space on and bus mastering off") {
  Rig rig;
  CHECK(rig.device->vendor_id() == 0x8086);
  CHECK(rig.device->device_id() == 0x10d3);
  CHECK(rig.device->group() == 1);
  CHECK(rig.device->msix_vectors() == 5);
  CHECK(rig.device->has_reset());
  CHECK(rig.device->config_size() == 4096);
  CHECK((rig.command() & PCI_COMMAND_MASTER) == 0);
  CHECK((rig.command() & PCI_COMMAND_MEMORY) != 0);
}

TEST_CASE(
    "the end is in order: bus mastering, interrupts, BARs, device, domain, group, container") {
  FakeVfioKernel kernel;
  const Pages pages(1);
  {
    auto container = *VfioContainer::Open(kernel, kernel.ContainerOptions());
    const auto device = Running(*container);
    REQUIRE((*container->domain())->Map(At(16), pages.At(0), Access::kRead).ok());
  }
  const std::vector<std::string> log = kernel.log();
  const std::vector<std::string> order = {
      "bus master off " + kAddress, "msix off " + kAddress, "unmap bar 0 " + kAddress,
      "close device " + kAddress,   "close group 1",        "close container"};
  REQUIRE(log.size() >= order.size());
  CHECK(std::vector<std::string>(log.end() - static_cast<long>(order.size()), log.end()) == order);
  CHECK(IndexOf(log, "map bar 0 " + kAddress) < IndexOf(log, "unmap bar 0 " + kAddress));
  CHECK(kernel.open_descriptors() == 0);
  CHECK(kernel.counts().dma_unmaps == 1);
}

// All that can fail between nothing and a working device; the k-th does.
absl::Status SetUp(FakeVfioKernel& kernel, const Pages& pages, const EventFd& event) {
  auto container = VfioContainer::Open(kernel, kernel.ContainerOptions());
  if (!container.ok()) return container.status();
  auto device = VfioDevice::Open(**container, kAddress);
  if (!device.ok()) return device.status();
  auto domain = (*container)->domain();
  if (!domain.ok()) return domain.status();
  if (absl::Status s = (*domain)->Map(At(16), pages.At(0), Access::kRead); !s.ok()) return s;
  auto bar = (*device)->MapBar(0);
  if (!bar.ok()) return bar.status();
  if (absl::Status s = (*device)->ConnectMsix(1, event.fd()); !s.ok()) return s;
  if (absl::Status s = (*device)->Reset(); !s.ok()) return s;
  return (*device)->EnableBusMaster();
}

TEST_CASE("a set-up that fails at any step leaves nothing behind, and says what failed") {
  const Pages pages(1);
  const EventFd event = NewEvent();
  uint64_t steps = 0;
  for (uint64_t k = 1;; ++k) {
    INFO("step " << k);
    FailPoint fail;
    FakeVfioKernel kernel({.fail = &fail});
    fail.FailAt(k);
    const absl::Status status = SetUp(kernel, pages, event);
    const bool failed = !status.ok();
    if (failed) {
      CHECK(VfioProblemOf(status).has_value());
      CHECK(std::string(status.message()).find("errno 5") != std::string::npos);
    }
    CHECK(kernel.open_descriptors() == 0);
    CHECK(kernel.mapped_regions() == 0);
    CHECK(kernel.mappings().empty());
    const auto log = kernel.log();
    const bool opened = std::count(log.begin(), log.end(), "close device " + kAddress) != 0;
    CHECK((opened && (kernel.Command(kAddress) & PCI_COMMAND_MASTER) != 0) == false);
    CHECK(kernel.enabled_vectors(kAddress) == 0);
    if (!failed) break;
    steps = k;
    fail.FailAt(0);
    CHECK(SetUp(kernel, pages, event).ok());  // nothing stuck in the kernel either
  }
  CHECK(steps >= 20);
}

TEST_CASE("an end in which every call fails still closes everything") {
  FailPoint fail;
  FakeVfioKernel kernel({.fail = &fail});
  {
    auto container = *VfioContainer::Open(kernel, kernel.ContainerOptions());
    const auto device = Running(*container);
    fail.FailAt(1, true);
  }
  CHECK(kernel.open_descriptors() == 0);
  CHECK(kernel.mapped_regions() == 0);
  CHECK((kernel.Command(kAddress) & PCI_COMMAND_MASTER) == 0);
}

TEST_CASE("a device opens once in a container, and again when it has ended") {
  Rig rig;
  CHECK(Says(VfioDevice::Open(*rig.container, kAddress).status(), VfioProblem::kBusy,
             {kAddress, "already"}));
  rig.device.reset();
  CHECK(VfioDevice::Open(*rig.container, kAddress).ok());
}

// --- Registers and configuration space ----------------------------------------------------------

TEST_CASE("a BAR's registers are the device's, and are mapped once") {
  Rig rig;
  const auto region = rig.device->MapBar(0);
  REQUIRE(region.ok());
  CHECK(region->size() == 128 * 1024);
  region->Write32(0x20, 0x12345678);
  CHECK(rig.kernel.Bar(kAddress, 0)[0x20] == std::byte{0x78});
  rig.kernel.Bar(kAddress, 0)[0x24] = std::byte{0xaa};
  CHECK(region->Read32(0x24) == 0xaa);
  const auto again = rig.device->MapBar(0);
  REQUIRE(again.ok());
  CHECK(again->Read32(0x20) == 0x12345678);
  CHECK(rig.kernel.mapped_regions() == 1);
}

TEST_CASE("a BAR that cannot be mapped says why") {
  FakeVfioFunction function;
  function.bars = {kPage * 4, kPage, 0, kPage * 2, 0, 0};
  function.io_bars = 1 << 1;
  function.sparse_bars = 1 << 3;
  Rig rig({.functions = {function}});
  CHECK(rig.device->MapBar(0).ok());
  CHECK(Says(rig.device->MapBar(1).status(), VfioProblem::kUnsupported, {"BAR 1", "I/O ports"}));
  CHECK(Says(rig.device->MapBar(2).status(), VfioProblem::kUnsupported,
             {"BAR 2", "not implemented"}));
  CHECK(Says(rig.device->MapBar(3).status(), VfioProblem::kUnsupported, {"BAR 3", "parts"}));
  CHECK(Says(rig.device->MapBar(6).status(), VfioProblem::kShape, {"BAR 6"}));
  CHECK(rig.kernel.mapped_regions() == 1);
}

TEST_CASE("configuration space is read and written in bounds, at aligned offsets") {
  FakeVfioFunction function;
  function.config_size = 256;
  Rig rig({.functions = {function}});
  VfioDevice& device = *rig.device;
  CHECK(device.config_size() == 256);
  CHECK(*device.ReadConfig32(0) == 0x10d38086);
  CHECK(*device.ReadConfig8(1) == 0x80);
  REQUIRE(device.WriteConfig32(0xfc, 0xa1b2c3d4).ok());
  CHECK(*device.ReadConfig16(0xfe) == 0xa1b2);
  CHECK(*device.ReadConfig8(0xff) == 0xa1);
  REQUIRE(device.WriteConfig8(0xff, 7).ok());
  CHECK(*device.ReadConfig32(0xfc) == 0x07b2c3d4);
  REQUIRE(device.WriteConfig16(0, 0x1234).ok());
  CHECK(*device.ReadConfig16(0) == 0x8086);  // read only
  const auto shape = VfioProblem::kShape;
  CHECK(Says(device.ReadConfig32(0x100).status(), shape, {"256 bytes"}));
  CHECK(Says(device.ReadConfig8(0x100).status(), shape, {}));
  CHECK(Says(device.ReadConfig32(0xfe).status(), shape, {"aligned"}));
  CHECK(Says(device.ReadConfig16(1).status(), shape, {}));
  CHECK(Says(device.WriteConfig32(~size_t{0} - 3, 0), shape, {}));
  CHECK(Says(device.WriteConfig16(0xff, 0), shape, {}));
}

TEST_CASE("bus mastering is what lets the device reach memory") {
  Rig rig;
  const Pages pages(2);
  VfioDomain& domain = **rig.container->domain();
  REQUIRE(domain.Map(At(16), pages.At(0), Access::kRead).ok());
  REQUIRE(domain.Map(At(17), pages.At(1), Access::kReadWrite).ok());
  const Range word{Iova(17 * kPage + 8), Bytes(4)};
  CHECK(rig.kernel.Translate(kAddress, word, Access::kRead) == nullptr);
  REQUIRE(rig.device->EnableBusMaster().ok());
  CHECK(rig.kernel.Translate(kAddress, word, Access::kRead) == pages.At(1).cpu + 8);
  CHECK(rig.kernel.Translate(kAddress, word, Access::kWrite) == pages.At(1).cpu + 8);
  CHECK(rig.kernel.Translate(kAddress, At(16), Access::kWrite) == nullptr);
  CHECK(rig.kernel.Translate(kAddress, At(16, 2), Access::kRead) == nullptr);  // two mappings
  const uint16_t command = rig.command();
  REQUIRE(rig.device->DisableBusMaster().ok());
  CHECK(rig.command() == (command & ~PCI_COMMAND_MASTER));
  CHECK(rig.kernel.Translate(kAddress, word, Access::kRead) == nullptr);
}

TEST_CASE("reset is passed on where the device has one") {
  Rig rig;
  REQUIRE(rig.device->Reset().ok());
  CHECK(rig.kernel.resets(kAddress) == 1);
  FakeVfioFunction function;
  function.resettable = false;
  Rig without({.functions = {function}});
  CHECK_FALSE(without.device->has_reset());
  CHECK(Says(without.device->Reset(), VfioProblem::kUnsupported, {kAddress, "registers"}));
}

// --- Interrupts ---------------------------------------------------------------------------------

TEST_CASE("the first vector connected sets all of them up, and each signals its own eventfd") {
  Rig rig;
  EventFd first = NewEvent();
  EventFd last = NewEvent();
  REQUIRE(rig.device->EnableBusMaster().ok());
  REQUIRE(rig.device->ConnectMsix(4, last.fd()).ok());
  CHECK(rig.kernel.enabled_vectors(kAddress) == 5);
  CHECK_FALSE(rig.kernel.Interrupt(kAddress, 0));
  REQUIRE(rig.device->ConnectMsix(0, first.fd()).ok());
  CHECK(rig.kernel.Interrupt(kAddress, 0));
  CHECK(first.Wait(Nanos{0}));
  CHECK_FALSE(last.Wait(Nanos{0}));
  CHECK(rig.kernel.Interrupt(kAddress, 4));
  CHECK(last.Wait(Nanos{0}));
}

TEST_CASE("a vector is replaced, disconnected and connected again") {
  Rig rig;
  EventFd one = NewEvent();
  EventFd two = NewEvent();
  REQUIRE(rig.device->EnableBusMaster().ok());
  REQUIRE(rig.device->ConnectMsix(2, -1).ok());  // nothing to do
  CHECK(rig.kernel.enabled_vectors(kAddress) == 0);
  REQUIRE(rig.device->ConnectMsix(2, one.fd()).ok());
  REQUIRE(rig.device->ConnectMsix(2, two.fd()).ok());
  CHECK(rig.kernel.Interrupt(kAddress, 2));
  CHECK_FALSE(one.Wait(Nanos{0}));
  CHECK(two.Wait(Nanos{0}));
  REQUIRE(rig.device->ConnectMsix(2, -1).ok());
  CHECK_FALSE(rig.kernel.Interrupt(kAddress, 2));
  CHECK(rig.kernel.enabled_vectors(kAddress) == 5);
  REQUIRE(rig.device->DisableMsix().ok());
  CHECK(rig.kernel.enabled_vectors(kAddress) == 0);
  REQUIRE(rig.device->DisableMsix().ok());
  REQUIRE(rig.device->ConnectMsix(2, one.fd()).ok());
  CHECK(rig.kernel.Interrupt(kAddress, 2));
}

TEST_CASE("a device without bus mastering sends no message") {
  Rig rig;
  EventFd event = NewEvent();
  REQUIRE(rig.device->ConnectMsix(0, event.fd()).ok());
  CHECK_FALSE(rig.kernel.Interrupt(kAddress, 0));
}

TEST_CASE("vectors and descriptors that cannot be are named") {
  Rig rig;
  EventFd event = NewEvent();
  const auto shape = VfioProblem::kShape;
  CHECK(Says(rig.device->ConnectMsix(5, event.fd()), shape, {"vector 5", "there are 5"}));
  CHECK(Says(rig.device->ConnectMsix(0, -2), shape, {"-2"}));
  CHECK(Says(rig.device->ConnectMsix(0, 0), shape, {"descriptor 0", "eventfd"}));
  CHECK(Says(rig.device->ConnectMsix(0, 1'000'000), shape, {"1000000"}));
  CHECK(rig.kernel.enabled_vectors(kAddress) == 0);
  CHECK(rig.device->ConnectMsix(0, event.fd()).ok());
  FakeVfioFunction function;
  function.msix_vectors = 0;
  Rig without({.functions = {function}});
  CHECK(Says(without.device->ConnectMsix(0, event.fd()), shape, {"there are 0"}));
}

TEST_CASE("a machine short of vectors is named, and fewer can be asked for") {
  FakeVfioFunction function;
  function.msix_vectors = 64;
  const FakeVfioKernel::Options machine{.functions = {function}, .vectors_left = 8};
  EventFd event = NewEvent();
  Rig greedy(machine);
  CHECK(greedy.device->msix_vectors() == 64);
  CHECK(Says(greedy.device->ConnectMsix(0, event.fd()), VfioProblem::kBudget,
             {"8 vectors left of 64", "most_vectors"}));
  CHECK(greedy.kernel.enabled_vectors(kAddress) == 0);
  Rig modest(machine, {.most_vectors = 8});
  CHECK(modest.device->msix_vectors() == 8);
  CHECK(modest.device->ConnectMsix(7, event.fd()).ok());
  CHECK(modest.kernel.enabled_vectors(kAddress) == 8);
}

// --- Several ------------------------------------------------------------------------------------

FakeVfioFunction Function(const std::string& address, uint32_t group,
                          const std::string& driver = "vfio-pci") {
  FakeVfioFunction function;
  function.address = address;
  function.group = group;
  function.driver = driver;
  return function;
}

TEST_CASE("two devices of one group share it, and end in any order") {
  for (const bool first : {true, false}) {
    FakeVfioKernel kernel(
        {.functions = {Function("0000:00:04.0", 1), Function("0000:00:04.1", 1)}});
    auto container = *VfioContainer::Open(kernel, kernel.ContainerOptions());
    auto a = *VfioDevice::Open(*container, "0000:00:04.0");
    auto b = VfioDevice::Open(*container, "0000:00:04.1");
    REQUIRE(b.ok());
    CHECK(kernel.open_descriptors() == 4);
    (first ? a : *b).reset();
    VfioDevice& left = first ? **b : *a;
    CHECK(left.EnableBusMaster().ok());
    CHECK(left.MapBar(0).ok());
  }
}

TEST_CASE("two groups of one container see the same mappings") {
  FakeVfioKernel kernel({.functions = {Function("0000:00:04.0", 1), Function("0000:00:05.0", 2)}});
  auto container = *VfioContainer::Open(kernel, kernel.ContainerOptions());
  auto a = *VfioDevice::Open(*container, "0000:00:04.0");
  auto b = *VfioDevice::Open(*container, "0000:00:05.0");
  CHECK(container->has_group(1));
  CHECK(container->has_group(2));
  CHECK_FALSE(container->has_group(3));
  const Pages pages(1);
  REQUIRE((*container->domain())->Map(At(16), pages.At(0), Access::kRead).ok());
  REQUIRE(a->EnableBusMaster().ok());
  REQUIRE(b->EnableBusMaster().ok());
  for (const char* address : {"0000:00:04.0", "0000:00:05.0"}) {
    CHECK(kernel.Translate(address, At(16), Access::kRead) == pages.At(0).cpu);
  }
  const auto log = kernel.log();
  CHECK(std::count(log.begin(), log.end(), "iommu set") == 1);
}

TEST_CASE("containers are apart: a group is in one, and mappings are its own") {
  FakeVfioKernel kernel({.functions = {Function("0000:00:04.0", 1), Function("0000:00:05.0", 2)}});
  auto one = *VfioContainer::Open(kernel, kernel.ContainerOptions());
  auto two = *VfioContainer::Open(kernel, kernel.ContainerOptions());
  auto a = *VfioDevice::Open(*one, "0000:00:04.0");
  auto b = *VfioDevice::Open(*two, "0000:00:05.0");
  CHECK(Says(two->AddGroup(1), VfioProblem::kBusy, {"/dev/vfio/1"}));
  const Pages pages(1);
  REQUIRE((*one->domain())->Map(At(16), pages.At(0), Access::kRead).ok());
  REQUIRE(b->EnableBusMaster().ok());
  CHECK(kernel.Translate("0000:00:05.0", At(16), Access::kRead) == nullptr);
}

TEST_CASE("a group that narrows what the domain has promised is refused, and gone again") {
  FakeVfioKernel kernel({.functions = {Function("0000:00:04.0", 1), Function("0000:00:05.0", 2)}});
  auto container = *VfioContainer::Open(kernel, kernel.ContainerOptions());
  auto a = *VfioDevice::Open(*container, "0000:00:04.0");
  REQUIRE(container->domain().ok());
  kernel.SetReserved({{Iova(0x1000000), Iova(0x1ffffff)}, {Iova(0xfee00000), Iova(0xfeefffff)}});
  CHECK(Says(VfioDevice::Open(*container, "0000:00:05.0").status(), VfioProblem::kWidth,
             {"IOMMU group 2", "before the domain is used"}));
  CHECK_FALSE(container->has_group(2));
  CHECK(kernel.open_descriptors() == 3);
  kernel.SetReserved({{Iova(0xfee00000), Iova(0xfeefffff)}});
  CHECK(VfioDevice::Open(*container, "0000:00:05.0").ok());
}

TEST_CASE("a group that cannot translate what is mapped is refused by the kernel, in words") {
  FakeVfioKernel kernel({.functions = {Function("0000:00:04.0", 1), Function("0000:00:05.0", 2)}});
  auto container = *VfioContainer::Open(kernel, kernel.ContainerOptions());
  auto a = *VfioDevice::Open(*container, "0000:00:04.0");
  const Pages pages(1);
  REQUIRE((*container->domain())->Map(At(0x1000), pages.At(0), Access::kRead).ok());
  kernel.SetReserved({{Iova(0x1000000), Iova(0x1ffffff)}});
  CHECK(Says(container->AddGroup(2), VfioProblem::kWidth, {"IOMMU group 2", "errno 22"}));
}

}  // namespace
}  // namespace dmakit::dma::host
