// SPDX-License-Identifier: Apache-2.0

#include "nic/port.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace dmakit::nic {
namespace {

absl::Status Cannot(const Port& port, const char* what) {
  return absl::UnimplementedError(absl::StrCat(std::string(port.name()), ": ", what,
                                               " of an open port; close it and open it anew"));
}

}  // namespace

absl::Status Port::Reconfigure(const PortOptions&) {
  return Cannot(*this, "this backend cannot change the options");
}

absl::Status Port::SetPageOrder(unsigned) {
  return Cannot(*this, "this backend cannot change the page order");
}

}  // namespace dmakit::nic
