// SPDX-License-Identifier: Apache-2.0
//
// The counters behind Wire::stats(), shared by the wires of this folder: written by the wire's
// thread with plain stores, read by any.
#ifndef DMAKIT_NIC_WIRE_COUNTERS_H_
#define DMAKIT_NIC_WIRE_COUNTERS_H_

#include <atomic>
#include <cstdint>

#include "nic/wire/wire.h"

namespace dmakit::nic::internal {

class WireCounters {
 public:
  void ToNic(uint64_t bytes) {
    Add(frames_to_nic_, 1);
    Add(bytes_to_nic_, bytes);
  }
  void FromNic(uint64_t bytes) {
    Add(frames_from_nic_, 1);
    Add(bytes_from_nic_, bytes);
  }
  void RefusedShort(uint64_t bytes) {
    Add(refused_short_, 1);
    Add(refused_bytes_, bytes);
  }
  void RefusedCut(uint64_t bytes) {
    Add(refused_cut_, 1);
    Add(refused_bytes_, bytes);
  }
  void Lost(uint64_t frames, uint64_t bytes) {
    Add(lost_, frames);
    Add(lost_bytes_, bytes);
  }

  WireStats Get() const {
    WireStats s;
    s.frames_to_nic = Load(frames_to_nic_);
    s.bytes_to_nic = Load(bytes_to_nic_);
    s.frames_from_nic = Load(frames_from_nic_);
    s.bytes_from_nic = Load(bytes_from_nic_);
    s.refused_short = Load(refused_short_);
    s.refused_cut = Load(refused_cut_);
    s.refused = s.refused_short + s.refused_cut;
    s.refused_bytes = Load(refused_bytes_);
    s.lost = Load(lost_);
    s.lost_bytes = Load(lost_bytes_);
    return s;
  }

 private:
  using Word = std::atomic<uint64_t>;
  static uint64_t Load(const Word& word) { return word.load(std::memory_order_relaxed); }
  static void Add(Word& word, uint64_t n) {
    word.store(Load(word) + n, std::memory_order_relaxed);  // one writer
  }

  Word frames_to_nic_{0};
  Word bytes_to_nic_{0};
  Word frames_from_nic_{0};
  Word bytes_from_nic_{0};
  Word refused_short_{0};
  Word refused_cut_{0};
  Word refused_bytes_{0};
  Word lost_{0};
  Word lost_bytes_{0};
};

}  // namespace dmakit::nic::internal

#endif  // DMAKIT_NIC_WIRE_COUNTERS_H_
