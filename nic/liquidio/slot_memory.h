// SPDX-License-Identifier: Apache-2.0
//
// SlotMemory: where the small structures beside a ring live, one per slot of it: the gather lists
// of an input queue, the info buffers of an output queue. A policy of the queues. The default,
// CoherentSlots, is one coherent allocation per ring: a structure's device address is base + slot *
// size, and handing one over costs nothing. Other strategies (a mapping per slot with syncs, a
// mapping per packet) are other arguments.
//
// Set-up and Quarantine: one control thread. The rest: the queue's thread.
#ifndef DMAKIT_NIC_LIQUIDIO_SLOT_MEMORY_H_
#define DMAKIT_NIC_LIQUIDIO_SLOT_MEMORY_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/ring_pool.h"
#include "dma/types.h"
#include "iova/types.h"
#include "nic/teardown.h"

namespace dmakit::nic::liquidio {

struct SlotOptions {
  uint32_t count = 0;   // slots of the ring
  Bytes entry_size{0};  // of one structure; a multiple of 8
  // kToDevice: the device reads them; kFromDevice: it writes them, the CPU sets them up.
  dma::Direction direction = dma::Direction::kToDevice;
  std::string label{};  // named in errors and leak reports
};

// Create allocates `count` structures; ResourceExhausted names the label. at: the CPU's view, for
// as long as the structure is the CPU's. Give hands it to the device, at `iova`; false: it has no
// device address now, and it is still the CPU's. Take takes it back, once per Give that succeeded,
// before the CPU touches it again. maps: mappings made since Create. Quarantine: the device may
// still use them.
//
// A default-constructed one has no slots.
template <typename M>
concept SlotMemory = std::movable<M> && std::default_initializable<M> &&
    requires(M memory, const M& constant, dma::Device& device, const SlotOptions& options,
             uint32_t slot, Iova& iova, std::string_view text) {
  { M::Create(device, options) } -> std::same_as<absl::StatusOr<M>>;
  { constant.at(slot) } -> std::same_as<std::byte*>;
  { memory.Give(slot, iova) } -> std::same_as<bool>;
  { memory.Take(slot) } -> std::same_as<void>;
  { constant.maps() } -> std::same_as<uint64_t>;
  { std::move(memory).Quarantine(device, text, text) } -> std::same_as<void>;
};

class CoherentSlots {
 public:
  static absl::StatusOr<CoherentSlots> Create(dma::Device& device, const SlotOptions& options) {
    auto pool = dma::RingPool<std::byte>::Create(
        device, {.count = options.count, .entry_size = options.entry_size, .label = options.label});
    if (!pool.ok()) return pool.status();
    CoherentSlots slots;
    slots.pool_ = *std::move(pool);
    return slots;
  }

  std::byte* at(uint32_t slot) const { return pool_.at(slot); }
  bool Give(uint32_t slot, Iova& iova) {
    iova = pool_.iova(slot);
    return true;
  }
  void Take(uint32_t) {}
  uint64_t maps() const { return pool_.empty() ? 0 : 1; }
  void Quarantine(dma::Device& device, std::string_view owner, std::string_view reason) && {
    QuarantineRing(device, owner, reason, std::move(pool_));
  }

 private:
  dma::RingPool<std::byte> pool_;
};
static_assert(SlotMemory<CoherentSlots>);

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_SLOT_MEMORY_H_
