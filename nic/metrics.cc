// SPDX-License-Identifier: Apache-2.0

#include "nic/metrics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dmakit::nic {
namespace {

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsName(std::string_view name) {
  return !name.empty() && IsLetter(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return IsLetter(c) || IsDigit(c); });
}

// `le` and `quantile` belong to histograms and summaries, "__" to Prometheus itself.
bool IsLabelName(std::string_view name) {
  return IsName(name) && !name.starts_with("__") && name != "le" && name != "quantile";
}

std::string Describe(const MetricLabels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    absl::StrAppend(&text, text.empty() ? "" : " ", name, "=", value);
  }
  return text;
}

// How many bytes the UTF-8 character at the front has; 0: it is none.
size_t CharacterLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies beyond Unicode.
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) >= 0xa0) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) >= 0x90) return 0;
  return length;
}

// A quotation mark is escaped in a label's value and not in a help text.
std::string Escape(std::string_view text, bool quoted) {
  std::string escaped;
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    if (length == 0) {
      escaped += "\xef\xbf\xbd";
    } else if (text[0] == '\\') {
      escaped += "\\\\";
    } else if (text[0] == '\n') {
      escaped += "\\n";
    } else if (quoted && text[0] == '"') {
      escaped += "\\\"";
    } else {
      escaped += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return escaped;
}

std::string PrometheusNumber(const MetricNumber& value) {
  if (const uint64_t* const whole = std::get_if<uint64_t>(&value)) return absl::StrCat(*whole);
  const double number = std::get<double>(value);
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.17g", number);
}

std::string PlainNumber(const MetricNumber& value) {
  if (const uint64_t* const whole = std::get_if<uint64_t>(&value)) return absl::StrCat(*whole);
  return absl::StrFormat("%.1f", std::get<double>(value));
}

void AppendSample(const MetricSample& sample, const std::string& name, std::string& text) {
  text += name;
  char separator = '{';
  for (const auto& [label, value] : sample.place->labels) {
    absl::StrAppend(&text, std::string(1, separator), label, "=\"", Escape(value, true), "\"");
    separator = ',';
  }
  if (separator == ',') text += '}';
  absl::StrAppend(&text, " ", PrometheusNumber(sample.value), "\n");
}

}  // namespace

absl::Status MetricRegistry::Check(const MetricInfo& info, const MetricLabels& sorted) const {
  const auto fail = [&](absl::StatusCode code, std::string_view rule) {
    return absl::Status(code, absl::StrCat("metric ", std::string(info.name), " {",
                                           Describe(sorted), "}: ", std::string(rule)));
  };
  if (!IsName(info.name)) {
    return fail(absl::StatusCode::kInvalidArgument,
                "a name has letters, digits and _, and no digit in front; rename it in its table");
  }
  std::vector<std::string> names;
  for (const auto& [name, value] : sorted) {
    if (!IsLabelName(name) || (!names.empty() && names.back() == name)) {
      return fail(absl::StatusCode::kInvalidArgument,
                  "a label has letters, digits and _, is given once, and is none of Prometheus's "
                  "own; rename it");
    }
    names.push_back(name);
  }
  const auto found = families_.find(info.name);
  if (found == families_.end()) return absl::OkStatus();
  if (found->second.info != &info) {
    return fail(absl::StatusCode::kInvalidArgument,
                "another table has this name; a name has one meaning, choose another");
  }
  if (found->second.label_names != names) {
    return fail(absl::StatusCode::kInvalidArgument,
                "was registered with other labels; use the same set each time");
  }
  if (found->second.places.contains(sorted)) {
    return fail(absl::StatusCode::kAlreadyExists,
                "is registered already; add a label that tells the two apart");
  }
  return absl::OkStatus();
}

absl::Status MetricRegistry::Add(std::vector<const MetricInfo*> infos, MetricPlace place,
                                 std::function<std::vector<MetricNumber>()> read) {
  MetricLabels sorted = place.labels;
  std::sort(sorted.begin(), sorted.end());
  for (const MetricInfo* const info : infos) {
    if (absl::Status s = Check(*info, sorted); !s.ok()) return s;
  }
  for (const MetricInfo* const info : infos) {
    Family& family = families_[info->name];
    family.info = info;
    family.label_names.clear();
    for (const auto& [name, value] : sorted) family.label_names.push_back(name);
    family.places.insert(sorted);
  }
  sources_.push_back(
      {std::move(infos), std::make_shared<const MetricPlace>(std::move(place)), std::move(read)});
  return absl::OkStatus();
}

std::vector<MetricSample> MetricRegistry::Snapshot() const {
  std::vector<MetricSample> samples;
  for (const Source& source : sources_) {
    const std::vector<MetricNumber> values = source.read();
    for (size_t i = 0; i < values.size(); ++i) {
      samples.push_back({source.infos[i], source.place, values[i]});
    }
  }
  return samples;
}

std::string PrometheusName(const MetricInfo& info) {
  return absl::StrCat("dmakit_", std::string(info.name),
                      info.kind == MetricKind::kCounter ? "_total" : "");
}

std::string PrometheusText(std::span<const MetricSample> samples) {
  // The format wants all of a name together.
  std::map<const MetricInfo*, std::vector<const MetricSample*>> families;
  std::vector<const MetricInfo*> order;
  for (const MetricSample& sample : samples) {
    auto& family = families[sample.info];
    if (family.empty()) order.push_back(sample.info);
    family.push_back(&sample);
  }
  std::string text;
  for (const MetricInfo* const info : order) {
    const std::string name = PrometheusName(*info);
    absl::StrAppend(&text, "# HELP ", name, " ", Escape(info->help, false), " (",
                    Escape(info->unit, false), ")\n");
    absl::StrAppend(&text, "# TYPE ", name,
                    info->kind == MetricKind::kCounter ? " counter\n" : " gauge\n");
    for (const MetricSample* const sample : families[info]) AppendSample(*sample, name, text);
  }
  return text;
}

std::string PlainText(std::span<const MetricSample> samples) {
  std::map<MetricLabels, std::string> blocks;
  std::vector<const MetricLabels*> order;
  for (const MetricSample& sample : samples) {
    std::string& block = blocks[sample.place->labels];
    if (block.empty()) order.push_back(&sample.place->labels);
    absl::StrAppend(&block, "     ", std::string(sample.info->name), ": ",
                    PlainNumber(sample.value), "\n");
  }
  std::string text;
  for (const MetricLabels* const labels : order) {
    absl::StrAppend(&text, labels->empty() ? "all" : Escape(Describe(*labels), false), ":\n",
                    blocks[*labels]);
  }
  return text;
}

}  // namespace dmakit::nic
