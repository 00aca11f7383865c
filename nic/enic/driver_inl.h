// SPDX-License-Identifier: Apache-2.0
//
// The members of enic::Driver; included by driver.h only.
#ifndef DMAKIT_NIC_ENIC_DRIVER_INL_H_
#define DMAKIT_NIC_ENIC_DRIVER_INL_H_

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dma/poll.h"
#include "nic/enic/driver.h"

namespace dmakit::nic::enic {

template <RxBufferSource Source, TxAddressing Addressing>
absl::StatusOr<std::unique_ptr<Driver<Source, Addressing>>> Driver<Source, Addressing>::Create(
    dma::Device& device, const dma::MmioRegion& bar0, const DriverOptions& options,
    std::vector<Source> sources, std::vector<Addressing> addressings) {
  absl::Status checked = CheckOptions(options, sources.size(), addressings.size());
  if (!checked.ok()) return checked;
  absl::StatusOr<Vnic> vnic = Vnic::Probe(device, bar0);
  if (!vnic.ok()) return vnic.status();
  std::unique_ptr<Driver> driver(
      new Driver(*std::move(vnic), options, sources.size(), addressings.size()));
  absl::Status there = driver->CheckResources(options, sources.size(), addressings.size());
  if (!there.ok()) return there;
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
  SetShape(options, sources.size(), addressings.size());
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
absl::Status Driver<Source, Addressing>::Start() {
  return Begin(/*keep=*/false);
}

template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::Resume() {
  return Begin(/*keep=*/true);
}

template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::Begin(bool keep) {
  if (running()) return absl::FailedPreconditionError(name() + ": is started; stop it first");
  absl::Status status = BringUp();
  if (status.ok()) {
    running_.store(true, std::memory_order_relaxed);
    return status;
  }
  StopProblems problems;
  TakeDown(StopDeadline(vnic_.device().waiter(), options_.stop_deadline), keep, problems);
  return status;
}

// Enic sheet 4.
template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::BringUp() {
  if (absl::Status s = vnic_.Open(); !s.ok()) return s;
  if (absl::Status s = CheckSpec(options_); !s.ok()) return s;
  if (absl::Status s = QuiesceAll(); !s.ok()) return s;
  if (absl::Status s = SetUpQueues(); !s.ok()) return s;
  absl::Status configured =
      vnic_.ConfigureReceive(static_cast<uint32_t>(rx_count()), options_.vlan_strip);
  if (!configured.ok()) return configured;
  if (absl::Status s = FillQueues(); !s.ok()) return s;
  return EnableDevice();
}

template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::SetUpQueues() {
  for (size_t i = 0; i < rx_count(); ++i) {
    const Control& control = rx_control_[i];
    auto memory = AllocateQueue(vnic_.device(), options_.ring_size, control.label);
    if (!memory.ok()) return memory.status();
    std::optional<dma::MmioRegion> interrupt;
    if (options_.interrupts) {
      const uint32_t index = static_cast<uint32_t>(i);
      if (absl::Status s = vnic_.SetUpInterrupt(index, options_.coalescing); !s.ok()) return s;
      interrupt = vnic_.interrupt(index);
    }
    ProgramRq(control.registers, *memory);
    rx_[i].Attach(*std::move(memory), control.registers.queue, {vnic_.device(), control.label},
                  interrupt);
    BeginDropCount(i);
  }
  for (size_t i = 0; i < tx_count(); ++i) {
    const Control& control = tx_control_[i];
    auto memory = AllocateQueue(vnic_.device(), options_.ring_size, control.label);
    if (!memory.ok()) return memory.status();
    ProgramWq(control.registers, *memory);
    tx_[i].Attach(*std::move(memory), control.registers.queue, {vnic_.device(), control.label});
  }
  return absl::OkStatus();
}

// Enic sheet 3.1: enable, then post.
template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::FillQueues() {
  for (size_t i = 0; i < rx_count(); ++i) {
    EnableQueue(rx_control_[i]);
    if (rx_[i].Fill() == 0) {
      return NoRxBuffer(rx_control_[i].label, WhyNoRxBuffer(rx_[i].source()));
    }
  }
  for (const Control& control : tx_control_) EnableQueue(control);
  return absl::OkStatus();
}

// --- Down ----------------------------------------------------------------------------------------

template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::Stop() {
  return End(/*keep=*/false);
}

template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::Suspend() {
  return End(/*keep=*/true);
}

template <RxBufferSource Source, TxAddressing Addressing>
absl::Status Driver<Source, Addressing>::End(bool keep) {
  if (!running()) {
    if (!keep) {
      for (Rx& rx : rx_) rx.DropKept();
    }
    return absl::OkStatus();
  }
  const StopDeadline deadline(vnic_.device().waiter(), options_.stop_deadline);
  Drain(deadline);
  StopProblems problems;
  TakeDown(deadline, keep, problems);
  running_.store(false, std::memory_order_relaxed);
  return problems.ToStatus(name());
}

// A queue that the device has stopped by itself sends nothing any more.
template <RxBufferSource Source, TxAddressing Addressing>
void Driver<Source, Addressing>::Drain(const StopDeadline& deadline) {
  for (size_t i = 0; i < tx_count(); ++i) {
    const bool drained = dma::PollUntil(vnic_.device().waiter(), deadline.ToDrain(), [&] {
      tx_[i].Reap();
      return tx_[i].packets_in_flight() == 0 || TxError(i) != 0;
    });
    if (!drained) return;
  }
}

template <RxBufferSource Source, TxAddressing Addressing>
void Driver<Source, Addressing>::TakeDown(const StopDeadline& deadline, bool keep,
                                          StopProblems& problems) {
  if (absl::Status s = vnic_.Disable(); !s.ok()) {
    problems.Add(s);
  }
  vnic_.MaskInterrupts();
  for (size_t i = 0; i < tx_count(); ++i) StopTx(i, deadline, problems);
  for (size_t i = 0; i < rx_count(); ++i) StopRx(i, deadline, keep, problems);
  if (!keep) {
    for (Rx& rx : rx_) rx.DropKept();  // those at rest too
  }
  if (absl::Status s = vnic_.Close(); !s.ok()) {
    problems.Add(s);
  }
}

template <RxBufferSource Source, TxAddressing Addressing>
void Driver<Source, Addressing>::StopTx(size_t i, const StopDeadline& deadline,
                                        StopProblems& problems) {
  if (!tx_[i].attached()) return;
  const Control& control = tx_control_[i];
  const Halt halt = HaltWq(control.registers.queue, vnic_.device().waiter(), deadline.ToHalt());
  if (halt == Halt::kStopped) {
    const uint64_t unsent = tx_[i].Reclaim();
    CleanWq(control.registers.queue);
    if (unsent != 0) {
      problems.Add(control.label, std::to_string(unsent) + " packets not sent");
    }
    return;
  }
  QueueMemory memory = tx_[i].Abandon();
  QuarantineRing(vnic_.device(), control.label, Describe(halt), std::move(memory.ring));
  QuarantineRing(vnic_.device(), control.label, Describe(halt), std::move(memory.completions));
  problems.Add(control.label, Describe(halt));
}

template <RxBufferSource Source, TxAddressing Addressing>
void Driver<Source, Addressing>::StopRx(size_t i, const StopDeadline& deadline, bool keep,
                                        StopProblems& problems) {
  if (!rx_[i].attached()) return;
  const Control& control = rx_control_[i];
  const Halt halt = HaltRq(control.registers.queue, vnic_.device().waiter(), deadline.ToHalt());
  EndDropCount(i);
  if (halt == Halt::kStopped) return rx_[i].Reclaim(keep);
  QueueMemory memory = rx_[i].Abandon();
  QuarantineRing(vnic_.device(), control.label, Describe(halt), std::move(memory.ring));
  QuarantineRing(vnic_.device(), control.label, Describe(halt), std::move(memory.completions));
  problems.Add(control.label, Describe(halt));
}

// --- Statistics ----------------------------------------------------------------------------------

template <RxBufferSource Source, TxAddressing Addressing>
RxQueueStats Driver<Source, Addressing>::rx_stats(size_t i) const {
  RxQueueStats stats = rx_[i].stats();
  stats.device_no_buffer = DeviceDrops(i);
  stats.dropped += stats.device_no_buffer;
  stats.device_error = RxError(i);
  return stats;
}

template <RxBufferSource Source, TxAddressing Addressing>
TxQueueStats Driver<Source, Addressing>::tx_stats(size_t i) const {
  TxQueueStats stats = tx_[i].stats();
  stats.device_error = TxError(i);
  return stats;
}

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_DRIVER_INL_H_
