// SPDX-License-Identifier: Apache-2.0

#include "dma/host/vfio_info.h"

namespace dmakit::dma::host {

std::span<const std::byte> FindVfioCapability(std::span<const std::byte> raw, uint32_t first,
                                              uint16_t id) {
  uint32_t at = first;
  // Each is at least a header long, so that more than this go in circles.
  for (size_t n = raw.size() / sizeof(vfio_info_cap_header); n != 0 && at != 0; --n) {
    if (at > raw.size() || sizeof(vfio_info_cap_header) > raw.size() - at) break;
    const auto header = ReadAt<vfio_info_cap_header>(raw, at);
    if (header.id == id) return raw.subspan(at);
    at = header.next;
  }
  return {};
}

}  // namespace dmakit::dma::host
