// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/limited_wire.h"

namespace dmakit::nic {

std::optional<std::span<const std::byte>> LimitedWire::Peek() {
  waiting_ = false;
  if (exhausted()) return std::nullopt;
  const auto frame = inner_.Peek();
  waiting_ = frame.has_value();
  return frame;
}

void LimitedWire::Pop() {
  if (!waiting_) return;
  waiting_ = false;
  inner_.Pop();
  left_.store(left_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
}

bool LimitedWire::exhausted() const {
  return stopped_.load(std::memory_order_relaxed) || left_.load(std::memory_order_relaxed) == 0 ||
         inner_.exhausted();
}

}  // namespace dmakit::nic
