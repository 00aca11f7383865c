// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/open.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/wire/generator.h"
#include "nic/wire/null_wire.h"
#include "nic/wire/pcap_sink.h"
#include "nic/wire/pcap_source.h"
#include "nic/wire/spec.h"
#include "nic/wire/tap_wire.h"

namespace dmakit::nic {
namespace {

// "pcap:FILE" is kind "pcap" and argument "FILE".
struct Parts {
  std::string_view kind;
  std::string_view argument;
  bool colon = false;
};

Parts Split(std::string_view spec) {
  const size_t colon = spec.find(':');
  if (colon == std::string_view::npos) return {spec, {}, false};
  return {spec.substr(0, colon), spec.substr(colon + 1), true};
}

// A wire of `kind` cannot be both ways of a port.
absl::Status OneWay(std::string_view kind) {
  return absl::InvalidArgumentError(
      absl::StrCat("wire ", std::string(kind),
                   ": goes one way; where frames go both ways give tap:NAME or null"));
}

absl::Status CheckPcap(std::string_view file, WireRole role) {
  if (file.empty()) {
    return absl::InvalidArgumentError("wire \"pcap:\": a file must follow, as in pcap:in.pcap");
  }
  if (file.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("wire pcap: ", Quote(file), " must not contain a NUL character"));
  }
  if (file == "-") {
    return absl::InvalidArgumentError(
        "wire \"pcap:-\": is not supported; for a pipe give /dev/stdin, for a file of this name "
        "give ./-");
  }
  if (role == WireRole::kBoth) return OneWay("pcap");
  return absl::OkStatus();
}

absl::Status CheckGenerator(std::string_view keys, WireRole role) {
  if (role == WireRole::kSink) {
    return absl::InvalidArgumentError(
        "wire gen: makes frames and cannot take any; for the sending port use pcap:FILE or null");
  }
  if (role == WireRole::kBoth) return OneWay("gen");
  return Generator::Parse(keys).status();
}

}  // namespace

absl::Status CheckWire(std::string_view spec, WireRole role) {
  const Parts parts = Split(spec);
  if (parts.kind == "pcap" && parts.colon) return CheckPcap(parts.argument, role);
  if (parts.kind == "gen") return CheckGenerator(parts.argument, role);
  if (parts.kind == "tap" && parts.colon) return TapWire::CheckName(parts.argument);
  if (spec == "null") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("wire ", Quote(spec), ": must be one of ", std::string(WireHelp())));
}

absl::StatusOr<std::unique_ptr<Wire>> OpenWire(std::string_view spec, WireRole role,
                                               std::string_view working_directory) {
  if (absl::Status s = CheckWire(spec, role); !s.ok()) return s;
  const Parts parts = Split(spec);
  if (parts.kind == "gen") {
    auto options = Generator::Parse(parts.argument);
    if (!options.ok()) return options.status();
    return Generator::Create(*options);
  }
  if (parts.kind == "tap") return TapWire::Open(parts.argument);
  const std::optional<std::string> file = WireFile(spec, working_directory);
  if (!file.has_value()) return std::make_unique<NullWire>();
  if (role == WireRole::kSource) return PcapSource::Open(*file);
  return PcapSink::Open(*file);
}

std::optional<std::string> WireFile(std::string_view spec, std::string_view working_directory) {
  const Parts parts = Split(spec);
  if (parts.kind != "pcap") return std::nullopt;
  return ResolvePath(parts.argument, working_directory);
}

std::string ResolvePath(std::string_view path, std::string_view working_directory) {
  // An absolute path replaces what it is appended to.
  return (std::filesystem::path(working_directory) / std::filesystem::path(path)).string();
}

std::string_view WireHelp() {
  return "pcap:FILE, gen:[size=N[-M]][,count=N][,flows=N][,pattern=counter|zeros|ones|random], "
         "tap:NAME, null";
}

}  // namespace dmakit::nic
