// SPDX-License-Identifier: Apache-2.0
//
// Model: an enic in software (section 7 of the enic sheet), for one vNIC with one BAR. Register
// writes latch (model_registers.h), commands, queues and frames are worked on in Step(). It reaches
// memory only through its DevicePort, so a wrong address is a fault and stops the queue, with
// error_status set, as on silicon; and it is strict: what the sheet forbids is recorded.
//
// With ModelOptions::hostile it misbehaves at random instead (model_hostile.h). Then the violations
// say little about the driver: it may break a rule because it was lied to.
//
// Not modelled: scattered receive, message-mode completions, error interrupts, FCoE.
//
// Threads: registers from any thread; Step, Plug by one thread at a time (nic::ModelThread);
// violations from any thread.
#ifndef DMAKIT_NIC_ENIC_MODEL_H_
#define DMAKIT_NIC_ENIC_MODEL_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dma/device_port.h"
#include "dma/host/clock.h"
#include "dma/mmio.h"
#include "nic/enic/model_devcmd.h"
#include "nic/enic/model_hostile.h"
#include "nic/enic/model_interrupt.h"
#include "nic/enic/model_queue.h"
#include "nic/enic/model_registers.h"
#include "nic/enic/model_rx.h"
#include "nic/enic/model_tx.h"
#include "nic/enic/model_violations.h"
#include "nic/model.h"
#include "nic/notifier.h"

namespace dmakit::nic::enic {

struct ModelOptions {
  uint32_t work_queues = 64;  // in the resource table; at most 64
  uint32_t receive_queues = 64;
  uint32_t max_ring = 4096;  // what DEV_SPEC says
  uint16_t max_mtu = 9000;
  std::array<uint8_t, 6> mac = {0x02, 0x00, 0x00, 0x00, 0x00, 0x01};
  // True: a frame waits on the wire until its queue has a buffer, so a replay loses nothing. False:
  // it is dropped and counted, as on a real wire. (A queue that stopped with an error drops always,
  // and so does a device that is not enabled.)
  bool lossless = true;
  // Seed of what a hostile device does; 0: an honest one. For a model that is stepped by the thread
  // that also drives it.
  uint64_t hostile = 0;
  dma::host::Clock* clock = nullptr;  // of interrupt coalescing; nullptr: the system's
};

class Model final : public nic::Model, public InterruptSource {
 public:
  explicit Model(std::unique_ptr<dma::DevicePort> port, const ModelOptions& options = {});

  // BAR 0. Valid as long as the model.
  dma::MmioRegion bar0() { return dma::MmioRegion::OfModel(registers_, RegisterFile::kBarBytes); }

  bool Step() override;
  void Plug(Wire* wire) override { wire_ = wire; }
  // One per receive queue.
  uint32_t vectors() const override { return static_cast<uint32_t>(interrupts_.size()); }
  absl::Status Connect(uint32_t vector, Notifier* notifier) override;
  std::vector<std::string> violations() const override { return log_.Words(); }
  uint64_t violation_count() const override { return log_.count(); }

  // nullptr: honest.
  Hostile* hostile() { return hostile_.get(); }
  // What a hostile one did, by kind.
  HostileCounts hostile_acts() const {
    return hostile_ != nullptr ? hostile_->counts() : HostileCounts();
  }

 private:
  // The work of one Step is bounded by this many frames per direction and queue.
  static constexpr uint32_t kBudget = 32;

  bool UpdateQueues();
  bool MoveFrames();
  bool ReceiveOne();

  const ModelOptions options_;
  std::unique_ptr<dma::DevicePort> port_;
  ViolationLog log_;
  RegisterFile registers_;
  CommandProcessor commands_;
  dma::host::SystemClock system_clock_;
  std::unique_ptr<Hostile> hostile_;
  std::deque<ModelInterrupt> interrupts_;
  std::deque<CompletionWriter> completions_;
  std::deque<ModelWorkQueue> work_queues_;
  std::deque<ModelReceiveQueue> receive_queues_;
  Wire* wire_ = nullptr;
  bool waiting_ = false;  // the frame at the wire has found no buffer before
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_MODEL_H_
