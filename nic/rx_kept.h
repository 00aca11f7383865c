// SPDX-License-Identifier: Apache-2.0
//
// What every receive queue does with the packets it has kept over a change of its port: hands them
// out first, moves them to another queue, or gives them up, and counts that. Thread: the queue's.
#ifndef DMAKIT_NIC_RX_KEPT_H_
#define DMAKIT_NIC_RX_KEPT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "frag/returner.h"
#include "nic/kept_packets.h"
#include "nic/packet.h"
#include "nic/queue_counters.h"

namespace dmakit::nic {

inline size_t ReceiveKept(KeptPackets& kept, RxCounters& counters, std::span<Packet> burst) {
  uint64_t bytes = 0;
  const size_t got = kept.Take(burst, bytes);
  counters.frames.Add(got);
  counters.bytes.Add(bytes);
  counters.kept.Set(kept.size());
  return got;
}

// They may have come from another queue, and its pool.
inline void DropKept(KeptPackets& kept, RxCounters& counters) {
  if (kept.empty()) return;
  frag::Returner returner(nullptr);
  kept.Drop([&](Packet& packet) {
    ReleaseSegments(packet, returner);
    counters.left_at_stop.Add();
  });
  counters.kept.Set(0);
}

inline void MoveKept(KeptPackets& from, RxCounters& from_counters, KeptPackets& to,
                     RxCounters& to_counters) {
  from.MoveTo(to);
  from_counters.kept.Set(0);
  to_counters.kept.Set(to.size());
}

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_RX_KEPT_H_
