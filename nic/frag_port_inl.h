// SPDX-License-Identifier: Apache-2.0
//
// The members of FragPort; included by frag_port.h only.
#ifndef DMAKIT_NIC_FRAG_PORT_INL_H_
#define DMAKIT_NIC_FRAG_PORT_INL_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nic/frag_port.h"

namespace dmakit::nic {

namespace internal {
// In words, of a change that failed. `back`: whether the port is as before.
absl::Status NotChanged(std::string_view name, const absl::Status& why, const absl::Status& back);
absl::Status StoppedByChange(const absl::Status& why);
absl::Status StillHeld(const absl::Status& stopped, const std::string& held);
}  // namespace internal

template <typename Traits>
absl::StatusOr<std::unique_ptr<FragPort<Traits>>> FragPort<Traits>::Create(
    std::unique_ptr<dma::Device> device, const typename Traits::Registers& registers,
    const PortOptions& options, PortInterrupts interrupts) {
  const auto driver_options = Traits::OptionsOf(options);
  absl::Status checked = Traits::Check(driver_options, options.rx_queues, options.tx_queues);
  if (!checked.ok()) return checked;
  std::unique_ptr<FragPort> port(new FragPort(std::move(device), options));
  auto sources = port->MakeSources(options, Traits::BuffersOf(options));
  if (!sources.ok()) return sources.status();
  auto driver = Driver::Create(*port->device_, registers, driver_options, *std::move(sources),
                               std::vector<PageAddressing>(options.tx_queues));
  if (!driver.ok()) return driver.status();
  port->driver_ = *std::move(driver);
  if (options.interrupts) {
    absl::Status connected = port->ConnectInterrupts(std::move(interrupts));
    if (!connected.ok()) return connected;
  }
  return port;
}

template <typename Traits>
absl::Status FragPort<Traits>::Start() {
  absl::Status status = driver_->Start();
  // After a failure nothing stays mapped. (It is no failure to be running already.)
  if (!status.ok() && !driver_->running()) RestPools();
  return status;
}

template <typename Traits>
absl::Status FragPort<Traits>::Stop() {
  const dma::Nanos start = device_->waiter().Now();
  const absl::Status stopped = driver_->Stop();
  for (size_t i = 0; i < driver_->rx_made(); ++i) driver_->rx(i).source().Rest();
  const bool returned = WaitForPages(start);
  RestPools();
  WakeAll();
  return returned ? stopped : internal::StillHeld(stopped, DescribeHeld());
}

// --- Changes -------------------------------------------------------------------------------------

template <typename Traits>
absl::Status FragPort<Traits>::CheckChange(const PortOptions& options) const {
  if (absl::Status s = CheckFixed(options); !s.ok()) return s;
  absl::Status shape =
      driver_->CheckShape(Traits::OptionsOf(options), options.rx_queues, options.tx_queues);
  if (!shape.ok()) return shape;
  return PlanOf(options).status();
}

template <typename Traits>
absl::Status FragPort<Traits>::Apply(const PortOptions& options) {
  RestPools();
  auto sources = MakeSources(options, Traits::BuffersOf(options));
  if (!sources.ok()) return sources.status();
  absl::Status s = driver_->Reshape(Traits::OptionsOf(options), *std::move(sources),
                                    std::vector<PageAddressing>(options.tx_queues));
  if (!s.ok()) return s;
  options_ = options;
  return absl::OkStatus();
}

template <typename Traits>
absl::Status FragPort<Traits>::Reconfigure(const PortOptions& options) {
  if (absl::Status s = CheckChange(options); !s.ok()) return s;
  absl::Status changed = Change(options);
  WakeAll();
  return changed;
}

template <typename Traits>
absl::Status FragPort<Traits>::Change(const PortOptions& options) {
  const bool running = driver_->running();
  if (absl::Status s = driver_->Suspend(); !s.ok()) {
    RestPools();
    return internal::StoppedByChange(s);
  }
  const PortOptions before = options_;
  absl::Status status = Apply(options);
  if (status.ok() && running) status = driver_->Resume();
  if (status.ok()) return status;
  absl::Status back = Apply(before);
  if (back.ok() && running) back = driver_->Resume();
  if (!back.ok()) RestPools();
  return internal::NotChanged(name(), status, back);
}

template <typename Traits>
absl::Status FragPort<Traits>::SetPageOrder(unsigned order) {
  PortOptions options = options_;
  options.page_order = order;
  absl::StatusOr<RxPoolPlan> plan = PlanOf(options);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<RxPoolPlan> before = PlanOf(options_);
  if (!before.ok()) return before.status();
  return SetPoolOrder(options, *plan, *before);
}

template <typename Traits>
PortStats FragPort<Traits>::stats() const {
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

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_FRAG_PORT_INL_H_
