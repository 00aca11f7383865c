// SPDX-License-Identifier: Apache-2.0
//
// Counter: a 64-bit statistic with one writer at a time, readable from any thread as a snapshot. A
// plain load and a plain store each, no read-modify-write: right for hot paths, and wrong where two
// threads may write at once. In this folder because every other one builds on it.

#ifndef DMAKIT_IOVA_COUNTER_H_
#define DMAKIT_IOVA_COUNTER_H_

#include <atomic>
#include <cstdint>

namespace dmakit {

class Counter {
 public:
  void Add(uint64_t n = 1) { Set(Get() + n); }
  void Sub(uint64_t n = 1) { Set(Get() - n); }
  void Set(uint64_t n) { value_.store(n, std::memory_order_relaxed); }
  void RaiseTo(uint64_t n) {
    if (n > Get()) Set(n);
  }
  uint64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace dmakit

#endif  // DMAKIT_IOVA_COUNTER_H_
