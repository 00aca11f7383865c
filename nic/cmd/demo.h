// SPDX-License-Identifier: Apache-2.0
//
// `dmakit demo`: the bundled capture through every registered backend, under every policy, compared
// byte for byte on the other side. One thread.
#ifndef DMAKIT_NIC_CMD_DEMO_H_
#define DMAKIT_NIC_CMD_DEMO_H_

#include <cstddef>
#include <span>

#include "nic/backend.h"
#include "nic/cmd/command.h"

namespace dmakit::nic::cmd {

// demo.pcap, which is part of the program; docs/demo-capture.md tells what is in it.
std::span<const std::byte> DemoCapture();

// Prints the table and returns the exit code.
int RunDemo(const BackendRegistry& registry, const Environment& environment);

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_DEMO_H_
