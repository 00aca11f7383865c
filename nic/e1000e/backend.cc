// SPDX-License-Identifier: Apache-2.0

#include "nic/e1000e/backend.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dma/address_space.h"
#include "dma/poll.h"
#include "nic/e1000e/port.h"
#include "nic/vfio_function.h"

namespace dmakit::nic::e1000e {
namespace {

constexpr PciId kIds[] = {{0x8086, 0x10d3}};  // 82574L (e1000e sheet, head)
constexpr uint32_t kMostVectors = 5;          // that the chip has

class RealNic final : public nic::Nic {
 public:
  RealNic(std::string name, std::unique_ptr<VfioFunction> function)
      : name_(std::move(name)), function_(std::move(function)) {}

  dma::Domain& domain() override { return function_->domain(); }
  Faults CollectFaults() override {
    function_->PollFaults();
    return {function_->fault_count(), function_->faults()};
  }

  absl::StatusOr<std::unique_ptr<nic::Port>> Open(dma::AddressSpace& space,
                                                  const PortOptions& options) override {
    auto registers = function_->device().MapBar(0);
    if (!registers.ok()) return registers.status();
    auto device = space.Attach({.name = name_, .domain = &function_->domain()});
    if (!device.ok()) return device.status();
    // Whatever ran on it before must not do DMA of its own once it may do any.
    absl::Status quiet = Quiesce(*registers, (*device)->waiter());
    if (!quiet.ok()) return absl::Status(quiet.code(), absl::StrCat(name_, ": ", quiet.message()));
    PortInterrupts interrupts;
    if (options.interrupts) {
      interrupts.source = function_.get();
      for (uint32_t i = 0; i < options.rx_queues; ++i) {
        auto notifier = NewEventFdNotifier();
        if (!notifier.ok()) return notifier.status();
        interrupts.notifiers.push_back(*std::move(notifier));
      }
    }
    auto port = Port::Create(*std::move(device), *registers, options, std::move(interrupts));
    if (!port.ok()) return port.status();
    if (absl::Status s = function_->device().EnableBusMaster(); !s.ok()) return s;
    return *std::move(port);
  }

 private:
  const std::string name_;
  std::unique_ptr<VfioFunction> function_;
};

absl::Status BadKey(const NicArgs& args, std::string_view key, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(args.name, ": key \"", std::string(key), "\": ", std::string(what)));
}

class E1000eBackend final : public nic::Backend {
 public:
  explicit E1000eBackend(dma::host::VfioKernel* kernel)
      : kernel_(kernel == nullptr ? own_kernel_ : *kernel) {}

  std::string_view name() const override { return "e1000e"; }
  std::string_view help() const override {
    return "Intel 82574L, real, by VFIO; pci=ADDRESS: which, as `dmakit devices` lists them";
  }
  bool real() const override { return true; }

  absl::StatusOr<std::unique_ptr<nic::Nic>> Create(const NicArgs& args) override {
    std::string address;
    for (const auto& [key, value] : args.keys) {
      if (key != "pci") return BadKey(args, key, "e1000e has no such key; its key is pci=ADDRESS");
      address = value;
    }
    if (address.empty()) {
      return BadKey(args, "pci", "is missing; give the NIC's PCI address, as in pci=0000:00:04.0");
    }
    auto function = VfioFunction::Open(
        kernel_,
        {.name = args.name, .address = address, .ids = kIds, .most_vectors = kMostVectors});
    if (!function.ok()) return function.status();  // says what it is about, and how to mend it
    return std::make_unique<RealNic>(args.name, *std::move(function));
  }

 private:
  dma::host::SystemVfioKernel own_kernel_;
  dma::host::VfioKernel& kernel_;
};

}  // namespace

std::unique_ptr<nic::Backend> NewBackend(dma::host::VfioKernel* kernel) {
  return std::make_unique<E1000eBackend>(kernel);
}

}  // namespace dmakit::nic::e1000e
