// SPDX-License-Identifier: Apache-2.0
//
// Model: a software NIC that behaves as the silicon does. It reaches memory only through its
// dma::DevicePort, by IOVA, and frames only through its Wire. Register writes are latched by any
// thread; all device work happens in Step().
#ifndef DMAKIT_NIC_MODEL_H_
#define DMAKIT_NIC_MODEL_H_

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/host/clock.h"
#include "dma/poll.h"

namespace dmakit::nic {

class Wire;

class Model {
 public:
  virtual ~Model() = default;

  // Does a bounded piece of the work that is pending; true if it did any. One thread at a time.
  virtual bool Step() = 0;
  // The cable; nullptr unplugs. Not while Step runs.
  virtual void Plug(Wire* wire) = 0;
  // What the driver did that the sheet forbids (first 100, in words) and how often.
  virtual std::vector<std::string> violations() const = 0;
  virtual uint64_t violation_count() const = 0;
};

// Runs Step on a thread of its own until destroyed; sleeps briefly when there is nothing to do.
class ModelThread {
 public:
  static absl::StatusOr<ModelThread> Start(Model& model, dma::host::ThreadStarter& threads);
  ModelThread(ModelThread&&) = default;
  ModelThread& operator=(ModelThread&&) = default;

 private:
  explicit ModelThread(std::jthread thread) : thread_(std::move(thread)) {}
  std::jthread thread_;
};

// The Waiter of a stepped model: waiting steps it, and time passes by a fixed amount per step.
class ModelWaiter final : public dma::Waiter {
 public:
  explicit ModelWaiter(Model& model, dma::Nanos per_step = dma::Nanos{1000})
      : model_(model), per_step_(per_step) {}
  dma::Nanos Now() override { return now_; }
  void Pause() override {
    model_.Step();
    now_ += per_step_;
  }

 private:
  Model& model_;
  dma::Nanos per_step_;
  dma::Nanos now_{0};
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_MODEL_H_
