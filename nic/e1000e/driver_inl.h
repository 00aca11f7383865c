// SPDX-License-Identifier: Apache-2.0
//
// The members of e1000e::Driver; included by driver.h only.
#ifndef DMAKIT_NIC_E1000E_DRIVER_INL_H_
#define DMAKIT_NIC_E1000E_DRIVER_INL_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dma/poll.h"
#include "nic/e1000e/driver.h"

namespace dmakit::nic::e1000e {

namespace internal {
// The ring is poisoned: an entry that the device reads before it was filled is seen as nonsense and
// not as zeros.
absl::StatusOr<dma::RingPool<RxSlot>> NewRxRing(dma::Device& device, uint32_t entries,
                                                const std::string& label);
// With one entry more, of zeros, that the device is not told of: short frames are padded from it.
absl::StatusOr<dma::RingPool<TxSlot>> NewTxRing(dma::Device& device, uint32_t entries,
                                                const std::string& label);
}  // namespace internal

template <RxBufferSource Source, TxAddressing Addressing>
absl::StatusOr<std::unique_ptr<Driver<Source, Addressing>>> Driver<Source, Addressing>::Create(
    dma::Device& device, const dma::MmioRegion& registers, const DriverOptions& options,
    std::vector<Source> sources, std::vector<Addressing> addressings) {
  absl::Status checked = CheckOptions(options, sources.size(), addressings.size());
  if (!checked.ok()) return checked;
  std::unique_ptr<Driver> driver(
      new Driver(device, registers, options, sources.size(), addressings.size()));
  driver->AddQueues(sources, addressings);
  return driver;
}

template <RxBufferSource Source, TxAddressing Addressing>
void Driver<Source, Addressing>::AddQueues(std::vector<Source>& sources,
                                           std::vector<Addressing>& addressings) {
  while (rx_.size() < sources.size()) {
    const uint32_t index = static_cast<uint32_t>(rx_.size());
    rx_.emplace_back(index, std::move(sources[index]));
  }
  while (tx_.size() < addressings.size()) {
    const uint32_t index = static_cast<uint32_t>(tx_.size());
    tx_.emplace_back(index, max_frame(), std::move(addressings[index]));
  }
}

template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::Reshape(const DriverOptions& options,
                                                 std::vector<Source> sources,
                                                 std::vector<Addressing> addressings) {
  if (running()) return absl::FailedPreconditionError(name() + ": runs; suspend it first");
  absl::Status checked = CheckShape(options, sources.size(), addressings.size());
  if (!checked.ok()) return checked;
  options_ = options;
  rx_queues_ = sources.size();
  tx_queues_ = addressings.size();
  for (size_t i = 0; i < std::min(rx_.size(), sources.size()); ++i) {
    rx_[i].ReplaceSource(std::move(sources[i]));
  }
  for (size_t i = sources.size(); i < rx_.size(); ++i) {
    if (!sources.empty()) rx_[i].MoveKept(rx_[i % sources.size()]);
  }
  for (Tx& tx : tx_) tx.SetMaxFrame(max_frame());
  AddQueues(sources, addressings);
  return absl::OkStatus();
}

// --- Up ------------------------------------------------------------------------------------------

template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::Begin(bool keep) {
  if (running()) return absl::FailedPreconditionError(name() + ": is started; stop it first");
  absl::Status status = BringUp();
  if (status.ok()) {
    running_.store(true, std::memory_order_relaxed);
    return status;
  }
  StopProblems problems;
  TakeDown(StopDeadline(device_.waiter(), options_.stop_deadline), keep, problems);
  return status;
}

// E1000e sheet 2: rings and addresses first, then the enables, then buffers.
template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::BringUp() {
  if (absl::Status s = chip_.Reset(); !s.ok()) return Named(s);
  if (absl::Status s = chip_.LoadMac(); !s.ok()) return Named(s);
  const Chip::Settings settings = SettingsOf();
  chip_.Configure(settings);
  if (absl::Status s = SetUpRings(); !s.ok()) return s;
  chip_.EnableTx();
  if (rx_count() > 0) chip_.EnableRx(settings);
  for (size_t i = 0; i < rx_count(); ++i) {
    if (rx_[i].Fill() == 0) return NoRxBuffer(RxLabel(i), WhyNoRxBuffer(rx_[i].source()));
  }
  (void)chip_.WaitForLink(options_.link_wait);
  return absl::OkStatus();
}

template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::SetUpRings() {
  for (size_t i = 0; i < rx_count(); ++i) {
    auto ring = internal::NewRxRing(device_, options_.ring_size, RxLabel(i));
    if (!ring.ok()) return ring.status();
    chip_.ProgramRx(i, ring->iova(), uint64_t{options_.ring_size} * kDescriptorBytes);
    rx_[i].Attach(*std::move(ring), chip_.registers(), {device_, RxLabel(i)}, RxSettingsOf());
  }
  for (size_t i = 0; i < tx_count(); ++i) {
    auto ring = internal::NewTxRing(device_, options_.ring_size, TxLabel(i));
    if (!ring.ok()) return ring.status();
    chip_.ProgramTx(i, ring->iova(), uint64_t{options_.ring_size} * kDescriptorBytes);
    tx_[i].Attach(*std::move(ring), chip_.registers(), {device_, TxLabel(i)}, options_.vlan_strip);
  }
  return absl::OkStatus();
}

// --- Down ----------------------------------------------------------------------------------------

template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::End(bool keep) {
  if (!running()) {
    if (!keep) {
      for (Rx& rx : rx_) rx.DropKept();
    }
    return absl::OkStatus();
  }
  const StopDeadline deadline(device_.waiter(), options_.stop_deadline);
  Drain(deadline);
  StopProblems problems;
  TakeDown(deadline, keep, problems);
  running_.store(false, std::memory_order_relaxed);
  return problems.ToStatus(name());
}

template <RxBufferSource Source, TxAddressing Addressing>
void Driver<Source, Addressing>::Drain(const StopDeadline& deadline) {
  for (size_t i = 0; i < tx_count(); ++i) {
    const bool drained = dma::PollUntil(device_.waiter(), deadline.ToDrain(), [&] {
      tx_[i].Reap();
      return tx_[i].packets_in_flight() == 0;
    });
    if (!drained) return;
  }
}

// The device lets go of everything at once, or of nothing.
template <RxBufferSource Source, TxAddressing Addressing>
void Driver<Source, Addressing>::TakeDown(const StopDeadline& deadline, bool keep,
                                          StopProblems& problems) {
  (void)chip_.counters(running());
  chip_.MaskInterrupts();
  LetGo(chip_.Stop(deadline.ToHalt()), keep, problems);
  if (!keep) {
    for (Rx& rx : rx_) rx.DropKept();  // those at rest too
  }
}

template <RxBufferSource Source, TxAddressing Addressing>
void Driver<Source, Addressing>::LetGo(Halt halt, bool keep, StopProblems& problems) {
  for (size_t i = 0; i < tx_count(); ++i) {
    if (!tx_[i].attached()) continue;
    if (halt == Halt::kStopped) {
      const uint64_t unsent = tx_[i].Reclaim();
      if (unsent != 0) problems.Add(TxLabel(i), std::to_string(unsent) + " packets not sent");
      continue;
    }
    QuarantineRing(device_, TxLabel(i), Describe(halt), tx_[i].Abandon());
    problems.Add(TxLabel(i), Describe(halt));
  }
  for (size_t i = 0; i < rx_count(); ++i) {
    if (!rx_[i].attached()) continue;
    if (halt == Halt::kStopped) {
      rx_[i].Reclaim(keep);
      continue;
    }
    QuarantineRing(device_, RxLabel(i), Describe(halt), rx_[i].Abandon());
    problems.Add(RxLabel(i), Describe(halt));
  }
}

// --- Statistics ----------------------------------------------------------------------------------

template <RxBufferSource Source, TxAddressing Addressing>
RxQueueStats Driver<Source, Addressing>::rx_stats(size_t i) const {
  RxQueueStats stats = rx_[i].stats();
  if (i == 0) stats.device_no_buffer = counters().missed;
  stats.dropped += stats.device_no_buffer;
  return stats;
}

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_DRIVER_INL_H_
