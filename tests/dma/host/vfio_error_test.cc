// SPDX-License-Identifier: Apache-2.0
//
// Each way in which set-up fails on a machine that is not ready has its type, and says what to do.
#include "dma/host/vfio_error.h"

#include <set>
#include <string>

#include "tests/catch.h"
#include "tests/dma/host/vfio_testing.h"

namespace dmakit::dma::host {
namespace {

using testing::Says;

const std::string kAddress = "0000:00:04.0";

FakeVfioFunction Function(const std::string& address, std::optional<uint32_t> group,
                          const std::string& driver) {
  FakeVfioFunction function;
  function.address = address;
  function.group = group;
  function.driver = driver;
  return function;
}

// What opening the device on this machine says.
absl::Status Opening(FakeVfioKernel& kernel, const std::string& address = kAddress) {
  auto container = VfioContainer::Open(kernel, kernel.ContainerOptions());
  if (!container.ok()) return container.status();
  return VfioDevice::Open(**container, address).status();
}
absl::Status Opening(FakeVfioKernel::Options options, const std::string& address = kAddress) {
  FakeVfioKernel kernel(std::move(options));
  return Opening(kernel, address);
}

TEST_CASE("the type of an error survives as a payload, and others have none") {
  std::set<std::string> names;
  for (uint8_t i = 0; i <= static_cast<uint8_t>(VfioProblem::kKernel); ++i) {
    const auto problem = static_cast<VfioProblem>(i);
    const absl::Status status = VfioError(problem, "words");
    CHECK_FALSE(status.ok());
    CHECK(VfioProblemOf(status) == problem);
    CHECK(status.message() == "words");
    names.insert(std::string(Name(problem)));
  }
  CHECK(names.size() == static_cast<size_t>(VfioProblem::kKernel) + 1);
  CHECK_FALSE(VfioProblemOf(absl::OkStatus()).has_value());
  CHECK_FALSE(VfioProblemOf(absl::InternalError("else")).has_value());
  CHECK(ErrnoText(1).find("errno 1") != std::string::npos);
}

TEST_CASE("a machine that is ready gives no error") { CHECK(Opening({}).ok()); }

TEST_CASE("VFIO is not loaded") {
  CHECK(Says(Opening({.loaded = false}), VfioProblem::kNoVfio,
             {"/dev/vfio/vfio", "modprobe vfio-pci"}));
}

TEST_CASE("VFIO of another version, or without Type1 v2") {
  CHECK(Says(Opening({.api_version = 1}), VfioProblem::kUnsupported, {"version 1", "version 0"}));
  CHECK(Says(Opening({.type1v2 = false}), VfioProblem::kUnsupported, {"vfio_iommu_type1"}));
}

TEST_CASE("an address that is none, or none of this machine") {
  for (const char* address : {"", "04.0", "00:04.0", "0000:00:04.8", "0000:00:04.0/../x",
                              "0000:0g:04.0", "0000:00:04:0"}) {
    INFO(address);
    CHECK(Says(Opening({}, address), VfioProblem::kShape, {"0000:00:04.0"}));
  }
  CHECK(Says(Opening({}, "0000:00:09.0"), VfioProblem::kNoDevice, {"0000:00:09.0", "lspci -D"}));
}

TEST_CASE("no IOMMU translates for the device") {
  CHECK(Says(Opening({.functions = {Function(kAddress, std::nullopt, "vfio-pci")}}),
             VfioProblem::kNoIommu, {kAddress, "intel_iommu=on"}));
}

TEST_CASE("the device is in another driver's hands, or in nobody's") {
  CHECK(Says(Opening({.functions = {Function(kAddress, 1, "e1000e")}}), VfioProblem::kDriver,
             {"its driver is e1000e", "driverctl set-override 0000:00:04.0 vfio-pci"}));
  CHECK(Says(Opening({.functions = {Function(kAddress, 1, "")}}), VfioProblem::kDriver,
             {"has no driver", "driverctl set-override 0000:00:04.0 vfio-pci"}));
}

TEST_CASE("another device of the group is in the kernel's hands") {
  const FakeVfioKernel::Options options{.functions = {Function(kAddress, 7, "vfio-pci"),
                                                      Function("0000:00:05.0", 7, "ahci"),
                                                      Function("0000:00:06.0", 7, "")}};
  CHECK(Says(Opening(options), VfioProblem::kGroupNotViable,
             {"IOMMU group 7", "0000:00:04.0 (vfio-pci)", "0000:00:05.0 (ahci)",
              "0000:00:06.0 (no driver)", "driverctl set-override 0000:00:05.0 vfio-pci"}));
}

TEST_CASE("interrupts are not remapped, unless that is allowed") {
  CHECK(Says(Opening({.intremap = false}), VfioProblem::kNoInterruptRemapping,
             {"IOMMU group 1", "enable interrupt remapping",
              "allow_unsafe_interrupts=1 of vfio_iommu_type1", "trusted"}));
  CHECK(Opening({.intremap = false, .allow_unsafe_interrupts = true}).ok());
}

TEST_CASE("the group's file is somebody else's, or open elsewhere") {
  FakeVfioKernel kernel;
  kernel.SetDenied(1, true);
  CHECK(Says(Opening(kernel), VfioProblem::kPermission, {"chown USER /dev/vfio/1"}));
  kernel.SetDenied(1, false);
  kernel.SetTaken(1, true);
  CHECK(Says(Opening(kernel), VfioProblem::kBusy, {"/dev/vfio/1", "fuser"}));
  kernel.SetTaken(1, false);
  CHECK(Opening(kernel).ok());
}

TEST_CASE("a group that is not there, or has no device bound to VFIO") {
  FakeVfioKernel kernel({.functions = {Function("0000:00:05.0", 3, "ahci")}});
  auto container = *VfioContainer::Open(kernel, kernel.ContainerOptions());
  CHECK(Says(container->AddGroup(9), VfioProblem::kNoIommu, {"IOMMU group 9"}));
  CHECK(Says(container->AddGroup(3), VfioProblem::kDriver,
             {"0000:00:05.0 (ahci)", "driverctl set-override 0000:00:05.0 vfio-pci"}));
}

TEST_CASE("a container without a group has no domain") {
  FakeVfioKernel kernel;
  auto container = *VfioContainer::Open(kernel, kernel.ContainerOptions());
  CHECK(Says(container->domain().status(), VfioProblem::kUnsupported, {"open a device first"}));
  REQUIRE(container->AddGroup(1).ok());
  CHECK(container->AddGroup(1).ok());  // has it
  const auto domain = container->domain();
  REQUIRE(domain.ok());
  CHECK(*container->domain() == *domain);
}

TEST_CASE("what the system refuses to open is told with its words") {
  FailPoint fail;
  for (const auto& [error, problem] :
       {std::pair{EACCES, VfioProblem::kPermission}, std::pair{EPERM, VfioProblem::kPermission},
        std::pair{ENODEV, VfioProblem::kNoVfio}, std::pair{EMFILE, VfioProblem::kKernel}}) {
    FakeVfioKernel kernel({.fail = &fail, .fail_errno = error});
    fail.FailAt(1);
    CHECK(Says(Opening(kernel), problem, {"/dev/vfio/vfio", "errno " + std::to_string(error)}));
  }
}

}  // namespace
}  // namespace dmakit::dma::host
