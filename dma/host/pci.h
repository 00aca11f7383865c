// SPDX-License-Identifier: Apache-2.0
//
// The network controllers on the PCI bus, and what stands between each and a userspace driver: its
// kernel driver and interfaces, its IOMMU group, routes that go through it. PciBus is the
// interface, SysfsPci the real one. Reads only; takes nothing from anybody.
//
// One thread at a time. Nothing is kept between two scans.
#ifndef DMAKIT_DMA_HOST_PCI_H_
#define DMAKIT_DMA_HOST_PCI_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace dmakit::dma::host {

// A kernel interface on a controller.
struct NetInterface {
  std::string name{};
  std::optional<uint32_t> mtu{};
  bool up = false;
  bool default_route = false;  // IPv4 or IPv6
  // An IPv6 address that is not link-local, or any IPv4 route, which is what an IPv4 address brings
  // with it. One without any route is not seen.
  bool address = false;
  // The bridge, bond or VLAN above that has them; empty: they are its own.
  std::string via{};
};

// Who else the IOMMU cannot tell from a device.
struct IommuGroupMember {
  std::string address{};
  std::string driver{};  // empty: none
  bool bridge = false;
  // Whether it may stay as it is while userspace has the group: no driver, one of VFIO's, or a
  // bridge, which does no DMA of its own.
  bool harmless() const;
};

struct IommuGroup {
  uint32_t number = 0;
  std::vector<IommuGroupMember> members{};  // the device itself included, by address
};

struct PciDevice {
  std::string address{};  // "0000:00:04.0"
  std::optional<uint16_t> vendor{};
  std::optional<uint16_t> device{};
  std::optional<uint32_t> class_code{};  // 24 bits; 0x02xxxx for a network controller
  std::string driver{};                  // empty: none
  std::optional<uint32_t> numa_node{};   // nullopt: the kernel knows none
  std::optional<IommuGroup> group{};     // nullopt: no IOMMU translates for it
  std::vector<NetInterface> interfaces{};
  // What could not be read, in words; the fields are as if it were not there.
  std::vector<std::string> problems{};

  // Userspace may have it, as far as its IOMMU group goes, once it has left its own driver.
  bool viable() const;
};

struct PciInventory {
  std::vector<PciDevice> nics{};        // by address
  bool iommu = false;                   // the machine has one that is on
  bool vfio_pci = false;                // the vfio-pci driver is there
  std::vector<std::string> problems{};  // of no one NIC
};

// Of VFIO, as the name of a driver.
bool IsVfioDriver(const std::string& driver);

// In full: "0000:00:04.0".
bool IsPciAddress(std::string_view text);

class PciBus {
 public:
  virtual ~PciBus() = default;
  PciBus(const PciBus&) = delete;
  PciBus& operator=(const PciBus&) = delete;

  // NotFound: there is no PCI bus to look at. A device that is half readable is no error, see
  // PciDevice::problems.
  virtual absl::StatusOr<PciInventory> Scan() = 0;

 protected:
  PciBus() = default;
};

// From sysfs and procfs. Trusts neither: sizes are bounded, only regular files are read, and a
// link that leads nowhere is a problem with a name.
class SysfsPci final : public PciBus {
 public:
  struct Options {
    std::string sysfs = "/sys";
    std::string proc = "/proc";
  };
  explicit SysfsPci(Options options);
  SysfsPci() : SysfsPci(Options{}) {}

  absl::StatusOr<PciInventory> Scan() override;

  // One device, of any kind, and one group. NotFound: there is none.
  absl::StatusOr<PciDevice> Device(const std::string& address) const;
  absl::StatusOr<IommuGroup> Group(uint32_t number) const;

 private:
  const Options options_;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_PCI_H_
