// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/rig.h"

#include <cctype>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/poll.h"
#include "dma/quarantine.h"

namespace dmakit::nic::cmd {
namespace {

constexpr size_t kWords = 5;  // faults and violations told in words
constexpr char kSpaceName[] = "forward";

// For what has been handed to the ports when a run ends.
constexpr dma::Nanos kSendRestTime{1'000'000'000};
// Silicon's answers take real time, and so do those of a model's thread, which may be kept waiting
// for the processor.
constexpr dma::Nanos kRealTimeStopDeadline{10'000'000'000};

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
  Nic::Faults collected = nic.CollectFaults();
  report.fault_count = collected.count;
  report.faults = std::move(collected.words);
  if (report.faults.size() > kWords) report.faults.resize(kWords);
  if (dma::SoftwareIommu* const iommu = nic.iommu()) {
    report.walks = iommu->walk_stats();
    report.fault_count = report.walks->faults;
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
  both_ = options.both;
  threaded_ = options.threaded;
  queues_ = options.queues;
  in_real_ = options.in.backend->real();
  out_real_ = options.out.backend->real();

  const std::string in_name = InstanceName(options.in.backend->name(), 0);
  const std::string out_name = InstanceName(options.out.backend->name(), 1);
  auto in_nic =
      options.in.backend->Create({.name = in_name, .keys = options.in.keys, .threaded = threaded_});
  if (!in_nic.ok()) return Blame("--in", in_nic.status());
  in_nic_ = *std::move(in_nic);
  auto out_nic = options.out.backend->Create(
      {.name = out_name, .keys = options.out.keys, .threaded = threaded_});
  if (!out_nic.ok()) return Blame("--out", out_nic.status());
  out_nic_ = *std::move(out_nic);

  if (absl::Status s = MakeSpace(options); !s.ok()) return s;
  return OpenPorts(options);
}

absl::Status Rig::OpenPorts(const RigOptions& options) {
  PortOptions port;
  port.ring_size = options.ring;
  port.mtu = options.mtu;
  port.page_order = options.page_order;
  port.policy = options.policy;
  if (threaded_ || in_real_ || out_real_) port.stop_deadline = kRealTimeStopDeadline;
  if (options.stop_deadline) port.stop_deadline = *options.stop_deadline;
  port.rx_queues = options.queues;
  port.tx_queues = both_ ? options.queues : 0;
  auto in_port = in_nic_->Open(*space_, port);
  if (!in_port.ok()) return Blame("--in", in_port.status());
  in_port_ = *std::move(in_port);
  std::swap(port.rx_queues, port.tx_queues);
  auto out_port = out_nic_->Open(*space_, port);
  if (!out_port.ok()) return Blame("--out", out_port.status());
  out_port_ = *std::move(out_port);

  // One thread serves queue q of both ports: what it transmits goes back to a pool it owns, without
  // atomics.
  for (uint32_t q = 0; q < queues_; ++q) {
    out_port_->SetTxOwner(q, &in_port_->rx_pool(q));
    if (both_) in_port_->SetTxOwner(q, &out_port_->rx_pool(q));
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

void Rig::Unplug() {
  models_.clear();
  for (Nic* const nic : {in_nic_.get(), out_nic_.get()}) {
    if (Model* const model = nic->model()) model->Plug(nullptr);
  }
}

absl::Status Rig::Start() {
  absl::Status status = StartModels();
  if (status.ok()) status = StartPorts();
  if (status.ok()) return status;
  for (Port* const port : {out_port_.get(), in_port_.get()}) port->Stop().IgnoreError();
  Unplug();
  return status;
}

absl::Status Rig::StartModels() {
  if (!threaded_) return absl::OkStatus();
  for (Nic* const nic : {in_nic_.get(), out_nic_.get()}) {
    if (nic->model() == nullptr) continue;
    auto thread = ModelThread::Start(*nic->model(), threads_);
    if (!thread.ok()) return thread.status();
    models_.push_back(*std::move(thread));
  }
  return absl::OkStatus();
}

absl::Status Rig::StartPorts() {
  if (absl::Status s = out_port_->Start(); !s.ok()) return Blame("--out", s);
  if (absl::Status s = in_port_->Start(); !s.ok()) return Blame("--in", s);
  return absl::OkStatus();
}

ForwardLoop::Side Rig::in() {
  return {in_port_.get(), threaded_ ? nullptr : in_nic_->model(), in_real_};
}
ForwardLoop::Side Rig::out() {
  return {out_port_.get(), threaded_ ? nullptr : out_nic_->model(), out_real_};
}

// Where each port holds packets of the other's pools, the first to stop would wait in vain for the
// second: both send first. A device that sends nothing any more ends this early, or by the clock.
void Rig::SendRest() {
  const bool sent = dma::PollUntil(dma::SystemWaiter(), kSendRestTime, [this] {
    bool worked = threaded_ || in_real_ || out_real_;
    for (const ForwardLoop::Side& side : {in(), out()}) {
      if (side.model != nullptr) worked |= side.model->Step();
    }
    uint64_t in_flight = 0;
    for (Port* const port : {in_port_.get(), out_port_.get()}) {
      for (uint32_t q = 0; q < queues_; ++q) worked |= port->Reap(q) > 0;
      for (const QueueStats& queue : port->stats().queues) in_flight += queue.tx.in_flight;
    }
    return in_flight == 0 || !worked;
  });
  (void)sent;  // what is left shows in the statistics
}

void Rig::StopPorts(StopOrder order, RigReport& report) {
  if (both_) SendRest();
  Port* const first = order == StopOrder::kOutFirst ? out_port_.get() : in_port_.get();
  Port* const second = order == StopOrder::kOutFirst ? in_port_.get() : out_port_.get();
  absl::Status first_stopped = first->Stop();
  const absl::Status second_stopped = second->Stop();
  // It waited for packets that the second has let go of by now. What it could not send has been
  // counted, what its device would not let go of is in quarantine.
  if (both_ && !first_stopped.ok()) first_stopped = first->Stop();
  for (const absl::Status& stopped : {first_stopped, second_stopped}) {
    if (!stopped.ok()) report.problems.emplace_back(stopped.message());
  }
}

RigReport Rig::Finish(StopOrder order) {
  RigReport report;
  StopPorts(order, report);
  PortStats in = in_port_->stats();
  PortStats out = out_port_->stats();
  // While the audit listens: a device that is gone is not told of any more.
  for (Nic* const nic : {in_nic_.get(), out_nic_.get()}) nic->CollectFaults();
  report.space = DescribeSpace();
  // The one whose pools end first is not to be returned to any more.
  for (uint32_t q = 0; both_ && q < queues_; ++q) in_port_->SetTxOwner(q, nullptr);
  out_port_.reset();
  in_port_.reset();
  models_.clear();
  CheckLeftovers(report);
  report.shared_domain = &in_nic_->domain() == &out_nic_->domain();
  report.in = Report(*in_nic_, std::move(in));
  report.out = Report(*out_nic_, std::move(out));
  report.policy_fallback = space_->stats().fallback;
  space_.reset();
  Summarize(report);
  for (std::string& line : leaks_) report.problems.push_back(std::move(line));
  Unplug();
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
