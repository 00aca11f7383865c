// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/memory_wire.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace dmakit::nic {

MemorySource::MemorySource(std::vector<Frame> frames, uint64_t repeat)
    : frames_(std::move(frames)),
      rounds_left_(frames_.empty() ? 0 : repeat),
      done_(rounds_left_ == 0) {}

std::optional<std::span<const std::byte>> MemorySource::Peek() {
  // Ends: every turn moves on by one of finitely many frames.
  while (!exhausted() && frames_[next_].size() < kMinFrame) {
    counters_.RefusedShort(frames_[next_].size());
    Advance();
  }
  if (exhausted()) return std::nullopt;
  return std::span<const std::byte>(frames_[next_]);
}

void MemorySource::Pop() {
  if (exhausted()) return;
  counters_.ToNic(frames_[next_].size());
  Advance();
}

void MemorySource::Advance() {
  if (++next_ < frames_.size()) return;
  next_ = 0;
  if (--rounds_left_ == 0) done_.store(true, std::memory_order_relaxed);
}

void MemorySource::Accept(std::span<const std::byte> frame) {
  counters_.FromNic(frame.size());
  counters_.Lost(1, frame.size());
}

void MemorySink::Accept(std::span<const std::byte> frame) {
  counters_.FromNic(frame.size());
  if (frame.size() > max_bytes_ - bytes_) {
    counters_.Lost(1, frame.size());
    return;
  }
  bytes_ += frame.size();
  frames_.emplace_back(frame.begin(), frame.end());
}

absl::Status MemorySink::Close() {
  const uint64_t lost = counters_.Get().lost;
  if (lost == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("memory wire: ", lost,
                                                   " frames lost: it holds at most ", max_bytes_,
                                                   " bytes; give it a larger bound"));
}

}  // namespace dmakit::nic
