// SPDX-License-Identifier: Apache-2.0

#include "nic/e1000e/driver.h"

#include "absl/strings/str_cat.h"
#include "nic/rx_pool.h"

namespace dmakit::nic::e1000e {
namespace {

constexpr uint64_t kPoison = ~uint64_t{0};

template <typename Slot>
absl::StatusOr<dma::RingPool<Slot>> NewRing(dma::Device& device, uint32_t entries,
                                            const std::string& label) {
  return dma::RingPool<Slot>::Create(
      device, {.count = entries, .alignment = Bytes{kRingAlignment}, .label = label});
}

}  // namespace

namespace internal {

absl::StatusOr<dma::RingPool<RxSlot>> NewRxRing(dma::Device& device, uint32_t entries,
                                                const std::string& label) {
  auto ring = NewRing<RxSlot>(device, entries, label);
  if (!ring.ok()) return ring;
  for (uint32_t i = 0; i < entries; ++i) ring->at(i)->Post(kPoison);
  return ring;
}

absl::StatusOr<dma::RingPool<TxSlot>> NewTxRing(dma::Device& device, uint32_t entries,
                                                const std::string& label) {
  auto ring = NewRing<TxSlot>(device, entries + 1, label);
  if (!ring.ok()) return ring;
  for (uint32_t i = 0; i < entries; ++i)
    ring->at(i)->Store({kPoison, kPoison & ~uint64_t{0xff} << 32});
  return ring;
}

}  // namespace internal

absl::Status DriverBase::CheckOptions(const DriverOptions& options, size_t rx_queues,
                                      size_t tx_queues) {
  if (!IsRingSize(options.ring_size)) {
    return absl::InvalidArgumentError(absl::StrCat("ring size ", options.ring_size,
                                                   ": must be a multiple of ", kRingMultiple,
                                                   " between ", kMinRing, " and ", kMaxRing));
  }
  if (options.mtu < kMinMtu || options.mtu > kMaxMtu) {
    return absl::InvalidArgumentError(
        absl::StrCat("mtu ", options.mtu, ": must be between ", kMinMtu, " and ", kMaxMtu));
  }
  if (rx_queues + tx_queues == 0) {
    return absl::InvalidArgumentError(
        "queues 0: a port needs at least one receive or transmit queue");
  }
  for (const auto& [what, count] :
       {std::pair("receive", rx_queues), std::pair("transmit", tx_queues)}) {
    if (count > kMaxQueues) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " queues ", count, ": this device has ", kMaxQueues));
    }
  }
  return absl::OkStatus();
}

DriverBase::DriverBase(dma::Device& device, const dma::MmioRegion& registers,
                       const DriverOptions& options, size_t rx_queues, size_t tx_queues)
    : device_(device),
      name_(device.name()),
      chip_(registers, device.waiter()),
      options_(options),
      rx_queues_(rx_queues),
      tx_queues_(tx_queues) {}

absl::Status DriverBase::CheckShape(const DriverOptions& options, size_t rx_queues,
                                    size_t tx_queues) const {
  return CheckOptions(options, rx_queues, tx_queues);
}

uint32_t DriverBase::max_frame() const { return options_.mtu + kFrameOverhead; }

absl::Status DriverBase::Named(const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat(name_, ": ", status.message()));
}

Chip::Settings DriverBase::SettingsOf() const {
  return {.rx_queues = static_cast<uint32_t>(rx_queues_),
          .tx_queues = static_cast<uint32_t>(tx_queues_),
          .vlan_strip = options_.vlan_strip,
          .long_packets = max_frame() + kCrcBytes > kLongestStandard,
          .buffer_bytes = RxBufferBytes(max_frame()),
          .interrupts = options_.interrupts,
          .coalescing = options_.coalescing};
}

std::string DriverBase::RxLabel(size_t queue) const { return absl::StrCat(name_, " rq ", queue); }
std::string DriverBase::TxLabel(size_t queue) const { return absl::StrCat(name_, " tq ", queue); }

template class Driver<FragSource, PageAddressing>;

}  // namespace dmakit::nic::e1000e
