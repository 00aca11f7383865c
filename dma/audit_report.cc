// SPDX-License-Identifier: Apache-2.0
//
// Reports as text and JSON, and where they are kept.
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "dma/audit.h"
#include "dma/audit_log.h"
#include "dma/text.h"

namespace dmakit::dma {

namespace {

void AppendEscaped(std::string* out, std::string_view text) {
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (const auto code = static_cast<unsigned char>(c); code < 0x20 || code >= 0x7f) {
      // Names are ASCII; of anything else the bytes are shown.
      char buffer[8];
      std::snprintf(buffer, sizeof(buffer), "\\u%04x", code);
      out->append(buffer);
    } else {
      out->push_back(c);
    }
  }
}

void AppendField(std::string* out, const char* name, std::string_view value) {
  absl::StrAppend(out, "\"", name, "\": \"");
  AppendEscaped(out, value);
  out->append("\", ");
}

std::string Text(Range range) { return range.empty() ? "none" : ToString(range); }

}  // namespace

std::string_view Name(MappingKind kind) {
  switch (kind) {
    case MappingKind::kSingle:
      return "single";
    case MappingKind::kScatterGather:
      return "scatter-gather";
    case MappingKind::kCoherent:
      return "coherent";
    case MappingKind::kPage:
      return "page";
    case MappingKind::kResource:
      return "resource";
  }
  return "?";
}

std::string_view Name(AuditEvent::What what) {
  static constexpr const char* kNames[] = {"mapped",
                                           "live before the audit",
                                           "unmapped",
                                           "retired",
                                           "synced for the CPU",
                                           "synced for device",
                                           "posted",
                                           "completed",
                                           "recycled",
                                           "fault",
                                           "refused call"};
  return kNames[static_cast<size_t>(what)];
}

std::string ToText(const AuditReport& report) {
  std::string text =
      absl::StrCat("audit ", static_cast<int>(report.code), " ", internal::View(Name(report.code)),
                   ": device '", report.device, "', owner '",
                   report.owner.empty() ? "?" : report.owner, "': ", report.what, "\n");
  if (!report.range.empty()) {
    absl::StrAppend(&text, "  mapping: ", internal::View(Name(report.kind)), " ",
                    ToString(report.range), report.pre_existing ? ", live before the audit" : "",
                    "\n");
  }
  for (const AuditEvent& event : report.history) {
    absl::StrAppend(&text, "  ", (report.at - event.at).count(),
                    " ns before: ", internal::View(Name(event.what)), " ", Text(event.range), "\n");
  }
  absl::StrAppend(&text, "  remedy: ", internal::View(report.remedy()), "\n");
  return text;
}

std::string ToJson(const AuditReport& report) {
  std::string json = absl::StrCat("{\"code\": ", static_cast<int>(report.code), ", ");
  AppendField(&json, "class", Name(report.code));
  AppendField(&json, "device", report.device);
  AppendField(&json, "owner", report.owner);
  AppendField(&json, "kind", Name(report.kind));
  AppendField(&json, "range", Text(report.range));
  absl::StrAppend(&json, "\"pre_existing\": ", report.pre_existing ? "true" : "false",
                  ", \"at_ns\": ", report.at.count(), ", ");
  AppendField(&json, "what", report.what);
  AppendField(&json, "remedy", report.remedy());
  json.append("\"history\": [");
  const char* separator = "";
  for (const AuditEvent& event : report.history) {
    absl::StrAppend(&json, separator, "{\"at_ns\": ", event.at.count(), ", ");
    AppendField(&json, "event", Name(event.what));
    absl::StrAppend(&json, "\"range\": \"", Text(event.range), "\"}");
    separator = ", ";
  }
  json.append("]}");
  return json;
}

namespace internal {

void AuditLog::Deliver(std::vector<AuditReport> reports) {
  if (reports.empty()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const AuditReport& report : reports) {
      ++totals_[static_cast<size_t>(report.code)];
      if (reports_.size() < max_reports_) reports_.push_back(report);
    }
  }
  if (!sink_) return;
  for (const AuditReport& report : reports) sink_(report);
}

std::vector<AuditReport> AuditLog::reports() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reports_;
}

AuditLog::Totals AuditLog::totals() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return totals_;
}

}  // namespace internal

}  // namespace dmakit::dma
