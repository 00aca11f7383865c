// SPDX-License-Identifier: Apache-2.0
//
// What the tests of SoftwareIommu share: backing memory of any size and alignment that costs only
// the pages it touches, and one-line forms of the calls.
#ifndef DMAKIT_TESTS_DMA_IOMMU_TESTING_H_
#define DMAKIT_TESTS_DMA_IOMMU_TESTING_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "dma/software_iommu.h"
#include "tests/catch.h"

namespace dmakit::dma::testing {

constexpr uint64_t k4K = 4096;
constexpr uint64_t k2M = uint64_t{2} << 20;
constexpr uint64_t k1G = uint64_t{1} << 30;

// Zeroed address space, aligned to 1 GiB, pages on first touch.
class Backing {
 public:
  explicit Backing(uint64_t size) : room_(size + k1G) {
    void* start = mmap(nullptr, room_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(start != MAP_FAILED);
    start_ = static_cast<std::byte*>(start);
    const uint64_t past = reinterpret_cast<uintptr_t>(start_) % k1G;
    base_ = start_ + (k1G - past) % k1G;
  }
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;
  ~Backing() { munmap(start_, room_); }

  std::byte* at(uint64_t offset) const { return base_ + offset; }
  MemoryView View(uint64_t offset, uint64_t size) const {
    return {base_ + offset, base_ + offset, size};
  }
  // A number at the start of each page, to tell where an access went.
  void Mark(uint64_t offset, uint64_t value) const {
    std::memcpy(base_ + offset, &value, sizeof(value));
  }

 private:
  size_t room_;
  std::byte* start_;
  std::byte* base_;
};

inline std::unique_ptr<SoftwareIommu> NewIommu(SoftwareIommu::Options options = {}) {
  auto iommu = SoftwareIommu::Create(std::move(options));
  REQUIRE(iommu.ok());
  return *std::move(iommu);
}

constexpr Range At(uint64_t base, uint64_t size) { return {Iova(base), Bytes(size)}; }

inline bool Map(SoftwareIommu& iommu, uint64_t iova, MemoryView view,
                Access access = Access::kReadWrite) {
  return iommu.Map(At(iova, view.size), view, access).ok();
}

// Unmaps exactly what is asked for.
inline bool Unmap(SoftwareIommu& iommu, uint64_t iova, uint64_t size) {
  const auto removed = iommu.Unmap(At(iova, size));
  return removed.ok() && removed->value() == size;
}

// The number that the device finds at `iova`, or nothing.
inline std::optional<uint64_t> Peek(DevicePort& port, uint64_t iova) {
  uint64_t value = 0;
  if (!port.Read(Iova(iova), std::as_writable_bytes(std::span(&value, 1)))) return std::nullopt;
  return value;
}

inline bool Poke(DevicePort& port, uint64_t iova, uint64_t value) {
  return port.Write(Iova(iova), std::as_bytes(std::span(&value, 1)));
}

}  // namespace dmakit::dma::testing

#endif  // DMAKIT_TESTS_DMA_IOMMU_TESTING_H_
