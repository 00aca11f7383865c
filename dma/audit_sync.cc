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
  if (record == nullptr) return;
  record->Note(for_cpu ? What::kSyncForCpu : What::kSyncForDevice, call.now, range);
  const auto wrong = [&](AuditCode code, const char* words) {
    Report(call, code, record,
           absl::StrCat("sync of ", ToString(range), " for the ", for_cpu ? "CPU" : "device", ": ",
                        Describe(*record), ": ", words));
  };
  if (record->direction == Direction::kToDevice) {
    if (for_cpu) return wrong(AuditCode::kSyncForCpuOfToDevice, "the device only reads there");
    return RefreshCopy(*record, range);
  }
  Intervals& owned = record->cpu_owned;
  const Interval here = *Interval::FromRange(range);
  if (for_cpu) {
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
  } else if (record->direction == Direction::kFromDevice) {
    wrong(AuditCode::kSyncForDeviceOfFromDevice,
          "the device only writes there, and has not given it to the CPU");
  } else {
    wrong(AuditCode::kSyncWrongOwner, "the device has it already");
  }
}

void DeviceAudit::TakeCopy(AuditRecord& record) {
  if (record.direction != Direction::kToDevice) return;
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
void DeviceAudit::CheckCopy(Call& call, AuditRecord& record) {
  if (record.copy.empty()) return;
  size_t offset = 0;
  for (const auto& piece : record.pieces) {
    const auto [now, then] =
        std::mismatch(piece.begin(), piece.end(), record.copy.begin() + offset);
    if (now != piece.end()) {
      const auto at = static_cast<size_t>(now - piece.begin());
      Report(call, AuditCode::kCpuAccess, &record,
             absl::StrCat(Describe(record), ": byte ", offset + at, " changed from ",
                          static_cast<int>(*then), " to ", static_cast<int>(*now),
                          " while the device had it, and was not synced"));
      return;
    }
    offset += piece.size();
  }
}

}  // namespace dmakit::dma::internal
