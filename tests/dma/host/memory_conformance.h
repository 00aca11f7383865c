// SPDX-License-Identifier: Apache-2.0
//
// What every host::MemorySource must do. A test of a source calls CheckMemoryConformance in its own
// TEST_CASE, with a function that makes a fresh source of a given capacity.
#ifndef DMAKIT_TESTS_DMA_HOST_MEMORY_CONFORMANCE_H_
#define DMAKIT_TESTS_DMA_HOST_MEMORY_CONFORMANCE_H_

#include <functional>
#include <memory>

#include "dma/host/memory.h"

namespace dmakit::dma::host::testing {

using SourceFactory = std::function<std::unique_ptr<MemorySource>(Bytes capacity)>;

// Uses Catch2's SECTIONs: call it once per TEST_CASE, and nothing after it.
void CheckMemoryConformance(const SourceFactory& make);

}  // namespace dmakit::dma::host::testing

#endif  // DMAKIT_TESTS_DMA_HOST_MEMORY_CONFORMANCE_H_
