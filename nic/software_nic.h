// SPDX-License-Identifier: Apache-2.0
//
// SoftwareNic: a model behind a software IOMMU as a nic::Nic, for backends that have no silicon
// here; and the keys that all of them have. Threads and lifetime as nic/backend.h says.
#ifndef DMAKIT_NIC_SOFTWARE_NIC_H_
#define DMAKIT_NIC_SOFTWARE_NIC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/address_space.h"
#include "dma/poll.h"
#include "dma/software_iommu.h"
#include "iova/types.h"
#include "nic/backend.h"
#include "nic/frag_port.h"
#include "nic/model.h"
#include "nic/port.h"

namespace dmakit::nic {

// A key with a value that it cannot have; `rule` says what it can.
absl::Status BadKey(const NicArgs& args, std::string_view key, std::string_view value,
                    std::string_view rule);
// key=1|0.
absl::Status ReadSwitch(const NicArgs& args, std::string_view key, std::string_view value,
                        bool& out);
// hostile=SEED; not with a thread of the model's own.
absl::Status ReadSeed(const NicArgs& args, std::string_view key, std::string_view value,
                      uint64_t& out);

// One stepped or eventfd notifier per receive queue, raised by `source`.
absl::StatusOr<PortInterrupts> MakeInterrupts(InterruptSource& source, uint32_t queues,
                                              bool threaded, dma::Waiter& waiter);

// ModelT is a nic::Model and an InterruptSource, made of a dma::DevicePort and its options.
// Traits are those of its FragPort.
template <typename ModelT, typename Traits>
class SoftwareNic final : public Nic {
 public:
  // `mask`: what the device can address. `registers(model)`: what the port's Create takes.
  template <typename ModelOptions, typename RegistersOf>
  SoftwareNic(const NicArgs& args, AddressMask mask, const ModelOptions& options,
              std::unique_ptr<dma::SoftwareIommu> iommu, RegistersOf&& registers)
      : name_(args.name),
        threaded_(args.threaded),
        mask_(mask),
        iommu_(std::move(iommu)),
        model_(iommu_->NewPort(args.name), options),
        waiter_(model_),
        registers_(registers(model_)) {}

  dma::Domain& domain() override { return *iommu_; }
  Model* model() override { return &model_; }
  dma::SoftwareIommu* iommu() override { return iommu_.get(); }

  absl::StatusOr<std::unique_ptr<Port>> Open(dma::AddressSpace& space,
                                             const PortOptions& options) override {
    dma::Waiter& waiter = threaded_ ? dma::SystemWaiter() : waiter_;
    auto device =
        space.Attach({.name = name_, .domain = iommu_.get(), .mask = mask_, .waiter = &waiter});
    if (!device.ok()) return device.status();
    PortInterrupts interrupts;
    if (options.interrupts) {
      auto made = MakeInterrupts(model_, options.rx_queues, threaded_, waiter);
      if (!made.ok()) return made.status();
      interrupts = *std::move(made);
    }
    auto port =
        FragPort<Traits>::Create(*std::move(device), registers_, options, std::move(interrupts));
    if (!port.ok()) return port.status();
    return *std::move(port);
  }

 private:
  const std::string name_;
  const bool threaded_;
  const AddressMask mask_;
  std::unique_ptr<dma::SoftwareIommu> iommu_;
  ModelT model_;  // its port ends before the IOMMU
  ModelWaiter waiter_;
  const typename Traits::Registers registers_;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_SOFTWARE_NIC_H_
