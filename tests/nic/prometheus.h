// SPDX-License-Identifier: Apache-2.0
//
// A reader of the Prometheus text exposition format 0.0.4 that forgives nothing: what it takes, any
// other reader takes. Header only; single-threaded test code.
#ifndef DMAKIT_TESTS_NIC_PROMETHEUS_H_
#define DMAKIT_TESTS_NIC_PROMETHEUS_H_

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace dmakit::nic::testing {

class PrometheusReader {
 public:
  using Labels = std::map<std::string, std::string>;

  // Empty: all of `text` is right. Otherwise the first line that is not, and why.
  std::string Read(std::string_view text) {
    if (text.empty() || text.back() != '\n') return "the last line has no end";
    while (!text.empty()) {
      const size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end);
      const std::string problem = line.starts_with("# ") ? Comment(line) : Sample(line);
      if (!problem.empty()) return std::string(line) + ": " + problem;
      text.remove_prefix(end + 1);
    }
    return help_.size() == type_.size() ? "" : "a HELP without a TYPE";
  }

  // By name and labels.
  const std::map<std::pair<std::string, Labels>, double>& samples() const { return samples_; }
  const std::map<std::string, std::string>& types() const { return type_; }

 private:
  static std::string Name(std::string_view& text) {
    size_t n = 0;
    while (n < text.size() &&
           (isalpha(static_cast<unsigned char>(text[n])) != 0 || text[n] == '_' ||
            (n > 0 && isdigit(static_cast<unsigned char>(text[n])) != 0))) {
      ++n;
    }
    const std::string name(text.substr(0, n));
    text.remove_prefix(n);
    return name;
  }
  static bool Take(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
  }

  // HELP, then TYPE, then every sample of the name, then the next name.
  std::string Comment(std::string_view line) {
    const bool help = Take(line, "# HELP ");
    if (!help && !Take(line, "# TYPE ")) return "neither HELP nor TYPE";
    const std::string name = Name(line);
    if (name.empty() || !Take(line, " ") || line.empty()) return "no name and text";
    if (help) {
      if (help_.size() != type_.size()) return "a TYPE was missing before";
      current_ = name;
      return help_.insert(name).second ? "" : "a second HELP of this name";
    }
    if (name != current_ || type_.contains(name)) return "TYPE does not follow its HELP";
    if (line != "counter" && line != "gauge") return "not a type of ours";
    if ((line == "counter") != name.ends_with("_total")) return "_total is for counters";
    type_[name] = std::string(line);
    return "";
  }

  std::string Sample(std::string_view line) {
    const std::string name = Name(line);
    if (name.empty() || name != current_ || !type_.contains(name)) return "outside of its block";
    Labels labels;
    if (Take(line, "{")) {
      do {
        const std::string label = Name(line);
        std::string value;
        if (label.empty() || !Take(line, "=\"") || !Value(line, value)) return "a bad label";
        if (!labels.emplace(label, value).second) return "a label twice";
      } while (Take(line, ","));
      if (!Take(line, "}")) return "labels without an end";
    }
    if (!Take(line, " ")) return "no blank before the value";
    const std::string number(line);
    char* stop = nullptr;
    const double value = std::strtod(number.c_str(), &stop);
    if (number.empty() || number[0] == ' ' || *stop != '\0') return "no number";
    if (type_[name] == "counter" && !(value >= 0)) return "a counter below 0";
    return samples_.emplace(std::pair(name, labels), value).second ? "" : "a series twice";
  }

  // Up to and with the quotation mark at its end.
  static bool Value(std::string_view& text, std::string& value) {
    while (!text.empty()) {
      const char c = text[0];
      text.remove_prefix(1);
      if (c == '"') return true;
      if (c != '\\') {
        value += c;
        continue;
      }
      if (text.empty()) return false;
      const char escaped = text[0];
      text.remove_prefix(1);
      if (escaped != '\\' && escaped != '"' && escaped != 'n') return false;
      value += escaped == 'n' ? '\n' : escaped;
    }
    return false;
  }

  std::string current_;
  std::set<std::string> help_;
  std::map<std::string, std::string> type_;
  std::map<std::pair<std::string, Labels>, double> samples_;
};

}  // namespace dmakit::nic::testing

#endif  // DMAKIT_TESTS_NIC_PROMETHEUS_H_
