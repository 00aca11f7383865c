// SPDX-License-Identifier: Apache-2.0
//
// The counters behind Wire::stats(), shared by the wires of this folder: written by the wire's
// thread with plain stores, read by any.
#ifndef DMAKIT_NIC_WIRE_COUNTERS_H_
#define DMAKIT_NIC_WIRE_COUNTERS_H_

#include <cstdint>

#include "iova/counter.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::internal {

class WireCounters {
 public:
  void ToNic(uint64_t bytes) {
    frames_to_nic_.Add();
    bytes_to_nic_.Add(bytes);
  }
  void FromNic(uint64_t bytes) {
    frames_from_nic_.Add();
    bytes_from_nic_.Add(bytes);
  }
  void RefusedShort(uint64_t bytes) {
    refused_short_.Add();
    refused_bytes_.Add(bytes);
  }
  void RefusedCut(uint64_t bytes) {
    refused_cut_.Add();
    refused_bytes_.Add(bytes);
  }
  void Lost(uint64_t frames, uint64_t bytes) {
    lost_.Add(frames);
    lost_bytes_.Add(bytes);
  }

  WireStats Get() const {
    WireStats s;
    s.frames_to_nic = frames_to_nic_.Get();
    s.bytes_to_nic = bytes_to_nic_.Get();
    s.frames_from_nic = frames_from_nic_.Get();
    s.bytes_from_nic = bytes_from_nic_.Get();
    s.refused_short = refused_short_.Get();
    s.refused_cut = refused_cut_.Get();
    s.refused = s.refused_short + s.refused_cut;
    s.refused_bytes = refused_bytes_.Get();
    s.lost = lost_.Get();
    s.lost_bytes = lost_bytes_.Get();
    return s;
  }

 private:
  Counter frames_to_nic_, bytes_to_nic_, frames_from_nic_, bytes_from_nic_;
  Counter refused_short_, refused_cut_, refused_bytes_, lost_, lost_bytes_;
};

}  // namespace dmakit::nic::internal

#endif  // DMAKIT_NIC_WIRE_COUNTERS_H_
