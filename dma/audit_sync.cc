// SPDX-License-Identifier: Apache-2.0
//
// Who owns which bytes of a streaming mapping: the device, except for what a sync for the CPU took
// and a sync for the device has not given back. And, in checked mode, whether the CPU kept to it
// with bytes that only it writes.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "dma/audit_device.h"
#include "dma/intervals.h"
#include "dma/text.h"

namespace dmakit::dma::internal {

using What = AuditEvent::What;

void DeviceAudit::OnSync(const Device&, Range range, Direction, bool for_cpu) {
  if (range.empty()) return;
  Call call(*this);
  AuditRecord* const record = FindContaining(range.base);
  if (record == nullptr) {
    Report(call, AuditCode::kSyncNothingMapped, nullptr,
           absl::StrCat("sync of ", ToString(range), " for the ", for_cpu ? "CPU" : "device",
                        ": nothing of this device is mapped there"));
    return;
  }
  record->Note(for_cpu ? What::kSyncForCpu : What::kSyncForDevice, call.now, range);
  const auto wrong = [&](AuditCode code, const char* words) {
    Report(call, code, record,
           absl::StrCat("sync of ", ToString(range), " for the ", for_cpu ? "CPU" : "device", ": ",
                        Describe(*record), ": ", words));
  };
  if (record->kind == MappingKind::kPage) return OnPageSync(call, *record, range);
  if (record->direction == Direction::kToDevice) {
    if (for_cpu) return wrong(AuditCode::kSyncForCpuOfToDevice, "the device only reads there");
    return RefreshCopy(*record, range);
  }
  Intervals& owned = record->cpu_owned;
  const Interval here = *Interval::FromRange(range);
  if (for_cpu) {
    record->fetched = true;
    RefreshCopy(*record, range);
    if (Covers(owned, range)) return wrong(AuditCode::kSyncWrongOwner, "the CPU has it already");
    owned.push_back(here);
    owned = Normalise(std::move(owned));
    if (record->kind == MappingKind::kSingle) {
      CheckZones(call, record, {}, record->used, record->pieces[0].data(), record->red_zones);
    }
    return;
  }
  const bool any =
      std::any_of(owned.begin(), owned.end(), [&](const Interval& i) { return i.Overlaps(here); });
  if (any) {
    owned = Subtract(owned, {here});
    RefreshCopy(*record, range);
  } else if (record->direction == Direction::kFromDevice) {
    wrong(AuditCode::kSyncForDeviceOfFromDevice,
          "the device only writes there, and has not given it to the CPU");
  } else {
    wrong(AuditCode::kSyncWrongOwner, "the device has it already");
  }
}

// Parts of a page go to and fro independently, so only the bounds are checked.
void DeviceAudit::OnPageSync(Call& call, AuditRecord& record, Range range) {
  if (record.used.Contains(range)) return;
  Report(
      call, AuditCode::kSyncBeyondMapping, &record,
      absl::StrCat("sync of ", ToString(range), " runs beyond the end of the ", Describe(record)));
}

void DeviceAudit::CheckSkip(Call& call, const AuditRecord& record) {
  if (record.direction == Direction::kToDevice || record.fetched || !record.streaming()) return;
  Report(call, AuditCode::kSyncWrongOwner, &record,
         absl::StrCat(Describe(record),
                      ": unmapped with skip_sync, and no byte was synced for the CPU before: what "
                      "the device wrote is lost"));
}

void DeviceAudit::TakeCopy(AuditRecord& record) {
  if (record.direction != Direction::kToDevice && !record.apart) return;
  for (const auto& piece : record.pieces) {
    record.copy.insert(record.copy.end(), piece.begin(), piece.end());
  }
}

void DeviceAudit::RefreshCopy(AuditRecord& record, Range range) {
  if (record.copy.empty()) return;
  if (record.kind != MappingKind::kSingle) {
    record.copy.clear();
    return TakeCopy(record);
  }
  const uint64_t offset = (range.base - record.used.base).value();
  if (!record.used.Contains(range)) return;
  std::memcpy(record.copy.data() + offset, record.pieces[0].data() + offset, range.size.value());
}

// The device cannot write there, so whatever changed is the CPU's doing.
void DeviceAudit::CheckCopy(Call& call, AuditRecord& record, bool skip_sync) {
  if (record.copy.empty()) return;
  // What the CPU has at the end is its own to change, if the unmap leaves it alone.
  if (skip_sync && record.kind == MappingKind::kSingle) {
    for (const Interval& owned : record.cpu_owned) RefreshCopy(record, *owned.ToRange());
  } else if (skip_sync && !record.cpu_owned.empty()) {
    return;  // lists are synced whole
  }
  const bool had = !record.cpu_owned.empty();
  size_t offset = 0;
  for (const auto& piece : record.pieces) {
    const auto [now, then] =
        std::mismatch(piece.begin(), piece.end(), record.copy.begin() + offset);
    if (now != piece.end()) {
      const auto at = offset + static_cast<size_t>(now - piece.begin());
      const bool owned =
          had && (record.kind != MappingKind::kSingle ||
                  Covers(record.cpu_owned, {record.used.base + Bytes(at), Bytes(1)}));
      Report(call, AuditCode::kCpuAccess, &record,
             absl::StrCat(Describe(record), ": byte ", at, " changed from ",
                          static_cast<int>(*then), " to ", static_cast<int>(*now),
                          owned ? " since it was synced for the CPU, and the unmap overwrites it: "
                                  "unmap with skip_sync, or sync it for the device first"
                                : " while the device had it, and was not synced"));
      return;
    }
    offset += piece.size();
  }
}

}  // namespace dmakit::dma::internal
