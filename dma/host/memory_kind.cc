// SPDX-License-Identifier: Apache-2.0
#include "dma/host/memory_kind.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <vector>

namespace dmakit::dma::host {

namespace {

struct Region {
  uintptr_t first = 0;
  uintptr_t last = 0;
  MemoryKind kind = MemoryKind::kOrdinary;
  unsigned long file = 0;  // of which it is a private read-only view
};

// Ascending, as the kernel lists them. Read-only data is what lies beside the text of the same
// file; a data file that someone reads through a mapping is not that.
std::vector<Region> ReadRegions() {
  std::vector<Region> regions;
  std::vector<unsigned long> programs;
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/maps", "re"), std::fclose);
  char line[512];
  while (file != nullptr && std::fgets(line, sizeof(line), file.get()) != nullptr) {
    unsigned long first = 0, end = 0, inode = 0;
    char access[5] = {};
    // address range, access, offset, device, inode, then the name
    if (std::sscanf(line, "%lx-%lx %4s %*s %*s %lu", &first, &end, access, &inode) != 4) continue;
    Region region{first, end - 1, MemoryKind::kOrdinary, 0};
    if (std::strstr(line, "[stack]") != nullptr) {
      region.kind = MemoryKind::kStack;
    } else if (access[2] == 'x') {
      region.kind = MemoryKind::kProgram;
      programs.push_back(inode);
    } else if (access[0] == 'r' && access[1] != 'w') {
      region.file = inode;
    }
    // The rest of a line that was too long.
    while (std::strchr(line, '\n') == nullptr &&
           std::fgets(line, sizeof(line), file.get()) != nullptr) {
    }
    regions.push_back(region);
  }
  for (Region& region : regions) {
    const bool program = std::find(programs.begin(), programs.end(), region.file) != programs.end();
    if (region.file != 0 && program) region.kind = MemoryKind::kProgram;
  }
  return regions;
}

// The stack of a thread that is not the main one has no name in the kernel's table.
bool OnOwnStack(uintptr_t address) {
  struct Bounds {
    uintptr_t first = 0;
    uintptr_t size = 0;
    Bounds() {
      pthread_attr_t attributes;
      if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
      void* base = nullptr;
      size_t bytes = 0;
      if (pthread_attr_getstack(&attributes, &base, &bytes) == 0) {
        first = reinterpret_cast<uintptr_t>(base);
        size = bytes;
      }
      pthread_attr_destroy(&attributes);
    }
  };
  thread_local const Bounds bounds;
  return address - bounds.first < bounds.size;
}

}  // namespace

std::string_view Name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kOrdinary:
      return "ordinary memory";
    case MemoryKind::kStack:
      return "a stack";
    case MemoryKind::kProgram:
      return "program text or read-only data";
    case MemoryKind::kUnmapped:
      return "not mapped memory";
  }
  return "?";
}

struct ProcessMemory::Impl {
  explicit Impl(uint64_t refresh_in) : refresh(refresh_in) {}

  const uint64_t refresh;
  std::mutex mutex;
  std::vector<Region> regions;
  uint64_t asked = 0;
  uint64_t reads = 0;

  void Read() {
    regions = ReadRegions();
    asked = 0;
    ++reads;
  }
  const Region* Find(uintptr_t address) const {
    auto it = std::upper_bound(regions.begin(), regions.end(), address,
                               [](uintptr_t a, const Region& r) { return a < r.first; });
    if (it == regions.begin()) return nullptr;
    --it;
    return address <= it->last ? &*it : nullptr;
  }
  MemoryKind Of(uintptr_t first, uintptr_t last) {
    if (OnOwnStack(first) || OnOwnStack(last)) return MemoryKind::kStack;
    const Region* region = Look(first);
    if (region == nullptr) return MemoryKind::kUnmapped;
    if (last <= region->last) return region->kind;
    const MemoryKind kind = region->kind;
    region = Look(last);
    return region == nullptr ? MemoryKind::kUnmapped : std::max(kind, region->kind);
  }
  const Region* Look(uintptr_t address) {
    const Region* const region = Find(address);
    if (region != nullptr) return region;
    Read();
    return Find(address);
  }
};

ProcessMemory::ProcessMemory(Options options) : impl_(new Impl(options.refresh)) {}
ProcessMemory::~ProcessMemory() = default;

MemoryKind ProcessMemory::Classify(std::span<const std::byte> memory) {
  if (memory.empty()) return MemoryKind::kOrdinary;
  const auto first = reinterpret_cast<uintptr_t>(memory.data());
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (++impl_->asked >= impl_->refresh || impl_->regions.empty()) impl_->Read();
  return impl_->Of(first, first + (memory.size() - 1));
}

uint64_t ProcessMemory::reads() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->reads;
}

}  // namespace dmakit::dma::host
