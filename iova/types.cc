// SPDX-License-Identifier: Apache-2.0

#include "iova/types.h"

#include "absl/strings/str_cat.h"

namespace dmakit {
namespace {

std::string Hex(uint64_t value) { return absl::StrCat("0x", absl::Hex(value)); }

}  // namespace

std::string ToString(Iova a) { return Hex(a.value()); }
std::string ToString(PhysAddr a) { return Hex(a.value()); }
std::string ToString(Bytes n) { return absl::StrCat(n.value()); }

std::string ToString(const Range& r) {
  if (r.empty()) return absl::StrCat("[", Hex(r.base.value()), ", empty)");
  return ToString(Interval{r.base, r.last()});
}

std::string ToString(const Interval& i) {
  return absl::StrCat("[", ToString(i.first), ", ", ToString(i.last), "]");
}

}  // namespace dmakit
