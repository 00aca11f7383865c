// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/backend.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dma/address_space.h"
#include "dma/poll.h"
#include "dma/software_iommu.h"
#include "nic/enic/model.h"
#include "nic/enic/port.h"
#include "nic/model.h"

namespace dmakit::nic::enic {
namespace {

// The hardware drives 47 address bits (enic sheet, head).
constexpr AddressMask kDmaMask{(uint64_t{1} << 47) - 1};

class SoftwareNic final : public nic::Nic {
 public:
  SoftwareNic(const NicArgs& args, const ModelOptions& options,
              std::unique_ptr<dma::SoftwareIommu> iommu)
      : name_(args.name),
        threaded_(args.threaded),
        iommu_(std::move(iommu)),
        model_(iommu_->NewPort(args.name), options),
        waiter_(model_) {}

  dma::Domain& domain() override { return *iommu_; }
  Model* model() override { return &model_; }
  dma::SoftwareIommu* iommu() override { return iommu_.get(); }

  absl::StatusOr<std::unique_ptr<nic::Port>> Open(dma::AddressSpace& space,
                                                  const PortOptions& options) override {
    dma::Waiter& waiter = threaded_ ? dma::SystemWaiter() : waiter_;
    auto device =
        space.Attach({.name = name_, .domain = iommu_.get(), .mask = kDmaMask, .waiter = &waiter});
    if (!device.ok()) return device.status();
    PortInterrupts interrupts;
    if (options.interrupts) {
      absl::Status made = MakeNotifiers(options.rx_queues, waiter, interrupts);
      if (!made.ok()) return made;
    }
    auto port = Port::Create(*std::move(device), model_.bar0(), options, std::move(interrupts));
    if (!port.ok()) return port.status();
    return *std::move(port);
  }

 private:
  absl::Status MakeNotifiers(uint32_t count, dma::Waiter& waiter, PortInterrupts& interrupts) {
    interrupts.source = &model_;
    for (uint32_t i = 0; i < count; ++i) {
      if (!threaded_) {
        interrupts.notifiers.push_back(std::make_unique<SteppedNotifier>(waiter));
        continue;
      }
      auto notifier = NewEventFdNotifier();
      if (!notifier.ok()) return notifier.status();
      interrupts.notifiers.push_back(*std::move(notifier));
    }
    return absl::OkStatus();
  }

  const std::string name_;
  const bool threaded_;
  std::unique_ptr<dma::SoftwareIommu> iommu_;
  Model model_;  // its port ends before the IOMMU
  ModelWaiter waiter_;
};

absl::Status BadKey(const NicArgs& args, const std::string& key, const std::string& value,
                    const char* rule) {
  return absl::InvalidArgumentError(
      absl::StrCat(args.name, ": key \"", key, "=", value, "\": ", rule));
}

absl::StatusOr<ModelOptions> ReadKeys(const NicArgs& args) {
  ModelOptions options;
  for (const auto& [key, value] : args.keys) {
    if (key == "lossless") {
      if (value != "0" && value != "1") return BadKey(args, key, value, "must be 1 or 0");
      options.lossless = value == "1";
    } else if (key == "hostile") {
      const bool digits = value.find_first_not_of("0123456789") == std::string::npos;
      if (!digits || !absl::SimpleAtoi(value, &options.hostile) || options.hostile == 0) {
        return BadKey(args, key, value, "must be a seed from 1 to 18446744073709551615");
      }
      if (args.threaded) {
        return BadKey(args, key, value,
                      "a hostile device is stepped, it cannot have a thread of its own");
      }
    } else {
      return BadKey(args, key, value,
                    "enic has no such key; its keys are lossless=1|0 and hostile=SEED");
    }
  }
  return options;
}

class EnicBackend final : public nic::Backend {
 public:
  std::string_view name() const override { return "enic"; }
  std::string_view help() const override {
    return "Cisco VIC vNIC, software model; lossless=1|0: frames wait for a buffer, or are "
           "dropped; "
           "hostile=SEED: the device misbehaves at random";
  }
  absl::StatusOr<std::unique_ptr<nic::Nic>> Create(const NicArgs& args) override {
    absl::StatusOr<ModelOptions> options = ReadKeys(args);
    if (!options.ok()) return options.status();
    auto iommu = dma::SoftwareIommu::Create({.name = args.name + " iommu"});
    if (!iommu.ok()) return iommu.status();
    return std::make_unique<SoftwareNic>(args, *options, *std::move(iommu));
  }
};

}  // namespace

std::unique_ptr<nic::Backend> NewBackend() { return std::make_unique<EnicBackend>(); }

}  // namespace dmakit::nic::enic
