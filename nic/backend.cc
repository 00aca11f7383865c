// SPDX-License-Identifier: Apache-2.0

#include "nic/backend.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dmakit::nic {

absl::StatusOr<Backend*> BackendRegistry::Find(std::string_view name) const {
  std::vector<std::string> names;
  for (const std::unique_ptr<Backend>& backend : backends_) {
    if (backend->name() == name) return backend.get();
    names.emplace_back(backend->name());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("backend \"", std::string(name),
                   "\": unknown; this program has: ", absl::StrJoin(names, ", ")));
}

}  // namespace dmakit::nic
