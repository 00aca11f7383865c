// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/vnic.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/endian.h"
#include "nic/enic/commands.h"
#include "nic/enic/registers.h"
#include "nic/teardown.h"

namespace dmakit::nic::enic {
namespace {

constexpr dma::Nanos kOpenTimeout{2'000'000'000};
constexpr uint64_t kMaxTimer = 0xffff;
constexpr uint32_t kMaxCredits = 0xffff;
constexpr size_t kParameterBytes = kRssCpuBytes;
static_assert(kDevSpecBytes <= kParameterBytes && kRssKeyBytes <= kParameterBytes);

// The widely used key: flows spread evenly with it.
constexpr std::array<uint8_t, kRssKeyLength> kRssKey = {
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
    0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
    0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};

constexpr uint8_t kHashTypes =
    kHashIpv4 | kHashTcpIpv4 | kHashUdpIpv4 | kHashIpv6 | kHashTcpIpv6 | kHashUdpIpv6;

}  // namespace

absl::StatusOr<Vnic> Vnic::Probe(dma::Device& device, const dma::MmioRegion& bar0) {
  absl::StatusOr<ResourceMap> resources = ReadResources(bar0, device.name());
  if (!resources.ok()) return resources.status();
  return Vnic(device, bar0, *resources);
}

Vnic::Vnic(dma::Device& device, const dma::MmioRegion& bar0, const ResourceMap& resources)
    : device_(&device),
      name_(device.name()),
      bar0_(bar0),
      resources_(resources),
      commands_(bar0.Sub(resources.devcmd.offset, kDevcmdBytes), device.waiter(), name_) {}

QueueRegisters Vnic::At(const ResourceWindow& window, uint32_t index, uint32_t cq) const {
  return {bar0_.Sub(window.offset + index * kBlockBytes, kBlockBytes),
          bar0_.Sub(resources_.cq.offset + cq * kBlockBytes, kBlockBytes), cq};
}

absl::Status Vnic::Open() {
  auto parameters = dma::RingPool<dma::SharedLe64>::Create(
      *device_, {.count = kParameterBytes / 8, .label = absl::StrCat(name_, " devcmd parameters")});
  if (!parameters.ok()) return parameters.status();
  parameters_ = *std::move(parameters);
  const absl::Status opened = commands_.Run(kCmdOpen, std::array<uint64_t, 1>{0});
  open_ = opened.ok() || commands_.unfinished();
  if (!opened.ok()) return opened;
  if (absl::Status s = WaitOpen(); !s.ok()) return s;
  if (absl::Status s = commands_.Run(kCmdInit, std::array<uint64_t, 1>{0}); !s.ok()) return s;
  CommandChannel::Results results{};
  if (absl::Status s = commands_.Run(kCmdGetMacAddr, {}, &results); !s.ok()) return s;
  mac_ = MacOfArg(results[0]);
  if (absl::Status s = ReadSpec(); !s.ok()) return s;
  MaskInterrupts();
  return absl::OkStatus();
}

// OPEN returns at once; OPEN_STATUS says 0 in args[0] when it is done.
absl::Status Vnic::WaitOpen() {
  absl::Status status;
  CommandChannel::Results results{};
  const bool opened = dma::PollUntil(device_->waiter(), kOpenTimeout, [&] {
    status = commands_.Run(kCmdOpenStatus, {}, &results);
    return !status.ok() || results[0] == 0;
  });
  if (!status.ok() || opened) return status;
  return absl::DeadlineExceededError(
      absl::StrCat(name_, ": devcmd OPEN: not done after 2 s; reset the device"));
}

absl::Status Vnic::ReadSpec() {
  const std::array<uint64_t, 2> args = {parameters_.iova().value(), kDevSpecBytes};
  if (absl::Status s = commands_.Run(kCmdDevSpec, args); !s.ok()) return s;
  std::array<std::byte, kDevSpecBytes> bytes;
  for (uint32_t i = 0; i < kDevSpecBytes / 8; ++i) {
    StoreLe<uint64_t>(bytes, 8 * i, parameters_.at(i)->Load());
  }
  spec_ = DecodeDevSpec(bytes);
  return absl::OkStatus();
}

void Vnic::WriteParameters(std::span<const std::byte> bytes) {
  for (uint32_t i = 0; i < bytes.size() / 8; ++i) {
    parameters_.at(i)->Store(LoadLe<uint64_t>(bytes, 8 * i));
  }
}

// Enic sheet 2.5: a polling driver leaves mask = 1.
void Vnic::MaskInterrupts() {
  for (uint32_t i = 0; i < resources_.intr.count; ++i) {
    interrupt(i).Write32(OffsetOf(IntrReg::kMask), 1);
  }
}

// Devices that do not know INTR_COAL_CONVERT count in units of 1.5 us.
absl::Status Vnic::SetUpInterrupt(uint32_t index, dma::Nanos coalescing) {
  uint64_t units = 0;
  if (coalescing > dma::Nanos{0}) {
    CommandChannel::Results results{};
    absl::Status asked = commands_.Run(kCmdIntrCoalConvert, {}, &results);
    if (!asked.ok() && !absl::IsInternal(asked)) return asked;
    const bool known = asked.ok() && results[0] != 0 && results[0] <= 0xffff && results[1] != 0;
    const uint64_t multiplier = known ? results[0] : 2;
    const uint64_t divisor = known ? results[1] : 3;
    const auto microseconds = static_cast<uint64_t>(coalescing.count()) / 1000;
    const uint64_t most = kMaxTimer * divisor / multiplier;
    if (microseconds > most) {
      return absl::InvalidArgumentError(absl::StrCat(name_, ": coalescing ", microseconds,
                                                     " us: this device allows at most ", most));
    }
    units = std::max<uint64_t>(microseconds * multiplier / divisor, 1);
  }
  const dma::MmioRegion block = interrupt(index);
  block.Write32(OffsetOf(IntrReg::kMask), 1);
  block.Write32(OffsetOf(IntrReg::kCoalescingTimer), static_cast<uint32_t>(units));
  block.Write32(OffsetOf(IntrReg::kCoalescingType), 0);
  block.Write32(OffsetOf(IntrReg::kMaskOnAssertion), 1);
  // What an earlier run left.
  const uint32_t left = block.Read32(OffsetOf(IntrReg::kIntCredits));
  for (uint32_t i = 0; left != kAllOnes && i < left; i += std::min(left - i, kMaxCredits)) {
    const IntCreditReturn back{static_cast<uint16_t>(std::min(left - i, kMaxCredits))};
    block.Write32(OffsetOf(IntrReg::kIntCreditReturn), Encode(back));
  }
  return absl::OkStatus();
}

absl::Status Vnic::ConfigureReceive(uint32_t queues, bool vlan_strip) {
  NicCfg config;
  config.vlan_strip = vlan_strip;
  if (queues > 1) {
    if (absl::Status s = LoadRss(queues); !s.ok()) return s;
    config.rss_enable = true;
    config.rss_hash_type = kHashTypes;
    config.rss_hash_bits = kRssHashBits;
  }
  return commands_.Run(kCmdNicCfg, std::array<uint64_t, 1>{Encode(config)});
}

absl::Status Vnic::LoadRss(uint32_t queues) {
  const uint64_t address = parameters_.iova().value();
  std::array<std::byte, kRssKeyBytes> key{};
  for (size_t i = 0; i < kRssKeyLength; ++i) key[RssKeyOffset(i)] = std::byte{kRssKey[i]};
  WriteParameters(key);
  const absl::Status keyed =
      commands_.Run(kCmdRssKey, std::array<uint64_t, 2>{address, kRssKeyBytes});
  if (!keyed.ok()) return keyed;
  std::array<std::byte, kRssCpuBytes> table{};
  for (size_t i = 0; i < kRssCpuEntries; ++i) {
    table[RssCpuOffset(i)] = static_cast<std::byte>(i % queues);
  }
  WriteParameters(table);
  return commands_.Run(kCmdRssCpu, std::array<uint64_t, 2>{address, kRssCpuBytes});
}

absl::Status Vnic::AcceptAll() {
  const uint64_t all = kFilterDirected | kFilterMulticast | kFilterBroadcast | kFilterPromiscuous |
                       kFilterAllMulticast;
  return commands_.Run(kCmdPacketFilter, std::array<uint64_t, 1>{all});
}

absl::Status Vnic::Enable() {
  enabled_ = true;
  return commands_.Run(kCmdEnable, std::array<uint64_t, 1>{0});
}

absl::Status Vnic::Disable() {
  return std::exchange(enabled_, false) ? commands_.Run(kCmdDisable) : absl::OkStatus();
}

absl::Status Vnic::Close() {
  absl::Status status;
  if (std::exchange(open_, false)) status = commands_.Run(kCmdClose);
  if (commands_.unfinished() && !parameters_.empty()) {
    QuarantineRing(*device_, absl::StrCat(name_, " devcmd parameters"),
                   "the device did not finish a command that points there", std::move(parameters_));
  }
  parameters_ = {};
  return status;
}

}  // namespace dmakit::nic::enic
