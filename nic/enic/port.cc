// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/port.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/address_space.h"
#include "dma/poll.h"
#include "nic/rx_pool.h"

namespace dmakit::nic::enic {

absl::StatusOr<std::unique_ptr<Port>> Port::Create(std::unique_ptr<dma::Device> device,
                                                   const dma::MmioRegion& bar0,
                                                   const PortOptions& options,
                                                   PortInterrupts interrupts) {
  const DriverOptions driver_options{.ring_size = options.ring_size,
                                     .mtu = options.mtu,
                                     .vlan_strip = options.vlan_strip,
                                     .interrupts = options.interrupts,
                                     .coalescing = options.coalescing,
                                     .stop_deadline = options.stop_deadline};
  absl::Status checked =
      DriverBase::CheckOptions(driver_options, options.rx_queues, options.tx_queues);
  if (!checked.ok()) return checked;
  std::unique_ptr<Port> port(new Port(std::move(device), options));
  dma::Device& d = *port->device_;

  absl::StatusOr<RxPoolPlan> plan = PlanRxPool(options, options.ring_size - 1);
  if (!plan.ok()) return plan.status();
  std::vector<FragSource> sources;
  for (uint32_t i = 0; i < options.rx_queues; ++i) {
    auto pool = NewRxPool(d.address_space(), options, *plan,
                          absl::StrCat(std::string(d.name()), " rq ", i, " buffers"), d.waiter());
    if (!pool.ok()) return pool.status();
    port->pools_.push_back(*std::move(pool));
    // A frame longer than the MTU allows does not fit: the device reports it and drops it.
    auto source =
        FragSource::Create(*port->pools_.back(), {.size = plan->buffer_size,
                                                  .headroom = options.headroom,
                                                  .capacity = options.mtu + kFrameOverhead});
    if (!source.ok()) return source.status();
    sources.push_back(*std::move(source));
  }
  auto driver = Driver<>::Create(d, bar0, driver_options, std::move(sources),
                                 std::vector<PageAddressing>(options.tx_queues));
  if (!driver.ok()) return driver.status();
  port->driver_ = *std::move(driver);
  if (options.interrupts) {
    absl::Status connected = port->ConnectInterrupts(std::move(interrupts));
    if (!connected.ok()) return connected;
  }
  return port;
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
  for (size_t i = 0; i < pools_.size(); ++i) driver_->rx(i).source().Rest();

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
  if (returned) return stopped;
  return absl::DeadlineExceededError(absl::StrCat(stopped.ok() ? "" : stopped.message(),
                                                  stopped.ok() ? "" : "; ", DescribeHeld()));
}

uint64_t Port::PagesHeld(size_t i) const {
  const uint64_t waiting = pools_[i]->stats().pages_waiting_flush;
  const uint64_t in_use = pools_[i]->pages_in_use();
  return in_use > waiting ? in_use - waiting : 0;
}

void Port::RestPools() {
  for (size_t i = 0; i < pools_.size(); ++i) {
    driver_->rx(i).source().Rest();
    pools_[i]->Fold();
  }
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
  stats.queues.resize(std::max(driver_->rx_count(), driver_->tx_count()));
  for (size_t i = 0; i < driver_->rx_count(); ++i) {
    stats.queues[i].rx = driver_->rx_stats(i);
    stats.queues[i].pool = pools_[i]->stats();
  }
  for (size_t i = 0; i < driver_->tx_count(); ++i) stats.queues[i].tx = driver_->tx_stats(i);
  return stats;
}

}  // namespace dmakit::nic::enic
