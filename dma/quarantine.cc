// SPDX-License-Identifier: Apache-2.0
//
// Quarantine. Releases run with no lock held: they take down translations and may take any lock of
// the address space.
#include "dma/quarantine.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace dmakit::dma {
namespace {

struct Held {
  Quarantine::Item item;
  std::vector<std::string> waits_for;  // devices not reset yet
};

}  // namespace

struct Quarantine::Impl {
  mutable std::mutex mutex;
  std::vector<Held> held;
  uint64_t total = 0;
  // Being released now: no longer in `held`, but not free either.
  size_t releasing = 0;
  Bytes releasing_bytes{0};

  // Takes out what is free to go once `device` was reset.
  std::vector<Held> Take(std::string_view device);
};

std::vector<Held> Quarantine::Impl::Take(std::string_view device) {
  std::lock_guard<std::mutex> lock(mutex);
  auto stays = [device](Held& h) {
    if (device.empty()) return false;
    auto it = std::find(h.waits_for.begin(), h.waits_for.end(), device);
    if (it == h.waits_for.end()) return true;
    if (h.waits_for.size() == 1) return false;  // kept, so that a failed release finds it again
    h.waits_for.erase(it);
    return true;
  };
  auto first = std::stable_partition(held.begin(), held.end(), stays);
  std::vector<Held> taken(std::make_move_iterator(first), std::make_move_iterator(held.end()));
  held.erase(first, held.end());
  releasing += taken.size();
  for (const Held& h : taken) releasing_bytes += h.item.bytes;
  return taken;
}

Quarantine::Quarantine() : impl_(std::make_unique<Impl>()) {}
Quarantine::~Quarantine() = default;

void Quarantine::Hold(Item item) {
  Held held;
  held.waits_for = absl::StrSplit(item.device, ',', absl::SkipEmpty());
  held.item = std::move(item);
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->held.push_back(std::move(held));
  ++impl_->total;
}

absl::Status Quarantine::ReleaseAfterReset(std::string_view device) {
  absl::Status first;
  for (Held& held : impl_->Take(device)) {
    const Bytes bytes = held.item.bytes;
    absl::Status status = held.item.release ? held.item.release() : absl::OkStatus();
    {
      std::lock_guard<std::mutex> lock(impl_->mutex);
      --impl_->releasing;
      impl_->releasing_bytes -= bytes;
      if (!status.ok()) {
        first.Update(absl::Status(
            status.code(), absl::StrCat("quarantine: ", ToString(held.item.range), " of '",
                                        held.item.owner, "' stays held: ", status.message())));
        impl_->held.push_back(std::move(held));
        continue;
      }
    }
    held.item = {};  // memory goes back here, with no lock held
  }
  return first;
}

size_t Quarantine::count() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->held.size() + impl_->releasing;
}

Bytes Quarantine::bytes() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  Bytes sum = impl_->releasing_bytes;
  for (const Held& held : impl_->held) sum += held.item.bytes;
  return sum;
}

uint64_t Quarantine::total_held() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->total;
}

std::vector<std::string> Quarantine::Describe() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  std::vector<std::string> lines;
  for (const Held& held : impl_->held) {
    lines.push_back(
        absl::StrCat(ToString(held.item.range), ", ", held.item.bytes.value(), " bytes of '",
                     held.item.owner, "', until a reset of ",
                     held.waits_for.empty() ? "every device" : absl::StrJoin(held.waits_for, ", "),
                     ": ", held.item.reason));
  }
  return lines;
}

}  // namespace dmakit::dma
