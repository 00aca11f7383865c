// SPDX-License-Identifier: Apache-2.0
//
// PORT on the command line: BACKEND[,key=value...][,wire=WIRE]. Syntax only: whether the backend
// and its keys exist, and whether it needs a wire, is the registry's and the backend's to say. Pure
// functions, any thread.
#ifndef DMAKIT_NIC_CMD_PORT_SPEC_H_
#define DMAKIT_NIC_CMD_PORT_SPEC_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace dmakit::nic::cmd {

struct PortSpec {
  std::string backend;
  std::map<std::string, std::string> keys;
  // Everything behind "wire=", commas included; nullopt: there is no wire=.
  std::optional<std::string> wire{};
};

// `option` ("--in") begins every error.
absl::StatusOr<PortSpec> ParsePort(std::string_view option, std::string_view text);

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_PORT_SPEC_H_
