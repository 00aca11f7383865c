// SPDX-License-Identifier: Apache-2.0
//
// One run of `dmakit forward`: opens what the options name, moves the frames, closes everything and
// returns what happened. The demo uses the same run with wires of its own. Called by one thread.
#ifndef DMAKIT_NIC_CMD_FORWARD_H_
#define DMAKIT_NIC_CMD_FORWARD_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nic/backend.h"
#include "nic/cmd/forward_loop.h"
#include "nic/cmd/options.h"
#include "nic/cmd/rig.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::cmd {

// What to do on the way; both may be empty.
struct RunHooks {
  std::function<bool()> interrupted;
  // About once a second: time since the start, frames forwarded, frames dropped so far.
  std::function<void(dma::Nanos, uint64_t, uint64_t)> progress;
};

struct RunLimits {
  std::optional<uint64_t> count{};
  std::optional<dma::Nanos> duration{};
  uint32_t burst = 32;
  uint32_t threads = 0;  // that serve queues; 0: the caller's alone, RigOptions::threaded is false
};

struct RunRecord {
  bool both = false;
  uint32_t mtu = 0;
  uint32_t queues = 0;
  uint32_t threads = 0;
  uint32_t ring = 0;
  dma::Policy policy = dma::Policy::kPersistent;
  RigReport rig;
  ForwardLoop::Result loop;
  WireStats source;            // the wire of the in port, also where frames go both ways
  WireStats sink;              // the wire of the out port
  absl::Status source_status;  // not OK: the input is bad, from some frame on
  absl::Status sink_status;    // not OK: frames are missing from the output
};

// An error means that no frame has moved: bad usage or input.
absl::StatusOr<RunRecord> RunForward(const BackendRegistry& registry, const ForwardOptions& options,
                                     std::string_view working_directory, const RunHooks& hooks);

// The same between two wires that are open, which are closed. `rig` is set up and not started. With
// RigOptions::both, frames come from both wires, and limits hold for all of them together.
absl::StatusOr<RunRecord> RunRig(Rig& rig, const RigOptions& options, const RunLimits& limits,
                                 Wire& source, Wire& sink, const RunHooks& hooks);

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_FORWARD_H_
