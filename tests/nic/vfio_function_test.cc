// SPDX-License-Identifier: Apache-2.0

#include "nic/vfio_function.h"

#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "dma/host/vfio_error.h"
#include "dma/host/vfio_fakes.h"
#include "tests/catch.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic {
namespace {

using absl::StrContains;
using dma::host::FakeVfioKernel;
using dma::host::VfioProblem;
using testing::TempPath;

constexpr PciId kIds[] = {{0x1234, 0x0001}, {0x8086, 0x10d3}};

struct Machine {
  explicit Machine(FakeVfioKernel::Options options = {}) : kernel(std::move(options)) {
    std::ofstream(log) << "6,1,1,-;DMAR: [DMA Read NO_PASID] Request device [00:04.0] fault addr "
                          "0x9000 [fault reason 0x06] from before our time\n";
  }
  VfioFunction::Options Options() {
    const auto paths = kernel.ContainerOptions();
    return {.name = "nic0",
            .address = "0000:00:04.0",
            .ids = kIds,
            .report = [this](std::string_view line) { reports.emplace_back(line); },
            .sysfs = paths.sysfs,
            .dev = paths.dev,
            .kernel_log = log};
  }
  void Log(const std::string& message) {
    std::ofstream(log, std::ios::app) << "6,2,2,-;" << message << "\n";
  }
  std::string log = TempPath("kmsg");
  std::vector<std::string> reports;
  FakeVfioKernel kernel;
};

struct Recorder final : dma::FaultListener {
  void OnFault(const dma::DomainFault& fault) override { iovas.push_back(fault.iova.value()); }
  std::vector<uint64_t> iovas;
};

TEST_CASE("a function is open with its domain, and quiet until it is told otherwise") {
  Machine machine;
  auto function = VfioFunction::Open(machine.kernel, machine.Options());
  REQUIRE(function.ok());
  CHECK((*function)->domain().name() == "nic0 iommu");
  CHECK((*function)->vectors() == 5);
  CHECK((machine.kernel.Command("0000:00:04.0") & 4) == 0);
  CHECK(machine.reports.empty());
  function->reset();
  CHECK(machine.kernel.open_descriptors() == 0);
}

TEST_CASE("another kind of device is refused by its identity, and given back") {
  FakeVfioKernel::Options options;
  options.functions[0].device = 0x10d4;
  Machine machine(std::move(options));
  const auto function = VfioFunction::Open(machine.kernel, machine.Options());
  REQUIRE_FALSE(function.ok());
  INFO(function.status().message());
  CHECK(function.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(StrContains(function.status().message(), "0000:00:04.0 is 8086:10d4"));
  CHECK(machine.kernel.open_descriptors() == 0);
}

TEST_CASE("errors of VFIO keep their problem") {
  FakeVfioKernel::Options options;
  options.functions[0].driver = "e1000e";
  Machine machine(std::move(options));
  const auto function = VfioFunction::Open(machine.kernel, machine.Options());
  REQUIRE_FALSE(function.ok());
  CHECK(dma::host::VfioProblemOf(function.status()) == VfioProblem::kDriver);
}

TEST_CASE("opening that fails at step k leaves nothing open, for all k") {
  bool done = false;
  for (uint64_t k = 1; !done; ++k) {
    INFO("step " << k);
    dma::host::FailPoint fail;
    FakeVfioKernel::Options options;
    options.fail = &fail;
    Machine machine(std::move(options));
    fail.FailAt(k);
    const auto function = VfioFunction::Open(machine.kernel, machine.Options());
    done = !fail.triggered();
    CHECK(function.ok() == done);
    if (!function.ok()) {
      CHECK_FALSE(function.status().message().empty());
      CHECK(machine.kernel.open_descriptors() == 0);
      CHECK(machine.kernel.mapped_regions() == 0);
    }
    REQUIRE(k < 100);
  }
}

TEST_CASE("an interrupt wakes the notifier of its vector, until that is disconnected") {
  Machine machine;
  auto function = VfioFunction::Open(machine.kernel, machine.Options()).value();
  auto notifier = NewEventFdNotifier().value();
  auto other = NewEventFdNotifier().value();
  REQUIRE(function->Connect(0, notifier.get()).ok());
  REQUIRE(function->Connect(1, other.get()).ok());
  REQUIRE(function->device().EnableBusMaster().ok());
  CHECK(machine.kernel.Interrupt("0000:00:04.0", 1));
  CHECK_FALSE(notifier->Wait(dma::Nanos{0}));
  CHECK(other->Wait(dma::Nanos{0}));
  REQUIRE(function->Connect(1, nullptr).ok());
  CHECK_FALSE(machine.kernel.Interrupt("0000:00:04.0", 1));
  CHECK_FALSE(function->Connect(5, notifier.get()).ok());
  REQUIRE(function->Connect(0, nullptr).ok());
}

TEST_CASE("what the kernel logs of this device is counted, told and put into words") {
  Machine machine;
  auto function = VfioFunction::Open(machine.kernel, machine.Options()).value();
  Recorder recorder;
  REQUIRE(function->domain().AddFaultListener(&recorder));
  function->PollFaults();
  CHECK(function->fault_count() == 0);  // what was there before is not its own
  machine.Log(
      "DMAR: [DMA Write NO_PASID] Request device [00:04.0] fault addr 0xfffff000 [fault reason "
      "0x05] PTE Write access is not set");
  machine.Log(
      "DMAR: [DMA Read NO_PASID] Request device [00:05.0] fault addr 0x1000 [fault reason 0x06] "
      "PTE Read access is not set");
  function->PollFaults();
  CHECK(recorder.iovas == std::vector<uint64_t>{0xfffff000});
  CHECK(function->fault_count() == 1);
  REQUIRE(function->faults().size() == 1);
  CHECK(function->faults()[0] == "0000:00:04.0 write at 0xfffff000: PTE Write access is not set");
  function->domain().RemoveFaultListener(&recorder);
}

TEST_CASE("without the kernel's log the function works, and says what is lost") {
  Machine machine;
  VfioFunction::Options options = machine.Options();
  options.kernel_log = TempPath("no-such-log");
  auto function = VfioFunction::Open(machine.kernel, std::move(options));
  REQUIRE(function.ok());
  REQUIRE(machine.reports.size() == 1);
  CHECK(StrContains(machine.reports[0], "nic0: faults of the IOMMU will not be seen: "));
  (*function)->PollFaults();
  CHECK((*function)->fault_count() == 0);
}

}  // namespace
}  // namespace dmakit::nic
