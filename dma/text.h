// SPDX-License-Identifier: Apache-2.0
//
// Internal: between the standard's string_view and Abseil's, which are two types where Abseil was
// built for C++14, and one where it was not. Pure functions.
#ifndef DMAKIT_DMA_TEXT_H_
#define DMAKIT_DMA_TEXT_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dmakit::dma::internal {

inline absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view Message(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// The same error in other words: code and payloads (which tell programs what a message tells
// people) stay.
inline absl::Status Reword(const absl::Status& status, absl::string_view message) {
  absl::Status result(status.code(), message);
  status.ForEachPayload([&result](absl::string_view type, const absl::Cord& payload) {
    result.SetPayload(type, payload);
  });
  return result;
}

// "<prefix>: <message>".
inline absl::Status Annotate(const absl::Status& status, std::string_view prefix) {
  return Reword(status, absl::StrCat(View(prefix), ": ", status.message()));
}

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_TEXT_H_
