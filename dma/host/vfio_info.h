// SPDX-License-Identifier: Apache-2.0
//
// VFIO's INFO calls: a structure that begins with its size and flags, behind which the kernel may
// put a chain of capabilities. These functions ask twice where the first answer says that there is
// more, and follow the chain within its bounds. For the sources of dma/host only. Any thread.
#ifndef DMAKIT_DMA_HOST_VFIO_INFO_H_
#define DMAKIT_DMA_HOST_VFIO_INFO_H_

#include <linux/vfio.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "dma/host/vfio_kernel.h"

namespace dmakit::dma::host {

// What VfioQuery gave.
template <typename Info>
struct VfioAnswer {
  int result = 0;  // the ioctl's; the rest counts only if it is not below 0
  Info info{};
  std::vector<std::byte> raw{};  // with capabilities; offsets count from here
};

// A capability of this identity, header included, up to the end of the answer. Empty: none. A
// chain that leaves the answer or goes in circles ends there.
std::span<const std::byte> FindVfioCapability(std::span<const std::byte> raw, uint32_t first,
                                              uint16_t id);

// The value at `offset`; zeros where the bytes end before it does.
template <typename T>
T ReadAt(std::span<const std::byte> bytes, size_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value{};
  if (offset <= bytes.size() && sizeof(T) <= bytes.size() - offset) {
    std::memcpy(&value, bytes.data() + offset, sizeof(T));
  }
  return value;
}

// `info` as the kernel wants it, but for argsz. Fields that an old kernel does not know stay as
// they are in `info`.
template <typename Info>
VfioAnswer<Info> VfioQuery(VfioKernel& kernel, int fd, unsigned long request, Info info) {
  constexpr uint32_t kMost = 1u << 20;  // no chain is this long
  VfioAnswer<Info> answer;
  answer.raw.resize(sizeof(Info));
  for (int round = 0; round < 3; ++round) {
    info.argsz = static_cast<uint32_t>(answer.raw.size());
    std::memcpy(answer.raw.data(), &info, sizeof(Info));
    answer.result = kernel.Ioctl(fd, request, answer.raw.data());
    if (answer.result < 0) return answer;
    std::memcpy(&answer.info, answer.raw.data(), sizeof(Info));
    if (answer.info.argsz <= answer.raw.size() || answer.info.argsz > kMost) break;
    answer.raw.resize(answer.info.argsz);
  }
  return answer;
}

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_VFIO_INFO_H_
