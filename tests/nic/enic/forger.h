// SPDX-License-Identifier: Apache-2.0
//
// Completions as a test wants them, good ones and others.
#ifndef DMAKIT_TESTS_NIC_ENIC_FORGER_H_
#define DMAKIT_TESTS_NIC_ENIC_FORGER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "nic/enic/descriptors.h"
#include "nic/enic/registers.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {

// A device that writes completions as a test wants them: it stands where the model stands in the
// completion ring of a queue, while the model is not stepped.
class Forger {
 public:
  Forger(Rig& rig, uint32_t cq) : port_(rig.iommu->NewPort("forger")) {
    base_ = rig.ReadReg(ResourceType::kCq, cq, CqReg::kRingBase, 8);
    size_ = static_cast<uint32_t>(rig.ReadReg(ResourceType::kCq, cq, CqReg::kRingSize));
    tail_ = static_cast<uint32_t>(rig.ReadReg(ResourceType::kCq, cq, CqReg::kTail));
    color_ = rig.ReadReg(ResourceType::kCq, cq, CqReg::kTailColor) != 0;
  }

  void Write(Words words, CqType type) {
    const Iova slot = Iova{base_} + Bytes{uint64_t{tail_} * kDescriptorBytes};
    const std::array<std::byte, kDescriptorBytes> bytes = ToBytes(words);
    REQUIRE(port_->Write(slot, std::span(bytes).first(kColorByte)));
    REQUIRE(port_->Publish(slot + Bytes{kColorByte}, TypeColor(type, color_), 1));
    if (++tail_ == size_) {
      tail_ = 0;
      color_ = !color_;
    }
  }
  void Write(const CqEnetRqDesc& entry) { Write(Encode(entry), entry.type); }
  void Write(const CqEnetWqDesc& entry) { Write(Encode(entry), entry.type); }
  dma::DevicePort& port() { return *port_; }

 private:
  std::unique_ptr<dma::DevicePort> port_;
  uint64_t base_ = 0;
  uint32_t size_ = 0;
  uint32_t tail_ = 0;
  bool color_ = true;
};

// A good completion of `bytes` at `index`.
inline CqEnetRqDesc GoodRx(uint32_t index, uint32_t bytes, uint32_t queue = 0) {
  CqEnetRqDesc done;
  done.completed_index = static_cast<uint16_t>(index);
  done.q_number = static_cast<uint16_t>(queue);
  done.sop = done.eop = done.fcs_ok = true;
  done.csum_not_calc = true;
  done.bytes_written = static_cast<uint16_t>(bytes);
  return done;
}
inline CqEnetWqDesc DoneTx(uint32_t index, uint32_t queue = 0) {
  CqEnetWqDesc done;
  done.completed_index = static_cast<uint16_t>(index);
  done.q_number = static_cast<uint16_t>(queue);
  return done;
}

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_TESTS_NIC_ENIC_FORGER_H_
