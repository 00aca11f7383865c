// SPDX-License-Identifier: Apache-2.0
//
// Coherent memory: one block that CPU and device share for its whole life, with no sync and no
// per-use mapping; what rings, completion queues and per-ring tables are made of. RingPool<T>
// (ring_pool.h) is the typed form.
#ifndef DMAKIT_DMA_COHERENT_H_
#define DMAKIT_DMA_COHERENT_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "dma/host/memory.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma {

namespace internal {
struct DeviceState;
}

struct CoherentOptions {
  Bytes size{0};
  Bytes alignment{64};  // of the IOVA and of the CPU address; power of two
  Bytes boundary{0};  // the block crosses no multiple of it; power of two, at least size; 0 = none
  std::string label{};  // the ring, as leak reports and errors name it
};

// Move-only. Unmapped, invalidated and freed when it dies (quarantined if that fails), so stop the
// device's use first.
class CoherentBlock {
 public:
  CoherentBlock() = default;
  CoherentBlock(CoherentBlock&& other) noexcept;
  CoherentBlock& operator=(CoherentBlock&& other) noexcept;
  ~CoherentBlock();

  bool empty() const { return device_ == nullptr; }
  std::byte* data() const { return view_.cpu; }
  Bytes size() const { return Bytes{view_.size}; }
  Iova iova() const { return iova_; }
  const std::string& label() const { return label_; }

 private:
  friend class Device;
  void Release();

  std::shared_ptr<internal::DeviceState> device_;
  // Shared with the device's table, which keeps it while the device may still write there.
  std::shared_ptr<host::Memory> memory_;
  MemoryView view_;  // exactly `size` bytes
  Iova iova_{0};
  Range range_;  // whole granules
  std::string label_;
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_COHERENT_H_
