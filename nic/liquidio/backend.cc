// SPDX-License-Identifier: Apache-2.0

#include "nic/liquidio/backend.h"

#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "dma/software_iommu.h"
#include "nic/liquidio/model.h"
#include "nic/liquidio/port.h"
#include "nic/software_nic.h"

namespace dmakit::nic::liquidio {
namespace {

// Addresses are 64-bit words everywhere (liquidio sheet 2, 3, 5); PCI bridges take fewer.
constexpr AddressMask kDmaMask{(uint64_t{1} << 48) - 1};

struct Keys {
  ModelOptions model;
  Function function;
};

// key=first|second.
absl::Status ReadChoice(const NicArgs& args, const std::string& key, const std::string& value,
                        std::string_view first, std::string_view second, bool& is_second) {
  if (value != first && value != second) {
    return BadKey(args, key, value,
                  absl::StrCat("must be ", std::string(first), " or ", std::string(second)));
  }
  is_second = value == second;
  return absl::OkStatus();
}

absl::Status ReadKey(const NicArgs& args, const std::string& key, const std::string& value,
                     Keys& keys) {
  if (key == "lossless") return ReadSwitch(args, key, value, keys.model.lossless);
  if (key == "hostile") return ReadSeed(args, key, value, keys.model.hostile);
  if (key == "function") return ReadChoice(args, key, value, "pf", "vf", keys.model.vf);
  if (key == "mode") {
    bool buffer = false;
    absl::Status read = ReadChoice(args, key, value, "info", "buffer", buffer);
    keys.function.mode = buffer ? ReceiveMode::kBuffer : ReceiveMode::kInfo;
    return read;
  }
  if (key == "counters") {
    const bool digits = value.find_first_not_of("0123456789") == std::string::npos;
    if (digits && absl::SimpleAtoi(value, &keys.function.counter_start)) return absl::OkStatus();
    return BadKey(args, key, value, "must be between 0 and 4294967295");
  }
  return BadKey(args, key, value,
                "liquidio has no such key; its keys are function=pf|vf, mode=info|buffer, "
                "lossless=1|0, hostile=SEED and counters=N");
}

class LiquidioBackend final : public nic::Backend {
 public:
  std::string_view name() const override { return "liquidio"; }
  std::string_view help() const override {
    return "Cavium LiquidIO II (CN23XX), software model; function=pf|vf; mode=info|buffer: where "
           "received lengths stand; lossless=1|0: frames wait for a buffer, or are dropped; "
           "hostile=SEED: the device misbehaves at random; counters=N: where its counters start";
  }
  absl::StatusOr<std::unique_ptr<nic::Nic>> Create(const NicArgs& args) override {
    Keys keys;
    for (const auto& [key, value] : args.keys) {
      if (absl::Status read = ReadKey(args, key, value, keys); !read.ok()) return read;
    }
    auto iommu = dma::SoftwareIommu::Create({.name = args.name + " iommu"});
    if (!iommu.ok()) return iommu.status();
    return std::make_unique<SoftwareNic<Model, PortTraits>>(
        args, kDmaMask, keys.model, *std::move(iommu), [&keys](Model& model) {
          Function function = keys.function;
          function.bar0 = model.bar0();
          function.vf = keys.model.vf;
          return function;
        });
  }
};

}  // namespace

std::unique_ptr<nic::Backend> NewBackend() { return std::make_unique<LiquidioBackend>(); }

}  // namespace dmakit::nic::liquidio
