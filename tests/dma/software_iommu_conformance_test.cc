// SPDX-License-Identifier: Apache-2.0
//
// SoftwareIommu passes the suite of every domain.
#include <utility>

#include "dma/software_iommu.h"
#include "tests/catch.h"
#include "tests/dma/domain_conformance.h"

namespace dmakit::dma {
namespace {

TEST_CASE("SoftwareIommu is a Domain") {
  testing::CheckDomainConformance([](const testing::DomainWish& wish) {
    return *SoftwareIommu::Create({.width = wish.width.value_or(AddressBits(48)),
                                   .reserved = wish.reserved,
                                   .max_mappings = wish.max_mappings});
  });
}

}  // namespace
}  // namespace dmakit::dma
