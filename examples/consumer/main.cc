// SPDX-License-Identifier: Apache-2.0
//
// A program in a workspace of its own that depends on dmakit.

#include <cstdio>

#include "absl/status/status.h"

int main() {
  const absl::Status status = absl::OkStatus();
  std::puts(status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
