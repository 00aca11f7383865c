// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/rig.h"

#include <cctype>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/quarantine.h"

namespace dmakit::nic::cmd {
namespace {

constexpr size_t kWords = 5;  // faults and violations told in words
constexpr char kSpaceName[] = "forward";

// "enic0", "mlx5_0".
std::string InstanceName(std::string_view backend, int index) {
  const bool digit = std::isdigit(static_cast<unsigned char>(backend.back())) != 0;
  return absl::StrCat(std::string(backend), digit ? "_" : "", index);
}

absl::Status Blame(std::string_view who, const absl::Status& status) {
  return {status.code(), absl::StrCat(std::string(who), ": ", status.message())};
}

std::string Describe(const dma::SoftwareIommu::Fault& fault) {
  return absl::StrCat(fault.device, " ", std::string(dma::Name(fault.access)), " at 0x",
                      absl::Hex(fault.iova.value()), ": ", std::string(dma::Name(fault.reason)));
}

NicReport Report(Nic& nic, PortStats port) {
  NicReport report;
  report.port = std::move(port);
  report.domain = nic.domain().stats();
  if (Model* const model = nic.model()) {
    report.violation_count = model->violation_count();
    report.violations = model->violations();
    if (report.violations.size() > kWords) report.violations.resize(kWords);
  }
  if (dma::SoftwareIommu* const iommu = nic.iommu()) {
    report.walks = iommu->walk_stats();
    for (const auto& fault : iommu->faults()) {
      if (report.faults.size() == kWords) break;
      report.faults.push_back(Describe(fault));
    }
  }
  return report;
}

}  // namespace

std::string_view Name(AuditMode mode) {
  switch (mode) {
    case AuditMode::kOff:
      return "off";
    case AuditMode::kOn:
      return "on";
    case AuditMode::kChecked:
      return "checked";
  }
  return "?";
}

absl::StatusOr<std::unique_ptr<Rig>> Rig::Create(const RigOptions& options) {
  std::unique_ptr<Rig> rig(new Rig);
  if (absl::Status s = rig->SetUp(options); !s.ok()) return s;
  return rig;
}

Rig::~Rig() = default;

absl::Status Rig::SetUp(const RigOptions& options) {
  auto memory = dma::host::HostMemory::Create({});
  if (!memory.ok()) return memory.status();
  memory_ = *std::move(memory);

  const std::string in_name = InstanceName(options.in.backend->name(), 0);
  const std::string out_name = InstanceName(options.out.backend->name(), 1);
  auto in_nic = options.in.backend->Create({.name = in_name, .keys = options.in.keys});
  if (!in_nic.ok()) return Blame("--in", in_nic.status());
  in_nic_ = *std::move(in_nic);
  auto out_nic = options.out.backend->Create({.name = out_name, .keys = options.out.keys});
  if (!out_nic.ok()) return Blame("--out", out_nic.status());
  out_nic_ = *std::move(out_nic);

  if (absl::Status s = MakeSpace(options); !s.ok()) return s;

  PortOptions port;
  port.ring_size = options.ring;
  port.mtu = options.mtu;
  port.page_order = options.page_order;
  port.policy = options.policy;
  port.rx_queues = options.queues;
  port.tx_queues = 0;
  auto in_port = in_nic_->Open(*space_, port);
  if (!in_port.ok()) return Blame("--in", in_port.status());
  in_port_ = *std::move(in_port);
  std::swap(port.rx_queues, port.tx_queues);
  auto out_port = out_nic_->Open(*space_, port);
  if (!out_port.ok()) return Blame("--out", out_port.status());
  out_port_ = *std::move(out_port);

  // One thread does both: what it transmits goes back to the pool it owns, without atomics.
  for (uint32_t q = 0; q < options.queues; ++q) {
    out_port_->SetTxOwner(q, &in_port_->rx_pool(q));
  }
  return absl::OkStatus();
}

absl::Status Rig::MakeSpace(const RigOptions& options) {
  dma::AddressSpace::Options space_options;
  space_options.name = kSpaceName;
  space_options.memory = memory_.get();
  space_options.clock = &clock_;
  space_options.threads = &threads_;
  space_options.fence = &fence_;
  space_options.policy = options.policy;
  space_options.report = [this](std::string_view line) { leaks_.emplace_back(line); };
  audit_mode_ = options.audit;
  if (audit_mode_ != AuditMode::kOff) {
    dma::Audit::Options audit;
    audit.checked = audit_mode_ == AuditMode::kChecked;
    if (audit.checked) {
      guard_ = std::make_unique<dma::host::FaultGuard>();
      audit.guard = guard_.get();
    }
    audit_ = std::make_unique<dma::Audit>(std::move(audit));
    space_options.on_attach = [this](dma::Device& device) { return audit_->Attach(device); };
  }
  auto space = dma::AddressSpace::Create(std::move(space_options));
  if (!space.ok()) return space.status();
  space_ = *std::move(space);
  return absl::OkStatus();
}

void Rig::Plug(Wire& source, Wire& sink) {
  if (Model* const model = in_nic_->model()) model->Plug(&source);
  if (Model* const model = out_nic_->model()) model->Plug(&sink);
}

absl::Status Rig::Start() {
  if (absl::Status s = out_port_->Start(); !s.ok()) return Blame("--out", s);
  if (absl::Status s = in_port_->Start(); !s.ok()) return Blame("--in", s);
  return absl::OkStatus();
}

ForwardLoop::Side Rig::in() { return {in_port_.get(), in_nic_->model()}; }
ForwardLoop::Side Rig::out() { return {out_port_.get(), out_nic_->model()}; }

RigReport Rig::Finish() {
  RigReport report;
  // The out port holds packets of the in port's pools: it lets go of them first.
  for (Port* const port : {out_port_.get(), in_port_.get()}) {
    const absl::Status stopped = port->Stop();
    if (!stopped.ok()) report.problems.emplace_back(stopped.message());
  }
  PortStats in = in_port_->stats();
  PortStats out = out_port_->stats();
  report.space = DescribeSpace();
  out_port_.reset();
  in_port_.reset();
  CheckLeftovers(report);
  report.shared_domain = &in_nic_->domain() == &out_nic_->domain();
  report.in = Report(*in_nic_, std::move(in));
  report.out = Report(*out_nic_, std::move(out));
  report.policy_fallback = space_->stats().fallback;
  space_.reset();
  Summarize(report);
  for (std::string& line : leaks_) report.problems.push_back(std::move(line));
  for (Nic* const nic : {in_nic_.get(), out_nic_.get()}) {
    if (Model* const model = nic->model()) model->Plug(nullptr);
  }
  return report;
}

SpaceReport Rig::DescribeSpace() const {
  SpaceReport report;
  report.name = kSpaceName;
  report.stats = space_->stats();
  if (dma::FlushQueue* const queue = space_->flush_queue()) report.flush = queue->stats();
  report.devices = space_->device_stats();
  return report;
}

void Rig::Summarize(RigReport& report) const {
  report.audit = audit_mode_;
  if (audit_ == nullptr) return;
  AuditSummary& summary = report.audit_summary;
  summary.errors = audit_->errors();
  summary.warnings = audit_->warnings();
  summary.json = audit_->Json();
  for (int code = 1; code <= dma::kAuditCodes; ++code) {
    const auto audited = static_cast<dma::AuditCode>(code);
    summary.totals.emplace_back(dma::Name(audited), audit_->total(audited));
  }
  for (const dma::AuditReport& r : audit_->reports()) {
    if (summary.reports.size() == kWords) break;
    summary.reports.push_back(dma::ToText(r));
    if (dma::IsWarning(r.code)) continue;
    summary.found.push_back(
        absl::StrCat(std::string(dma::Name(r.code)), " of '", r.owner, "' on ", r.device));
  }
}

void Rig::CheckLeftovers(RigReport& report) {
  dma::Quarantine& quarantine = space_->quarantine();
  if (quarantine.count() == 0) return;
  report.problems.push_back(absl::StrCat(quarantine.count(), " ranges of ",
                                         quarantine.bytes().value(), " bytes are in quarantine"));
  for (std::string& line : quarantine.Describe()) {
    if (report.problems.size() > kWords) break;
    report.problems.push_back(std::move(line));
  }
}

}  // namespace dmakit::nic::cmd
