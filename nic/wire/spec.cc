// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/spec.h"

#include <charconv>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace dmakit::nic {

std::string Quote(std::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(std::string(text)), "\"");
}

absl::StatusOr<std::map<std::string, std::string>> ParseKeys(std::string_view context,
                                                             std::string_view text) {
  std::map<std::string, std::string> keys;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view piece = text.substr(0, comma);
    const bool last = comma == std::string_view::npos;
    text.remove_prefix(last ? text.size() : comma + 1);
    const size_t equals = piece.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(context), ": ", Quote(piece), " must be KEY=VALUE"));
    }
    if (!last && text.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(context), ": a KEY=VALUE must follow the last comma"));
    }
    const std::string key(piece.substr(0, equals));
    if (!keys.emplace(key, piece.substr(equals + 1)).second) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(context), ": key ", Quote(key),
                                                     " is given twice; leave one of them out"));
    }
  }
  return keys;
}

absl::StatusOr<uint64_t> ParseNumber(std::string_view context, std::string_view text,
                                     uint64_t least, uint64_t most) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc{} || stop != end || value < least || value > most) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(context), ": ", Quote(text),
                                                   " must be a number from ", least, " to ", most));
  }
  return value;
}

}  // namespace dmakit::nic
