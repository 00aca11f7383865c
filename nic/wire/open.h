// SPDX-License-Identifier: Apache-2.0
//
// Wires by name. A new kind of wire is added here and nowhere else.
#ifndef DMAKIT_NIC_WIRE_OPEN_H_
#define DMAKIT_NIC_WIRE_OPEN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nic/wire/wire.h"

namespace dmakit::nic {

// What the wire is for: frames to the NIC, frames from it, or both.
enum class WireRole : uint8_t { kSource, kSink, kBoth };

// Opens the wire that `spec` names: "pcap:FILE", "gen:size=64,count=1000000,flows=8", "tap:tap0",
// "null".
// Errors name the part of the spec, the value, the rule and the remedy. `working_directory` is what
// relative paths are relative to (empty: the process's own). Opening a capture as a sink empties
// the file: compare WireFile() of both ends first.
absl::StatusOr<std::unique_ptr<Wire>> OpenWire(std::string_view spec, WireRole role,
                                               std::string_view working_directory);

// The same checks as far as they go without touching a file: kind, keys and role.
absl::Status CheckWire(std::string_view spec, WireRole role);

// The file that `spec` reads or writes, relative paths resolved; nullopt if it has none.
std::optional<std::string> WireFile(std::string_view spec, std::string_view working_directory);

// `path` as seen from `working_directory`.
std::string ResolvePath(std::string_view path, std::string_view working_directory);

// For help texts: the kinds of wire and their syntax.
std::string_view WireHelp();

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_WIRE_OPEN_H_
