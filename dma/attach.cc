// SPDX-License-Identifier: Apache-2.0
//
// Attach and detach: what a new device's domain must be able to translate, the replay of the packet
// pages, and the way back from any failure. All of it runs with topology exclusive.
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/device_state.h"
#include "dma/intervals.h"
#include "dma/text.h"

namespace dmakit::dma::internal {
namespace {

// A few rounds are for ranges that other threads park or pass on meanwhile.
constexpr int kExcludeAttempts = 16;

std::string Who(const DeviceState& device) {
  return absl::StrCat("device '", device.options.name, "', domain '", View(device.domain().name()),
                      "'");
}

std::string Who(const SharedRecord& record) {
  return absl::StrCat("page range ", ToString(record.range), " of '", record.owner, "'");
}

bool InUse(SharedRecord& record) {
  std::lock_guard<std::mutex> leaf(record.mutex);
  return !record.orphaned && !record.held;
}

absl::Status CheckGranule(const DeviceState& device, const SharedRecord& record) {
  const Bytes granule = device.granule;
  const bool memory_fits = !record.mapped.load(std::memory_order_relaxed) ||
                           reinterpret_cast<uintptr_t>(record.memory.cpu) % granule.value() == 0;
  if (IsAligned(record.range.base, granule) && IsAligned(record.range.size, granule) &&
      memory_fits) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(Who(device), ": its granule is ", granule.value(), " bytes, which ", Who(record),
                   " is not aligned to; attach this device before pages are made"));
}

}  // namespace

DomainUse* SpaceState::FindUse(const Domain* domain) {
  auto it = std::find_if(domains.begin(), domains.end(),
                         [domain](const DomainUse& use) { return use.domain == domain; });
  return it == domains.end() ? nullptr : &*it;
}

std::vector<std::shared_ptr<SharedRecord>> SpaceState::Records() const {
  std::lock_guard<std::mutex> lock(records_mutex);
  std::vector<std::shared_ptr<SharedRecord>> result;
  result.reserve(records.size());
  for (const auto& [base, record] : records) result.push_back(record);
  return result;
}

void SpaceState::RecomputeLimits() {
  if (devices.empty()) return;  // what comes next is likely to have the limits of what went
  ceiling = Iova::Max();
  granule = Bytes(0);
  for (const auto& device : devices) {
    ceiling = std::min(ceiling, device->ceiling);
    granule = std::max(granule, device->granule);
  }
}

absl::Status SpaceState::CheckRecords(const DeviceState& device, bool new_domain) {
  const DomainFacts& facts = device.domain().facts();
  const Intervals translatable = Translatable(facts, device.granule);
  const Iova mask = device.options.mask.highest();
  uint64_t mapped = 0;
  for (const auto& record : Records()) {
    if (!InUse(*record)) continue;
    if (record->range.last() > mask) {
      return absl::OutOfRangeError(absl::StrCat(
          Who(device), ": ", Who(*record), " lies above the device's mask, ", ToString(mask),
          "; attach this device before pages are made, or give the pages up first"));
    }
    if (!new_domain) continue;
    if (!Covers(translatable, record->range)) {
      return absl::OutOfRangeError(absl::StrCat(
          Who(device), ": ", Who(*record), " lies outside the domain's aperture (width ",
          facts.width.value(), " bits, ", facts.reserved.size(),
          " reserved holes); attach this device before pages are made"));
    }
    if (absl::Status s = CheckGranule(device, *record); !s.ok()) return s;
    mapped += record->mapped.load(std::memory_order_relaxed) ? 1 : 0;
  }
  const uint64_t live = device.domain().stats().live_mappings;
  if (new_domain && facts.max_mappings != 0 && mapped != 0 &&
      (live > facts.max_mappings || mapped > facts.max_mappings - live)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Who(device), ": ", mapped,
                     " packet pages are to be mapped, the domain's budget is ", facts.max_mappings,
                     " mappings, and ", live, " are in use; raise the budget or use larger pages"));
  }
  return absl::OkStatus();
}

absl::Status SpaceState::Replay(const DeviceState& device) {
  Domain& domain = device.domain();
  std::vector<std::shared_ptr<SharedRecord>> done;
  absl::Status status;
  for (const auto& record : Records()) {
    if (!record->mapped.load(std::memory_order_relaxed)) continue;
    // What an earlier detach could not unmap.
    status = record->translation.Remove(&domain);
    if (status.ok()) {
      status = record->translation.Map(domain, record->range, record->memory,
                                       device.options.page_access);
    }
    if (!status.ok()) {
      status = Annotate(status, absl::StrCat(Who(device), ": ", Who(*record), " was not mapped"));
      break;
    }
    done.push_back(record);
  }
  if (status.ok()) return status;
  if (absl::Status undo = Withdraw(domain, done); !undo.ok()) {
    status =
        Reword(status, absl::StrCat(status.message(), "; undoing the others: ", undo.message()));
  }
  return status;
}

// Unmaps `list` in one domain, with one invalidation for all. What fails stays in the translations
// and is tried again when its page is unmapped.
absl::Status SpaceState::Withdraw(Domain& domain,
                                  const std::vector<std::shared_ptr<SharedRecord>>& list) {
  absl::Status first;
  bool owed = false;
  for (const auto& record : list) {
    first.Update(record->translation.Unmap(&domain));
    for (const Translation::Part& part : record->translation.parts()) {
      owed |= part.domain == &domain && part.owed;
    }
  }
  if (!owed) return first;
  if (absl::Status s = domain.InvalidateAll(); !s.ok()) {
    first.Update(
        Annotate(s, absl::StrCat("domain '", View(domain.name()), "': invalidation failed")));
    return first;
  }
  for (const auto& record : list) record->translation.Invalidated(&domain);
  return first;
}

std::string SpaceState::OwnerOf(const Range& range) const {
  for (const auto& record : Records()) {
    if (record->range.Overlaps(range)) return absl::StrCat("the pages of '", record->owner, "'");
  }
  for (const auto& device : devices) {
    std::lock_guard<std::mutex> lock(device->mutex);
    for (const auto& [base, mapping] : device->live) {
      if (mapping.iova.Overlaps(range)) {
        return absl::StrCat("'", mapping.owner, "' of device '", device->options.name, "'");
      }
    }
  }
  return {};
}

absl::Status SpaceState::ExcludeOne(const DeviceState& device, const Interval& hole,
                                    Intervals* taken) {
  for (int attempt = 1;; ++attempt) {
    const Intervals pieces = Subtract(Intersect(usable, {hole}), excluded);
    if (pieces.empty()) return absl::OkStatus();
    std::optional<Range> in_the_way;
    iova->ForEachLive([&](const Range& range) {
      const Interval interval{range.base, range.last()};
      for (const Interval& piece : pieces) {
        if (!interval.Overlaps(piece)) continue;
        in_the_way = range;
        return;
      }
    });
    if (in_the_way) {
      const std::string owner = OwnerOf(*in_the_way);
      if (!owner.empty() || attempt >= kExcludeAttempts) {
        return absl::OutOfRangeError(absl::StrCat(
            Who(device), ": the domain does not translate ", ToString(hole), ", where ",
            ToString(*in_the_way), " of ", owner.empty() ? "an unknown owner" : owner,
            " is live; attach this device first, or end that mapping"));
      }
      std::this_thread::yield();
      iova->ReclaimAll();
      continue;
    }
    for (const Interval& piece : pieces) {
      absl::Status s = iova->AllocateFixed(*piece.ToRange());
      if (absl::IsAlreadyExists(s)) break;  // taken meanwhile: look again
      if (!s.ok()) return Annotate(s, absl::StrCat(Who(device), ": excluding ", ToString(hole)));
      excluded.push_back(piece);
      excluded = Normalise(std::move(excluded));
      taken->push_back(piece);
    }
  }
}

absl::Status SpaceState::Exclude(const DeviceState& device, Intervals* taken) {
  const Intervals translatable = Translatable(device.domain().facts(), device.granule);
  if (translatable.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        Who(device), ": translates not one whole granule of ", device.granule.value(), " bytes"));
  }
  // Above its top the ceiling does it, so that other devices keep their private mappings there.
  const Intervals below{{Iova(0), translatable.back().last}};
  for (const Interval& hole : Subtract(below, translatable)) {
    if (absl::Status s = ExcludeOne(device, hole, taken); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// The first attach: the space of IOVAs is what this domain translates.
absl::Status SpaceState::CreateIova(const DeviceState& device) {
  const DomainFacts& facts = device.domain().facts();
  Intervals list = Translatable(facts, device.granule);
  absl::StatusOr<std::unique_ptr<iova::Space>> created =
      iova::Space::Create({.usable = list,
                           .reserved = {},
                           .granule = device.granule,
                           .name = options.name,
                           .fence = options.fence});
  if (!created.ok()) return Annotate(created.status(), Who(device));
  iova = *std::move(created);
  usable = std::move(list);
  if (queue != nullptr) iova->Register(queue.get());
  return absl::OkStatus();
}

// Which addresses the device can use at all.
absl::Status SpaceState::SetLimits(DeviceState& device) const {
  const DomainFacts& facts = device.domain().facts();
  const Bytes least = iova != nullptr ? iova->granule() : Bytes(4096);
  device.granule = std::max(facts.granule(), least);
  const Intervals translatable = Translatable(facts, device.granule);
  const Iova lowest = translatable.empty() ? Iova::Max() : translatable.front().first;
  const Iova mask = device.options.mask.highest();
  if (translatable.empty() || mask < lowest + (device.granule - Bytes(1))) {
    return absl::InvalidArgumentError(absl::StrCat(
        Who(device), ": no address is both translated (from ", ToString(lowest),
        " on, in granules of ", device.granule.value(), " bytes) and within the device's mask, ",
        ToString(mask), "; check mask, width and apertures"));
  }
  device.ceiling = std::min(mask, translatable.back().last);
  if (iova != nullptr &&
      Intersect(Intersect(usable, translatable), {{Iova(0), device.ceiling}}).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        Who(device), ": no address of the space, which has those of its first domain, ",
        ToString(iova->bounds()), ", can be used by this device up to ", ToString(device.ceiling),
        "; give it an address space of its own"));
  }
  return absl::OkStatus();
}

absl::Status SpaceState::Admit(DeviceState& device) {
  for (const auto& other : devices) {
    if (other->options.name == device.options.name) {
      return absl::AlreadyExistsError(
          absl::StrCat("device '", device.options.name, "' is attached already; names are unique"));
    }
  }
  if (absl::Status s = SetLimits(device); !s.ok()) return s;

  DomainUse* use = FindUse(&device.domain());
  const bool new_domain = use == nullptr || use->devices == 0;
  if (!new_domain && use->page_access != device.options.page_access) {
    return absl::InvalidArgumentError(
        absl::StrCat(Who(device), ": page_access ", View(Name(device.options.page_access)),
                     ": the domain's other devices have ", View(Name(use->page_access)),
                     "; devices that share a domain must agree, or need domains of their own"));
  }
  const bool first = iova == nullptr;
  if (absl::Status s = first ? CreateIova(device) : CheckRecords(device, new_domain); !s.ok()) {
    return s;
  }
  if (!first && new_domain) {
    Intervals taken;
    absl::Status s = Exclude(device, &taken);
    if (s.ok()) s = Replay(device);
    if (!s.ok()) {
      for (const Interval& piece : taken) (void)iova->Free(*piece.ToRange());
      excluded = Subtract(excluded, Normalise(std::move(taken)));
      return s;
    }
  }
  device.iova = iova.get();
  devices.push_back(device.shared_from_this());
  if (use == nullptr) {
    domains.push_back({&device.domain(), 0, device.options.page_access});
    use = &domains.back();
  }
  ++use->devices;
  use->page_access = device.options.page_access;
  RecomputeLimits();
  return absl::OkStatus();
}

void SpaceState::Remove(DeviceState& device, std::vector<std::string>* lines) {
  DomainUse* use = FindUse(&device.domain());
  if (--use->devices == 0) {
    std::vector<std::shared_ptr<SharedRecord>> list;
    for (const auto& record : Records()) {
      if (record->translation.Translates(use->domain)) list.push_back(record);
    }
    if (absl::Status s = Withdraw(*use->domain, list); !s.ok()) {
      lines->push_back(absl::StrCat(Who(device), ": detached, but not all pages were unmapped: ",
                                    s.message(), "; tried again when each page is unmapped"));
    }
  }
  device.self = nullptr;
  devices.erase(std::find_if(devices.begin(), devices.end(),
                             [&](const auto& other) { return other.get() == &device; }));
  CountWatchers();
  RecomputeLimits();
}

}  // namespace dmakit::dma::internal
