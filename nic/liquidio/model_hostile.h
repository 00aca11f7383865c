// SPDX-License-Identifier: Apache-2.0
//
// Hostile: how the liquidio model misbehaves when it was told to (ModelOptions::hostile). It stands
// between the rings and memory and between the registers and their readers, and does at random what
// a broken or malicious device could do. The same seed and the same driver give the same acts.
//
// It reaches memory through the model's port only; where the IOMMU stops it, that is counted.
//
// Threads: registers may be read from the stepping thread only.
#ifndef DMAKIT_NIC_LIQUIDIO_MODEL_HOSTILE_H_
#define DMAKIT_NIC_LIQUIDIO_MODEL_HOSTILE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <string_view>

#include "dma/device_port.h"
#include "iova/types.h"
#include "nic/liquidio/model_registers.h"

namespace dmakit::nic::liquidio {

enum class HostileAct : uint8_t {
  kLength,      // what is said of a packet's length is random
  kHeader,      // the words in front of a packet are random
  kCountMore,   // a delivery is counted several times
  kCountLess,   // or not at all, until others are
  kSentLie,     // PKTS_SENT reads nonsense, for a while
  kDoneLie,     // IN_DONE_CNTS reads nonsense, for a while
  kControlLie,  // INPUT_CONTROL reads nonsense, for a while
  kLateWrite,   // to a receive buffer that was delivered
  kWild,        // a read or write far from all that the device was given
  kStopped,     // a ring disables itself
  kGone,        // all registers read all ones, for a while
  kStuck,       // resets are not done, for a while
  kDropped,     // a frame is forgotten
};
inline constexpr size_t kHostileActs = 13;
std::string_view Name(HostileAct act);

// A set of kinds.
using HostileKinds = uint32_t;
constexpr HostileKinds Only(HostileAct act) { return HostileKinds{1} << static_cast<int>(act); }
inline constexpr HostileKinds kAllHostile = (HostileKinds{1} << kHostileActs) - 1;

struct HostileCounts {
  std::array<uint64_t, kHostileActs> acts{};
  uint64_t wild_faults = 0;
  uint64_t late_faults = 0;  // late writes that the IOMMU stopped
  uint64_t operator[](HostileAct act) const { return acts[static_cast<size_t>(act)]; }
};

class Hostile final : public RegisterLies {
 public:
  Hostile(uint64_t seed, dma::DevicePort& port, RegisterFile& registers)
      : port_(port), registers_(registers), random_(seed) {}

  // From now on it does only these.
  void SetKinds(HostileKinds kinds) { kinds_ = kinds; }
  const HostileCounts& counts() const { return counts_; }

  // --- Asked by the rings ---
  void Say(uint64_t& length, uint64_t& header);
  uint32_t Counted(uint32_t ring);
  void Remember(Iova buffer, uint32_t bytes);
  bool Drops();
  bool ResetsStuck() const { return now_ < stuck_until_; }
  uint64_t Answer(uint32_t ring, RingReg reg, uint64_t truth) override;

  // `worked`: the device did something in this step.
  void Step(bool worked);
  // The device was reset from outside: it holds nothing back.
  void Reset();

 private:
  struct Buffer {
    Iova at;
    uint32_t bytes = 0;
  };
  struct Lie {
    uint64_t until = 0;
    uint64_t value = 0;
    uint32_t ring = 0;
  };

  bool Does(HostileAct act, uint32_t one_in);
  uint64_t Nonsense();
  void Begin(Lie& lie);
  void WriteLate();
  void AccessWild();

  dma::DevicePort& port_;
  RegisterFile& registers_;
  std::mt19937_64 random_;
  HostileKinds kinds_ = kAllHostile;
  HostileCounts counts_;
  uint64_t now_ = 0;   // steps
  uint32_t owed_ = 0;  // deliveries not counted yet
  std::deque<Buffer> buffers_;
  uint64_t gone_until_ = 0;
  uint64_t stuck_until_ = 0;
  Lie sent_, done_, control_;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_MODEL_HOSTILE_H_
