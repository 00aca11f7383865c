// SPDX-License-Identifier: Apache-2.0
//
// What a driver did that the enic sheet forbids, as the model notices it: a rule, the block it
// happened in, the value and the limit. Silicon keeps silent about most of these.
//
// Record: any thread, also from a register trap, so it neither locks nor allocates. The first 100
// are kept, all are counted.
#ifndef DMAKIT_NIC_ENIC_MODEL_VIOLATIONS_H_
#define DMAKIT_NIC_ENIC_MODEL_VIOLATIONS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dmakit::nic::enic {

enum class Rule : uint8_t {
  kPostedOutOfRange,
  kPostedBeforeEnable,
  kPostedFull,
  kWriteWhileEnabled,
  kReadOnly,
  kNoSuchRegister,
  kAccessWidth,
  kEnableWhileStopping,
  kDisabledOnce,
  kCqInUse,
  kRingBase,
  kRingSize,
  kFetchIndex,
  kCqIndex,
  kCqSetup,
  kCqOverflow,
  kReservedBits,
  kRqType,
  kCqEntryWithoutEop,
  kTooManyDescriptors,
  kFrameTooLong,
  kOffloadMode,
  kUnsupportedOffload,
  kOffloadHeaders,
  kChecksumPreload,
  kCreditsReturned,
  kInterruptOffset,
  kDevcmdBusy,
  kDevcmdState,
  kDevcmdUnknown,
  kDevcmdArgument,
};

enum class Block : uint8_t { kBar, kDevcmd, kWq, kRq, kCq, kIntr };

struct Place {
  Block block = Block::kBar;
  uint32_t index = 0;
};

class ViolationLog {
 public:
  static constexpr size_t kKept = 100;

  ViolationLog() = default;
  ViolationLog(const ViolationLog&) = delete;
  ViolationLog& operator=(const ViolationLog&) = delete;

  // `value` is what the driver gave, `limit` what it is held against (0: nothing).
  void Record(Rule rule, Place place, uint64_t value, uint64_t limit = 0);
  uint64_t count() const { return count_.load(std::memory_order_acquire); }
  std::vector<std::string> Words() const;

 private:
  struct Entry {
    Rule rule = Rule::kReadOnly;
    Place place;
    uint64_t value = 0;
    uint64_t limit = 0;
    std::atomic<bool> complete{false};
  };
  std::atomic<uint64_t> count_{0};
  std::array<Entry, kKept> entries_;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_MODEL_VIOLATIONS_H_
