// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/port.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/address_space.h"
#include "dma/poll.h"
#include "nic/rx_pool.h"

namespace dmakit::nic::enic {

namespace {

DriverOptions DriverOptionsOf(const PortOptions& options) {
  return {.ring_size = options.ring_size,
          .mtu = options.mtu,
          .vlan_strip = options.vlan_strip,
          .interrupts = options.interrupts,
          .coalescing = options.coalescing,
          .stop_deadline = options.stop_deadline};
}

absl::StatusOr<RxPoolPlan> PlanOf(const PortOptions& options) {
  return PlanRxPool(options, options.ring_size - 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Port>> Port::Create(std::unique_ptr<dma::Device> device,
                                                   const dma::MmioRegion& bar0,
                                                   const PortOptions& options,
                                                   PortInterrupts interrupts) {
  const DriverOptions driver_options = DriverOptionsOf(options);
  absl::Status checked =
      DriverBase::CheckOptions(driver_options, options.rx_queues, options.tx_queues);
  if (!checked.ok()) return checked;
  std::unique_ptr<Port> port(new Port(std::move(device), options));
  absl::StatusOr<std::vector<FragSource>> sources = port->MakeSources(options);
  if (!sources.ok()) return sources.status();
  auto driver = Driver<>::Create(*port->device_, bar0, driver_options, *std::move(sources),
                                 std::vector<PageAddressing>(options.tx_queues));
  if (!driver.ok()) return driver.status();
  port->driver_ = *std::move(driver);
  if (options.interrupts) {
    absl::Status connected = port->ConnectInterrupts(std::move(interrupts));
    if (!connected.ok()) return connected;
  }
  return port;
}

absl::StatusOr<std::vector<FragSource>> Port::MakeSources(const PortOptions& options) {
  absl::StatusOr<RxPoolPlan> plan = PlanOf(options);
  if (!plan.ok()) return plan.status();
  std::vector<FragSource> sources;
  for (uint32_t i = 0; i < options.rx_queues; ++i) {
    if (i < pools_.size()) {
      // Old pages stay for as long as somebody has them; what nobody had went with RestPools.
      held_[i] = Bytes(pools_[i]->stats().bytes);
      absl::Status s =
          pools_[i]->SetLimits(plan->order, plan->min_order, plan->max_bytes + held_[i]);
      if (!s.ok()) return s;
    } else {
      auto pool = NewRxPool(device_->address_space(), options, *plan,
                            absl::StrCat(std::string(device_->name()), " rq ", i, " buffers"),
                            device_->waiter());
      if (!pool.ok()) return pool.status();
      pools_.push_back(*std::move(pool));
      held_.emplace_back(0);
    }
    // A frame longer than the MTU allows does not fit: the device reports it and drops it.
    auto source = FragSource::Create(*pools_[i], {.size = plan->buffer_size,
                                                  .headroom = options.headroom,
                                                  .capacity = options.mtu + kFrameOverhead});
    if (!source.ok()) return source.status();
    sources.push_back(*std::move(source));
  }
  return sources;
}

// --- Changes -------------------------------------------------------------------------------------

absl::Status Port::CheckChange(const PortOptions& options) const {
  const auto fixed = [&](bool same, const char* what) {
    return same ? absl::OkStatus()
                : absl::InvalidArgumentError(
                      absl::StrCat(driver_->name(), ": ", what,
                                   " cannot be changed while the port is open; open it anew"));
  };
  for (const absl::Status& s : {
           fixed(options.policy == options_.policy, "policy"),
           fixed(options.vlan_strip == options_.vlan_strip, "vlan_strip"),
           fixed(options.interrupts == options_.interrupts, "interrupts"),
           fixed(options.coalescing == options_.coalescing, "coalescing"),
           fixed(options.extra_pages == options_.extra_pages, "extra_pages"),
           fixed(options.stop_deadline == options_.stop_deadline, "stop_deadline"),
           driver_->CheckShape(DriverOptionsOf(options), options.rx_queues, options.tx_queues),
           PlanOf(options).status(),
       }) {
    if (!s.ok()) return s;
  }
  if (options.interrupts && options.rx_queues > interrupts_.notifiers.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        driver_->name(), ": receive queues ", options.rx_queues, ": there are notifiers for ",
        interrupts_.notifiers.size(), "; open the port with as many queues as it will have"));
  }
  return absl::OkStatus();
}

absl::Status Port::Apply(const PortOptions& options) {
  RestPools();
  absl::StatusOr<std::vector<FragSource>> sources = MakeSources(options);
  if (!sources.ok()) return sources.status();
  absl::Status s = driver_->Reshape(DriverOptionsOf(options), *std::move(sources),
                                    std::vector<PageAddressing>(options.tx_queues));
  if (!s.ok()) return s;
  options_ = options;
  return absl::OkStatus();
}

absl::Status Port::Reconfigure(const PortOptions& options) {
  if (absl::Status s = CheckChange(options); !s.ok()) return s;
  absl::Status changed = Change(options);
  WakeAll();
  return changed;
}

absl::Status Port::Change(const PortOptions& options) {
  const bool running = driver_->running();
  if (absl::Status s = driver_->Suspend(); !s.ok()) {
    RestPools();
    return absl::Status(s.code(), absl::StrCat(s.message(), "; the port is stopped"));
  }
  const PortOptions before = options_;
  absl::Status status = Apply(options);
  if (status.ok() && running) status = driver_->Resume();
  if (status.ok()) return status;
  absl::Status back = Apply(before);
  if (back.ok() && running) back = driver_->Resume();
  if (!back.ok()) RestPools();
  // Not as an argument that was refused: the port did pause.
  return absl::AbortedError(absl::StrCat(
      driver_->name(), ": not changed: ", status.message(), "; ",
      back.ok() ? "the port is as before" : absl::StrCat("the port is stopped: ", back.message())));
}

absl::Status Port::SetPageOrder(unsigned order) {
  PortOptions options = options_;
  options.page_order = order;
  absl::StatusOr<RxPoolPlan> plan = PlanOf(options);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<RxPoolPlan> before = PlanOf(options_);
  if (!before.ok()) return before.status();
  for (uint32_t i = 0; i < options.rx_queues; ++i) {
    // The queues are at work: pages nobody holds are still there, and must not add up.
    const Bytes held = std::min(Bytes(pools_[i]->stats().bytes), before->max_bytes + held_[i]);
    absl::Status s = pools_[i]->SetLimits(plan->order, plan->min_order, plan->max_bytes + held);
    if (!s.ok()) return s;
  }
  options_ = options;
  return absl::OkStatus();
}

absl::Status Port::ConnectInterrupts(PortInterrupts interrupts) {
  const size_t given = interrupts.notifiers.size();
  if (interrupts.source == nullptr || given < options_.rx_queues) {
    return absl::FailedPreconditionError(absl::StrCat(
        driver_->name(), ": interrupts: ", given, " notifiers for ", options_.rx_queues,
        " receive queues", interrupts.source == nullptr ? ", and no source" : "",
        "; connect one for each, or leave PortOptions::interrupts off"));
  }
  interrupts_ = std::move(interrupts);
  for (uint32_t i = 0; i < options_.rx_queues; ++i) {
    absl::Status s = interrupts_.source->Connect(i, interrupts_.notifiers[i].get());
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

Port::~Port() {
  if (driver_ != nullptr && driver_->running()) Stop().IgnoreError();
  for (uint32_t i = 0; i < interrupts_.notifiers.size(); ++i) {
    interrupts_.source->Connect(i, nullptr).IgnoreError();
  }
}

absl::Status Port::Start() {
  absl::Status status = driver_->Start();
  // After a failure nothing stays mapped. (It is no failure to be running already.)
  if (!status.ok() && !driver_->running()) RestPools();
  return status;
}

absl::Status Port::Stop() {
  dma::Waiter& waiter = device_->waiter();
  const dma::Nanos start = waiter.Now();
  const absl::Status stopped = driver_->Stop();
  for (size_t i = 0; i < driver_->rx_made(); ++i) driver_->rx(i).source().Rest();

  const dma::Nanos passed = std::max(waiter.Now() - start, dma::Nanos{0});  // time may go back
  const bool returned = dma::PollUntil(waiter, options_.stop_deadline - passed, [&] {
    uint64_t held = 0;
    for (size_t i = 0; i < pools_.size(); ++i) {
      pools_[i]->Fold();
      held += PagesHeld(i);
    }
    return held == 0;
  });
  RestPools();
  WakeAll();
  if (returned) return stopped;
  return absl::DeadlineExceededError(absl::StrCat(stopped.ok() ? "" : stopped.message(),
                                                  stopped.ok() ? "" : "; ", DescribeHeld()));
}

// A thread that sleeps waits for an interrupt of the rings that were.
void Port::WakeAll() {
  for (const std::unique_ptr<Notifier>& notifier : interrupts_.notifiers) notifier->Notify();
}

uint64_t Port::PagesHeld(size_t i) const {
  const uint64_t waiting = pools_[i]->stats().pages_waiting_flush;
  const uint64_t in_use = pools_[i]->pages_in_use();
  return in_use > waiting ? in_use - waiting : 0;
}

void Port::RestPools() {
  for (size_t i = 0; i < driver_->rx_made(); ++i) driver_->rx(i).source().Rest();
  for (const std::unique_ptr<frag::PagePool>& pool : pools_) pool->Fold();
  // Under the deferred policy their pages now wait for a flush. What fails is quarantined.
  dma::FlushQueue* const queue = device_->address_space().flush_queue();
  if (queue != nullptr && !pools_.empty()) queue->Flush().IgnoreError();
  for (const std::unique_ptr<frag::PagePool>& pool : pools_) pool->Trim();
}

std::string Port::DescribeHeld() const {
  std::string words;
  for (size_t i = 0; i < pools_.size(); ++i) {
    const uint64_t held = PagesHeld(i);
    if (held == 0) continue;
    absl::StrAppend(&words, words.empty() ? "" : "; ", pools_[i]->options().label, ": ", held,
                    " pages are still held by packets or by the device; release the packets before "
                    "the port is destroyed, or its pages go to quarantine");
  }
  return words;
}

PortStats Port::stats() const {
  PortStats stats;
  stats.name = driver_->name();
  stats.queues.resize(std::max(driver_->rx_made(), driver_->tx_made()));
  for (size_t i = 0; i < driver_->rx_made(); ++i) {
    stats.queues[i].rx = driver_->rx_stats(i);
    stats.queues[i].pool = pools_[i]->stats();
  }
  for (size_t i = 0; i < driver_->tx_made(); ++i) stats.queues[i].tx = driver_->tx_stats(i);
  return stats;
}

}  // namespace dmakit::nic::enic
