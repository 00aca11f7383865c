// SPDX-License-Identifier: Apache-2.0
//
// Memory's way back to its source.
#include "dma/host/memory.h"

namespace dmakit::dma::host {

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this != &other) {
    Release();
    source_ = std::exchange(other.source_, nullptr);
    view_ = std::exchange(other.view_, {});
  }
  return *this;
}

void Memory::Release() {
  if (source_ == nullptr) return;
  std::exchange(source_, nullptr)->Free(std::exchange(view_, {}));
}

}  // namespace dmakit::dma::host
