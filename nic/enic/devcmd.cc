// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/devcmd.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "nic/enic/registers.h"

namespace dmakit::nic::enic {
namespace {

constexpr dma::Nanos kTimeout{2'000'000'000};

}  // namespace

absl::Status CommandChannel::WaitIdle(const Command& command, std::string_view when) {
  uint32_t status = 0;
  const bool idle = dma::PollUntil(*waiter_, kTimeout, [&] {
    status = region_.Read32(kDevcmdStatus);
    return status == kAllOnes || (status & kDevcmdBusy) == 0;
  });
  if (status == kAllOnes) {
    return absl::UnavailableError(absl::StrCat(device_, ": devcmd ", command.name,
                                               ": status reads all ones: the device is gone"));
  }
  if (!idle) {
    return absl::DeadlineExceededError(absl::StrCat(device_, ": devcmd ", command.name,
                                                    ": still busy 2 s ", std::string(when),
                                                    "; reset the device"));
  }
  return absl::OkStatus();
}

absl::Status CommandChannel::Run(const Command& command, std::span<const uint64_t> args,
                                 Results* results) {
  if (absl::Status s = WaitIdle(command, "with an earlier command"); !s.ok()) return s;
  unfinished_ = false;
  for (size_t i = 0; i < args.size(); ++i) region_.Write64(kDevcmdArgs + 8 * i, args[i]);
  region_.Write32(kDevcmdCmd, Encode(command.word));
  unfinished_ = true;
  if (absl::Status s = WaitIdle(command, "after it was given"); !s.ok()) return s;
  unfinished_ = false;
  if ((region_.Read32(kDevcmdStatus) & kDevcmdError) != 0) {
    return absl::InternalError(absl::StrCat(device_, ": devcmd ", command.name,
                                            ": refused by the device with code ",
                                            region_.Read64(kDevcmdArgs)));
  }
  if (results != nullptr) {
    for (size_t i = 0; i < results->size(); ++i) {
      (*results)[i] = region_.Read64(kDevcmdArgs + 8 * i);
    }
  }
  return absl::OkStatus();
}

}  // namespace dmakit::nic::enic
