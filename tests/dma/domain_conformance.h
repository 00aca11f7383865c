// SPDX-License-Identifier: Apache-2.0
//
// What every dma::Domain must do, whatever is behind it. A test of a domain calls
// CheckDomainConformance in its own TEST_CASE, with a function that makes a fresh domain. What a
// domain may do differently is read from its facts (splitting, granule). What devices see is not
// checked here: a Domain has no devices.
#ifndef DMAKIT_TESTS_DMA_DOMAIN_CONFORMANCE_H_
#define DMAKIT_TESTS_DMA_DOMAIN_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dma/domain.h"

namespace dmakit::dma::testing {

// What the suite wants of the domain it is given.
struct DomainWish {
  AddressBits width{48};
  std::vector<Interval> reserved{};
  uint64_t max_mappings = 0;
};

using DomainFactory = std::function<std::unique_ptr<Domain>(const DomainWish&)>;

// Uses Catch2's SECTIONs: call it once per TEST_CASE, and nothing after it.
void CheckDomainConformance(const DomainFactory& make);

}  // namespace dmakit::dma::testing

#endif  // DMAKIT_TESTS_DMA_DOMAIN_CONFORMANCE_H_
