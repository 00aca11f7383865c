// SPDX-License-Identifier: Apache-2.0
//
// `dmakit devices`: which NICs the machine has, what stands between each and a driver of ours, and
// what to do about it first. Looks only; changes nothing. One thread.
#ifndef DMAKIT_NIC_CMD_DEVICES_H_
#define DMAKIT_NIC_CMD_DEVICES_H_

#include <optional>
#include <string>
#include <vector>

#include "dma/host/pci.h"
#include "nic/backend.h"
#include "nic/cmd/command.h"

namespace dmakit::nic::cmd {

// What stood on the command line.
struct DevicesText {
  std::optional<std::string> sysfs{};  // default /sys
  std::optional<std::string> proc{};   // default /proc
  bool json = false;
};

int RunDevices(const DevicesText& text, const BackendRegistry& registry, const Environment& env);

// What to do before userspace can have a NIC: a command, or something that no command does.
struct Step {
  bool command = false;
  std::string text{};
};

struct Advice {
  std::string backend{};  // of ours that knows this NIC; empty: nothing yet
  bool real = false;      // it drives the NIC itself, not only a model of it
  std::vector<std::string> warnings{};
  std::vector<Step> first{};  // in this order; empty: it is ready
};

Advice Advise(const dma::host::PciDevice& nic, const dma::host::PciInventory& all,
              const BackendRegistry& registry);

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_DEVICES_H_
