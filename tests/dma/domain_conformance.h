// SPDX-License-Identifier: Apache-2.0
//
// What every dma::Domain must do, whatever is behind it. A test of a domain calls
// CheckDomainConformance in its own TEST_CASE, with a function that makes a fresh domain. What a
// domain may do differently is read from its facts (splitting, granule). What devices see is not
// checked here: a Domain has no devices.
//
// A domain of the real machine is as it is: its factory may return nullptr for a wish that it
// cannot grant, and the clause that needs it is then skipped with a warning that names it. It must
// return a domain for a wish that asks for nothing (DomainWish::none), which most clauses make do
// with.
#ifndef DMAKIT_TESTS_DMA_DOMAIN_CONFORMANCE_H_
#define DMAKIT_TESTS_DMA_DOMAIN_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dma/domain.h"

namespace dmakit::dma::testing {

// What the suite wants of the domain it is given.
struct DomainWish {
  std::optional<AddressBits> width{};  // nullopt: any from 32 bits on
  std::vector<Interval> reserved{};    // exactly these; empty: any above 16 MiB
  uint64_t max_mappings = 0;           // exactly as many; 0: any number from 1,000 on, or no limit

  bool none() const { return !width && reserved.empty() && max_mappings == 0; }
};

using DomainFactory = std::function<std::unique_ptr<Domain>(const DomainWish&)>;

// Uses Catch2's SECTIONs: call it once per TEST_CASE, and nothing after it.
void CheckDomainConformance(const DomainFactory& make);

}  // namespace dmakit::dma::testing

#endif  // DMAKIT_TESTS_DMA_DOMAIN_CONFORMANCE_H_
