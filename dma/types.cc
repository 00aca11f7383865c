// SPDX-License-Identifier: Apache-2.0
//
// The names of the small enums, as they appear in messages and reports.
#include "dma/types.h"

#include <iterator>

namespace dmakit::dma {

std::string_view Name(Access access) {
  static constexpr std::string_view kNames[] = {
      "none",          "read",          "write",          "read-write",
      "none, snooped", "read, snooped", "write, snooped", "read-write, snooped"};
  const auto bits = static_cast<size_t>(access);
  return bits < std::size(kNames) ? kNames[bits] : "invalid";
}

std::string_view Name(Direction direction) {
  switch (direction) {
    case Direction::kToDevice:
      return "to-device";
    case Direction::kFromDevice:
      return "from-device";
    case Direction::kBidirectional:
      return "bidirectional";
  }
  return "invalid";
}

std::string_view Name(Policy policy) {
  switch (policy) {
    case Policy::kPersistent:
      return "persistent";
    case Policy::kStrict:
      return "strict";
    case Policy::kDeferred:
      return "deferred";
  }
  return "invalid";
}

}  // namespace dmakit::dma
