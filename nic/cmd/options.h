// SPDX-License-Identifier: Apache-2.0
//
// The options of `dmakit forward`, from text to checked values. What only the backend can judge
// (which ring sizes it has, how many queues) is left to it. Pure functions, any thread.
#ifndef DMAKIT_NIC_CMD_OPTIONS_H_
#define DMAKIT_NIC_CMD_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "dma/types.h"
#include "nic/cmd/port_spec.h"
#include "nic/cmd/rig.h"

namespace dmakit::nic::cmd {

inline constexpr uint32_t kMaxBurst = 512;
inline constexpr uint32_t kMaxQueues = 64;
inline constexpr uint64_t kMaxSeconds = 1'000'000'000;

enum class StatsFormat : uint8_t { kJson, kPrometheus, kText };
std::string_view Name(StatsFormat format);

// What stood on the command line; nullopt: the option was not given.
struct ForwardText {
  std::optional<std::string> in, out, count, seconds, burst, queues, threads, ring, mtu, page_order,
      policy, audit, stats, stats_format;
  bool both = false;
};

struct ForwardOptions {
  PortSpec in;
  PortSpec out;
  std::optional<uint64_t> count;       // frames
  std::optional<dma::Nanos> duration;  // --seconds
  uint32_t burst = 32;
  bool both = false;  // frames go from `out` to `in` as well
  uint32_t queues = 1;
  uint32_t threads = 0;  // 0: everything in one, device models too
  uint32_t ring = 512;
  uint32_t mtu = 9000;
  std::optional<unsigned> page_order;
  dma::Policy policy = dma::Policy::kPersistent;
  AuditMode audit = kDefaultAudit;
  std::optional<std::string> stats_file;
  StatsFormat stats_format = StatsFormat::kJson;
};

// Every error names option, value, rule and remedy, and touches no file.
absl::StatusOr<ForwardOptions> ParseForward(const ForwardText& text);

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_OPTIONS_H_
