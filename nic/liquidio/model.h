// SPDX-License-Identifier: Apache-2.0
//
// Model: a CN23XX in software (section 9 of the liquidio sheet), one function with one BAR.
// Register writes latch (model_registers.h); rings and frames are worked on in Step(). It reaches
// memory only through its DevicePort, so a wrong address is a fault and costs the packet; and it is
// strict: what the sheet forbids is recorded.
//
// Frames that come in go to the output rings that are enabled, by a hash of addresses and ports; a
// frame that is not IP goes to the first. Which rings they are is settled by the first frame that
// finds credits, until all are off: rings come and go one by one, and a flow stays on its own. Tags
// stay in frames.
//
// With ModelOptions::hostile it misbehaves at random instead (model_hostile.h). Then the violations
// say little about the driver: it may break a rule because it was lied to.
//
// Not modelled: commands and responses, the mailbox, tunnels, time stamps.
//
// Threads: registers from any thread; Step, Plug by one thread at a time (nic::ModelThread);
// violations and drops from any thread.
#ifndef DMAKIT_NIC_LIQUIDIO_MODEL_H_
#define DMAKIT_NIC_LIQUIDIO_MODEL_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dma/device_port.h"
#include "dma/host/clock.h"
#include "dma/mmio.h"
#include "nic/liquidio/model_hostile.h"
#include "nic/liquidio/model_registers.h"
#include "nic/liquidio/model_rx.h"
#include "nic/liquidio/model_tx.h"
#include "nic/liquidio/model_violations.h"
#include "nic/model.h"
#include "nic/notifier.h"

namespace dmakit::nic::liquidio {

struct ModelOptions {
  bool vf = false;  // 8 rings, no global registers; else 64
  // True: a frame waits on the wire until its ring has credits, so a replay loses nothing. False:
  // it is dropped and counted, as on a real wire.
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
  dma::MmioRegion bar0() { return dma::MmioRegion::OfModel(registers_, registers_.bar_bytes()); }

  bool Step() override;
  void Plug(Wire* wire) override { wire_ = wire; }
  // One per ring.
  uint32_t vectors() const override { return registers_.rings(); }
  absl::Status Connect(uint32_t vector, Notifier* notifier) override;
  std::vector<std::string> violations() const override { return log_.Words(); }
  uint64_t violation_count() const override { return log_.count(); }

  // Frames that found no credits, with lossless off.
  uint64_t drops() const { return drops_.load(std::memory_order_relaxed); }
  // nullptr: honest.
  Hostile* hostile() { return hostile_.get(); }
  HostileCounts hostile_acts() const {
    return hostile_ != nullptr ? hostile_->counts() : HostileCounts();
  }
  // Power off and on: for tests of what was held until then.
  void Reset();

 private:
  // The work of one Step is bounded by this many frames per direction and ring.
  static constexpr uint32_t kBudget = 32;

  bool DoResets();
  bool ReceiveOne();
  // Output rings that frames are spread over.
  struct Steering {
    std::array<uint32_t, kPfRings> rings{};
    uint32_t count = 0;
  };
  Steering Enabled() const;
  bool AnyOn(const Steering& steering) const;

  const ModelOptions options_;
  std::unique_ptr<dma::DevicePort> port_;
  ViolationLog log_;
  RegisterFile registers_;
  dma::host::SystemClock system_clock_;
  std::unique_ptr<Hostile> hostile_;
  std::deque<ModelInput> inputs_;
  std::deque<ModelOutput> outputs_;
  Wire* wire_ = nullptr;
  Steering steering_;     // empty: nothing was delivered since all rings were off
  bool waiting_ = false;  // the frame at the wire has found no credits before
  std::atomic<uint64_t> drops_{0};
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_MODEL_H_
