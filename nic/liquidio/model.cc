// SPDX-License-Identifier: Apache-2.0

#include "nic/liquidio/model.h"

#include <array>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/frame_info.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::liquidio {
namespace {

constexpr size_t kMaxFrame = 16022;  // sheet 7; longer ones are not let in

// Of the firmware's hash; the sheet does not say which it is.
constexpr std::array<std::byte, 40> HashKey() {
  std::array<std::byte, 40> key{};
  uint32_t state = 0x9e3779b9;
  for (std::byte& b : key) {
    state = state * 1664525 + 1013904223;
    b = static_cast<std::byte>(state >> 24);
  }
  return key;
}
constexpr std::array<std::byte, 40> kHashKey = HashKey();

void Hash(Arrival& arrival) {
  if (!arrival.info.ip()) return;
  const HashInput input = HashInputOf(arrival.frame, arrival.info);
  const size_t length = input.with_ports != 0 ? input.with_ports : input.addresses;
  arrival.hash = ToeplitzHash(kHashKey, std::span(input.bytes).first(length));
  arrival.hashed = true;
}

}  // namespace

Model::Model(std::unique_ptr<dma::DevicePort> port, const ModelOptions& options)
    : options_(options),
      port_(std::move(port)),
      registers_(options.vf ? kVfRings : kPfRings, options.vf, log_) {
  dma::host::Clock& clock = options.clock != nullptr ? *options.clock : system_clock_;
  for (uint32_t i = 0; i < registers_.rings(); ++i) {
    inputs_.emplace_back(i, *port_, registers_.ring(i), log_);
    outputs_.emplace_back(i, *port_, registers_.ring(i), log_, clock);
  }
  if (options_.hostile == 0) return;
  hostile_ = std::make_unique<Hostile>(options_.hostile, *port_, registers_);
  registers_.set_lies(hostile_.get());
}

void Model::Reset() {
  if (hostile_ != nullptr) hostile_->Reset();
  for (uint32_t i = 0; i < registers_.rings(); ++i) {
    registers_.ring(i).Reset();
    inputs_[i].Reset();
    outputs_[i].Reset();
  }
}

// Sheet 1: RST clears itself when the ring is quiet.
bool Model::DoResets() {
  if (hostile_ != nullptr && hostile_->ResetsStuck()) return false;
  bool any = false;
  for (uint32_t i = 0; i < registers_.rings(); ++i) {
    RingRegisters& ring = registers_.ring(i);
    if ((ring.input_control.load(std::memory_order_acquire) & kInputReset) == 0) continue;
    inputs_[i].Reset();
    outputs_[i].Reset();
    ring.Reset();
    any = true;
  }
  return any;
}

bool Model::Step() {
  bool worked = DoResets();
  for (ModelInput& input : inputs_) worked |= input.Step(wire_, kBudget);
  for (uint32_t i = 0; i < kBudget && ReceiveOne(); ++i) worked = true;
  if (hostile_ != nullptr) hostile_->Step(worked);
  for (ModelOutput& output : outputs_) worked |= output.StepInterrupt();
  return worked;
}

absl::Status Model::Connect(uint32_t vector, Notifier* notifier) {
  if (vector >= outputs_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("interrupt vector ", vector, ": this function has ", outputs_.size()));
  }
  outputs_[vector].Connect(notifier);
  return absl::OkStatus();
}

Model::Steering Model::Enabled() const {
  Steering on;
  for (uint32_t i = 0; i < registers_.rings(); ++i) {
    if (registers_.ring(i).output_on()) on.rings[on.count++] = i;
  }
  return on;
}

bool Model::AnyOn(const Steering& steering) const {
  for (uint32_t i = 0; i < steering.count; ++i) {
    if (registers_.ring(steering.rings[i]).output_on()) return true;
  }
  return false;
}

// False: there is no frame, or it has to wait.
bool Model::ReceiveOne() {
  if (wire_ == nullptr) return false;
  const std::optional<std::span<const std::byte>> frame = wire_->Peek();
  if (!frame) return false;
  const bool forgotten = hostile_ != nullptr && !waiting_ && hostile_->Drops();
  waiting_ = false;
  if (frame->size() < kEthernetHeader || frame->size() > kMaxFrame || forgotten) {
    wire_->Pop();
    return true;
  }
  Arrival arrival{.frame = *frame, .info = ParseFrame(*frame)};
  Hash(arrival);
  const Steering steering = AnyOn(steering_) ? steering_ : Enabled();
  bool taken = false;
  if (steering.count != 0) {
    const uint32_t ring = steering.rings[arrival.hashed ? arrival.hash % steering.count : 0];
    taken = outputs_[ring].Receive(arrival, hostile_.get());
    if (taken) steering_ = steering;
  }
  if (!taken && options_.lossless) {
    waiting_ = true;
    return false;
  }
  if (!taken) drops_.fetch_add(1, std::memory_order_relaxed);
  wire_->Pop();
  return true;
}

}  // namespace dmakit::nic::liquidio
