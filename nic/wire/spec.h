// SPDX-License-Identifier: Apache-2.0
//
// Reading "key=value,key=value" and numbers from a command line, with errors that name the key, the
// value and the rule. For wires, ports and options alike. Pure functions, any thread.
#ifndef DMAKIT_NIC_WIRE_SPEC_H_
#define DMAKIT_NIC_WIRE_SPEC_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace dmakit::nic {

// `text` in quotes and on one line, whatever is in it.
std::string Quote(std::string_view text);

// Splits at commas and at the first '=' of each piece. A piece without '=', an empty key and a key
// given twice are errors that begin with `context`. An empty text has no keys.
absl::StatusOr<std::map<std::string, std::string>> ParseKeys(std::string_view context,
                                                             std::string_view text);

// A decimal number from `least` to `most` and nothing else: no sign, no blanks. The error reads
// "<context>: "<text>" must be a number from <least> to <most>".
absl::StatusOr<uint64_t> ParseNumber(std::string_view context, std::string_view text,
                                     uint64_t least, uint64_t most);

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_WIRE_SPEC_H_
