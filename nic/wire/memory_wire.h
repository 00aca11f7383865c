// SPDX-License-Identifier: Apache-2.0
//
// Wires that end in the program itself, for tests and demonstrations: MemorySource replays frames
// it was given, MemorySink keeps what the NIC sent, up to a bound.
//
// The thread that steps the model; MemorySink::frames() only while nothing is stepped.
#ifndef DMAKIT_NIC_WIRE_MEMORY_WIRE_H_
#define DMAKIT_NIC_WIRE_MEMORY_WIRE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "nic/wire/counters.h"
#include "nic/wire/wire.h"

namespace dmakit::nic {

using Frame = std::vector<std::byte>;

class MemorySource final : public Wire {
 public:
  // Offers `frames` in order, `repeat` times. Frames below kMinFrame are refused and counted, as on
  // every wire.
  explicit MemorySource(std::vector<Frame> frames, uint64_t repeat = 1);

  std::optional<std::span<const std::byte>> Peek() override;
  void Pop() override;
  bool exhausted() const override { return done_.load(std::memory_order_relaxed); }
  // Nobody takes it: counts as lost.
  void Accept(std::span<const std::byte> frame) override;
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return counters_.Get(); }

 private:
  void Advance();

  std::vector<Frame> frames_;
  uint64_t rounds_left_;
  size_t next_ = 0;
  std::atomic<bool> done_;
  internal::WireCounters counters_;
};

class MemorySink final : public Wire {
 public:
  explicit MemorySink(size_t max_bytes = size_t{256} << 20) : max_bytes_(max_bytes) {}

  std::optional<std::span<const std::byte>> Peek() override { return std::nullopt; }
  void Pop() override {}
  bool exhausted() const override { return true; }
  void Accept(std::span<const std::byte> frame) override;
  // ResourceExhausted when a frame was lost because `max_bytes` were full.
  absl::Status Close() override;
  WireStats stats() const override { return counters_.Get(); }

  const std::vector<Frame>& frames() const { return frames_; }

 private:
  size_t max_bytes_;
  size_t bytes_ = 0;
  std::vector<Frame> frames_;
  internal::WireCounters counters_;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_WIRE_MEMORY_WIRE_H_
