// SPDX-License-Identifier: Apache-2.0
//
// FragPort: a driver behind the type-erased nic::Port, with the default memory: one page pool per
// receive queue, fragments of which are the receive buffers. The same for every backend: a backend
// says by a Traits struct what is its own. Threads and lifetime as nic::Port says; one virtual call
// per burst.
//
//   struct Traits {
//     using Driver = ...;          // over FragSource and PageAddressing, see below
//     using DriverOptions = ...;
//     using Registers = ...;       // what Driver::Create takes behind the device
//     static DriverOptions OptionsOf(const PortOptions&);
//     static absl::Status Check(const DriverOptions&, size_t rx_queues, size_t tx_queues);
//     static RxBuffers BuffersOf(const PortOptions&);  // of options that Check accepts
//   };
//
// Of a Driver it uses Create, Start, Stop, Suspend, Resume, Reshape, CheckShape, name, max_frame,
// running, rx, tx, rx_made, tx_made, rx_stats and tx_stats, as nic/enic/driver.h declares them.
//
// Pools live as long as the port. Between Stop and Start they have no pages.
#ifndef DMAKIT_NIC_FRAG_PORT_H_
#define DMAKIT_NIC_FRAG_PORT_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/device.h"
#include "frag/page_pool.h"
#include "nic/frag_source.h"
#include "nic/port.h"
#include "nic/queue.h"
#include "nic/rx_pool.h"

namespace dmakit::nic {

// Where interrupts come from, and what they wake: a notifier per receive queue. Needed, and used,
// with PortOptions::interrupts only. The source outlives the port.
struct PortInterrupts {
  InterruptSource* source = nullptr;
  std::vector<std::unique_ptr<Notifier>> notifiers{};
};

// Of one receive queue.
struct RxBuffers {
  uint32_t count = 0;     // the most the ring has posted
  uint32_t capacity = 0;  // bytes the device may write to one; 0: a whole frame of the MTU
};

// What does not depend on the driver: options, pools, interrupts.
class FragPortBase : public Port {
 public:
  const PortOptions& options() const override { return options_; }
  Notifier* notifier(uint32_t queue) override {
    return queue < interrupts_.notifiers.size() ? interrupts_.notifiers[queue].get() : nullptr;
  }
  frag::PagePool& rx_pool(uint32_t queue) override { return *pools_[queue]; }

 protected:
  FragPortBase(std::unique_ptr<dma::Device> device, const PortOptions& options)
      : device_(std::move(device)), options_(options) {}

  // Pools and sources for `options`; pools there are get other limits, and lose nothing.
  absl::StatusOr<std::vector<FragSource>> MakeSources(const PortOptions& options,
                                                      const RxBuffers& buffers);
  // Of a change: the options that must stay as they are do, and notifiers are there.
  absl::Status CheckFixed(const PortOptions& options) const;
  absl::Status ConnectInterrupts(PortInterrupts interrupts);
  void DisconnectInterrupts();
  // A thread that sleeps waits for an interrupt of the rings that were.
  void WakeAll();
  absl::Status SetPoolOrder(const PortOptions& options, const RxPoolPlan& plan,
                            const RxPoolPlan& before);
  // Waits until nobody holds a page; `start`: when Stop began, on the device's clock. Rest: the
  // sources have given up their pages.
  bool WaitForPages(dma::Nanos start);
  // Gives back every page that nobody holds. As above.
  void TrimPools();
  std::string DescribeHeld() const;

  // Destroyed in reverse: a driver gives its buffers to the pools, which unmap from the device.
  std::unique_ptr<dma::Device> device_;
  PortOptions options_;
  PortInterrupts interrupts_;
  std::vector<std::unique_ptr<frag::PagePool>> pools_;

 private:
  // Pages of pool `i` that somebody holds; not those that wait for a flush.
  uint64_t PagesHeld(size_t i) const;

  std::vector<Bytes> held_;  // of each pool, at its last change: pages of the rings before
};

template <typename Traits>
class FragPort final : public FragPortBase {
 public:
  using Driver = typename Traits::Driver;

  // Takes the attached device over; what the registers are in outlives the port.
  static absl::StatusOr<std::unique_ptr<FragPort>> Create(
      std::unique_ptr<dma::Device> device, const typename Traits::Registers& registers,
      const PortOptions& options, PortInterrupts interrupts = {});
  ~FragPort() override {
    if (driver_ != nullptr && driver_->running()) Stop().IgnoreError();
    DisconnectInterrupts();
  }

  std::string_view name() const override { return driver_->name(); }
  uint32_t max_frame() const override { return driver_->max_frame(); }

  absl::Status Start() override;
  absl::Status Stop() override;
  absl::Status Reconfigure(const PortOptions& options) override;
  absl::Status SetPageOrder(unsigned order) override;

  size_t Receive(uint32_t queue, std::span<Packet> burst) override {
    return driver_->rx(queue).Receive(burst);
  }
  size_t Transmit(uint32_t queue, std::span<Packet> burst) override {
    return driver_->tx(queue).Transmit(burst);
  }
  size_t Reap(uint32_t queue) override { return driver_->tx(queue).Reap(); }
  bool Arm(uint32_t queue) override { return driver_->rx(queue).Arm(); }
  void SetTxOwner(uint32_t queue, frag::PagePool* pool) override {
    driver_->tx(queue).SetOwner(pool);
  }

  PortStats stats() const override;

  // Control thread.
  Driver& driver() { return *driver_; }

 private:
  using FragPortBase::FragPortBase;

  static absl::StatusOr<RxPoolPlan> PlanOf(const PortOptions& options) {
    const RxBuffers buffers = Traits::BuffersOf(options);
    return PlanRxPool(options, buffers.count, buffers.capacity);
  }
  absl::Status CheckChange(const PortOptions& options) const;
  absl::Status Apply(const PortOptions& options);
  absl::Status Change(const PortOptions& options);
  void RestPools() {
    for (size_t i = 0; i < driver_->rx_made(); ++i) driver_->rx(i).source().Rest();
    TrimPools();
  }

  std::unique_ptr<Driver> driver_;
};

}  // namespace dmakit::nic

#include "nic/frag_port_inl.h"

#endif  // DMAKIT_NIC_FRAG_PORT_H_
