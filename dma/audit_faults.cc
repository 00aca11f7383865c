// SPDX-License-Identifier: Apache-2.0
//
// What others found: faults of the domain, tied to the mapping that used to be there, and calls
// that the library refused.
#include "absl/strings/str_cat.h"
#include "dma/audit_device.h"
#include "dma/text.h"

namespace dmakit::dma::internal {

using What = AuditEvent::What;

void DeviceAudit::OnFault(const DomainFault& fault) {
  Call call(*this);
  const Range where{fault.iova, Bytes(1)};
  AuditRecord* live = FindContaining(fault.iova);
  AuditRecord* const record = live != nullptr && !fault.stale ? nullptr : FindRetired(fault.iova);
  if (record == nullptr) {
    // Never mapped here, or no right to do that: in a domain of several devices, perhaps another's.
    if (live != nullptr) live->Note(What::kFault, call.now, where);
    if (fault.device == name_) ++unexplained_faults_;
    return;
  }
  record->Note(What::kFault, call.now, where);
  Report(
      call, AuditCode::kAccessAfterUnmap, record,
      absl::StrCat("device '", View(fault.device), "' tried to ",
                   fault.access == Access::kWrite ? "write" : "read", " at ", ToString(fault.iova),
                   " (", View(fault.reason), "), ", (call.now - record->unmapped_at).count(),
                   " ns after the unmap of the ", Describe(*record)));
}

void DeviceAudit::OnMisuse(const Device&, const Misuse& misuse) {
  Call call(*this);
  AuditRecord* record = misuse.range.empty() ? nullptr : FindContaining(misuse.range.base);
  if (record == nullptr && !misuse.range.empty()) record = FindRetired(misuse.range.base);
  if (record != nullptr) record->Note(What::kMisuse, call.now, misuse.range);
  AuditReport& report = Report(call, misuse.code, record, std::string(misuse.what));
  if (!misuse.owner.empty()) report.owner.assign(misuse.owner);
  if (report.range.empty()) report.range = misuse.range;
}

}  // namespace dmakit::dma::internal
