// SPDX-License-Identifier: Apache-2.0
//
// What every check in a guest uses (see boot.sh): where the NICs are, and values that must be
// there.
#ifndef DMAKIT_TESTS_QEMU_GUEST_H_
#define DMAKIT_TESTS_QEMU_GUEST_H_

#include <utility>

#include "absl/status/statusor.h"
#include "tests/catch.h"

namespace dmakit::qemu {

inline constexpr const char* kAddress[2] = {"0000:00:04.0", "0000:00:05.0"};

// Says what went wrong where a test needs a value.
template <typename T>
T Need(absl::StatusOr<T> value) {
  INFO(value.status().message());
  REQUIRE(value.ok());
  return *std::move(value);
}

}  // namespace dmakit::qemu

#endif  // DMAKIT_TESTS_QEMU_GUEST_H_
