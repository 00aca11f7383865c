// SPDX-License-Identifier: Apache-2.0

#include "dma/host/pci.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace dmakit::dma::host {
namespace {

namespace fs = std::filesystem;

// More than any of these files has; a routing table may be long.
constexpr size_t kMostBytes = size_t{1} << 20;
constexpr uint32_t kNetworkClass = 0x02;
constexpr uint32_t kBridgeClass = 0x06;

using Problems = std::vector<std::string>;

// The names in a directory, ascending. Empty if there is none.
std::vector<std::string> List(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The name at the end of a link: a driver's, a group's. Empty if there is no link.
std::string LinkName(const fs::path& link, Problems& problems) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(link, error))) return "";
  const fs::path target = fs::read_symlink(link, error);
  if (!error && fs::exists(link, error)) return target.filename().string();
  problems.push_back(absl::StrCat(link.filename().string(), ": leads to ", target.string(),
                                  ", which does not exist"));
  return "";
}

// nullopt: no such file. One that is there and cannot be read is a problem.
std::optional<std::string> ReadAll(const fs::path& path, Problems& problems) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    if (fs::is_symlink(fs::symlink_status(path, error))) {
      problems.push_back(absl::StrCat(path.filename().string(), ": leads nowhere"));
    }
    return std::nullopt;
  }
  // A pipe would wait for its writer.
  if (!fs::is_regular_file(status)) {
    problems.push_back(absl::StrCat(path.filename().string(), ": is no file"));
    return std::nullopt;
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(kMostBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) {
    problems.push_back(absl::StrCat(path.filename().string(), ": cannot be read"));
    return std::nullopt;
  }
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

// One word, as most files have it.
std::optional<std::string> ReadWord(const fs::path& path, Problems& problems) {
  std::optional<std::string> text = ReadAll(path, problems);
  if (text && text->ends_with('\n')) text->pop_back();
  return text;
}

template <typename Number>
bool Parse(std::string_view text, int base, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  return !text.empty() && error == std::errc{} && stop == end;
}

// Hexadecimal numbers begin with 0x.
template <typename Number>
std::optional<Number> ReadNumber(const fs::path& path, int base, Problems& problems) {
  const auto text = ReadWord(path, problems);
  if (!text) return std::nullopt;
  std::string_view digits = *text;
  const bool prefix = base != 16 || digits.starts_with("0x");
  if (base == 16 && prefix) digits.remove_prefix(2);
  Number number{};
  if (prefix && Parse(digits, base, number)) return number;
  problems.push_back(absl::StrCat(path.filename().string(), ": \"",
                                  absl::CHexEscape(text->substr(0, 32)), "\" is no ",
                                  base == 16 ? "hexadecimal" : "decimal", " number in range"));
  return std::nullopt;
}

// Like ReadNumber, of what every device has.
template <typename Number>
std::optional<Number> MustRead(const fs::path& path, Problems& problems) {
  const size_t before = problems.size();
  const auto number = ReadNumber<Number>(path, 16, problems);
  if (!number && problems.size() == before) {
    problems.push_back(absl::StrCat(path.filename().string(), ": is missing"));
  }
  return number;
}

// --- Routes and addresses -----------------------------------------------------------------------

struct Network {
  std::set<std::string> default_routes;  // of these interfaces
  std::set<std::string> addresses;
};

std::vector<std::vector<std::string>> ReadTable(const fs::path& path, Problems& problems) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(ReadAll(path, problems).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::string>& row = rows.emplace_back();
    for (std::string word; words >> word;) row.push_back(word);
    if (row.empty()) rows.pop_back();
  }
  return rows;
}

bool IsZero(const std::string& hex) {
  return !hex.empty() && hex.find_first_not_of('0') == std::string::npos;
}

// `columns`: a row with fewer is none of the kernel's.
bool HasColumns(const std::vector<std::string>& row, size_t columns, std::string_view file,
                Problems& problems) {
  if (row.size() >= columns) return true;
  const std::string problem =
      absl::StrCat(std::string(file), ": a line with ", row.size(), " columns, and not ", columns);
  if (problems.empty() || problems.back() != problem) problems.push_back(problem);
  return false;
}

Network ReadNetwork(const fs::path& proc, Problems& problems) {
  constexpr uint32_t kReject = 0x0200;
  Network network;
  // Iface Destination Gateway Flags RefCnt Use Metric Mask ...
  for (const auto& row : ReadTable(proc / "net" / "route", problems)) {
    if (!HasColumns(row, 8, "net/route", problems) || row[0] == "Iface") continue;
    network.addresses.insert(row[0]);
    if (IsZero(row[1]) && IsZero(row[7])) network.default_routes.insert(row[0]);
  }
  // destination prefix source prefix gateway metric refcnt use flags interface
  for (const auto& row : ReadTable(proc / "net" / "ipv6_route", problems)) {
    if (!HasColumns(row, 10, "net/ipv6_route", problems)) continue;
    uint32_t flags = 0;
    if (!Parse(std::string_view(row[8]), 16, flags) || (flags & kReject) != 0) continue;
    if (IsZero(row[0]) && IsZero(row[1])) network.default_routes.insert(row[9]);
  }
  // address index prefix scope flags interface; scope 20 is link-local
  for (const auto& row : ReadTable(proc / "net" / "if_inet6", problems)) {
    if (!HasColumns(row, 6, "net/if_inet6", problems)) continue;
    if (row[3] != "20") network.addresses.insert(row[5]);
  }
  return network;
}

// --- One device ---------------------------------------------------------------------------------

// Most controllers have net/ themselves; of others it belongs to a device on them (virtio0/net/).
std::vector<fs::path> InterfacePaths(const fs::path& device) {
  std::vector<fs::path> paths;
  const auto add = [&](const fs::path& net) {
    for (const std::string& name : List(net)) paths.push_back(net / name);
  };
  add(device / "net");
  for (const std::string& child : List(device)) {
    std::error_code error;
    const fs::path path = device / child;
    if (child == "net" || fs::is_symlink(fs::symlink_status(path, error))) continue;
    if (fs::is_directory(path, error)) add(path / "net");
  }
  return paths;
}

// The interface and those above it (upper_NAME/ in its directory): what goes through them goes
// through it.
void Uppers(const fs::path& path, const std::string& name, int depth,
            std::vector<std::string>& names) {
  constexpr std::string_view kUpper = "upper_";
  constexpr int kDeepest = 8;  // the kernel's limit; and links may go in circles
  names.push_back(name);
  if (depth == kDeepest) return;
  for (const std::string& entry : List(path)) {
    if (entry.starts_with(kUpper)) {
      Uppers(path / entry, entry.substr(kUpper.size()), depth + 1, names);
    }
  }
}

NetInterface ReadInterface(const fs::path& path, const Network& network, Problems& problems) {
  NetInterface interface;
  interface.name = path.filename().string();
  Problems own;
  interface.mtu = ReadNumber<uint32_t>(path / "mtu", 10, own);
  interface.up = ReadWord(path / "operstate", own) == "up";
  std::vector<std::string> carriers;
  Uppers(path, interface.name, 0, carriers);
  for (const std::string& carrier : carriers) {
    const bool route = network.default_routes.contains(carrier);
    const bool address = network.addresses.contains(carrier);
    // The one that weighs most gives the name.
    if ((route && !interface.default_route) || (address && !interface.address)) {
      interface.via = carrier == interface.name ? "" : carrier;
    }
    interface.default_route |= route;
    interface.address |= address;
  }
  for (const std::string& problem : own) {
    problems.push_back(absl::StrCat("net/", interface.name, "/", problem));
  }
  return interface;
}

bool IsBridge(const fs::path& device) {
  Problems ignored;
  const auto code = ReadNumber<uint32_t>(device / "class", 16, ignored);
  return code && *code >> 16 == kBridgeClass;
}

// `group`: its directory.
std::vector<IommuGroupMember> ReadMembers(const fs::path& group, Problems& problems) {
  std::vector<IommuGroupMember> all;
  const fs::path members = group / "devices";
  for (const std::string& address : List(members)) {
    Problems own;
    IommuGroupMember member;
    member.address = address;
    member.driver = LinkName(members / address / "driver", own);
    member.bridge = IsBridge(members / address);
    std::error_code error;
    if (!fs::exists(members / address, error)) own.push_back("leads nowhere");
    for (const std::string& problem : own) {
      problems.push_back(absl::StrCat("iommu_group/devices/", address, ": ", problem));
    }
    all.push_back(std::move(member));
  }
  return all;
}

std::optional<IommuGroup> ReadGroup(const fs::path& device, Problems& problems) {
  const std::string name = LinkName(device / "iommu_group", problems);
  if (name.empty()) return std::nullopt;
  IommuGroup group;
  if (!Parse(std::string_view(name), 10, group.number)) {
    problems.push_back(absl::StrCat("iommu_group: \"", absl::CHexEscape(name), "\" is no number"));
    return std::nullopt;
  }
  group.members = ReadMembers(device / "iommu_group", problems);
  if (group.members.empty()) {
    problems.push_back(absl::StrCat("iommu_group: group ", group.number, " lists no devices"));
  }
  return group;
}

PciDevice ReadDevice(const fs::path& path, const Network& network) {
  PciDevice device;
  device.address = path.filename().string();
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    device.problems.push_back("leads nowhere");
    return device;
  }
  device.class_code = MustRead<uint32_t>(path / "class", device.problems);
  device.vendor = MustRead<uint16_t>(path / "vendor", device.problems);
  device.device = MustRead<uint16_t>(path / "device", device.problems);
  device.driver = LinkName(path / "driver", device.problems);
  const auto node = ReadNumber<int32_t>(path / "numa_node", 10, device.problems);
  if (node && *node >= 0) device.numa_node = static_cast<uint32_t>(*node);
  device.group = ReadGroup(path, device.problems);
  for (const fs::path& interface : InterfacePaths(path)) {
    device.interfaces.push_back(ReadInterface(interface, network, device.problems));
  }
  return device;
}

}  // namespace

bool IsVfioDriver(const std::string& driver) {
  return driver == "vfio-pci" || driver.ends_with("-vfio-pci") || driver.ends_with("_vfio_pci");
}

bool IsPciAddress(std::string_view text) {
  const auto hex = [](std::string_view digits) {
    return std::all_of(digits.begin(), digits.end(),
                       [](unsigned char c) { return std::isxdigit(c) != 0; });
  };
  // The domain has four digits or more, all else two, and the function is below 8.
  if (text.size() < 12 || text.size() > 16) return false;
  const std::string_view tail = text.substr(text.size() - 8);
  return hex(text.substr(0, text.size() - 8)) && tail[0] == ':' && hex(tail.substr(1, 2)) &&
         tail[3] == ':' && hex(tail.substr(4, 2)) && tail[6] == '.' && tail[7] >= '0' &&
         tail[7] <= '7';
}

bool IommuGroupMember::harmless() const {
  return driver.empty() || bridge || driver == "pci-stub" || IsVfioDriver(driver);
}

bool PciDevice::viable() const {
  return group && std::all_of(group->members.begin(), group->members.end(),
                              [&](const auto& m) { return m.address == address || m.harmless(); });
}

SysfsPci::SysfsPci(Options options) : options_(std::move(options)) {}

absl::StatusOr<PciInventory> SysfsPci::Scan() {
  const fs::path sysfs = options_.sysfs;
  const fs::path devices = sysfs / "bus" / "pci" / "devices";
  std::error_code error;
  if (!fs::is_directory(devices, error)) {
    return absl::NotFoundError(
        absl::StrCat(devices.string(), " is no directory: no PCI bus there"));
  }
  PciInventory inventory;
  const Network network = ReadNetwork(options_.proc, inventory.problems);
  inventory.iommu = !List(sysfs / "kernel" / "iommu_groups").empty();
  inventory.vfio_pci = fs::is_directory(sysfs / "bus" / "pci" / "drivers" / "vfio-pci", error);
  for (const std::string& address : List(devices)) {
    PciDevice device = ReadDevice(devices / address, network);
    const bool nic =
        device.class_code ? *device.class_code >> 16 == kNetworkClass : !device.interfaces.empty();
    if (nic) {
      inventory.nics.push_back(std::move(device));
    } else if (!device.class_code) {
      // It may be one.
      for (const std::string& problem : device.problems) {
        inventory.problems.push_back(absl::StrCat(address, ": ", problem));
      }
    }
  }
  return inventory;
}

absl::StatusOr<PciDevice> SysfsPci::Device(const std::string& address) const {
  const fs::path path = fs::path(options_.sysfs) / "bus" / "pci" / "devices" / address;
  std::error_code error;
  if (!IsPciAddress(address) || !fs::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat("no PCI device ", path.string()));
  }
  return ReadDevice(path, Network{});
}

absl::StatusOr<IommuGroup> SysfsPci::Group(uint32_t number) const {
  const fs::path path =
      fs::path(options_.sysfs) / "kernel" / "iommu_groups" / std::to_string(number);
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat("no IOMMU group ", path.string()));
  }
  Problems ignored;
  return IommuGroup{number, ReadMembers(path, ignored)};
}

}  // namespace dmakit::dma::host
