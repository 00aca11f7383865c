// SPDX-License-Identifier: Apache-2.0

#include "nic/teardown.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace dmakit::nic {
namespace {

constexpr dma::Nanos kLeastHaltTime{10'000'000};

}  // namespace

StopDeadline::StopDeadline(dma::Waiter& waiter, dma::Nanos total)
    : waiter_(waiter), start_(waiter.Now()), total_(total) {}

dma::Nanos StopDeadline::Left(dma::Nanos total) const {
  // Time that went back makes nothing longer.
  const dma::Nanos passed = std::max(waiter_.Now() - start_, dma::Nanos{0});
  return passed < total ? total - passed : dma::Nanos{0};
}

dma::Nanos StopDeadline::ToDrain() const { return Left(total_ / 2); }
dma::Nanos StopDeadline::ToHalt() const { return std::max(Left(total_), kLeastHaltTime); }

void StopProblems::Add(std::string_view label, std::string_view what) {
  absl::StrAppend(&text_, text_.empty() ? "" : "; ", std::string(label), ": ", std::string(what));
}

void StopProblems::Add(const absl::Status& status) {
  absl::StrAppend(&text_, text_.empty() ? "" : "; ", status.message());
}

absl::Status StopProblems::ToStatus(std::string_view name) const {
  if (text_.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(std::string(name), ": did not stop cleanly: ", text_));
}

absl::Status NoRxBuffer(std::string_view label, std::string_view why) {
  return absl::ResourceExhaustedError(absl::StrCat(
      std::string(label), ": not one receive buffer to start with: ", std::string(why)));
}

}  // namespace dmakit::nic
