// SPDX-License-Identifier: Apache-2.0
//
// Generator: a wire that makes Ethernet/IPv4/UDP frames with right checksums, the same ones in
// every run. Frame n belongs to flow n % flows; flows differ in addresses and ports, which lie in
// the ranges set aside for benchmarks (198.18.0.0/15). The payload starts with n as 8 big-endian
// bytes, so that a receiver can tell what is missing or out of order.
//
//   | Ethernet 14 | IPv4 20 | UDP 8 | n 8 | pattern ... |   size bytes in all, without FCS
#ifndef DMAKIT_NIC_WIRE_GENERATOR_H_
#define DMAKIT_NIC_WIRE_GENERATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nic/wire/counters.h"
#include "nic/wire/wire.h"

namespace dmakit::nic {

class Generator final : public Wire {
 public:
  static constexpr uint32_t kMinSize = 60;     // the shortest frame on Ethernet, without FCS
  static constexpr uint32_t kMaxSize = 65535;  // beyond any NIC, so that refusal can be tried too
  static constexpr uint32_t kMaxFlows = 65536;
  static constexpr uint64_t kEndless = std::numeric_limits<uint64_t>::max();

  enum class Pattern : uint8_t { kCounter, kZeros, kOnes, kRandom };

  struct Options {
    uint32_t size = 64;      // bytes of a frame; with max_size the smallest
    uint32_t max_size = 64;  // sizes vary from `size` to this, both inclusive
    uint64_t count = kEndless;
    uint32_t flows = 1;
    Pattern pattern = Pattern::kCounter;
  };

  // From "size=64,count=1000000,flows=8,pattern=random"; size may be a range, "60-1514". Every key
  // may be left out. Errors name key, value and rule.
  static absl::StatusOr<Options> Parse(std::string_view keys);
  // InvalidArgument as Parse gives.
  static absl::StatusOr<std::unique_ptr<Generator>> Create(const Options& options);

  std::optional<std::span<const std::byte>> Peek() override;
  void Pop() override;
  bool exhausted() const override {
    return sent_.load(std::memory_order_relaxed) == options_.count;
  }
  // Nobody takes it: counts as lost.
  void Accept(std::span<const std::byte> frame) override;
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return counters_.Get(); }

 private:
  explicit Generator(const Options& options);
  uint32_t SizeOf(uint64_t n) const;
  void Build(uint64_t n);

  const Options options_;
  std::vector<std::byte> frame_;  // max_size bytes; the first size_ are the frame
  uint32_t size_ = 0;             // 0: not built
  std::atomic<uint64_t> sent_{0};
  internal::WireCounters counters_;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_WIRE_GENERATOR_H_
