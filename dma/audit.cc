// SPDX-License-Identifier: Apache-2.0
//
// The audit as its user sees it: the devices that are attached, and the sums.
#include "dma/audit.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/audit_device.h"
#include "dma/audit_log.h"
#include "dma/text.h"

namespace dmakit::dma {

using internal::AuditLog;
using internal::DeviceAudit;
using internal::View;

struct Audit::Impl {
  explicit Impl(Options options)
      : log(options.max_reports, options.sink),
        context{.options = std::move(options), .log = &log} {
    context.memory = context.options.memory != nullptr ? context.options.memory : &process;
    context.clock = context.options.clock != nullptr ? context.options.clock : &system_clock;
  }

  std::vector<DeviceAudit*> All() const {
    std::vector<DeviceAudit*> all;
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& device : devices) all.push_back(device.get());
    return all;
  }
  uint64_t Sum(bool warnings) const {
    uint64_t sum = 0;
    const AuditLog::Totals totals = log.totals();
    for (int code = 1; code <= kAuditCodes; ++code) {
      if (IsWarning(static_cast<AuditCode>(code)) == warnings) sum += totals[code];
    }
    return sum;
  }

  AuditLog log;
  host::ProcessMemory process;
  host::SystemClock system_clock;
  internal::AuditContext context;
  mutable std::mutex mutex;
  // Also of devices that have ended: their faults may come late. None is freed before the audit is.
  std::vector<std::unique_ptr<DeviceAudit>> devices;
};

Audit::Audit(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Audit::~Audit() {
  for (DeviceAudit* device : impl_->All()) device->Stop();
}

absl::Status Audit::Attach(Device& device) {
  if (device.observer() != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("audit of device '", View(device.name()),
                     "': it has an observer already; detach that one first"));
  }
  DeviceAudit* made;
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->devices.push_back(std::make_unique<DeviceAudit>(impl_->context, device));
    made = impl_->devices.back().get();
  }
  made->Start();
  return absl::OkStatus();
}

void Audit::Detach(Device& device) {
  for (DeviceAudit* audited : impl_->All()) {
    if (audited->device() == &device) audited->Stop();
  }
}

std::vector<AuditReport> Audit::reports() const { return impl_->log.reports(); }
uint64_t Audit::total(AuditCode code) const {
  const auto number = static_cast<size_t>(code);
  return number <= kAuditCodes ? impl_->log.totals()[number] : 0;
}
uint64_t Audit::errors() const { return impl_->Sum(false); }
uint64_t Audit::warnings() const { return impl_->Sum(true); }

uint64_t Audit::unexplained_faults() const {
  uint64_t sum = 0;
  for (const DeviceAudit* device : impl_->All()) sum += device->unexplained_faults();
  return sum;
}

uint64_t Audit::live() const {
  uint64_t sum = 0;
  for (const DeviceAudit* device : impl_->All()) sum += device->live();
  return sum;
}

std::string Audit::Text() const {
  std::string text;
  for (const AuditReport& report : reports()) text += ToText(report);
  const AuditLog::Totals totals = impl_->log.totals();
  for (int code = 1; code <= kAuditCodes; ++code) {
    if (totals[code] == 0) continue;
    absl::StrAppend(&text, "audit total ", code, " ", View(Name(static_cast<AuditCode>(code))),
                    ": ", totals[code], "\n");
  }
  absl::StrAppend(&text, "audit: ", errors(), " errors, ", warnings(), " warnings\n");
  return text;
}

std::string Audit::Json() const {
  std::string json =
      absl::StrCat("{\"errors\": ", errors(), ", \"warnings\": ", warnings(), ", \"totals\": {");
  const AuditLog::Totals totals = impl_->log.totals();
  const char* separator = "";
  for (int code = 1; code <= kAuditCodes; ++code) {
    if (totals[code] == 0) continue;
    absl::StrAppend(&json, separator, "\"", View(Name(static_cast<AuditCode>(code))),
                    "\": ", totals[code]);
    separator = ", ";
  }
  json += "}, \"reports\": [";
  separator = "";
  for (const AuditReport& report : reports()) {
    absl::StrAppend(&json, separator, ToJson(report));
    separator = ", ";
  }
  return json + "]}";
}

}  // namespace dmakit::dma
