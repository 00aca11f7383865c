// SPDX-License-Identifier: Apache-2.0
//
// Reads /proc/meminfo, /proc/self/cgroup and the files of the memory controller.
#include "dma/host/available_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace dmakit::dma::host {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

// The two versions of the memory controller say the same in other words.
struct Controller {
  std::string_view below;  // the tree of groups, relative to where they are mounted
  std::string_view limit;
  std::string_view usage;
  std::string_view cache;  // fields of memory.stat
  std::string_view shmem;
};
constexpr Controller kV2{"", "/memory.max", "/memory.current", "file", "shmem"};
constexpr Controller kV1{"/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                         "total_cache", "total_shmem"};

// "max" is no number, and so no limit.
std::optional<uint64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number behind `field` in a file of "name number" lines.
std::optional<uint64_t> FieldIn(const std::string& path, std::string_view field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && name == field) return value;
  }
  return std::nullopt;
}

uint64_t LeftInGroup(const std::string& group, const Controller& controller) {
  const auto limit = NumberIn(group + std::string(controller.limit));
  const auto usage = NumberIn(group + std::string(controller.usage));
  if (!limit || !usage) return kUnknown;
  // Cached files are given up under pressure; shared memory counts as cache but stays.
  const std::string stat = group + "/memory.stat";
  const uint64_t cache = FieldIn(stat, controller.cache).value_or(0);
  const uint64_t shmem = FieldIn(stat, controller.shmem).value_or(0);
  const uint64_t reclaimable = std::min(cache - std::min(cache, shmem), *usage);
  const uint64_t used = *usage - reclaimable;
  return *limit > used ? *limit - used : 0;
}

// The group itself and all above it. Where the path is not visible (a container that sees its own
// group as the root), the root is what counts, and it is always among them.
uint64_t LeftInTree(const std::string& root, std::string path, const Controller& controller) {
  uint64_t left = kUnknown;
  while (!path.empty() && path != "/") {
    left = std::min(left, LeftInGroup(root + path, controller));
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  return std::min(left, LeftInGroup(root, controller));
}

}  // namespace

Bytes AvailableMemory(const std::string& proc, const std::string& groups) {
  uint64_t left = kUnknown;
  if (const auto kib = FieldIn(proc + "/meminfo", "MemAvailable:")) left = *kib * 1024;
  std::ifstream file(proc + "/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "id:controllers:path"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const Controller* controller = nullptr;
    if (controllers == ",,") controller = &kV2;
    if (controllers.find(",memory,") != std::string::npos) controller = &kV1;
    if (controller == nullptr) continue;
    const std::string root = groups + std::string(controller->below);
    left = std::min(left, LeftInTree(root, line.substr(second + 1), *controller));
  }
  return Bytes(left);
}

}  // namespace dmakit::dma::host
