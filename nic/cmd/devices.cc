// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/devices.h"

#include <algorithm>
#include <ostream>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nic/wire/open.h"
#include "nic/wire/spec.h"
#include "nlohmann/json.hpp"

namespace dmakit::nic::cmd {
namespace {

using dma::host::IommuGroupMember;
using dma::host::NetInterface;
using dma::host::PciDevice;
using dma::host::PciInventory;
using Json = nlohmann::ordered_json;

// The silicon that a backend is about: it drives that (Backend::real), or a software model of it.
struct Known {
  uint16_t vendor;
  uint16_t device;
  const char* backend;
};
constexpr Known kKnown[] = {
    {0x1137, 0x0043, "enic"},      // Cisco VIC
    {0x1137, 0x0044, "enic"},      // its dynamic vNIC
    {0x1137, 0x0071, "enic"},      // its virtual function
    {0x177d, 0x9702, "liquidio"},  // CN23XX, physical function
    {0x177d, 0x9712, "liquidio"},  // its virtual function
    {0x8086, 0x10d3, "e1000e"},    // 82574L
};

std::string Hex4(std::optional<uint16_t> value) {
  return value ? absl::StrFormat("%04x", *value) : "?";
}

std::string Id(const PciDevice& nic) {
  return absl::StrCat(Hex4(nic.vendor), ":", Hex4(nic.device));
}

const Backend* BackendOf(const PciDevice& nic, const BackendRegistry& registry) {
  for (const Known& known : kKnown) {
    if (nic.vendor != known.vendor || nic.device != known.device) continue;
    const auto backend = registry.Find(known.backend);
    if (backend.ok()) return *backend;
  }
  return nullptr;
}

std::string Uses(const NetInterface& interface, std::string_view what) {
  return absl::StrCat(interface.name, interface.via.empty() ? "" : " (through ", interface.via,
                      interface.via.empty() ? "" : ")", " ", std::string(what));
}

Step Command(std::string text) { return {.command = true, .text = std::move(text)}; }
Step Note(std::string text) { return {.command = false, .text = std::move(text)}; }

std::string Override(const std::string& address) {
  return absl::StrCat("driverctl set-override ", address, " vfio-pci");
}

// Until the device has a group, and the group nobody that must not be in it.
void AdviseGroup(const PciDevice& nic, const PciInventory& all, std::vector<Step>& first) {
  if (!nic.group && all.iommu) {
    first.push_back(Note("the IOMMU is on and does not translate for this slot: use another slot"));
    return;
  }
  if (!nic.group) {
    first.push_back(Note("enable the IOMMU in the firmware (VT-d, AMD-Vi or SMMU)"));
    first.push_back(
        Note("add intel_iommu=on iommu=pt (Intel) or iommu=pt (others) to the kernel command line, "
             "and boot again"));
    return;
  }
  for (const IommuGroupMember& member : nic.group->members) {
    if (member.address == nic.address || member.harmless()) continue;
    first.push_back(Note(
        absl::StrCat(member.address, " is in the same IOMMU group and must leave ", member.driver,
                     ", if the machine can do without it; otherwise use another slot")));
    first.push_back(Command(Override(member.address)));
  }
}

// --- Text ---------------------------------------------------------------------------------------

using Cells = std::vector<std::string>;

// Names come from the machine, and go to a terminal.
std::string Clean(const std::string& text) { return absl::Utf8SafeCHexEscape(text); }

Cells Row(const PciDevice& nic, const Advice& advice) {
  std::vector<std::string> names;
  std::vector<std::string> mtus;
  for (const NetInterface& interface : nic.interfaces) {
    names.push_back(interface.name);
    mtus.push_back(interface.mtu ? absl::StrCat(*interface.mtu) : "?");
  }
  std::string group = "-";
  if (nic.group) group = absl::StrCat(nic.group->number, nic.viable() ? "" : " (shared)");
  Cells cells = {nic.address,
                 Id(nic),
                 nic.driver,
                 absl::StrJoin(names, ","),
                 absl::StrJoin(mtus, ","),
                 nic.numa_node ? absl::StrCat(*nic.numa_node) : "",
                 group,
                 advice.backend.empty() ? "nothing yet"
                 : advice.real          ? advice.backend
                                        : advice.backend + ", model only"};
  for (std::string& cell : cells) cell = cell.empty() ? "-" : Clean(cell);
  return cells;
}

void PrintTable(const std::vector<Cells>& rows, std::ostream& out) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const Cells& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Cells& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] + 2 - row[i].size(), ' ');
    }
    out << line << '\n';
  }
}

void PrintHints(const PciDevice& nic, const Advice& advice, std::ostream& out) {
  out << '\n' << Clean(nic.address) << '\n';
  for (const std::string& warning : advice.warnings) out << "  warning: " << Clean(warning) << '\n';
  for (const std::string& problem : nic.problems) out << "  problem: " << Clean(problem) << '\n';
  if (nic.group) {
    std::vector<std::string> members;
    for (const IommuGroupMember& member : nic.group->members) {
      members.push_back(
          absl::StrCat(Clean(member.address), " ",
                       member.driver.empty() ? "without a driver" : Clean(member.driver)));
    }
    out << "  IOMMU group " << nic.group->number << ": " << absl::StrJoin(members, ", ") << '\n';
  }
  if (advice.first.empty()) out << "  ready: VFIO has it\n";
  for (const Step& step : advice.first) {
    out << (step.command ? "  $ " : "  first: ") << Clean(step.text) << '\n';
  }
}

void PrintText(const PciInventory& all, const BackendRegistry& registry, std::ostream& out) {
  if (all.nics.empty()) out << "no network controllers\n";
  std::vector<Cells> rows = {
      {"address", "id", "driver", "interface", "mtu", "node", "group", "dmakit"}};
  for (const PciDevice& nic : all.nics) rows.push_back(Row(nic, Advise(nic, all, registry)));
  if (!all.nics.empty()) PrintTable(rows, out);
  for (const PciDevice& nic : all.nics) PrintHints(nic, Advise(nic, all, registry), out);
  for (const std::string& problem : all.problems) out << "\nproblem: " << Clean(problem) << '\n';
  out << std::flush;
}

// --- JSON ---------------------------------------------------------------------------------------

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json GroupJson(const PciDevice& nic) {
  if (!nic.group) return nullptr;
  Json members = Json::array();
  for (const IommuGroupMember& member : nic.group->members) {
    members.push_back(
        {{"address", member.address}, {"driver", member.driver}, {"harmless", member.harmless()}});
  }
  return {{"number", nic.group->number}, {"viable", nic.viable()}, {"members", members}};
}

Json NicJson(const PciDevice& nic, const Advice& advice) {
  Json interfaces = Json::array();
  for (const NetInterface& interface : nic.interfaces) {
    interfaces.push_back({{"name", interface.name},
                          {"mtu", OrNull(interface.mtu)},
                          {"up", interface.up},
                          {"default_route", interface.default_route},
                          {"address", interface.address},
                          {"via", interface.via}});
  }
  Json first = Json::array();
  for (const Step& step : advice.first) {
    first.push_back({{step.command ? "command" : "note", step.text}});
  }
  return {{"address", nic.address},
          {"vendor", nic.vendor ? Json(Hex4(nic.vendor)) : Json(nullptr)},
          {"device", nic.device ? Json(Hex4(nic.device)) : Json(nullptr)},
          {"driver", nic.driver},
          {"interfaces", interfaces},
          {"numa_node", OrNull(nic.numa_node)},
          {"iommu_group", GroupJson(nic)},
          {"backend", advice.backend.empty() ? Json(nullptr) : Json(advice.backend)},
          {"real", advice.real},
          {"warnings", advice.warnings},
          {"problems", nic.problems},
          {"first", first}};
}

void PrintJson(const PciInventory& all, const BackendRegistry& registry, std::ostream& out) {
  Json devices = Json::array();
  for (const PciDevice& nic : all.nics) {
    devices.push_back(NicJson(nic, Advise(nic, all, registry)));
  }
  const Json json = {{"iommu", all.iommu},
                     {"vfio_pci", all.vfio_pci},
                     {"devices", devices},
                     {"problems", all.problems}};
  // Names may be anything; invalid UTF-8 is replaced, not thrown.
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
}

}  // namespace

Advice Advise(const PciDevice& nic, const PciInventory& all, const BackendRegistry& registry) {
  Advice advice;
  if (const Backend* const backend = BackendOf(nic, registry)) {
    advice.backend = backend->name();
    advice.real = backend->real();
  }
  bool route = false;
  for (const NetInterface& interface : nic.interfaces) {
    route |= interface.default_route;
    if (interface.default_route) {
      advice.warnings.push_back(Uses(
          interface, "carries the default route: without it the machine may not be reachable"));
    } else if (interface.address) {
      advice.warnings.push_back(
          Uses(interface, "has an address: its connections end when the NIC leaves its driver"));
    }
  }
  if (route) {
    // No command that cuts off whoever types it.
    advice.first.push_back(
        Note("leave it to the kernel, or move the default route to another NIC"));
    return advice;
  }
  AdviseGroup(nic, all, advice.first);
  if (dma::host::IsVfioDriver(nic.driver)) return advice;
  if (!all.vfio_pci) advice.first.push_back(Command("modprobe vfio-pci"));
  for (const NetInterface& interface : nic.interfaces) {
    if (interface.up) {
      advice.first.push_back(Command(absl::StrCat("ip link set ", interface.name, " down")));
    }
  }
  advice.first.push_back(Command(Override(nic.address)));
  return advice;
}

int RunDevices(const DevicesText& text, const BackendRegistry& registry, const Environment& env) {
  dma::host::SysfsPci::Options options;
  if (text.sysfs) options.sysfs = ResolvePath(*text.sysfs, env.working_directory);
  if (text.proc) options.proc = ResolvePath(*text.proc, env.working_directory);
  const auto all = dma::host::SysfsPci(options).Scan();
  if (!all.ok()) {
    *env.err << "dmakit: --sysfs: " << Quote(options.sysfs)
             << " must be the root of a sysfs with a PCI bus (" << all.status().message()
             << "); leave it out for /sys" << std::endl;
    return kExitUsage;
  }
  if (text.json) {
    PrintJson(*all, registry, *env.out);
  } else {
    PrintText(*all, registry, *env.out);
  }
  size_t problems = all->problems.size();
  for (const PciDevice& nic : all->nics) problems += nic.problems.size();
  if (problems == 0) return kExitDone;
  *env.err << "dmakit: devices: " << problems
           << " things could not be read, so the list may not be all; it names each" << std::endl;
  return kExitLost;
}

}  // namespace dmakit::nic::cmd
