// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/backend.h"

#include <utility>

#include "dma/software_iommu.h"
#include "nic/enic/model.h"
#include "nic/enic/port.h"
#include "nic/software_nic.h"

namespace dmakit::nic::enic {
namespace {

// The hardware drives 47 address bits (enic sheet, head).
constexpr AddressMask kDmaMask{(uint64_t{1} << 47) - 1};

absl::StatusOr<ModelOptions> ReadKeys(const NicArgs& args) {
  ModelOptions options;
  for (const auto& [key, value] : args.keys) {
    absl::Status read;
    if (key == "lossless") {
      read = ReadSwitch(args, key, value, options.lossless);
    } else if (key == "hostile") {
      read = ReadSeed(args, key, value, options.hostile);
    } else {
      read = BadKey(args, key, value,
                    "enic has no such key; its keys are lossless=1|0 and hostile=SEED");
    }
    if (!read.ok()) return read;
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
    return std::make_unique<SoftwareNic<Model, PortTraits>>(
        args, kDmaMask, *options, *std::move(iommu), [](Model& model) { return model.bar0(); });
  }
};

}  // namespace

std::unique_ptr<nic::Backend> NewBackend() { return std::make_unique<EnicBackend>(); }

}  // namespace dmakit::nic::enic
