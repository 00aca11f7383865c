// SPDX-License-Identifier: Apache-2.0
//
// What tests of VFIO share: a container on a fake kernel, with or without a device, and a domain
// that keeps alive what it needs. Header only; single-threaded test code.
#ifndef DMAKIT_TESTS_DMA_HOST_VFIO_TESTING_H_
#define DMAKIT_TESTS_DMA_HOST_VFIO_TESTING_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dma/domain.h"
#include "dma/host/vfio_container.h"
#include "dma/host/vfio_device.h"
#include "dma/host/vfio_error.h"
#include "dma/host/vfio_fakes.h"
#include "tests/catch.h"

namespace dmakit::dma::host::testing {

constexpr uint64_t kPage = 4096;

inline Range At(uint64_t page, uint64_t count = 1) {
  return {Iova(page * kPage), Bytes(count * kPage)};
}

// Pages that the kernel can pin; the test ends before they do.
class Pages {
 public:
  explicit Pages(size_t count) : bytes_((count + 1) * kPage) {}
  MemoryView At(size_t page, size_t count = 1) const {
    auto* const base = reinterpret_cast<std::byte*>(
        (reinterpret_cast<uintptr_t>(bytes_.data()) + kPage - 1) & ~(kPage - 1));
    return MemoryView::Of({base + page * kPage, count * kPage});
  }

 private:
  mutable std::vector<std::byte> bytes_;
};

// A domain that belongs to something else, which it keeps. For suites that own what they test.
class HeldDomain final : public Domain {
 public:
  HeldDomain(std::shared_ptr<void> keep, Domain& domain)
      : keep_(std::move(keep)), domain_(domain) {}

  std::string_view name() const override { return domain_.name(); }
  const DomainFacts& facts() const override { return domain_.facts(); }
  absl::Status Map(Range range, MemoryView memory, Access access) override {
    return domain_.Map(range, memory, access);
  }
  absl::StatusOr<Bytes> Unmap(Range range) override { return domain_.Unmap(range); }
  absl::Status Invalidate(Range range) override { return domain_.Invalidate(range); }
  absl::Status InvalidateAll() override { return domain_.InvalidateAll(); }
  DomainStats stats() const override { return domain_.stats(); }
  void SyncForCpu(Range range) override { domain_.SyncForCpu(range); }
  void SyncForDevice(Range range) override { domain_.SyncForDevice(range); }

 private:
  const std::shared_ptr<void> keep_;
  Domain& domain_;
};

// A container whose group is that of the fake's first function, and its domain.
struct VfioRig {
  explicit VfioRig(FakeVfioKernel::Options options = {},
                   VfioContainer::Options container_options = {})
      : kernel(std::move(options)) {
    container_options.report = [this](std::string_view line) { reports.emplace_back(line); };
    container = *VfioContainer::Open(kernel, kernel.ContainerOptions(std::move(container_options)));
    REQUIRE(container->AddGroup(1).ok());
    domain = *container->domain();
  }

  std::vector<std::string> reports{};
  FakeVfioKernel kernel;
  std::unique_ptr<VfioContainer> container{};
  VfioDomain* domain = nullptr;
};

// Whether the error is of this kind, and its message has all these words.
inline bool Says(const absl::Status& status, VfioProblem problem,
                 const std::vector<std::string>& words) {
  UNSCOPED_INFO(status.ToString());
  if (VfioProblemOf(status) != problem) return false;
  for (const std::string& word : words) {
    UNSCOPED_INFO("must say: " << word);
    if (std::string(status.message()).find(word) == std::string::npos) return false;
  }
  return true;
}

}  // namespace dmakit::dma::host::testing

#endif  // DMAKIT_TESTS_DMA_HOST_VFIO_TESTING_H_
