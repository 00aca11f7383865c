// SPDX-License-Identifier: Apache-2.0
#include "dma/audit_device.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/text.h"

namespace dmakit::dma::internal {

using What = AuditEvent::What;

DeviceAudit::DeviceAudit(const AuditContext& context, Device& device)
    : context_(context),
      name_(device.name()),
      domain_(*device.options().domain),
      max_segment_(device.options().max_segment),
      boundary_(device.options().segment_boundary),
      max_mappings_(domain_.facts().max_mappings),
      device_(&device) {}

void DeviceAudit::Start() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    importing_ = true;
  }
  // Observer first: packet pages that come and go during the import are not missed.
  device_->set_observer(this);
  device_->ForEachLive([this](const MappingEvent& event) { Import(event); });
  listening_ = domain_.AddFaultListener(this);
  std::lock_guard<std::mutex> lock(mutex_);
  importing_ = false;
  gone_.clear();
}

void DeviceAudit::Stop() {
  if (device_ != nullptr) device_->set_observer(nullptr);
  if (std::exchange(listening_, false)) domain_.RemoveFaultListener(this);
  Call call(*this);
  device_ = nullptr;
  for (const auto& [base, post] : posts_) Unguard(call, post);
  posts_.clear();
  read_lines_ = {};
  written_lines_ = {};
  live_.clear();
  sampled_live_.store(0, std::memory_order_relaxed);
}

const Device* DeviceAudit::device() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return device_;
}

uint64_t DeviceAudit::live() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return live_.size();
}

uint64_t DeviceAudit::unexplained_faults() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return unexplained_faults_;
}

// --- The table -------------------------------------------------------------------------------

AuditRecord* DeviceAudit::FindAt(Iova base) {
  const auto it = live_.find(base.value());
  return it == live_.end() ? nullptr : it->second.get();
}

AuditRecord* DeviceAudit::FindContaining(Iova address) {
  auto it = live_.upper_bound(address.value());
  if (it == live_.begin()) return nullptr;
  AuditRecord* const record = (--it)->second.get();
  return record->range.Contains(address) ? record : nullptr;
}

// The newest.
AuditRecord* DeviceAudit::FindRetired(Iova address) {
  for (auto it = retired_.rbegin(); it != retired_.rend(); ++it) {
    if ((*it)->range.Contains(address)) return it->get();
  }
  return nullptr;
}

AuditRecord& DeviceAudit::Add(const MappingEvent& event) {
  std::unique_ptr<AuditRecord> record;
  if (spare_.empty()) {
    record = std::make_unique<AuditRecord>();
  } else {
    record = std::move(spare_.back());
    spare_.pop_back();
  }
  record->kind = event.kind;
  record->direction = event.direction;
  record->pre_existing = false;
  record->sampled = false;
  record->apart = event.bounced != 0 && event.bounced == event.entries;
  record->fetched = false;
  record->range = event.range;
  record->used = event.used.empty() ? event.range : event.used;
  record->memory = event.memory;
  record->entries = event.entries;
  record->red_zones = event.red_zones;
  record->owner.assign(event.owner);
  record->pieces.clear();
  record->copy.clear();
  record->cpu_owned.clear();
  record->events = 0;
  if (event.kind == MappingKind::kSingle) {
    const uint64_t offset = (record->used.base - event.range.base).value();
    record->pieces.push_back(event.memory.bytes().subspan(offset, record->used.size.value()));
  } else if (event.kind == MappingKind::kScatterGather) {
    record->pieces.assign(event.list.begin(), event.list.end());
  }
  return *(live_[event.range.base.value()] = std::move(record));
}

void DeviceAudit::Import(const MappingEvent& event) {
  Call call(*this);
  const uint64_t base = event.range.base.value();
  if (gone_.contains(base) || live_.contains(base)) return;
  AuditRecord& record = Add(event);
  record.pre_existing = true;
  record.red_zones = {};  // nobody filled them
  record.Note(What::kImported, call.now, record.used);
  for (const auto& piece : record.pieces) LinesOf(record).Insert(CacheLines::Cover(piece, &record));
}

void DeviceAudit::Retire(AuditRecord& record) {
  if (record.sampled) sampled_live_.fetch_sub(1, std::memory_order_relaxed);
  for (const auto& piece : record.pieces) LinesOf(record).Erase(CacheLines::Cover(piece, &record));
  const auto it = live_.find(record.range.base.value());
  retired_.push_back(std::move(it->second));
  live_.erase(it);
  if (retired_.size() <= context_.options.max_retired) return;
  spare_.push_back(std::move(retired_.front()));
  retired_.pop_front();
}

// --- Reports ---------------------------------------------------------------------------------

AuditReport& DeviceAudit::Report(Call& call, AuditCode code, const AuditRecord* record,
                                 std::string what) {
  AuditReport& report = call.reports.emplace_back();
  report.code = code;
  report.device = name_;
  report.at = call.now;
  report.what = std::move(what);
  if (record == nullptr) return report;
  report.owner = record->owner;
  report.range = record->used;
  report.kind = record->kind;
  report.pre_existing = record->pre_existing;
  const uint64_t kept = std::min<uint64_t>(record->events, kAuditHistory);
  for (uint64_t n = record->events - kept; n < record->events; ++n) {
    report.history.push_back(record->history[n % kAuditHistory]);
  }
  return report;
}

std::string DeviceAudit::Describe(const AuditRecord& record) {
  return absl::StrCat(View(Name(record.kind)), " mapping ", ToString(record.used), " (",
                      View(Name(record.direction)), ") of '", record.owner, "'");
}

// --- Maps ------------------------------------------------------------------------------------

void DeviceAudit::OnMap(const Device&, const MappingEvent& event) {
  host::MemoryKind kind = host::MemoryKind::kOrdinary;
  bool reachable = true;
  const bool direct = event.bounced == 0;
  if (event.kind == MappingKind::kSingle) {
    const uint64_t offset = (event.used.base - event.range.base).value();
    const auto bytes = event.memory.bytes().subspan(offset, event.used.size.value());
    kind = context_.memory->Classify(bytes);
    reachable = !direct || domain_.Reachable(MemoryView::Of(bytes));
  }
  for (const std::span<std::byte> entry : event.list) {
    kind = std::max(kind, context_.memory->Classify(entry));
    reachable = reachable && (!direct || domain_.Reachable(MemoryView::Of(entry)));
  }
  Call call(*this);
  if (AuditRecord* old = FindAt(event.range.base)) Retire(*old);
  AuditRecord& record = Add(event);
  record.Note(What::kMapped, call.now, record.used);
  const uint64_t interval = context_.options.sample_one_in;
  record.sampled = interval != 0 && ++maps_ % interval == 0;
  if (record.sampled) sampled_live_.fetch_add(1, std::memory_order_relaxed);
  if (record.streaming()) {
    CheckMemory(call, record, kind, reachable);
    CheckLines(call, record);
    if (context_.options.checked && kind != host::MemoryKind::kUnmapped) {
      const RedZones asked = record.red_zones;
      const uint64_t before = (record.used.base - record.range.base).value();
      const uint64_t after = (record.range.last() - record.used.last()).value();
      record.red_zones = {static_cast<uint32_t>(std::min<uint64_t>(asked.before, before)),
                          static_cast<uint32_t>(std::min<uint64_t>(asked.after, after))};
      TakeCopy(record);
      if (record.kind == MappingKind::kSingle) {
        FillZones(record.pieces[0].data(), record.pieces[0].size(), record.red_zones);
      }
    } else {
      record.red_zones = {};
    }
  }
  if (max_mappings_ != 0) CheckBudget(call, record);
}

void DeviceAudit::OnMapFailed(const Device&, const MappingEvent& event) {
  bool reachable = event.memory.cpu == nullptr || domain_.Reachable(event.memory);
  for (const std::span<std::byte> entry : event.list) {
    reachable = reachable && domain_.Reachable(MemoryView::Of(entry));
  }
  if (reachable) return;
  Call call(*this);
  AuditReport& report = Report(
      call, AuditCode::kNotReachable, nullptr,
      absl::StrCat("map of ", event.used.size.value(), " bytes was refused: domain '",
                   View(domain_.name()), "' wants memory registered first, and this is not"));
  report.owner.assign(event.owner);
  report.kind = event.kind;
}

void DeviceAudit::CheckMemory(Call& call, const AuditRecord& record, host::MemoryKind kind,
                              bool reachable) {
  if (!reachable) {
    Report(call, AuditCode::kNotReachable, &record,
           absl::StrCat(Describe(record), ": domain '", View(domain_.name()),
                        "' wants memory registered first, and this is not"));
  }
  if (kind == host::MemoryKind::kOrdinary) return;
  const AuditCode code = kind == host::MemoryKind::kStack     ? AuditCode::kOnStack
                         : kind == host::MemoryKind::kProgram ? AuditCode::kProgramMemory
                                                              : AuditCode::kNotMemory;
  const auto address = reinterpret_cast<uintptr_t>(record.pieces[0].data());
  Report(call, code, &record,
         absl::StrCat(Describe(record), ": its memory, at 0x", absl::Hex(address), ", is ",
                      View(host::Name(kind))));
}

void DeviceAudit::CheckLines(Call& call, AuditRecord& record) {
  const AuditRecord* written = nullptr;
  size_t most = 0;
  for (const auto& piece : record.pieces) {
    const CacheLines::Span span = CacheLines::Cover(piece, &record);
    const AuditRecord* found = nullptr;
    written_lines_.ForOverlapping(span, [&](const AuditRecord* other) {
      found = other;
      return false;
    });
    size_t count = 1;
    const auto add = [&](const AuditRecord*) { return ++count <= context_.options.max_per_line; };
    const CacheLines::Span line{span.first, span.first + (kCacheLine - 1), nullptr};
    read_lines_.ForOverlapping(line, add);
    if (found != nullptr) {
      written_lines_.ForOverlapping(line, add);
      written = found;
    }
    most = std::max(most, count);
  }
  for (const auto& piece : record.pieces) LinesOf(record).Insert(CacheLines::Cover(piece, &record));
  if (written != nullptr) {
    Report(call, AuditCode::kSharedCacheLine, &record,
           absl::StrCat(Describe(record), " has a cache line in common with the live ",
                        Describe(*written), ", which the device writes"));
  }
  if (most > context_.options.max_per_line) {
    Report(call, AuditCode::kCacheLineMappedOften, &record,
           absl::StrCat(Describe(record), ": a cache line of it is in more than ",
                        context_.options.max_per_line, " live mappings"));
  }
}

// Warns when nine tenths are reached, and again when it fell below eight in between.
void DeviceAudit::CheckBudget(Call& call, const AuditRecord& record) {
  const uint64_t used = domain_.stats().live_mappings;
  if (used < max_mappings_ - max_mappings_ / 5) budget_warned_ = false;
  if (budget_warned_ || used < max_mappings_ - max_mappings_ / 10) return;
  budget_warned_ = true;
  Report(call, AuditCode::kBudgetNearlyUsed, &record,
         absl::StrCat("domain '", View(domain_.name()), "' has ", used, " of at most ",
                      max_mappings_, " mappings"));
}

// --- Unmaps ----------------------------------------------------------------------------------

bool DeviceAudit::WantsStrict(const Device&, Range range) {
  if (sampled_live_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const AuditRecord* const record = FindAt(range.base);
  return record != nullptr && record->sampled;
}

void DeviceAudit::OnBeforeUnmap(const Device&, const MappingEvent& event) {
  Call call(*this);
  if (importing_) gone_.insert(event.range.base.value());
  AuditRecord* const record = FindAt(event.range.base);
  if (record == nullptr) return;
  record->Note(What::kUnmapped, call.now, record->used);
  record->unmapped_at = call.now;
  if (!posts_.empty()) TakeBack(call, record, record->range, "unmapped");
  if (event.skip_sync) CheckSkip(call, *record);
  if (context_.options.checked && record->streaming()) {
    CheckCopy(call, *record, event.skip_sync);
    if (record->kind == MappingKind::kSingle) {
      CheckZones(call, record, {}, record->used, record->pieces[0].data(), record->red_zones);
    }
  }
  Retire(*record);
}

void DeviceAudit::OnRetired(const Device&, Range range) {
  Call call(*this);
  for (auto it = retired_.rbegin(); it != retired_.rend(); ++it) {
    if ((*it)->range.base != range.base) continue;
    (*it)->Note(What::kRetired, call.now, range);
    return;
  }
}

// --- The end ---------------------------------------------------------------------------------

void DeviceAudit::OnDetach(const Device&, size_t) {
  struct Owner {
    size_t count = 0;
    size_t pre_existing = 0;
    uint64_t bytes = 0;
    const AuditRecord* first = nullptr;
  };
  Call call(*this);
  device_ = nullptr;
  std::map<std::string_view, Owner> owners;
  for (const auto& [base, record] : live_) {
    if (record->kind == MappingKind::kPage) continue;  // the pool's, and of all devices
    Owner& owner = owners[record->owner];
    if (owner.count++ == 0) owner.first = record.get();
    if (record->pre_existing) ++owner.pre_existing;
    owner.bytes += record->used.size.value();
  }
  for (const auto& [name, owner] : owners) {
    std::string what =
        absl::StrCat(owner.count, owner.count == 1 ? " mapping" : " mappings", " (", owner.bytes,
                     " bytes) still live at detach; the first: ", Describe(*owner.first));
    if (owner.pre_existing != 0) {
      absl::StrAppend(&what, "; ", owner.pre_existing, " from before the audit came");
    }
    Report(call, AuditCode::kLeaked, owner.first, std::move(what));
  }
  // What the rings hold goes with the device: it is stopped, or faults will tell. Its pages go
  // without a word, its own mappings are unmapped one by one after this.
  for (const auto& [base, post] : posts_) Unguard(call, post);
  posts_.clear();
  std::vector<AuditRecord*> pages;
  for (const auto& [base, record] : live_) {
    if (record->kind == MappingKind::kPage) pages.push_back(record.get());
  }
  for (AuditRecord* page : pages) {
    page->unmapped_at = call.now;
    Retire(*page);
  }
}

}  // namespace dmakit::dma::internal
