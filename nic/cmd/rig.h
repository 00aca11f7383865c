// SPDX-License-Identifier: Apache-2.0
//
// Rig: two NICs on one address space, ready to forward from one to the other, or both ways, and
// everything under them (memory, fence, threads, clock). Software NICs are stepped by the caller,
// or, for a run with threads, have one each from Start to Finish. Used by one thread.
//
// Life: Create opens the ports; plug the wires; Start; (a ForwardLoop runs and is destroyed);
// Finish, which stops and closes the ports and tells what they did and what is left of them.
#ifndef DMAKIT_NIC_CMD_RIG_H_
#define DMAKIT_NIC_CMD_RIG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/address_space.h"
#include "dma/audit.h"
#include "dma/device.h"
#include "dma/domain.h"
#include "dma/flush_queue.h"
#include "dma/host/clock.h"
#include "dma/host/fence.h"
#include "dma/host/host_memory.h"
#include "dma/host/page_guard.h"
#include "dma/software_iommu.h"
#include "nic/backend.h"
#include "nic/cmd/forward_loop.h"
#include "nic/port.h"
#include "nic/stats.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::cmd {

enum class AuditMode : uint8_t {
  kOff,
  kOn,       // books are kept and compared
  kChecked,  // contents too: copies, red zones, and the CPU's view of posted pages taken away
};
std::string_view Name(AuditMode mode);

#if defined(DMAKIT_CHECKED)
inline constexpr AuditMode kDefaultAudit = AuditMode::kChecked;
#else
inline constexpr AuditMode kDefaultAudit = AuditMode::kOff;
#endif

struct RigOptions {
  struct End {
    Backend* backend = nullptr;
    std::map<std::string, std::string> keys;
  };
  End in;
  End out;
  bool both = false;      // each port receives and transmits
  bool threaded = false;  // software NICs have threads of their own
  uint32_t queues = 1;
  uint32_t ring = 512;
  uint32_t mtu = 9000;
  std::optional<unsigned> page_order;
  dma::Policy policy = dma::Policy::kPersistent;
  AuditMode audit = kDefaultAudit;
  // How long each port may take to stop. Default: 1 s, or 10 s where devices answer in real time.
  std::optional<dma::Nanos> stop_deadline{};
};

// What the audit of both NICs found.
struct AuditSummary {
  uint64_t errors = 0;
  uint64_t warnings = 0;
  std::vector<std::string> found;    // "reused-while-posted of 'enic0 rq 0'", the first ones
  std::vector<std::string> reports;  // in full, several lines each, the first ones
  std::string json;                  // dma::Audit::Json()
  std::vector<std::pair<std::string, uint64_t>> totals{};  // of each class, also those with none
};

// What one NIC did, from beginning to end.
struct NicReport {
  PortStats port;
  dma::DomainStats domain;  // with nothing of the port left: live_mappings are leaks
  std::optional<dma::SoftwareIommu::WalkStats> walks;  // software NICs only
  uint64_t fault_count = 0;
  std::vector<std::string> faults;  // in words, the newest
  uint64_t violation_count = 0;
  std::vector<std::string> violations;  // in words, the first
};

// The address space, when the ports had stopped and before they were closed.
struct SpaceReport {
  std::string name{};
  dma::AddressSpace::Stats stats{};
  std::optional<dma::FlushQueue::Stats> flush{};  // deferred policy only
  std::vector<std::pair<std::string, dma::DeviceStats>> devices{};
};

struct RigReport {
  NicReport in;
  NicReport out;
  SpaceReport space;
  bool shared_domain = false;         // both NICs are behind one domain: its counts are in both
  std::vector<std::string> problems;  // stop deadlines, quarantine, leaked mappings; in words
  std::string policy_fallback;        // not empty: the policy asked for could not be set up; why
  AuditMode audit = AuditMode::kOff;
  AuditSummary audit_summary;
};

class Rig {
 public:
  // Errors say which port and name value and rule.
  static absl::StatusOr<std::unique_ptr<Rig>> Create(const RigOptions& options);
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  // The wires stay the caller's and live until Finish, or until Start fails.
  void Plug(Wire& source, Wire& sink);
  absl::Status Start();

  // For a ForwardLoop: models that run by themselves are not its to step.
  ForwardLoop::Side in();
  ForwardLoop::Side out();
  dma::host::Clock& clock() { return clock_; }
  dma::host::ThreadStarter& threads() { return threads_; }

  // Which port is stopped first. One that only transmits packets of the other must be; where both
  // hold packets of each other, either may be: what both were given to send has left before.
  enum class StopOrder : uint8_t { kOutFirst, kInFirst };

  // Once. Nothing of the ports is left afterwards.
  RigReport Finish(StopOrder order = StopOrder::kOutFirst);

 private:
  Rig() = default;
  absl::Status SetUp(const RigOptions& options);
  absl::Status MakeSpace(const RigOptions& options);
  absl::Status OpenPorts(const RigOptions& options);
  absl::Status StartModels();
  absl::Status StartPorts();
  void Unplug();
  void SendRest();
  void StopPorts(StopOrder order, RigReport& report);
  SpaceReport DescribeSpace() const;
  void CheckLeftovers(RigReport& report);
  void Summarize(RigReport& report) const;

  dma::host::SystemClock clock_;
  dma::host::SystemThreads threads_;
  dma::host::MembarrierFence fence_;
  AuditMode audit_mode_ = AuditMode::kOff;
  bool both_ = false;
  bool threaded_ = false;
  bool in_real_ = false;
  bool out_real_ = false;
  uint32_t queues_ = 1;
  std::vector<std::string> leaks_;  // filled by the address space when it dies
  std::unique_ptr<dma::host::HostMemory> memory_;
  std::unique_ptr<Nic> in_nic_;
  std::unique_ptr<Nic> out_nic_;
  std::vector<ModelThread> models_;  // outlive the ports, whose stopping needs them
  std::unique_ptr<dma::host::FaultGuard> guard_;
  std::unique_ptr<dma::Audit> audit_;  // outlives the devices, ends before their domains
  std::unique_ptr<dma::AddressSpace> space_;
  std::unique_ptr<Port> in_port_;
  std::unique_ptr<Port> out_port_;  // may hold packets of in_port_: dies first
};

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_RIG_H_
