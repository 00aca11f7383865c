// SPDX-License-Identifier: Apache-2.0
//
// What a driver did that the liquidio sheet forbids, as the model notices it. Silicon keeps silent
// about most of it.
//
// Record: any thread, also from a register trap, so it neither locks nor allocates. The first 100
// are kept, all are counted.
#ifndef DMAKIT_NIC_LIQUIDIO_MODEL_VIOLATIONS_H_
#define DMAKIT_NIC_LIQUIDIO_MODEL_VIOLATIONS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dmakit::nic::liquidio {

class ViolationLog {
 public:
  static constexpr size_t kKept = 100;

  // `rule` is a literal; `value` what the driver gave.
  void Record(const char* rule, uint32_t ring, uint64_t value) {
    const uint64_t at = count_.fetch_add(1, std::memory_order_acq_rel);
    if (at >= kKept) return;
    kept_[at].ring = ring;
    kept_[at].value = value;
    kept_[at].rule.store(rule, std::memory_order_release);
  }
  uint64_t count() const { return count_.load(std::memory_order_acquire); }
  std::vector<std::string> Words() const;

 private:
  struct Violation {
    std::atomic<const char*> rule{nullptr};
    uint32_t ring = 0;
    uint64_t value = 0;
  };
  std::atomic<uint64_t> count_{0};
  std::array<Violation, kKept> kept_;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_MODEL_VIOLATIONS_H_
