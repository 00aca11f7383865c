// SPDX-License-Identifier: Apache-2.0
//
// A sysfs and a procfs of ordinary files, linked as the kernel links its own, beneath a directory
// of the test. Header only; single-threaded test code.
#ifndef DMAKIT_TESTS_DMA_HOST_FAKE_SYSFS_H_
#define DMAKIT_TESTS_DMA_HOST_FAKE_SYSFS_H_

#include <filesystem>
#include <fstream>
#include <string>

namespace dmakit::dma::host::testing {

class FakeSysfs {
 public:
  // `directory` becomes empty, but for the PCI bus.
  explicit FakeSysfs(std::filesystem::path directory) : root_(std::move(directory)) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(sys() / "bus/pci/devices");
    std::filesystem::create_directories(proc() / "net");
  }

  std::filesystem::path sys() const { return root_ / "sys"; }
  std::filesystem::path proc() const { return root_ / "proc"; }
  std::filesystem::path device(const std::string& address) const {
    return sys() / "devices/pci0000:00" / address;
  }

  static void Write(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  // `target` need not exist.
  static void Link(const std::filesystem::path& link, const std::filesystem::path& target) {
    std::filesystem::create_directories(link.parent_path());
    std::filesystem::create_symlink(target, link);
  }

  void AddDevice(const std::string& address, const std::string& vendor, const std::string& id,
                 const std::string& class_code = "0x020000") {
    Write(device(address) / "vendor", vendor + "\n");
    Write(device(address) / "device", id + "\n");
    Write(device(address) / "class", class_code + "\n");
    Write(device(address) / "numa_node", "-1\n");
    Link(sys() / "bus/pci/devices" / address, device(address));
  }
  void AddDriver(const std::string& driver) {
    std::filesystem::create_directories(sys() / "bus/pci/drivers" / driver);
  }
  void Bind(const std::string& address, const std::string& driver) {
    AddDriver(driver);
    Link(device(address) / "driver", sys() / "bus/pci/drivers" / driver);
  }
  void AddToGroup(const std::string& address, int group) {
    const auto path = sys() / "kernel/iommu_groups" / std::to_string(group);
    Link(path / "devices" / address, device(address));
    Link(device(address) / "iommu_group", path);
  }
  // `below`: the device's own directory on the way, as virtio has one ("virtio0/").
  void AddInterface(const std::string& address, const std::string& name,
                    const std::string& below = "", const std::string& mtu = "1500") {
    const auto path = device(address) / (below + "net") / name;
    Write(path / "mtu", mtu + "\n");
    Write(path / "operstate", "up\n");
  }

  // Lines of /proc/net/route, without the heading.
  void SetRoutes(const std::string& lines) {
    Write(proc() / "net/route",
          "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n" +
              lines);
  }
  static std::string DefaultRoute(const std::string& name) {
    return name + "\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
  }
  static std::string NetworkRoute(const std::string& name) {
    return name + "\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
  }

 private:
  std::filesystem::path root_;
};

}  // namespace dmakit::dma::host::testing

#endif  // DMAKIT_TESTS_DMA_HOST_FAKE_SYSFS_H_
