// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/port_spec.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nic/wire/spec.h"

namespace dmakit::nic::cmd {
namespace {

constexpr std::string_view kWire = "wire=";

// Where "wire=" begins as a key of `text`, or npos.
size_t FindWire(std::string_view text) {
  for (size_t at = 0;; ++at) {
    if (text.substr(at, kWire.size()) == kWire) return at;
    at = text.find(',', at);
    if (at == std::string_view::npos) return at;
  }
}

}  // namespace

absl::StatusOr<PortSpec> ParsePort(std::string_view option, std::string_view text) {
  const auto error = [&](std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(option), ": ", Quote(text), " ", std::string(what),
        "; a port is BACKEND[,key=value...],wire=WIRE, as in enic,wire=pcap:in.pcap; a "
        "real NIC has no wire"));
  };
  const size_t wire = FindWire(text);
  if (wire == 0) return error("has no backend, which must come first");

  PortSpec spec;
  std::string_view head = text;
  if (wire != std::string_view::npos) {
    spec.wire = text.substr(wire + kWire.size());
    head = text.substr(0, wire - 1);  // without the comma
  }
  const size_t comma = head.find(',');
  spec.backend = head.substr(0, comma);
  if (spec.backend.empty() || spec.backend.find('=') != std::string::npos) {
    return error("has no backend, which must come first");
  }
  if (comma == std::string_view::npos) return spec;
  const std::string_view list = head.substr(comma + 1);
  if (list.empty()) return error("has an empty key");
  auto keys = ParseKeys(absl::StrCat(std::string(option), ": backend ", spec.backend), list);
  if (!keys.ok()) return keys.status();
  spec.keys = *std::move(keys);
  return spec;
}

}  // namespace dmakit::nic::cmd
