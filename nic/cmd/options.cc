// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/options.h"

#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/wire/open.h"
#include "nic/wire/spec.h"

namespace dmakit::nic::cmd {
namespace {

// Reads one number into `to`; without text it keeps the default. `hint` ends the error.
template <typename T>
absl::Status Number(std::string_view option, const std::optional<std::string>& text, uint64_t least,
                    uint64_t most, std::string_view hint, T& to) {
  if (!text) return absl::OkStatus();
  const auto value = ParseNumber(option, *text, least, most);
  if (value.ok()) {
    to = static_cast<T>(*value);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(value.status().message(), "; ", std::string(hint)));
}

std::string_view ExampleWire(WireRole role) {
  if (role == WireRole::kBoth) return "tap:tap0";
  return role == WireRole::kSource ? "pcap:in.pcap" : "pcap:out.pcap";
}

absl::Status Port(std::string_view option, const std::optional<std::string>& text, WireRole role,
                  PortSpec& to) {
  if (!text) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(option), ": is missing; give a port, as in ", std::string(option),
                     "=enic,wire=", std::string(ExampleWire(role))));
  }
  auto spec = ParsePort(option, *text);
  if (!spec.ok()) return spec.status();
  const absl::Status wire = spec->wire ? CheckWire(*spec->wire, role) : absl::OkStatus();
  if (!wire.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(option), ": ", wire.message()));
  }
  to = *std::move(spec);
  return absl::OkStatus();
}

absl::Status Seconds(const std::optional<std::string>& text, std::optional<dma::Nanos>& to) {
  if (!text) return absl::OkStatus();
  double value = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value, std::chars_format::fixed);
  const bool number = !text->empty() && error == std::errc{} && stop == end;
  if (!number || !(value >= 1e-3 && value <= static_cast<double>(kMaxSeconds))) {
    return absl::InvalidArgumentError(absl::StrCat("--seconds: ", Quote(*text),
                                                   " must be a number from 0.001 to ", kMaxSeconds,
                                                   "; leave it out to run until the wire is dry"));
  }
  to = dma::Nanos{static_cast<int64_t>(std::llround(value * 1e9))};
  return absl::OkStatus();
}

// By the names of `values`; `rule` says which those are, and the remedy.
template <typename T>
absl::Status OneOf(std::string_view option, const std::optional<std::string>& text,
                   std::initializer_list<T> values, std::string_view rule, T& to) {
  if (!text) return absl::OkStatus();
  for (const T value : values) {
    if (*text != Name(value)) continue;
    to = value;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(option), ": ", Quote(*text), " must be ", std::string(rule)));
}

absl::Status PolicyName(const std::optional<std::string>& text, dma::Policy& to) {
  return OneOf("--policy", text,
               {dma::Policy::kPersistent, dma::Policy::kDeferred, dma::Policy::kStrict},
               "persistent, deferred or strict; leave it out for persistent", to);
}

absl::Status Audit(const std::optional<std::string>& text, AuditMode& to) {
  return OneOf("--audit", text, {AuditMode::kOff, AuditMode::kOn, AuditMode::kChecked},
               "on, checked or off; --audit alone is --audit=on", to);
}

// A queue belongs to one thread, so more threads than queues have nothing to do.
absl::Status Threads(const std::optional<std::string>& text, uint32_t queues, uint32_t& to) {
  return Number("--threads", text, 1, queues,
                "raise --queues too, or leave it out for one thread that does everything", to);
}

absl::Status StatsFile(const std::optional<std::string>& text, std::optional<std::string>& to) {
  if (text && (text->empty() || text->find('\0') != std::string::npos)) {
    return absl::InvalidArgumentError(absl::StrCat("--stats: ", Quote(*text),
                                                   " must be the path of a file; leave it out for "
                                                   "no statistics"));
  }
  to = text;
  return absl::OkStatus();
}

absl::Status FormatName(const ForwardText& text, StatsFormat& to) {
  if (text.stats_format && !text.stats) {
    return absl::InvalidArgumentError(
        absl::StrCat("--stats-format: ", Quote(*text.stats_format),
                     " needs a file to be written; add --stats=FILE"));
  }
  return OneOf("--stats-format", text.stats_format,
               {StatsFormat::kJson, StatsFormat::kPrometheus, StatsFormat::kText},
               "json, prometheus or text; leave it out for json", to);
}

}  // namespace

std::string_view Name(StatsFormat format) {
  switch (format) {
    case StatsFormat::kJson:
      return "json";
    case StatsFormat::kPrometheus:
      return "prometheus";
    case StatsFormat::kText:
      return "text";
  }
  return "?";
}

absl::StatusOr<ForwardOptions> ParseForward(const ForwardText& text) {
  constexpr uint64_t k32 = std::numeric_limits<uint32_t>::max();
  constexpr uint64_t k64 = std::numeric_limits<uint64_t>::max();
  ForwardOptions o;
  o.both = text.both;
  for (const absl::Status& s : {
           Port("--in", text.in, text.both ? WireRole::kBoth : WireRole::kSource, o.in),
           Port("--out", text.out, text.both ? WireRole::kBoth : WireRole::kSink, o.out),
           Number("--count", text.count, 1, k64 - 1, "leave it out for all frames", o.count),
           Seconds(text.seconds, o.duration),
           Number("--burst", text.burst, 1, kMaxBurst, "leave it out for 32", o.burst),
           Number("--queues", text.queues, 1, kMaxQueues, "leave it out for 1", o.queues),
           Threads(text.threads, o.queues, o.threads),
           Number("--ring", text.ring, 1, k32, "leave it out for 512", o.ring),
           Number("--mtu", text.mtu, 68, 9000, "leave it out for 9000", o.mtu),
           Number("--page-order", text.page_order, 0, 9, "leave it out to fit the MTU",
                  o.page_order),
           PolicyName(text.policy, o.policy),
           Audit(text.audit, o.audit),
           StatsFile(text.stats, o.stats_file),
           FormatName(text, o.stats_format),
       }) {
    if (!s.ok()) return s;
  }
  return o;
}

}  // namespace dmakit::nic::cmd
