// SPDX-License-Identifier: Apache-2.0
//
// The names of the small enums, as they appear in messages and reports.
#include "dma/types.h"

namespace dmakit::dma {

std::string_view Name(Access access) {
  switch (access) {
    case Access::kNone:
      return "none";
    case Access::kRead:
      return "read";
    case Access::kWrite:
      return "write";
    case Access::kReadWrite:
      return "read-write";
  }
  return "invalid";
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
