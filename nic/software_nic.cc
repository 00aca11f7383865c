// SPDX-License-Identifier: Apache-2.0

#include "nic/software_nic.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace dmakit::nic {

absl::Status BadKey(const NicArgs& args, std::string_view key, std::string_view value,
                    std::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(args.name, ": key \"", std::string(key), "=",
                                                 std::string(value), "\": ", std::string(rule)));
}

absl::Status ReadSwitch(const NicArgs& args, std::string_view key, std::string_view value,
                        bool& out) {
  if (value != "0" && value != "1") return BadKey(args, key, value, "must be 1 or 0");
  out = value == "1";
  return absl::OkStatus();
}

absl::Status ReadSeed(const NicArgs& args, std::string_view key, std::string_view value,
                      uint64_t& out) {
  const bool digits = value.find_first_not_of("0123456789") == std::string_view::npos;
  if (!digits || !absl::SimpleAtoi(std::string(value), &out) || out == 0) {
    return BadKey(args, key, value, "must be a seed from 1 to 18446744073709551615");
  }
  if (args.threaded) {
    return BadKey(args, key, value,
                  "a hostile device is stepped, it cannot have a thread of its own");
  }
  return absl::OkStatus();
}

absl::StatusOr<PortInterrupts> MakeInterrupts(InterruptSource& source, uint32_t queues,
                                              bool threaded, dma::Waiter& waiter) {
  PortInterrupts interrupts{.source = &source};
  for (uint32_t i = 0; i < queues; ++i) {
    if (!threaded) {
      interrupts.notifiers.push_back(std::make_unique<SteppedNotifier>(waiter));
      continue;
    }
    auto notifier = NewEventFdNotifier();
    if (!notifier.ok()) return notifier.status();
    interrupts.notifiers.push_back(*std::move(notifier));
  }
  return interrupts;
}

}  // namespace dmakit::nic
