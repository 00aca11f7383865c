// SPDX-License-Identifier: Apache-2.0
//
// VfioDomain passes the suite of every domain, on a fake kernel made to each wish.
#include <memory>

#include "tests/catch.h"
#include "tests/dma/domain_conformance.h"
#include "tests/dma/host/vfio_testing.h"

namespace dmakit::dma::host {
namespace {

using testing::HeldDomain;
using testing::VfioRig;

FakeVfioKernel::Options Machine(const dma::testing::DomainWish& wish) {
  FakeVfioKernel::Options options{.width = wish.width.value_or(AddressBits(48)),
                                  .reserved = wish.reserved};
  if (wish.max_mappings != 0) options.max_mappings = static_cast<uint32_t>(wish.max_mappings);
  return options;
}

TEST_CASE("VfioDomain is a Domain") {
  dma::testing::CheckDomainConformance([](const dma::testing::DomainWish& wish) {
    auto rig = std::make_shared<VfioRig>(Machine(wish));
    Domain& domain = *rig->domain;
    return std::make_unique<HeldDomain>(std::move(rig), domain);
  });
}

TEST_CASE("VfioDomain is a Domain for a user with locked memory enough") {
  dma::testing::CheckDomainConformance([](const dma::testing::DomainWish& wish) {
    FakeVfioKernel::Options options = Machine(wish);
    options.root = false;
    auto rig = std::make_shared<VfioRig>(std::move(options));
    Domain& domain = *rig->domain;
    return std::make_unique<HeldDomain>(std::move(rig), domain);
  });
}

TEST_CASE("a domain that grants no wish runs the clauses that have none") {
  int refused = 0;
  dma::testing::CheckDomainConformance(
      [&](const dma::testing::DomainWish& wish) -> std::unique_ptr<Domain> {
        if (!wish.none()) {
          ++refused;
          return nullptr;
        }
        auto rig = std::make_shared<VfioRig>();
        Domain& domain = *rig->domain;
        return std::make_unique<HeldDomain>(std::move(rig), domain);
      });
  CHECK(refused <= 4);
}

}  // namespace
}  // namespace dmakit::dma::host
