// SPDX-License-Identifier: Apache-2.0
//
// One input ring of the liquidio model (liquidio sheet 2 to 4): instructions are fetched, their
// data gathered, checked and finished as they ask, and sent. An instruction that faults or is wrong
// is consumed and counted, its packet dropped. Used by the stepping thread only.
#ifndef DMAKIT_NIC_LIQUIDIO_MODEL_TX_H_
#define DMAKIT_NIC_LIQUIDIO_MODEL_TX_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dma/device_port.h"
#include "nic/liquidio/descriptors.h"
#include "nic/liquidio/model_registers.h"
#include "nic/liquidio/model_violations.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::liquidio {

class ModelInput {
 public:
  ModelInput(uint32_t index, dma::DevicePort& port, RingRegisters& ring, ViolationLog& log)
      : index_(index), port_(port), ring_(ring), log_(log) {}

  // Works on up to `budget` instructions. True if there was one.
  bool Step(Wire* wire, uint32_t budget);
  void Reset() { next_ = 0; }
  // Instructions that faulted, or that nothing could be made of.
  uint64_t errors() const { return errors_; }

 private:
  // The words of an instruction in the order they lie in.
  enum Word { kDptr, kIh3, kPkiIh3, kIrh, kOssp0, kOssp1, kRdp, kRptr, kWords };
  using Words = std::array<uint64_t, kWords>;

  bool Fetch(Words& words);
  bool CheckWords(const Words& words);
  bool Gather(const Words& words);
  bool Read(uint64_t from, uint32_t length);
  bool Send(const Words& words, Wire* wire);
  bool Segment(uint16_t size, uint16_t segments, Wire* wire, const Irh& irh);
  bool Checksums(const PacketParams& params);
  void Out(std::vector<std::byte>& frame, const Irh& irh, Wire* wire);
  bool Violate(const char* rule, uint64_t value) {
    log_.Record(rule, index_, value);
    return false;
  }

  const uint32_t index_;
  dma::DevicePort& port_;
  RingRegisters& ring_;
  ViolationLog& log_;
  uint32_t next_ = 0;
  uint64_t errors_ = 0;
  std::vector<std::byte> frame_;
  std::vector<std::byte> piece_;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_MODEL_TX_H_
