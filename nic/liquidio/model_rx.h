// SPDX-License-Identifier: Apache-2.0
//
// One output ring of the liquidio model (liquidio sheet 5): a frame is written to as many buffers
// as it takes, what is said of it in front of it or beside the ring, and then the counter moves.
// Used by the stepping thread only; Connect: any.
#ifndef DMAKIT_NIC_LIQUIDIO_MODEL_RX_H_
#define DMAKIT_NIC_LIQUIDIO_MODEL_RX_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "dma/device_port.h"
#include "dma/host/clock.h"
#include "iova/types.h"
#include "nic/frame_info.h"
#include "nic/liquidio/descriptors.h"
#include "nic/liquidio/model_registers.h"
#include "nic/liquidio/model_violations.h"
#include "nic/notifier.h"

namespace dmakit::nic::liquidio {

class Hostile;

// A frame on its way in, with what the device found out about it.
struct Arrival {
  std::span<const std::byte> frame;
  FrameInfo info;
  bool hashed = false;
  uint32_t hash = 0;
};

class ModelOutput {
 public:
  ModelOutput(uint32_t index, dma::DevicePort& port, RingRegisters& ring, ViolationLog& log,
              dma::host::Clock& clock)
      : index_(index), port_(port), ring_(ring), log_(log), clock_(clock) {}

  // False: it has to wait for credits. A frame that faults is dropped.
  bool Receive(const Arrival& arrival, Hostile* hostile);
  void Reset() { next_ = 0; }
  void Connect(Notifier* notifier);
  // Raises the interrupt if it is time to. True if it did.
  bool StepInterrupt();
  uint64_t errors() const { return errors_; }

 private:
  // What is said of a frame, and its bytes as they lie in the buffers.
  struct Delivery {
    uint64_t length = 0;
    uint64_t header = 0;
    std::vector<std::byte> image;
  };
  void Build(const Arrival& arrival, Hostile* hostile);
  bool Write(uint32_t buffers, Hostile* hostile);
  bool WriteInfo(Iova at);
  bool Violate(const char* rule, uint64_t value) {
    log_.Record(rule, index_, value);
    return false;
  }

  const uint32_t index_;
  dma::DevicePort& port_;
  RingRegisters& ring_;
  ViolationLog& log_;
  dma::host::Clock& clock_;
  uint32_t next_ = 0;
  uint64_t errors_ = 0;
  Delivery delivery_;
  dma::Nanos first_{0};  // when the oldest packet came that the counter has

  std::mutex mutex_;  // held while notifying
  Notifier* notifier_ = nullptr;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_MODEL_RX_H_
