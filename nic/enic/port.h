// SPDX-License-Identifier: Apache-2.0
//
// Port: an enic behind the type-erased nic::Port, with its default memory: one page pool per
// receive queue, fragments of which are the receive buffers. Threads and lifetime as nic::Port
// says; one virtual call per burst.
//
// Pools live as long as the port. Between Stop and Start they have no pages.
#ifndef DMAKIT_NIC_ENIC_PORT_H_
#define DMAKIT_NIC_ENIC_PORT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/mmio.h"
#include "frag/page_pool.h"
#include "nic/enic/driver.h"
#include "nic/port.h"

namespace dmakit::nic::enic {

// Where interrupts come from, and what they wake: a notifier per receive queue. Needed, and used,
// with PortOptions::interrupts only. The source outlives the port.
struct PortInterrupts {
  InterruptSource* source = nullptr;
  std::vector<std::unique_ptr<Notifier>> notifiers{};
};

class Port final : public nic::Port {
 public:
  // Takes the attached device over; the registers outlive the port. Touches nothing of the device
  // but its resource table.
  static absl::StatusOr<std::unique_ptr<Port>> Create(std::unique_ptr<dma::Device> device,
                                                      const dma::MmioRegion& bar0,
                                                      const PortOptions& options,
                                                      PortInterrupts interrupts = {});
  ~Port() override;

  std::string_view name() const override { return driver_->name(); }
  const PortOptions& options() const override { return options_; }
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
  Notifier* notifier(uint32_t queue) override {
    return queue < interrupts_.notifiers.size() ? interrupts_.notifiers[queue].get() : nullptr;
  }

  frag::PagePool& rx_pool(uint32_t queue) override { return *pools_[queue]; }
  void SetTxOwner(uint32_t queue, frag::PagePool* pool) override {
    driver_->tx(queue).SetOwner(pool);
  }

  PortStats stats() const override;

 private:
  Port(std::unique_ptr<dma::Device> device, const PortOptions& options)
      : device_(std::move(device)), options_(options) {}

  absl::Status ConnectInterrupts(PortInterrupts interrupts);
  absl::Status CheckChange(const PortOptions& options) const;
  // Pools and sources for `options`; pools there are get other limits, and lose nothing.
  absl::StatusOr<std::vector<FragSource>> MakeSources(const PortOptions& options);
  absl::Status Apply(const PortOptions& options);
  absl::Status Change(const PortOptions& options);
  void WakeAll();
  // Pages of queue `i` that somebody holds; not those that wait for a flush.
  uint64_t PagesHeld(size_t i) const;
  // Gives back every page that nobody holds. The queues are stopped.
  void RestPools();
  std::string DescribeHeld() const;

  // Destroyed in reverse: the driver gives its buffers to the pools, which unmap from the device.
  std::unique_ptr<dma::Device> device_;
  PortOptions options_;
  PortInterrupts interrupts_;
  std::vector<std::unique_ptr<frag::PagePool>> pools_;
  std::vector<Bytes> held_;  // of each pool, at its last Reconfigure: pages of the rings before
  std::unique_ptr<Driver<>> driver_;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_PORT_H_
