// SPDX-License-Identifier: Apache-2.0
//
// `dmakit devices` on machines made of files.

#include "nic/cmd/devices.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/catch.h"
#include "tests/dma/host/fake_sysfs.h"
#include "tests/nic/cmd/command.h"
#include "tests/nic/cmd/fake_backend.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic::cmd {
namespace {

using absl::StrContains;
using dma::host::testing::FakeSysfs;
using testing::OneLine;
using testing::Outcome;
using testing::TempPath;

// Is only a name.
class EnicByName final : public Backend {
 public:
  std::string_view name() const override { return "enic"; }
  std::string_view help() const override { return "no NIC at all"; }
  absl::StatusOr<std::unique_ptr<Nic>> Create(const NicArgs&) override {
    return absl::UnimplementedError("only a name");
  }
};

FakeSysfs NewSysfs() { return FakeSysfs(TempPath("devices_test")); }

Outcome Devices(const std::vector<std::string>& options) {
  BackendRegistry registry;
  registry.Register(testing::NewFakeBackend());
  registry.Register(std::make_unique<EnicByName>());
  std::vector<std::string> args = {"devices", "--sysfs=devices_test/sys",
                                   "--proc=devices_test/proc"};
  args.insert(args.end(), options.begin(), options.end());
  return testing::Run(registry, args);
}

nlohmann::json Json() { return nlohmann::json::parse(Devices({"--json"}).out, nullptr, false); }

// The commands and notes of the only NIC there is.
std::vector<std::string> First(const std::string& kind) {
  std::vector<std::string> texts;
  const nlohmann::json json = Json();
  for (const auto& step : json["devices"].at(0)["first"]) {
    if (step.contains(kind)) texts.push_back(step[kind]);
  }
  return texts;
}

TEST_CASE("a NIC of the kernel's is made ready by these commands") {
  FakeSysfs fake = NewSysfs();
  fake.AddDevice("0000:00:04.0", "0x1137", "0x0043");
  fake.Bind("0000:00:04.0", "enic");
  fake.AddToGroup("0000:00:04.0", 7);
  fake.AddInterface("0000:00:04.0", "eth1");
  const Outcome run = Devices({});
  CHECK(run.code == kExitDone);
  CHECK(run.err.empty());
  CHECK(run.out ==
        "address       id         driver  interface  mtu   node  group  dmakit\n"
        "0000:00:04.0  1137:0043  enic    eth1       1500  -     7      enic, model only\n"
        "\n"
        "0000:00:04.0\n"
        "  IOMMU group 7: 0000:00:04.0 enic\n"
        "  $ modprobe vfio-pci\n"
        "  $ ip link set eth1 down\n"
        "  $ driverctl set-override 0000:00:04.0 vfio-pci\n");
  const auto nic = Json()["devices"].at(0);
  CHECK(nic["backend"] == "enic");
  CHECK(nic["real"] == false);
  CHECK(nic["vendor"] == "1137");
  CHECK(nic["device"] == "0043");
  CHECK(nic["numa_node"] == nullptr);
  CHECK(nic["interfaces"][0]["mtu"] == 1500);
  CHECK(nic["iommu_group"]["viable"] == true);
}

TEST_CASE("a NIC that VFIO has, in a viable group, is ready") {
  FakeSysfs fake = NewSysfs();
  fake.AddDevice("0000:00:04.0", "0x8086", "0x10d3");
  fake.Bind("0000:00:04.0", "vfio-pci");
  fake.AddToGroup("0000:00:04.0", 7);
  const Outcome run = Devices({});
  CHECK(run.code == kExitDone);
  CHECK(StrContains(run.out,
                    "0000:00:04.0  8086:10d3  vfio-pci  -          -    -     7      "
                    "nothing yet\n"));
  CHECK(StrContains(run.out, "\n  ready: VFIO has it\n"));
  CHECK(Json()["devices"][0]["first"].empty());
  CHECK(Json()["devices"][0]["backend"] == nullptr);
  CHECK(Json()["vfio_pci"] == true);
}

TEST_CASE("who shares the group is named, and what it has to leave") {
  FakeSysfs fake = NewSysfs();
  fake.AddDevice("0000:00:04.0", "0x8086", "0x10d3");
  fake.Bind("0000:00:04.0", "vfio-pci");
  fake.AddDevice("0000:00:05.0", "0x8086", "0x2922", "0x010601");
  fake.Bind("0000:00:05.0", "ahci");
  fake.AddDevice("0000:00:06.0", "0x8086", "0x0000", "0x060400");
  fake.Bind("0000:00:06.0", "pcieport");
  for (const char* address : {"0000:00:04.0", "0000:00:05.0", "0000:00:06.0"}) {
    fake.AddToGroup(address, 2);
  }
  const Outcome run = Devices({});
  CHECK(run.code == kExitDone);
  CHECK(StrContains(run.out, "2 (shared)"));
  CHECK(StrContains(run.out,
                    "  IOMMU group 2: 0000:00:04.0 vfio-pci, 0000:00:05.0 ahci, 0000:00:06.0 "
                    "pcieport\n"
                    "  first: 0000:00:05.0 is in the same IOMMU group and must leave ahci, "));
  CHECK(First("command") ==
        std::vector<std::string>{"driverctl set-override 0000:00:05.0 vfio-pci"});
  CHECK(Json()["devices"][0]["iommu_group"]["viable"] == false);
}

TEST_CASE("without an IOMMU, firmware and kernel come first") {
  FakeSysfs fake = NewSysfs();
  fake.AddDriver("vfio-pci");
  fake.AddDevice("0000:00:04.0", "0x8086", "0x10d3");
  CHECK(First("note").size() == 2);
  CHECK(StrContains(First("note").at(0), "enable the IOMMU in the firmware"));
  CHECK(StrContains(First("note").at(1), "intel_iommu=on iommu=pt"));
  CHECK(First("command") ==
        std::vector<std::string>{"driverctl set-override 0000:00:04.0 vfio-pci"});
  CHECK(Json()["iommu"] == false);
  CHECK(Json()["devices"][0]["iommu_group"] == nullptr);

  // One that is on, for others.
  fake.AddDevice("0000:00:05.0", "0x8086", "0x2922", "0x010601");
  fake.AddToGroup("0000:00:05.0", 1);
  CHECK(First("note").size() == 1);
  CHECK(StrContains(First("note").at(0), "use another slot"));
}

TEST_CASE("nobody is told to cut off the machine") {
  FakeSysfs fake = NewSysfs();
  fake.AddDevice("0000:00:04.0", "0x8086", "0x10d3");
  fake.Bind("0000:00:04.0", "e1000e");
  fake.AddToGroup("0000:00:04.0", 7);
  fake.AddInterface("0000:00:04.0", "eth0");
  fake.SetRoutes(FakeSysfs::DefaultRoute("eth0"));
  const Outcome run = Devices({});
  CHECK(run.code == kExitDone);
  CHECK(StrContains(run.out, "  warning: eth0 carries the default route: "));
  CHECK(First("command").empty());
  CHECK(StrContains(First("note").at(0), "move the default route"));

  fake.SetRoutes(FakeSysfs::NetworkRoute("eth0"));
  CHECK(StrContains(Devices({}).out, "  warning: eth0 has an address: "));
  CHECK(First("command").size() == 3);
}

TEST_CASE("what cannot be read is in the list, and the exit code says so") {
  FakeSysfs fake = NewSysfs();
  fake.AddDevice("0000:00:04.0", "0x8086", "\x1b[31mred");
  FakeSysfs::Link(fake.device("0000:00:04.0") / "driver", "/nowhere/\x1b[2J\xff");
  FakeSysfs::Link(fake.sys() / "bus/pci/devices/0000:00:07.0", "/nowhere");
  const Outcome run = Devices({});
  CHECK(run.code == kExitLost);
  CHECK(OneLine(run.err));
  CHECK(StrContains(run.err, "dmakit: devices: 3 things could not be read"));
  CHECK(StrContains(run.out, "8086:?"));
  CHECK(StrContains(run.out, "  problem: device: "));
  CHECK(StrContains(run.out, "  problem: driver: leads to /nowhere/"));
  CHECK(StrContains(run.out, "problem: 0000:00:07.0: leads nowhere\n"));
  CHECK_FALSE(StrContains(run.out, "\x1b"));
  CHECK(Json()["devices"][0]["problems"].size() == 2);
  CHECK(Json()["problems"].size() == 1);
}

TEST_CASE("no NIC is no error, no sysfs is one") {
  FakeSysfs fake = NewSysfs();
  CHECK(Devices({}).code == kExitDone);
  CHECK(Devices({}).out == "no network controllers\n");
  CHECK(Json()["devices"].empty());
  const Outcome none = Devices({"--sysfs=/nowhere"});
  CHECK(none.code == kExitUsage);
  CHECK(none.out.empty());
  CHECK(OneLine(none.err));
}

TEST_CASE("a sysfs that is not there is named with its rule and remedy") {
  BackendRegistry registry;
  const Outcome none = testing::Run(registry, {"devices", "--sysfs=/nowhere"});
  CHECK(none.code == kExitUsage);
  CHECK(none.err ==
        "dmakit: --sysfs: \"/nowhere\" must be the root of a sysfs with a PCI bus "
        "(/nowhere/bus/pci/devices is no directory: no PCI bus there); leave it out for /sys\n");
}

}  // namespace
}  // namespace dmakit::nic::cmd
