// SPDX-License-Identifier: Apache-2.0
//
// The members of liquidio::Driver; included by driver.h only.
#ifndef DMAKIT_NIC_LIQUIDIO_DRIVER_INL_H_
#define DMAKIT_NIC_LIQUIDIO_DRIVER_INL_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dma/poll.h"
#include "nic/liquidio/driver.h"

namespace dmakit::nic::liquidio {

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
absl::StatusOr<std::unique_ptr<Driver<Source, Addressing, Lists, Infos>>>
Driver<Source, Addressing, Lists, Infos>::Create(dma::Device& device, const Function& function,
                                                 const DriverOptions& options,
                                                 std::vector<Source> sources,
                                                 std::vector<Addressing> addressings) {
  std::unique_ptr<Driver> driver(new Driver(device, function));
  absl::Status checked = driver->CheckShape(options, sources.size(), addressings.size());
  if (!checked.ok()) return checked;
  driver->SetShape(options, sources.size(), addressings.size());
  driver->AddQueues(sources, addressings);
  return driver;
}

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
void Driver<Source, Addressing, Lists, Infos>::AddQueues(std::vector<Source>& sources,
                                                         std::vector<Addressing>& addressings) {
  while (rx_.size() < sources.size()) {
    rx_.emplace_back(max_frame(), std::move(sources[rx_.size()]));
  }
  while (tx_.size() < addressings.size()) {
    tx_.emplace_back(max_frame(), std::move(addressings[tx_.size()]));
  }
}

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
absl::Status Driver<Source, Addressing, Lists, Infos>::Reshape(
    const DriverOptions& options, std::vector<Source> sources,
    std::vector<Addressing> addressings) {
  if (running()) return absl::FailedPreconditionError(name() + ": runs; suspend it first");
  absl::Status checked = CheckShape(options, sources.size(), addressings.size());
  if (!checked.ok()) return checked;
  SetShape(options, sources.size(), addressings.size());
  for (size_t i = 0; i < std::min(rx_.size(), sources.size()); ++i) {
    rx_[i].ReplaceSource(std::move(sources[i]));
  }
  for (size_t i = sources.size(); i < rx_.size() && !sources.empty(); ++i) {
    rx_[i].MoveKept(rx_[i % sources.size()]);
  }
  for (Rx& rx : rx_) rx.SetMaxFrame(max_frame());
  for (Tx& tx : tx_) tx.SetMaxFrame(max_frame());
  AddQueues(sources, addressings);
  return absl::OkStatus();
}

// --- Up ------------------------------------------------------------------------------------------

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
absl::Status Driver<Source, Addressing, Lists, Infos>::Start() {
  return Begin(/*keep=*/false);
}

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
absl::Status Driver<Source, Addressing, Lists, Infos>::Resume() {
  return Begin(/*keep=*/true);
}

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
absl::Status Driver<Source, Addressing, Lists, Infos>::Begin(bool keep) {
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

// Liquidio sheet 1.
template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
absl::Status Driver<Source, Addressing, Lists, Infos>::BringUp() {
  if (absl::Status s = ResetAll(); !s.ok()) return s;
  for (size_t i = 0; i < tx_count(); ++i) {
    if (absl::Status s = SetUpTx(i); !s.ok()) return s;
  }
  for (size_t i = 0; i < rx_count(); ++i) {
    if (absl::Status s = SetUpRx(i); !s.ok()) return s;
  }
  // Step 8: credits only after the ring is enabled; here after all are, or the device would spread
  // flows over those that are.
  for (size_t i = 0; i < rx_count(); ++i) {
    if (rx_[i].Fill() == 0) return NoRxBuffer(RxLabel(i), WhyNoRxBuffer(rx_[i].source()));
  }
  return absl::OkStatus();
}

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
absl::Status Driver<Source, Addressing, Lists, Infos>::SetUpTx(size_t i) {
  const std::string label = TxLabel(i);
  auto memory = AllocateInput<Lists>(device_, options_.ring_size, label);
  if (!memory.ok()) return memory.status();
  const Iova base = memory->ring.iova();
  tx_[i].Attach(*std::move(memory), ring(i), {device_, label}, WordsOf(static_cast<uint32_t>(i)),
                function_.counter_start);
  EnableInput(ring(i), base, options_.ring_size);
  return absl::OkStatus();
}

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
absl::Status Driver<Source, Addressing, Lists, Infos>::SetUpRx(size_t i) {
  const std::string label = RxLabel(i);
  const OutputSetUp set_up = output_set_up();
  auto memory = AllocateOutput<Infos>(device_, options_.ring_size, label, set_up.mode);
  if (!memory.ok()) return memory.status();
  const Iova base = memory->ring.iova();
  rx_[i].Attach(*std::move(memory), ring(i), {device_, label}, set_up);
  EnableOutput(ring(i), base, options_.ring_size, set_up);
  return absl::OkStatus();
}

// --- Down ----------------------------------------------------------------------------------------

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
absl::Status Driver<Source, Addressing, Lists, Infos>::Stop() {
  return End(/*keep=*/false);
}

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
absl::Status Driver<Source, Addressing, Lists, Infos>::Suspend() {
  return End(/*keep=*/true);
}

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
absl::Status Driver<Source, Addressing, Lists, Infos>::End(bool keep) {
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

// A ring that the device has stopped by itself sends nothing any more.
template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
void Driver<Source, Addressing, Lists, Infos>::Drain(const StopDeadline& deadline) {
  for (size_t i = 0; i < tx_count(); ++i) {
    const bool drained = dma::PollUntil(device_.waiter(), deadline.ToDrain(), [&] {
      tx_[i].Reap();
      return tx_[i].packets_in_flight() == 0 || TxError(i) != 0;
    });
    if (!drained) return;
  }
}

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
void Driver<Source, Addressing, Lists, Infos>::TakeDown(const StopDeadline& deadline, bool keep,
                                                        StopProblems& problems) {
  for (size_t i = 0; i < std::max(rx_count(), tx_count()); ++i) {
    StopRing(i, deadline, keep, problems);
  }
  if (keep) return;
  for (Rx& rx : rx_) rx.DropKept();  // those at rest too
}

// One reset takes both directions, and their counters.
template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
void Driver<Source, Addressing, Lists, Infos>::StopRing(size_t i, const StopDeadline& deadline,
                                                        bool keep, StopProblems& problems) {
  Tx* const tx = i < tx_count() && tx_[i].attached() ? &tx_[i] : nullptr;
  Rx* const rx = i < rx_count() && rx_[i].attached() ? &rx_[i] : nullptr;
  if (tx == nullptr && rx == nullptr) return;
  if (tx != nullptr) tx->Reap();
  if (rx != nullptr) rx->BeforeReset();
  const Halt halt = ResetRing(ring(i), device_.waiter(), deadline.ToHalt());
  if (halt == Halt::kStopped) {
    const uint64_t unsent = tx != nullptr ? tx->Reclaim() : 0;
    if (unsent != 0) problems.Add(TxLabel(i), std::to_string(unsent) + " packets not sent");
    if (rx != nullptr) rx->Reclaim(keep);
    return;
  }
  if (tx != nullptr) {
    tx->Abandon().Quarantine(device_, TxLabel(i), Describe(halt));
    problems.Add(TxLabel(i), Describe(halt));
  }
  if (rx != nullptr) {
    rx->Abandon().Quarantine(device_, RxLabel(i), Describe(halt));
    problems.Add(RxLabel(i), Describe(halt));
  }
}

// --- Statistics ----------------------------------------------------------------------------------

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
RxQueueStats Driver<Source, Addressing, Lists, Infos>::rx_stats(size_t i) const {
  RxQueueStats stats = rx_[i].stats();
  stats.device_error = RxError(i);
  if (stats.device_error == 0 && rx_[i].counter_lies()) stats.device_error = kImpossibleCount;
  return stats;
}

template <RxBufferSource Source, TxAddressing Addressing, SlotMemory Lists, SlotMemory Infos>
TxQueueStats Driver<Source, Addressing, Lists, Infos>::tx_stats(size_t i) const {
  TxQueueStats stats = tx_[i].stats();
  stats.device_error = TxError(i);
  if (stats.device_error == 0 && tx_[i].counter_lies()) stats.device_error = kImpossibleCount;
  return stats;
}

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_DRIVER_INL_H_
