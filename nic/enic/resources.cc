// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/resources.h"

#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "nic/enic/commands.h"
#include "nic/enic/registers.h"

namespace dmakit::nic::enic {
namespace {

constexpr uint32_t kMaxBlocks = 1024;  // queue numbers have ten bits

// What the table may say about a type that is used here.
struct Wanted {
  ResourceType type = ResourceType::kEnd;
  const char* name = "";
  size_t block = 0;  // bytes of one instance
  bool required = false;
  ResourceWindow ResourceMap::*window = nullptr;
};
constexpr Wanted kWanted[] = {
    {ResourceType::kWq, "WQ", kBlockBytes, true, &ResourceMap::wq},
    {ResourceType::kRq, "RQ", kBlockBytes, true, &ResourceMap::rq},
    {ResourceType::kCq, "CQ", kBlockBytes, true, &ResourceMap::cq},
    {ResourceType::kIntrCtrl, "INTR_CTRL", kBlockBytes, false, &ResourceMap::intr},
    {ResourceType::kDevcmd, "DEVCMD", kDevcmdBytes, true, &ResourceMap::devcmd},
};

const Wanted* FindWanted(ResourceType type) {
  for (const Wanted& wanted : kWanted) {
    if (wanted.type == type) return &wanted;
  }
  return nullptr;
}

template <typename... Words>
absl::Status Bad(std::string_view device, const Words&... words) {
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(device), ": resource table: ", words...));
}

absl::Status Place(const Wanted& wanted, const Resource& resource, size_t bar_size,
                   std::string_view device, ResourceMap& map) {
  if ((map.*wanted.window).count != 0) return Bad(device, wanted.name, " is listed twice");
  if (resource.bar != 0) {
    return Bad(device, wanted.name, " is in BAR ", resource.bar, "; only BAR 0 is used");
  }
  if (resource.count == 0 || resource.count > kMaxBlocks) {
    return Bad(device, wanted.name, " count ", resource.count, ": must be between 1 and ",
               kMaxBlocks);
  }
  const uint64_t end = resource.bar_offset + uint64_t{resource.count} * wanted.block;
  if (resource.bar_offset % 8 != 0 || end > bar_size) {
    return Bad(device, wanted.name, " at offset ", resource.bar_offset, ", ", resource.count,
               " blocks of ", wanted.block, " bytes: must be a multiple of 8 and end within the ",
               bar_size, " bytes of BAR 0");
  }
  map.*wanted.window = {resource.bar_offset, resource.count};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ResourceMap> ReadResources(const dma::MmioRegion& bar0, std::string_view device) {
  if (bar0.size() < kResourceHeaderBytes + kResourceEntryBytes) {
    return Bad(device, "BAR 0 has ", bar0.size(), " bytes, too few for a table");
  }
  const uint32_t magic = bar0.Read32(0);
  const uint32_t version = bar0.Read32(4);
  if (magic != kResourceMagic || version != kResourceVersion) {
    return Bad(device, "magic ", absl::Hex(magic), " version ", version, ": must be ",
               absl::Hex(kResourceMagic), " and ", kResourceVersion,
               magic == kAllOnes ? "; the device does not answer" : "; this is not an enic");
  }
  ResourceMap map;
  for (size_t at = kResourceHeaderBytes;; at += kResourceEntryBytes) {
    if (at + kResourceEntryBytes > bar0.size()) return Bad(device, "has no end");
    const Resource resource =
        DecodeResource({bar0.Read32(at), bar0.Read32(at + 4), bar0.Read32(at + 8)});
    if (resource.type == ResourceType::kEnd) break;
    const Wanted* wanted = FindWanted(resource.type);
    if (wanted == nullptr) continue;
    if (absl::Status s = Place(*wanted, resource, bar0.size(), device, map); !s.ok()) return s;
  }
  for (const Wanted& wanted : kWanted) {
    if (wanted.required && (map.*wanted.window).count == 0) {
      return Bad(device, wanted.name, " is missing");
    }
  }
  return map;
}

}  // namespace dmakit::nic::enic
