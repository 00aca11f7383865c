// SPDX-License-Identifier: Apache-2.0
//
// What the rings hold: buffers posted by drivers and not completed, the red zones beside them, and
// memory that is taken back too early.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/audit_device.h"
#include "dma/text.h"

namespace dmakit::dma::internal {

using What = AuditEvent::What;

namespace {

constexpr std::byte kFill{0xe7};

bool Writes(Direction direction) { return direction != Direction::kToDevice; }

// The first byte of `zone` that is not as it was filled, or its size.
size_t FirstChanged(std::span<const std::byte> zone) {
  const auto it = std::find_if(zone.begin(), zone.end(), [](std::byte b) { return b != kFill; });
  return static_cast<size_t>(it - zone.begin());
}

}  // namespace

// --- Red zones -------------------------------------------------------------------------------

void DeviceAudit::FillZones(std::byte* cpu, size_t size, RedZones zones) {
  std::memset(cpu - zones.before, static_cast<int>(kFill), zones.before);
  std::memset(cpu + size, static_cast<int>(kFill), zones.after);
}

void DeviceAudit::CheckZones(Call& call, const AuditRecord* record, std::string_view ring,
                             Range range, std::byte* cpu, RedZones zones) {
  const size_t size = range.size.value();
  const size_t before = FirstChanged({cpu - zones.before, zones.before});
  const size_t after = FirstChanged({cpu + size, zones.after});
  if (before == zones.before && after == zones.after) return;
  std::string where;
  if (before != zones.before) where = absl::StrCat(zones.before - before, " bytes before it");
  if (after != zones.after) {
    absl::StrAppend(&where, where.empty() ? "" : " and ", after, " bytes behind its end");
  }
  AuditReport& report =
      Report(call, AuditCode::kWroteOutside, record,
             absl::StrCat("the buffer ", ToString(range), " was written beside: ", where));
  if (!ring.empty()) report.owner.assign(ring);
  FillZones(cpu, size, zones);
}

// --- Posts -----------------------------------------------------------------------------------

void DeviceAudit::OnPosted(const Device&, const PostEvent& event) {
  if (event.range.empty()) return;
  Call call(*this);
  AuditRecord* const record = FindContaining(event.range.base);
  if (record != nullptr) record->Note(What::kPosted, call.now, event.range);
  CheckPost(call, record, event);
  Post& post = posts_[event.range.base.value()];
  Unguard(call, post);  // of a post that this one replaces
  post.range = event.range;
  post.direction = event.direction;
  post.ring.assign(event.ring);
  post.red_zones = {};
  post.cpu = nullptr;
  post.guarded = {};
  if (!context_.options.checked || record == nullptr || record->memory.cpu == nullptr) return;
  if (!record->range.Contains(event.range)) return;
  const uint64_t offset = (event.range.base - record->range.base).value();
  const uint64_t rest = record->range.size.value() - offset - event.range.size.value();
  post.cpu = record->memory.cpu + offset;
  post.red_zones = {static_cast<uint32_t>(std::min<uint64_t>(event.red_zones.before, offset)),
                    static_cast<uint32_t>(std::min<uint64_t>(event.red_zones.after, rest))};
  FillZones(post.cpu, event.range.size.value(), post.red_zones);
  Guard(*record, post);
}

void DeviceAudit::CheckPost(Call& call, const AuditRecord* record, const PostEvent& event) {
  const auto wrong = [&](AuditCode code, auto&&... what) {
    AuditReport& report = Report(
        call, code, record,
        absl::StrCat("posted to '", View(event.ring), "': ", ToString(event.range), ": ", what...));
    if (record == nullptr) report.owner.assign(event.ring);
  };
  if (record == nullptr) {
    if (const AuditRecord* const gone = FindRetired(event.range.base)) {
      AuditReport& report =
          Report(call, AuditCode::kAccessAfterUnmap, gone,
                 absl::StrCat("posted to '", View(event.ring), "' as ", ToString(event.range), ", ",
                              (call.now - gone->unmapped_at).count(), " ns after the unmap of the ",
                              Describe(*gone)));
      if (report.owner.empty()) report.owner.assign(event.ring);
    } else {
      wrong(AuditCode::kNothingMapped, "nothing of this device is mapped there");
    }
  }
  const uint64_t size = event.range.size.value();
  if (event.range.size > max_segment_) {
    wrong(AuditCode::kSegmentTooLong, size, " bytes, the device takes ", max_segment_.value(),
          " in one segment");
  }
  const uint64_t boundary = boundary_.value();
  if (boundary != 0 &&
      event.range.base.value() / boundary != event.range.last().value() / boundary) {
    wrong(AuditCode::kSegmentCrossesBoundary, "crosses a multiple of ", boundary);
  }
  if (record != nullptr && !record->used.Contains(event.range)) {
    wrong(AuditCode::kWroteOutside, "the device is given bytes beyond the ", Describe(*record));
  }
  if (record != nullptr && record->streaming() &&
      !Allows(AccessFor(record->direction), AccessFor(event.direction))) {
    wrong(AuditCode::kWrongDirection, "posted ", View(Name(event.direction)), ", which the ",
          Describe(*record), " does not allow");
  }
  for (auto it = FirstPostIn(event.range);
       it != posts_.end() && it->second.range.base <= event.range.last(); ++it) {
    const Post& other = it->second;
    if (!Writes(other.direction) && !Writes(event.direction)) continue;
    wrong(AuditCode::kReusedWhilePosted, "still posted to '", other.ring, "' as ",
          ToString(other.range));
    break;
  }
}

// The first post with a byte in `range`, or the first behind it. Posts do not overlap, mistakes
// apart.
DeviceAudit::Posts::iterator DeviceAudit::FirstPostIn(Range range) {
  auto it = posts_.lower_bound(range.base.value());
  if (it == posts_.begin()) return it;
  const auto previous = std::prev(it);
  return previous->second.range.Overlaps(range) ? previous : it;
}

void DeviceAudit::OnCompleted(const Device&, Iova base, Bytes written) {
  Call call(*this);
  const auto it = posts_.find(base.value());
  if (it == posts_.end()) return;  // posted before the audit came
  const Post post = std::move(it->second);
  posts_.erase(it);
  AuditRecord* const record = FindContaining(base);
  if (record != nullptr) record->Note(What::kCompleted, call.now, {base, written});
  Unguard(call, post);
  if (written > post.range.size) {
    AuditReport& report = Report(call, AuditCode::kWroteOutside, record,
                                 absl::StrCat("ring '", post.ring, "': ", written.value(),
                                              " bytes completed in a buffer of ",
                                              post.range.size.value(), ", ", ToString(post.range)));
    report.owner = post.ring;
  }
  if (post.cpu != nullptr) {
    CheckZones(call, record, post.ring, post.range, post.cpu, post.red_zones);
  }
}

void DeviceAudit::OnRecycled(const Device&, Range page, std::string_view) {
  Call call(*this);
  AuditRecord* const record = FindAt(page.base);
  if (record != nullptr) record->Note(What::kRecycled, call.now, page);
  if (!posts_.empty()) TakeBack(call, record, page, "recycled");
}

void DeviceAudit::TakeBack(Call& call, const AuditRecord* record, Range range, const char* how) {
  auto it = FirstPostIn(range);
  size_t count = 0;
  Post first;
  while (it != posts_.end() && it->second.range.base <= range.last()) {
    Unguard(call, it->second);
    if (count++ == 0) first = std::move(it->second);
    it = posts_.erase(it);
  }
  if (count == 0) return;
  const std::string more = count == 1 ? "" : absl::StrCat(" and ", count - 1, " more");
  AuditReport& report =
      Report(call, AuditCode::kReusedWhilePosted, record,
             absl::StrCat(record == nullptr ? ToString(range) : Describe(*record), " was ", how,
                          " while ring '", first.ring, "' has ", ToString(first.range), more));
  if (report.owner.empty()) report.owner = first.ring;
}

// --- The CPU's view --------------------------------------------------------------------------

void DeviceAudit::Guard(const AuditRecord& record, Post& post) {
  host::PageGuard* const guard = context_.options.guard;
  if (guard == nullptr || record.memory.cpu == record.memory.device) return;
  const uint64_t page = guard->page_size();
  const auto first = reinterpret_cast<uintptr_t>(post.cpu);
  const uint64_t skip = (page - first % page) % page;
  const uint64_t size = post.range.size.value();
  if (size < skip + page) return;
  const std::span<std::byte> pages{post.cpu + skip, (size - skip) / page * page};
  if (guard->Protect(pages).ok()) post.guarded = pages;
}

void DeviceAudit::Unguard(Call& call, const Post& post) {
  if (post.guarded.empty()) return;
  const std::byte* const touched = context_.options.guard->Restore(post.guarded);
  if (touched == nullptr) return;
  AuditReport& report =
      Report(call, AuditCode::kCpuAccess, FindContaining(post.range.base),
             absl::StrCat("the CPU used byte ", touched - post.cpu, " of ", ToString(post.range),
                          " while ring '", post.ring, "' had it"));
  report.owner = post.ring;
}

}  // namespace dmakit::dma::internal
