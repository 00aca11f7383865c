// SPDX-License-Identifier: Apache-2.0
//
// The books of the raw interface: what was handed out, and the comparison with what comes back.
#include "dma/raw.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "dma/audit_code.h"
#include "dma/coherent.h"
#include "dma/observer.h"
#include "dma/text.h"

namespace dmakit::dma {

using internal::View;

namespace {

std::string_view FamilyName(MappingKind family) {
  switch (family) {
    case MappingKind::kScatterGather:
      return "list";
    case MappingKind::kCoherent:
      return "coherent";
    case MappingKind::kResource:
      return "resource";
    default:
      return "single";
  }
}

}  // namespace

struct RawDma::Entry {
  MappingKind family = MappingKind::kSingle;
  Range used;  // as handed out
  Direction direction = Direction::kBidirectional;
  size_t entries = 1;
  std::byte* cpu = nullptr;
  bool checked = false;
  std::string owner;
  std::variant<Mapping, SgMapping, CoherentBlock> handle;
};

struct RawDma::Impl {
  explicit Impl(Device& device_in) : device(device_in) {}

  // What a call says about the mapping it means.
  struct Claim {
    const char* call;
    MappingKind family;
    Iova address;
    Bytes size{0};  // 0: not said
    Direction direction = Direction::kBidirectional;
    size_t entries = 1;
    std::byte* cpu = nullptr;
    UnmapOptions unmap{};
  };

  Iova Insert(Entry entry);
  Iova Failed(absl::Status status);
  absl::Status Refuse(AuditCode code, const Claim& claim, const Entry* entry, std::string why);
  // The entry at or around an address, or nullptr. With the mutex.
  Entry* Containing(Iova address);
  absl::Status CheckUnmap(const Claim& claim, Entry** found);
  absl::StatusOr<Entry> Take(const Claim& claim);
  absl::StatusOr<FlushTicket> Unmap(const Claim& claim);
  absl::Status Sync(const Claim& claim, bool for_cpu);
  absl::Status CheckSync(const Claim& claim, Entry** found);

  Device& device;
  mutable std::mutex mutex;
  std::map<uint64_t, Entry> live;  // by the address handed out
  absl::Status error;
};

RawDma::RawDma(Device& device) : impl_(std::make_unique<Impl>(device)) {}

RawDma::~RawDma() {
  struct Sum {
    size_t count = 0;
    Range first;
  };
  std::map<std::string, Sum> owners;
  for (const auto& [address, entry] : impl_->live) {
    Sum& sum = owners[entry.owner];
    if (sum.count++ == 0) sum.first = entry.used;
  }
  Observer* const observing = impl_->device.observer();
  for (const auto& [owner, sum] : owners) {
    if (observing == nullptr) break;
    const std::string what = absl::StrCat(sum.count, " raw mappings never unmapped");
    observing->OnMisuse(
        impl_->device,
        {.code = AuditCode::kLeaked, .owner = owner, .range = sum.first, .what = what});
  }
}

size_t RawDma::live() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->live.size();
}

// --- Maps ------------------------------------------------------------------------------------

Iova RawDma::Impl::Insert(Entry entry) {
  const Iova address = entry.used.base;
  std::lock_guard<std::mutex> lock(mutex);
  live.insert_or_assign(address.value(), std::move(entry));
  return address;
}

Iova RawDma::Impl::Failed(absl::Status status) {
  std::lock_guard<std::mutex> lock(mutex);
  error = std::move(status);
  return kError;
}

bool RawDma::IsError(Iova address) {
  if (address == kError) return true;
  std::lock_guard<std::mutex> lock(impl_->mutex);
  const auto it = impl_->live.find(address.value());
  if (it == impl_->live.end()) return true;
  it->second.checked = true;
  return false;
}

absl::Status RawDma::last_error() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->error;
}

Iova RawDma::MapSingle(std::span<std::byte> memory, Direction direction, std::string_view owner) {
  absl::StatusOr<Mapping> mapping = impl_->device.Map(memory, direction, {.owner = owner});
  if (!mapping.ok()) return impl_->Failed(mapping.status());
  return impl_->Insert({.family = MappingKind::kSingle,
                        .used = {mapping->iova(), Bytes(memory.size())},
                        .direction = direction,
                        .owner = std::string(owner),
                        .handle = *std::move(mapping)});
}

Iova RawDma::MapResource(std::span<std::byte> registers, Direction direction,
                         std::string_view owner) {
  absl::StatusOr<Mapping> mapping =
      impl_->device.Map(registers, direction, {.owner = owner, .resource = true});
  if (!mapping.ok()) return impl_->Failed(mapping.status());
  return impl_->Insert({.family = MappingKind::kResource,
                        .used = {mapping->iova(), Bytes(registers.size())},
                        .direction = direction,
                        .owner = std::string(owner),
                        .handle = *std::move(mapping)});
}

std::vector<SgSegment> RawDma::MapSg(std::span<const std::span<std::byte>> entries,
                                     Direction direction, std::string_view owner) {
  const DeviceOptions& limits = impl_->device.options();
  Impl::Claim claim{
      .call = "map of a list", .family = MappingKind::kScatterGather, .address = kError};
  for (size_t i = 0; i < entries.size(); ++i) {
    const uint64_t size = entries[i].size();
    const auto refuse = [&](AuditCode code, const char* rule, Bytes limit) {
      impl_->Failed(impl_->Refuse(code, claim, nullptr,
                                  absl::StrCat("entry ", i, " of '", View(owner), "' has ", size,
                                               " bytes, ", rule, " ", limit.value())));
      return std::vector<SgSegment>();
    };
    if (size > limits.max_segment.value()) {
      return refuse(AuditCode::kSegmentTooLong, "the device's longest segment is",
                    limits.max_segment);
    }
    if (limits.segment_boundary.value() != 0 && size > limits.segment_boundary.value()) {
      return refuse(AuditCode::kSegmentCrossesBoundary, "no segment may cross a multiple of",
                    limits.segment_boundary);
    }
  }
  absl::StatusOr<SgMapping> mapping = impl_->device.MapSg(entries, direction, {.owner = owner});
  if (!mapping.ok()) {
    impl_->Failed(mapping.status());
    return {};
  }
  std::vector<SgSegment> segments(mapping->segments().begin(), mapping->segments().end());
  impl_->Insert({.family = MappingKind::kScatterGather,
                 .used = {segments.front().iova,
                          mapping->range().size - (segments.front().iova - mapping->range().base)},
                 .direction = direction,
                 .entries = entries.size(),
                 .owner = std::string(owner),
                 .handle = *std::move(mapping)});
  return segments;
}

RawDma::Coherent RawDma::AllocateCoherent(Bytes size, std::string_view owner) {
  absl::StatusOr<CoherentBlock> block =
      impl_->device.AllocateCoherent({.size = size, .label = std::string(owner)});
  if (!block.ok()) {
    impl_->Failed(block.status());
    return {};
  }
  const Coherent result{block->data(), block->iova()};
  impl_->Insert({.family = MappingKind::kCoherent,
                 .used = {block->iova(), size},
                 .cpu = block->data(),
                 .checked = true,
                 .owner = std::string(owner),
                 .handle = *std::move(block)});
  return result;
}

// --- Checks ----------------------------------------------------------------------------------

absl::Status RawDma::Impl::Refuse(AuditCode code, const Claim& claim, const Entry* entry,
                                  std::string why) {
  const std::string what = absl::StrCat("device '", View(device.name()), "': ", claim.call, " at ",
                                        ToString(claim.address), ": ", why);
  if (Observer* const observing = device.observer()) {
    const Range said{claim.address, std::max(claim.size, Bytes(1))};
    observing->OnMisuse(device, {.code = code,
                                 .owner = entry == nullptr ? std::string_view() : entry->owner,
                                 .range = claim.address == kError ? Range{} : said,
                                 .what = what});
  }
  return absl::InvalidArgumentError(absl::StrCat(what, ". ", View(Remedy(code))));
}

RawDma::Entry* RawDma::Impl::Containing(Iova address) {
  auto it = live.upper_bound(address.value());
  if (it == live.begin()) return nullptr;
  Entry& entry = (--it)->second;
  return entry.used.Contains(address) ? &entry : nullptr;
}

absl::Status RawDma::Impl::CheckUnmap(const Claim& claim, Entry** found) {
  if (claim.address == kError) {
    return Refuse(AuditCode::kErrorAddress, claim, nullptr, "that is the value of a failed map");
  }
  Entry* const entry = Containing(claim.address);
  const auto refuse = [&](AuditCode code, auto&&... why) {
    return Refuse(code, claim, entry, absl::StrCat(why...));
  };
  if (entry == nullptr) {
    return refuse(AuditCode::kNothingMapped, "nothing of this device is mapped there");
  }
  const std::string name = absl::StrCat("the ", View(FamilyName(entry->family)), " mapping ",
                                        ToString(entry->used), " of '", entry->owner, "'");
  if (entry->used.base != claim.address) {
    return refuse(AuditCode::kNothingMapped, "no mapping begins there; it lies in ", name);
  }
  if (entry->family != claim.family) {
    return refuse(AuditCode::kWrongFamily, "for ", View(FamilyName(claim.family)),
                  " mappings, but this is ", name);
  }
  if (claim.family == MappingKind::kScatterGather) {
    if (entry->entries != claim.entries) {
      return refuse(AuditCode::kWrongEntryCount, "with ", claim.entries, " entries, but ", name,
                    " was made of ", entry->entries);
    }
  } else if (entry->used.size != claim.size) {
    return refuse(AuditCode::kWrongSize, "of ", claim.size.value(), " bytes, but ", name, " has ",
                  entry->used.size.value());
  }
  if (claim.family == MappingKind::kCoherent) {
    if (entry->cpu != claim.cpu) {
      return refuse(AuditCode::kWrongCpuAddress, "with CPU address 0x",
                    absl::Hex(reinterpret_cast<uintptr_t>(claim.cpu)), ", but ", name, " is at 0x",
                    absl::Hex(reinterpret_cast<uintptr_t>(entry->cpu)));
    }
  } else if (entry->direction != claim.direction) {
    return refuse(AuditCode::kWrongDirection, View(Name(claim.direction)), ", but ", name, " is ",
                  View(Name(entry->direction)));
  }
  *found = entry;
  return absl::OkStatus();
}

// A map that nobody checked is reported, and ended all the same.
absl::StatusOr<RawDma::Entry> RawDma::Impl::Take(const Claim& claim) {
  std::lock_guard<std::mutex> lock(mutex);
  Entry* entry = nullptr;
  if (absl::Status s = CheckUnmap(claim, &entry); !s.ok()) return s;
  if (!entry->checked) {
    (void)Refuse(AuditCode::kMapUnchecked, claim, entry,
                 absl::StrCat("the map of '", entry->owner, "' was never asked for its error"));
  }
  auto node = live.extract(claim.address.value());
  return std::move(node.mapped());
}

absl::StatusOr<FlushTicket> RawDma::Impl::Unmap(const Claim& claim) {
  absl::StatusOr<Entry> entry = Take(claim);
  if (!entry.ok()) return entry.status();
  if (Mapping* mapping = std::get_if<Mapping>(&entry->handle)) {
    return device.Unmap(std::move(*mapping), claim.unmap);
  }
  return device.Unmap(std::move(std::get<SgMapping>(entry->handle)), claim.unmap);
}

absl::StatusOr<FlushTicket> RawDma::UnmapSingle(Iova address, Bytes size, Direction direction,
                                                const UnmapOptions& options) {
  return impl_->Unmap({.call = "unmap",
                       .family = MappingKind::kSingle,
                       .address = address,
                       .size = size,
                       .direction = direction,
                       .unmap = options});
}

absl::StatusOr<FlushTicket> RawDma::UnmapResource(Iova address, Bytes size, Direction direction) {
  return impl_->Unmap({.call = "unmap of a resource",
                       .family = MappingKind::kResource,
                       .address = address,
                       .size = size,
                       .direction = direction});
}

absl::StatusOr<FlushTicket> RawDma::UnmapSg(Iova address, size_t entries, Direction direction,
                                            const UnmapOptions& options) {
  return impl_->Unmap({.call = "unmap of a list",
                       .family = MappingKind::kScatterGather,
                       .address = address,
                       .direction = direction,
                       .entries = entries,
                       .unmap = options});
}

absl::Status RawDma::FreeCoherent(Bytes size, std::byte* cpu, Iova address) {
  return impl_
      ->Take({.call = "free of a coherent block",
              .family = MappingKind::kCoherent,
              .address = address,
              .size = size,
              .cpu = cpu})
      .status();
}

// --- Sync ------------------------------------------------------------------------------------

absl::Status RawDma::Impl::CheckSync(const Claim& claim, Entry** found) {
  Entry* const entry = claim.address == kError ? nullptr : Containing(claim.address);
  const auto refuse = [&](AuditCode code, auto&&... why) {
    return Refuse(code, claim, entry, absl::StrCat(why...));
  };
  if (entry == nullptr) {
    return refuse(AuditCode::kSyncNothingMapped, "nothing of this device is mapped there");
  }
  const std::string name = absl::StrCat("the ", View(FamilyName(entry->family)), " mapping ",
                                        ToString(entry->used), " of '", entry->owner, "'");
  if (entry->family != claim.family) {
    return refuse(AuditCode::kSyncNothingMapped, "there is no ", View(FamilyName(claim.family)),
                  " mapping there, but ", name);
  }
  if (claim.family == MappingKind::kScatterGather) {
    if (entry->entries != claim.entries) {
      return refuse(AuditCode::kSyncWrongEntryCount, "with ", claim.entries, " entries, but ", name,
                    " was made of ", entry->entries);
    }
  } else if (claim.size > entry->used.size - (claim.address - entry->used.base)) {
    return refuse(AuditCode::kSyncBeyondMapping, claim.size.value(),
                  " bytes run beyond the end of ", name);
  }
  if (entry->direction != claim.direction) {
    return refuse(AuditCode::kSyncWrongDirection, View(Name(claim.direction)), ", but ", name,
                  " is ", View(Name(entry->direction)));
  }
  *found = entry;
  return absl::OkStatus();
}

absl::Status RawDma::Impl::Sync(const Claim& claim, bool for_cpu) {
  std::lock_guard<std::mutex> lock(mutex);
  Entry* entry = nullptr;
  if (absl::Status s = CheckSync(claim, &entry); !s.ok()) return s;
  if (SgMapping* list = std::get_if<SgMapping>(&entry->handle)) {
    return for_cpu ? list->SyncForCpu() : list->SyncForDevice();
  }
  Mapping& mapping = std::get<Mapping>(entry->handle);
  const uint64_t offset = (claim.address - entry->used.base).value();
  return for_cpu ? mapping.SyncForCpu(offset, claim.size.value())
                 : mapping.SyncForDevice(offset, claim.size.value());
}

absl::Status RawDma::SyncForCpu(Iova address, Bytes size, Direction direction) {
  return impl_->Sync({.call = "sync for the CPU",
                      .family = MappingKind::kSingle,
                      .address = address,
                      .size = size,
                      .direction = direction},
                     true);
}

absl::Status RawDma::SyncForDevice(Iova address, Bytes size, Direction direction) {
  return impl_->Sync({.call = "sync for the device",
                      .family = MappingKind::kSingle,
                      .address = address,
                      .size = size,
                      .direction = direction},
                     false);
}

absl::Status RawDma::SyncSgForCpu(Iova address, size_t entries, Direction direction) {
  return impl_->Sync({.call = "sync of a list for the CPU",
                      .family = MappingKind::kScatterGather,
                      .address = address,
                      .direction = direction,
                      .entries = entries},
                     true);
}

absl::Status RawDma::SyncSgForDevice(Iova address, size_t entries, Direction direction) {
  return impl_->Sync({.call = "sync of a list for the device",
                      .family = MappingKind::kScatterGather,
                      .address = address,
                      .direction = direction,
                      .entries = entries},
                     false);
}

}  // namespace dmakit::dma
