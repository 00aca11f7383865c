// SPDX-License-Identifier: Apache-2.0

#include "dma/host/pci.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/catch.h"
#include "tests/dma/host/fake_sysfs.h"

namespace dmakit::dma::host {
namespace {

using testing::FakeSysfs;

FakeSysfs NewSysfs() {
  const char* const directory = std::getenv("TEST_TMPDIR");
  return FakeSysfs(std::filesystem::path(directory != nullptr ? directory : "/tmp") / "pci_test");
}

PciInventory Scan(const FakeSysfs& fake) {
  auto all = SysfsPci({.sysfs = fake.sys().string(), .proc = fake.proc().string()}).Scan();
  REQUIRE(all.ok());
  return *std::move(all);
}

// Whether exactly one problem of the device begins so.
bool Names(const std::vector<std::string>& problems, const std::string& prefix) {
  return std::count_if(problems.begin(), problems.end(),
                       [&](const std::string& p) { return p.starts_with(prefix); }) == 1;
}

TEST_CASE("a NIC in the kernel's hands, with all that belongs to it") {
  FakeSysfs fake = NewSysfs();
  fake.AddDevice("0000:00:04.0", "0x8086", "0x10d3");
  fake.Bind("0000:00:04.0", "e1000e");
  fake.AddToGroup("0000:00:04.0", 7);
  fake.AddInterface("0000:00:04.0", "eth0", "", "9000");
  FakeSysfs::Write(fake.device("0000:00:04.0") / "numa_node", "1\n");
  fake.SetRoutes(FakeSysfs::DefaultRoute("eth0") + FakeSysfs::NetworkRoute("eth0"));
  const PciInventory all = Scan(fake);
  CHECK(all.problems.empty());
  CHECK(all.iommu);
  CHECK_FALSE(all.vfio_pci);
  REQUIRE(all.nics.size() == 1);
  const PciDevice& nic = all.nics[0];
  CHECK(nic.problems.empty());
  CHECK(nic.address == "0000:00:04.0");
  CHECK(nic.vendor == 0x8086);
  CHECK(nic.device == 0x10d3);
  CHECK(nic.class_code == 0x020000u);
  CHECK(nic.driver == "e1000e");
  CHECK(nic.numa_node == 1u);
  REQUIRE(nic.group.has_value());
  CHECK(nic.group->number == 7);
  CHECK(nic.group->members.size() == 1);
  CHECK(nic.viable());
  REQUIRE(nic.interfaces.size() == 1);
  CHECK(nic.interfaces[0].name == "eth0");
  CHECK(nic.interfaces[0].mtu == 9000u);
  CHECK(nic.interfaces[0].up);
  CHECK(nic.interfaces[0].default_route);
  CHECK(nic.interfaces[0].address);
  CHECK(nic.interfaces[0].via.empty());
}

TEST_CASE("an interface below another device of the same controller is found") {
  FakeSysfs fake = NewSysfs();
  fake.AddDevice("0000:00:03.0", "0x1af4", "0x1041");
  fake.Bind("0000:00:03.0", "virtio-pci");
  fake.AddInterface("0000:00:03.0", "eth0", "virtio2/");
  const PciInventory all = Scan(fake);
  REQUIRE(all.nics.size() == 1);
  REQUIRE(all.nics[0].interfaces.size() == 1);
  CHECK(all.nics[0].interfaces[0].name == "eth0");
  CHECK_FALSE(all.nics[0].interfaces[0].address);
  CHECK_FALSE(all.nics[0].group.has_value());
  CHECK_FALSE(all.nics[0].viable());
  CHECK_FALSE(all.iommu);
}

TEST_CASE("what a bridge or bond above carries, the NIC below carries") {
  FakeSysfs fake = NewSysfs();
  fake.AddDevice("0000:00:03.0", "0x8086", "0x10d3");
  fake.AddInterface("0000:00:03.0", "eth0");
  const auto bond = fake.sys() / "devices/virtual/net/bond0";
  const auto bridge = fake.sys() / "devices/virtual/net/br0";
  std::filesystem::create_directories(bridge);
  FakeSysfs::Link(fake.device("0000:00:03.0") / "net/eth0/upper_bond0", bond);
  FakeSysfs::Link(bond / "upper_br0", bridge);
  FakeSysfs::Link(bridge / "upper_bond0", bond);  // in a circle
  fake.SetRoutes(FakeSysfs::DefaultRoute("br0"));
  const NetInterface interface = Scan(fake).nics.at(0).interfaces.at(0);
  CHECK(interface.default_route);
  CHECK(interface.address);
  CHECK(interface.via == "br0");
}

TEST_CASE("IPv6 counts: default routes, and addresses that are not link-local") {
  FakeSysfs fake = NewSysfs();
  const std::string zero(32, '0');
  for (const char* number : {"1", "2", "3", "4"}) {
    const std::string address = std::string("0000:00:0") + number + ".0";
    fake.AddDevice(address, "0x8086", "0x10d3");
    fake.AddInterface(address, std::string("eth") + number);
  }
  FakeSysfs::Write(fake.proc() / "net/ipv6_route",
                   zero + " 00 " + zero + " 00 " + zero + " 00000400 1 0 00000003     eth1\n" +
                       zero + " 00 " + zero + " 00 " + zero + " ffffffff 1 0 00200200     eth2\n");
  FakeSysfs::Write(fake.proc() / "net/if_inet6",
                   "fe8000000000000000fc00fffe000001 02 40 20 80     eth2\n"
                   "fd000000000000000000000000000002 03 40 00 82     eth3\n");
  const PciInventory all = Scan(fake);
  REQUIRE(all.nics.size() == 4);
  const auto route = [&](size_t i) { return all.nics[i].interfaces.at(0).default_route; };
  const auto address = [&](size_t i) { return all.nics[i].interfaces.at(0).address; };
  CHECK(route(0));
  CHECK_FALSE(route(1));  // a route that rejects
  CHECK_FALSE(address(1));
  CHECK(address(2));
  CHECK_FALSE(route(2));
  CHECK_FALSE(address(3));
}

TEST_CASE("a group is viable when no other member has a driver that does DMA") {
  struct Case {
    std::string driver;
    std::string class_code;
    bool viable;
  };
  for (const Case& c : {Case{"", "0x010601", true}, Case{"ahci", "0x010601", false},
                        Case{"vfio-pci", "0x010601", true}, Case{"pci-stub", "0x010601", true},
                        Case{"mlx5_vfio_pci", "0x020000", true}, Case{"pcieport", "0x060400", true},
                        Case{"uio_pci_generic", "0x020000", false},
                        Case{"vfio-pci-lookalike", "0x020000", false}}) {
    INFO(c.driver);
    FakeSysfs fake = NewSysfs();
    fake.AddDevice("0000:00:04.0", "0x8086", "0x10d3");
    fake.Bind("0000:00:04.0", "e1000e");
    fake.AddToGroup("0000:00:04.0", 1);
    fake.AddDevice("0000:00:05.0", "0x8086", "0x2922", c.class_code);
    if (!c.driver.empty()) fake.Bind("0000:00:05.0", c.driver);
    fake.AddToGroup("0000:00:05.0", 1);
    const PciDevice nic = Scan(fake).nics.at(0);
    REQUIRE(nic.group.has_value());
    REQUIRE(nic.group->members.size() == 2);
    CHECK(nic.group->members[1].address == "0000:00:05.0");
    CHECK(nic.group->members[1].driver == c.driver);
    CHECK(nic.viable() == c.viable);
  }
}

TEST_CASE("what cannot be read is named, and the rest is told") {
  FakeSysfs fake = NewSysfs();
  const std::string address = "0000:00:04.0";
  fake.AddDevice(address, "8086", "0x10d3");  // no 0x
  const auto path = fake.device(address);
  FakeSysfs::Write(path / "device", "0x110d3\n");  // no 16 bits
  FakeSysfs::Write(path / "numa_node", "one\n");
  FakeSysfs::Link(path / "driver", "/nowhere/drivers/e1000e");
  FakeSysfs::Link(path / "iommu_group", fake.sys() / "kernel/iommu_groups/9");
  fake.AddInterface(address, "eth0", "", std::string("\0\xff\n", 3));
  const PciInventory all = Scan(fake);
  REQUIRE(all.nics.size() == 1);
  const PciDevice& nic = all.nics[0];
  CHECK_FALSE(nic.vendor.has_value());
  CHECK_FALSE(nic.device.has_value());
  CHECK_FALSE(nic.numa_node.has_value());
  CHECK(nic.driver.empty());
  CHECK_FALSE(nic.group.has_value());
  CHECK_FALSE(nic.interfaces.at(0).mtu.has_value());
  CHECK(nic.problems.size() == 6);
  CHECK(Names(nic.problems, "vendor: \"8086\" is no hexadecimal number in range"));
  CHECK(Names(nic.problems, "device: \"0x110d3\" is no hexadecimal"));
  CHECK(Names(nic.problems, "numa_node: \"one\" is no decimal number"));
  CHECK(Names(nic.problems, "driver: leads to /nowhere/drivers/e1000e, which does not exist"));
  CHECK(Names(nic.problems, "iommu_group: leads to "));
  CHECK(Names(nic.problems, "net/eth0/mtu: \"\\x00\\xff\\n\" is no decimal number"));
}

TEST_CASE("missing files, wrong kinds of files and dangling links are named") {
  FakeSysfs fake = NewSysfs();
  namespace fs = std::filesystem;
  fake.AddDevice("0000:00:04.0", "0x8086", "0x10d3");
  fs::remove(fake.device("0000:00:04.0") / "vendor");
  fs::remove(fake.device("0000:00:04.0") / "device");
  fs::remove(fake.device("0000:00:04.0") / "numa_node");  // not every kernel has it
  REQUIRE(mkfifo((fake.device("0000:00:04.0") / "device").c_str(), 0600) == 0);
  fake.AddToGroup("0000:00:04.0", 3);
  FakeSysfs::Link(fake.sys() / "kernel/iommu_groups/3/devices/0000:00:08.0", "/nowhere");
  fake.AddDevice("0000:00:05.0", "0x8086", "0x10d3");  // a NIC, or not
  fs::remove(fake.device("0000:00:05.0") / "class");
  fake.AddDevice("0000:00:06.0", "0x8086", "0x10d3");  // a NIC: it has an interface
  fs::remove(fake.device("0000:00:06.0") / "class");
  fake.AddInterface("0000:00:06.0", "eth6");
  FakeSysfs::Link(fake.sys() / "bus/pci/devices/0000:00:07.0", "/nowhere");
  fake.AddDevice("0000:00:09.0", "0x8086", "garbage", "0x030000");  // not ours to judge
  const PciInventory all = Scan(fake);
  REQUIRE(all.nics.size() == 2);
  CHECK(all.nics[0].problems.size() == 3);
  CHECK(Names(all.nics[0].problems, "vendor: is missing"));
  CHECK(Names(all.nics[0].problems, "device: is no file"));
  CHECK(Names(all.nics[0].problems, "iommu_group/devices/0000:00:08.0: leads nowhere"));
  CHECK(all.nics[1].address == "0000:00:06.0");
  CHECK(all.nics[1].problems == std::vector<std::string>{"class: is missing"});
  CHECK(all.problems ==
        std::vector<std::string>{"0000:00:05.0: class: is missing", "0000:00:07.0: leads nowhere"});
}

TEST_CASE("routing tables of no kernel's are named, whatever is in them") {
  FakeSysfs fake = NewSysfs();
  fake.AddDevice("0000:00:04.0", "0x8086", "0x10d3");
  fake.AddInterface("0000:00:04.0", "eth0");
  fake.SetRoutes("eth0 00000000\n" + std::string(100'000, 'x') + "\n\n" +
                 FakeSysfs::DefaultRoute("eth0"));
  FakeSysfs::Write(fake.proc() / "net/if_inet6", std::string("\0\0\n\xff", 4));
  std::filesystem::create_directory(fake.proc() / "net/ipv6_route");
  const PciInventory all = Scan(fake);
  CHECK(Names(all.problems, "ipv6_route: is no file"));
  CHECK(Names(all.problems, "net/route: a line with 2 columns"));
  CHECK(Names(all.problems, "net/if_inet6: a line with 1 columns"));
  CHECK(all.nics.at(0).interfaces.at(0).default_route);
}

TEST_CASE("without a PCI bus there is an error, with an empty one there is nothing") {
  FakeSysfs fake = NewSysfs();
  CHECK(Scan(fake).nics.empty());
  CHECK(Scan(fake).problems.empty());
  const auto none = SysfsPci({.sysfs = "/nowhere", .proc = "/nowhere"}).Scan();
  CHECK(none.status().code() == absl::StatusCode::kNotFound);
  CHECK(absl::StrContains(none.status().message(), "/nowhere/bus/pci/devices"));
}

TEST_CASE("this machine can be looked at, whatever it has") {
  const auto all = SysfsPci().Scan();
  if (!all.ok()) return;  // no PCI bus
  for (const PciDevice& nic : all->nics) CHECK_FALSE(nic.address.empty());
}

}  // namespace
}  // namespace dmakit::dma::host
