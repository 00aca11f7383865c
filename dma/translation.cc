// SPDX-License-Identifier: Apache-2.0
//
// Translation: mapping, unmapping and invalidating one range in several domains, with failures
// kept.
#include "dma/translation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "dma/text.h"

namespace dmakit::dma::internal {

Translation::Part* Translation::Find(const Domain* domain) {
  auto it = std::find_if(parts_.begin(), parts_.end(),
                         [domain](const Part& part) { return part.domain == domain; });
  return it == parts_.end() ? nullptr : &*it;
}

void Translation::DropFinished() {
  auto finished = [](const Part& part) { return part.mapped == 0 && !part.owed; };
  parts_.erase(std::remove_if(parts_.begin(), parts_.end(), finished), parts_.end());
}

absl::Status Translation::Map(Domain& domain, const Range& piece, MemoryView memory,
                              Access access) {
  if (absl::Status s = domain.Map(piece, memory, access); !s.ok()) return s;
  Part* part = Find(&domain);
  if (part == nullptr) {
    parts_.push_back({&domain, 0, false});
    part = &parts_.back();
  }
  part->mapped += piece.size.value();
  return absl::OkStatus();
}

absl::Status Translation::Unmap(const Domain* only) {
  absl::Status first;
  for (Part& part : parts_) {
    if (part.mapped == 0 || (only != nullptr && part.domain != only)) continue;
    absl::StatusOr<Bytes> removed = part.domain->Unmap(range_);
    if (!removed.ok()) {
      first.Update(Reword(removed.status(),
                          absl::StrCat("domain '", View(part.domain->name()), "': unmap of ",
                                       ToString(range_), " failed: ", removed.status().message())));
      continue;
    }
    const uint64_t asked = part.mapped;
    part.mapped -= std::min(part.mapped, removed->value());
    if (removed->value() != 0 && !part.domain->facts().unmap_invalidates) part.owed = true;
    if (part.mapped != 0) {
      first.Update(absl::InternalError(absl::StrCat("domain '", View(part.domain->name()),
                                                    "': unmap of ", ToString(range_), " removed ",
                                                    removed->value(), " of ", asked, " bytes")));
    }
  }
  DropFinished();
  return first;
}

absl::Status Translation::Invalidate(const Domain* only) {
  absl::Status first;
  for (Part& part : parts_) {
    if (!part.owed || (only != nullptr && part.domain != only)) continue;
    if (absl::Status s = part.domain->Invalidate(range_); s.ok()) {
      part.owed = false;
    } else {
      first.Update(absl::Status(
          s.code(), absl::StrCat("domain '", View(part.domain->name()), "': invalidation of ",
                                 ToString(range_), " failed: ", s.message())));
    }
  }
  DropFinished();
  return first;
}

absl::Status Translation::Remove(const Domain* only) {
  absl::Status first = Unmap(only);
  first.Update(Invalidate(only));
  return first;
}

void Translation::Invalidated(const Domain* only) {
  for (Part& part : parts_) {
    if (only == nullptr || part.domain == only) part.owed = false;
  }
  DropFinished();
}

void Translation::Owe(Domain& domain) {
  if (Part* part = Find(&domain); part != nullptr) {
    part->owed = true;
  } else {
    parts_.push_back({&domain, 0, true});
  }
}

bool Translation::Translates(const Domain* domain) const {
  return std::any_of(parts_.begin(), parts_.end(), [domain](const Part& part) {
    return part.domain == domain && part.mapped != 0;
  });
}

}  // namespace dmakit::dma::internal
