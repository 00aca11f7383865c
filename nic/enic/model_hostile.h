// SPDX-License-Identifier: Apache-2.0
//
// Hostile: how the enic model misbehaves when it was told to (ModelOptions::hostile). It stands
// between the queues and their completion rings, and between the registers and their readers, and
// does at random what a broken or malicious device could do. The same seed and the same driver give
// the same acts.
//
// Acts follow the device's honest work, and a few come after it, when the queue may have been
// stopped; so a hostile device comes to rest where an honest one does. It reaches memory through
// the model's port only; where the IOMMU stops it, that is counted.
//
// Threads: registers may be read from the stepping thread only.
#ifndef DMAKIT_NIC_ENIC_MODEL_HOSTILE_H_
#define DMAKIT_NIC_ENIC_MODEL_HOSTILE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <string_view>
#include <vector>

#include "dma/device_port.h"
#include "nic/enic/descriptors.h"
#include "nic/enic/model_queue.h"
#include "nic/enic/model_registers.h"

namespace dmakit::nic::enic {

enum class HostileAct : uint8_t {
  // Completions.
  kPermuted,    // held back and written in another order; counted by entry
  kDuplicated,  // written again at once; counted by extra entry
  kDelayed,     // written up to 200 steps later
  kLost,
  kForged,      // everything in it is random, within or beyond what is possible
  kImpossible,  // random, but for certain of another type, for another queue or beyond the ring
  kUnposted,    // for a descriptor that the device does not have
  kTorn,        // the color first, the body up to 4 steps later
  kJumped,      // transmit: names the last posted descriptor, whatever was sent
  kMiddle,      // transmit: names a descriptor shortly before the right one
  // Memory.
  kLateWrite,  // to a receive buffer, after its completion
  kWild,       // a read or write far from all that the device was given
  kReread,     // of a descriptor, at some time
  // Queues and registers.
  kError,       // a queue stops with an error of its own
  kGone,        // all registers read all ones, for a while
  kRunningLie,  // `running` of a queue is stuck, for a while or until the device is reset
  kFetchLie,    // fetch_index reads nonsense, for a while
  kDropped,     // a frame is forgotten
};
inline constexpr size_t kHostileActs = 18;
std::string_view Name(HostileAct act);

// A set of kinds.
using HostileKinds = uint32_t;
constexpr HostileKinds Only(HostileAct act) { return HostileKinds{1} << static_cast<int>(act); }
inline constexpr HostileKinds kAllHostile = (HostileKinds{1} << kHostileActs) - 1;

struct HostileCounts {
  std::array<uint64_t, kHostileActs> acts{};
  uint64_t entries = 0;  // completions written, honest and not
  uint64_t impossible =
      0;  // those no driver may believe in any state (as kImpossible), of all acts
  uint64_t late_faults = 0;  // late writes that the IOMMU stopped
  uint64_t wild_faults = 0;

  uint64_t operator[](HostileAct act) const { return acts[static_cast<size_t>(act)]; }
  uint64_t total() const;
};

class Hostile final : public RegisterLies {
 public:
  Hostile(uint64_t seed, dma::DevicePort& port, RegisterFile& registers);

  // From now on it does only these; none: what it still holds back is all that is left.
  void SetKinds(HostileKinds kinds) { kinds_ = kinds; }
  const HostileCounts& counts() const { return counts_; }

  // Instead of CompletionWriter::Write. False: fault.
  bool Complete(CompletionWriter& cq, ModelQueue& queue, Words entry, CqType type);
  // `worked`: the device did something in this step. True: there was something to do, or will be.
  bool Step(bool worked);
  // Whether a frame that has just arrived is forgotten. Asked once per frame.
  bool Drops();
  // How many descriptors the queue may work on now. A completion ring has no room for entries
  // beyond the honest ones: without this every queue would soon overrun it and be dead.
  uint32_t Room(const ModelQueue& queue);
  uint64_t Answer(Place place, uint64_t offset, uint64_t truth) override;
  // The device was reset: it remembers nothing and holds nothing back.
  void Reset();

 private:
  // A queue that has completed something since the last reset.
  struct Target {
    CompletionWriter* cq = nullptr;
    ModelQueue* queue = nullptr;
    uint64_t posted = 0;   // posted_index, when it was last looked at
    uint32_t written = 0;  // entries since it moved, or since the device was last at rest
  };
  struct Entry {
    Target target;
    Words words;
    CqType type = CqType::kWqEnet;
    uint64_t due = 0;  // delayed: the step
  };
  struct Body {
    Iova at;
    Words words;
    uint64_t due = 0;
  };
  struct Buffer {
    Iova at;
    uint32_t capacity = 0;
  };
  // What a register says instead of the truth.
  struct Lie {
    Place place;
    uint64_t value = 0;
    uint64_t until = 0;  // step
  };

  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  bool OneIn(uint32_t n) { return Below(n) == 0; }
  bool May(HostileAct act) const { return (kinds_ & Only(act)) != 0; }
  void Count(HostileAct act) { ++counts_.acts[static_cast<size_t>(act)]; }

  Target& Know(const Target& target);
  void Remember(const ModelQueue& queue, const Words& words);
  bool Emit(const Entry& entry);
  bool Spoil(HostileAct act, Entry honest);
  bool Duplicate(const Entry& entry);
  bool Tear(const Entry& entry);
  Entry Forge(const Target& target);
  Entry Impossible(const Target& target);
  Entry Unposted(Entry honest);
  void WriteHeld();
  bool WriteDue();
  void Misbehave();
  void WriteLate();
  void AccessWild();
  void Reread(const ModelQueue& queue);
  void LieAboutRunning(const ModelQueue& queue);
  void LieAboutFetch(const ModelQueue& queue);

  dma::DevicePort& port_;
  RegisterFile& registers_;
  std::mt19937_64 random_;
  HostileKinds kinds_ = kAllHostile;
  HostileCounts counts_;

  uint64_t now_ = 0;        // steps
  uint32_t fuel_ = 0;       // acts that honest work has paid for
  uint32_t aftermath_ = 0;  // idle steps in which it may still act
  std::vector<Target> targets_;
  std::deque<Buffer> buffers_;  // completed lately
  std::vector<Entry> held_;     // to be permuted
  uint32_t hold_ = 0;           // how many more are wanted for it
  uint64_t held_until_ = 0;
  std::vector<Entry> delayed_;
  std::vector<Body> bodies_;  // torn entries' that are missing
  uint64_t gone_until_ = 0;
  Lie running_;
  Lie fetch_;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_MODEL_HOSTILE_H_
