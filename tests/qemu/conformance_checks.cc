// SPDX-License-Identifier: Apache-2.0
//
// The clauses that every domain keeps, against the kernel's own VFIO.

#include <memory>
#include <string>
#include <utility>

#include "dma/host/vfio_container.h"
#include "dma/host/vfio_device.h"
#include "dma/host/vfio_domain.h"
#include "tests/dma/domain_conformance.h"
#include "tests/qemu/guest.h"

namespace dmakit::qemu {
namespace {

using dma::host::SystemVfioKernel;
using dma::host::VfioContainer;
using dma::host::VfioDevice;

// A domain with all that is under it.
class RealDomain final : public dma::Domain {
 public:
  RealDomain(SystemVfioKernel& kernel, const std::string& address)
      : container_(Need(VfioContainer::Open(kernel))),
        device_(Need(VfioDevice::Open(*container_, address))),
        domain_(Need(container_->domain())) {}

  std::string_view name() const override { return domain_->name(); }
  const dma::DomainFacts& facts() const override { return domain_->facts(); }
  absl::Status Map(Range range, dma::MemoryView memory, dma::Access access) override {
    return domain_->Map(range, memory, access);
  }
  absl::StatusOr<Bytes> Unmap(Range range) override { return domain_->Unmap(range); }
  absl::Status Invalidate(Range range) override { return domain_->Invalidate(range); }
  absl::Status InvalidateAll() override { return domain_->InvalidateAll(); }
  dma::DomainStats stats() const override { return domain_->stats(); }

 private:
  std::unique_ptr<VfioContainer> container_;
  std::unique_ptr<VfioDevice> device_;
  dma::Domain* domain_;
};

TEST_CASE("the kernel's VFIO keeps the contract of a domain", "[conformance]") {
  SystemVfioKernel kernel;
  size_t made = 0;
  // What a machine has cannot be wished for: see DomainFactory. Two at a time are enough.
  dma::testing::CheckDomainConformance(
      [&](const dma::testing::DomainWish& wish) -> std::unique_ptr<dma::Domain> {
        if (!wish.none()) return nullptr;
        return std::make_unique<RealDomain>(kernel, kAddress[made++ % 2]);
      });
}

}  // namespace
}  // namespace dmakit::qemu
