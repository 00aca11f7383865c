// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/driver.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "nic/enic/registers.h"
#include "nic/rx_pool.h"

namespace dmakit::nic::enic {
namespace {

constexpr dma::Nanos kQuiesceTime{1'000'000'000};

absl::Status TooMany(const std::string& name, const char* what, size_t asked, size_t there) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", what, " ", asked, ": this device has ", there));
}

}  // namespace

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
  return absl::OkStatus();
}

DriverBase::DriverBase(Vnic vnic, const DriverOptions& options, size_t rx_queues, size_t tx_queues)
    : vnic_(std::move(vnic)) {
  SetShape(options, rx_queues, tx_queues);
}

void DriverBase::SetShape(const DriverOptions& options, size_t rx_queues, size_t tx_queues) {
  options_ = options;
  rx_control_.clear();
  tx_control_.clear();
  for (size_t i = 0; i < rx_queues; ++i) {
    const uint32_t index = static_cast<uint32_t>(i);
    rx_control_.push_back({absl::StrCat(vnic_.name(), " rq ", i), vnic_.rq(index, index)});
    if (options.interrupts) rx_control_.back().registers.interrupt = index;
  }
  for (size_t i = 0; i < tx_queues; ++i) {
    tx_control_.push_back(
        {absl::StrCat(vnic_.name(), " wq ", i),
         vnic_.wq(static_cast<uint32_t>(i), static_cast<uint32_t>(rx_queues + i))});
  }
  while (drops_.size() < rx_queues) drops_.emplace_back();
}

absl::Status DriverBase::CheckShape(const DriverOptions& options, size_t rx_queues,
                                    size_t tx_queues) const {
  if (absl::Status s = CheckOptions(options, rx_queues, tx_queues); !s.ok()) return s;
  if (absl::Status s = CheckResources(options, rx_queues, tx_queues); !s.ok()) return s;
  return CheckSpec(options);
}

uint32_t DriverBase::max_frame() const {
  return std::min(options_.mtu + kFrameOverhead, kMaxTxFrame);
}

absl::Status DriverBase::CheckResources(const DriverOptions& options, size_t rx, size_t tx) const {
  if (rx > vnic_.rq_count()) return TooMany(name(), "receive queues", rx, vnic_.rq_count());
  if (tx > vnic_.wq_count()) return TooMany(name(), "transmit queues", tx, vnic_.wq_count());
  if (rx + tx > vnic_.cq_count()) {
    return TooMany(name(), "receive and transmit queues", rx + tx, vnic_.cq_count());
  }
  if (options.interrupts && rx > vnic_.intr_count()) {
    return TooMany(name(), "receive queues with interrupts", rx, vnic_.intr_count());
  }
  // What an indirection table entry can name.
  if (rx > kRssCpuEntries) return TooMany(name(), "receive queues", rx, kRssCpuEntries);
  return absl::OkStatus();
}

absl::Status DriverBase::CheckSpec(const DriverOptions& options) const {
  const DevSpec& spec = vnic_.spec();
  const auto above = [](uint32_t asked, uint32_t limit) { return limit != 0 && asked > limit; };
  const uint32_t ring = std::min(spec.rq_descriptors == 0 ? kMaxRing : spec.rq_descriptors,
                                 spec.wq_descriptors == 0 ? kMaxRing : spec.wq_descriptors);
  if (above(options.ring_size, ring)) {
    return absl::FailedPreconditionError(absl::StrCat(name(), ": ring size ", options.ring_size,
                                                      ": this device allows at most ", ring));
  }
  if (above(options.mtu, spec.mtu)) {
    return absl::FailedPreconditionError(
        absl::StrCat(name(), ": mtu ", options.mtu, ": this device allows at most ", spec.mtu));
  }
  return absl::OkStatus();
}

absl::Status DriverBase::QuiesceAll() {
  for (const std::vector<Control>* controls : {&rx_control_, &tx_control_}) {
    for (const Control& control : *controls) {
      const Halt halt = Quiesce(control.registers.queue, vnic_.device().waiter(), kQuiesceTime);
      if (halt == Halt::kStopped) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          control.label, ": in use before it was set up: ", std::string(Describe(halt)),
          "; reset the device"));
    }
  }
  return absl::OkStatus();
}

void DriverBase::EnableQueue(const Control& control) {
  static_assert(OffsetOf(RqReg::kEnable) == OffsetOf(WqReg::kEnable));
  control.registers.queue.Write32(OffsetOf(RqReg::kEnable), 1);
}

absl::Status DriverBase::EnableDevice() {
  if (absl::Status s = vnic_.AcceptAll(); !s.ok()) return s;
  if (absl::Status s = vnic_.Enable(); !s.ok()) return s;
  const auto refused = [](const Control& control, uint32_t error) {
    return absl::InternalError(
        absl::StrCat(control.label, ": the device refused its set-up with error_status ", error));
  };
  for (size_t i = 0; i < rx_control_.size(); ++i) {
    if (const uint32_t error = RxError(i); error != 0) return refused(rx_control_[i], error);
  }
  for (size_t i = 0; i < tx_control_.size(); ++i) {
    if (const uint32_t error = TxError(i); error != 0) return refused(tx_control_[i], error);
  }
  return absl::OkStatus();
}

// --- Registers behind the statistics -------------------------------------------------------------

uint64_t DriverBase::DeviceDrops(size_t rx) const {
  const DropCount& count = drops_[rx];
  const uint64_t before = count.before.load(std::memory_order_relaxed);
  if (!running_.load(std::memory_order_relaxed) || rx >= rx_control_.size()) return before;
  const uint32_t now = rx_control_[rx].registers.queue.Read32(OffsetOf(RqReg::kDroppedPacketCount));
  if (now == kAllOnes) return before;  // the device is gone
  return before + (now - count.origin.load(std::memory_order_relaxed));
}

void DriverBase::BeginDropCount(size_t rx) {
  const uint32_t now = rx_control_[rx].registers.queue.Read32(OffsetOf(RqReg::kDroppedPacketCount));
  drops_[rx].origin.store(now, std::memory_order_relaxed);
}

void DriverBase::EndDropCount(size_t rx) {
  drops_[rx].before.store(DeviceDrops(rx), std::memory_order_relaxed);
  BeginDropCount(rx);
}

uint32_t DriverBase::RxError(size_t rx) const {
  if (rx >= rx_control_.size()) return 0;  // at rest
  return rx_control_[rx].registers.queue.Read32(OffsetOf(RqReg::kErrorStatus));
}

uint32_t DriverBase::TxError(size_t tx) const {
  if (tx >= tx_control_.size()) return 0;
  return tx_control_[tx].registers.queue.Read32(OffsetOf(WqReg::kErrorStatus));
}

template class Driver<FragSource, PageAddressing>;

}  // namespace dmakit::nic::enic
