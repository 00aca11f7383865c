// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/model.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/frame_info.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::enic {
namespace {

RegisterFile::Counts CountsOf(const ModelOptions& options) {
  constexpr uint32_t most = RegisterFile::kMaxQueues;
  const uint32_t rqs = std::min(options.receive_queues, most);
  return {std::min(options.work_queues, most), rqs, std::max(rqs, 1u)};
}

CommandProcessor::Identity IdentityOf(const ModelOptions& options) {
  return {options.mac, {0, options.max_ring, options.max_ring, options.max_mtu}};
}

}  // namespace

Model::Model(std::unique_ptr<dma::DevicePort> port, const ModelOptions& options)
    : options_(options),
      port_(std::move(port)),
      registers_(CountsOf(options), log_),
      commands_(IdentityOf(options), *port_, registers_, log_) {
  const RegisterFile::Counts& counts = registers_.counts();
  dma::host::Clock& clock = options.clock != nullptr ? *options.clock : system_clock_;
  for (uint32_t i = 0; i < counts.intrs; ++i) interrupts_.emplace_back(registers_.intr(i), clock);
  for (uint32_t i = 0; i < counts.cqs(); ++i) {
    completions_.emplace_back(*port_, registers_, log_, interrupts_, i);
  }
  for (uint32_t i = 0; i < counts.wqs; ++i) {
    work_queues_.emplace_back(Block::kWq, i, *port_, registers_.wq(i), registers_, log_,
                              completions_);
  }
  for (uint32_t i = 0; i < counts.rqs; ++i) {
    receive_queues_.emplace_back(Block::kRq, i, *port_, registers_.rq(i), registers_, log_,
                                 completions_);
  }
  if (options_.hostile == 0) return;
  hostile_ = std::make_unique<Hostile>(options_.hostile, *port_, registers_);
  registers_.set_lies(hostile_.get());
  for (ModelWorkQueue& queue : work_queues_) queue.set_hostile(hostile_.get());
  for (ModelReceiveQueue& queue : receive_queues_) queue.set_hostile(hostile_.get());
}

bool Model::Step() {
  bool worked = commands_.Step();
  if (commands_.TakeReset()) {
    for (ModelWorkQueue& queue : work_queues_) queue.Abandon();
    for (ModelReceiveQueue& queue : receive_queues_) queue.Abandon();
    registers_.Reset();
    if (hostile_ != nullptr) hostile_->Reset();
  }
  worked |= UpdateQueues();
  if (commands_.enabled()) worked |= MoveFrames();
  if (hostile_ != nullptr) worked |= hostile_->Step(worked);
  for (ModelInterrupt& interrupt : interrupts_) worked |= interrupt.Step();
  return worked;
}

bool Model::MoveFrames() {
  bool worked = false;
  for (ModelWorkQueue& queue : work_queues_) worked |= queue.Step(wire_, kBudget);
  for (uint32_t i = 0; i < kBudget; ++i) {
    if (!ReceiveOne()) break;
    worked = true;
  }
  return worked;
}

absl::Status Model::Connect(uint32_t vector, Notifier* notifier) {
  if (vector >= interrupts_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("interrupt vector ", vector, ": this device has ", interrupts_.size()));
  }
  interrupts_[vector].Connect(notifier);
  return absl::OkStatus();
}

bool Model::UpdateQueues() {
  bool changed = false;
  for (ModelWorkQueue& queue : work_queues_) changed |= queue.UpdateEnable();
  for (ModelReceiveQueue& queue : receive_queues_) changed |= queue.UpdateEnable();
  return changed;
}

// False: there is no frame, or it has to wait.
bool Model::ReceiveOne() {
  if (wire_ == nullptr) return false;
  const std::optional<std::span<const std::byte>> frame = wire_->Peek();
  if (!frame) return false;
  const bool forgotten = hostile_ != nullptr && !waiting_ && hostile_->Drops();
  waiting_ = false;
  if (frame->size() < kEthernetHeader || !commands_.filter().Accepts(*frame) || forgotten) {
    wire_->Pop();
    return true;
  }
  const Steering& steering = commands_.steering();
  Arrival arrival{.frame = *frame, .info = ParseFrame(*frame)};
  arrival.strip_vlan = steering.config.vlan_strip && arrival.info.vlan;
  steering.Hash(arrival);
  const uint32_t chosen = steering.Queue(arrival);
  if (chosen >= receive_queues_.size()) {
    wire_->Pop();  // to a queue this device does not have
    return true;
  }
  ModelReceiveQueue& queue = receive_queues_[chosen];
  switch (queue.Receive(arrival)) {
    case ModelReceiveQueue::Outcome::kTaken:
      break;
    case ModelReceiveQueue::Outcome::kNoBuffer:
      waiting_ = options_.lossless;
      if (waiting_) return false;
      queue.CountDrop();
      break;
    case ModelReceiveQueue::Outcome::kStopped:
      queue.CountDrop();
      break;
  }
  wire_->Pop();
  return true;
}

}  // namespace dmakit::nic::enic
