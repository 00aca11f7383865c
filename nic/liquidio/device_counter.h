// SPDX-License-Identifier: Apache-2.0
//
// DeviceCounter: a driver's side of a 32-bit counter that the device adds to and the driver
// subtracts from (liquidio sheet 4.3, 5.4). Differences are modulo 2^32, so it may wrap in both
// directions. A value that cannot be, or registers that read all ones because the device is gone,
// change nothing: what was true stays true until the device says something possible again.
//
// Thread: the queue's; lies(): any.
#ifndef DMAKIT_NIC_LIQUIDIO_DEVICE_COUNTER_H_
#define DMAKIT_NIC_LIQUIDIO_DEVICE_COUNTER_H_

#include <cstdint>

#include "dma/mmio.h"
#include "iova/counter.h"
#include "nic/liquidio/registers.h"

namespace dmakit::nic::liquidio {

class DeviceCounter {
 public:
  DeviceCounter() = default;
  // `value`: what the register has now.
  DeviceCounter(const dma::MmioRegion& ring, RingReg reg, uint32_t value)
      : ring_(ring), offset_(OffsetOf(reg)), seen_(value) {}
  DeviceCounter& operator=(const DeviceCounter& other) {
    ring_ = other.ring_;
    offset_ = other.offset_;
    seen_ = other.seen_;
    wrong_ = other.wrong_;
    lies_.Set(0);
    return *this;
  }

  // How much the device has added since the last time, at most `most`. More is impossible: it is
  // counted in `bad`, once for each such value, and nothing was added.
  uint32_t Advance(uint32_t most, Counter& bad) {
    const uint64_t word = ring_.Read64(offset_);
    if (word == kAllOnes64) [[unlikely]]
      return 0;
    const uint32_t now = static_cast<uint32_t>(word);
    const uint32_t added = now - seen_;
    if (added > most) [[unlikely]] {
      Refuse(word, bad);
      return 0;
    }
    seen_ = now;
    if (lies_.Get() != 0) [[unlikely]]
      lies_.Set(0);
    return added;
  }

  // Takes `n` off, on both sides. The upper half of the register is untouched.
  void Subtract(uint32_t n) {
    ring_.Write32(offset_, n);
    seen_ -= n;
  }
  // The same, with other bits of the register.
  void SubtractWith(uint32_t n, uint64_t bits) {
    ring_.Write64(offset_, bits | n);
    seen_ -= n;
  }

  // The last value was impossible.
  bool lies() const { return lies_.Get() != 0; }

 private:
  [[gnu::noinline]] void Refuse(uint64_t word, Counter& bad) {
    if (lies_.Get() != 0 && wrong_ == word) return;
    wrong_ = word;
    lies_.Set(1);
    bad.Add();
  }

  dma::MmioRegion ring_;
  uint64_t offset_ = 0;
  uint32_t seen_ = 0;
  uint64_t wrong_ = 0;
  Counter lies_;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_DEVICE_COUNTER_H_
