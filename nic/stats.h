// SPDX-License-Identifier: Apache-2.0
//
// What every queue counts. Monotonic since the port was opened, 64 bits, written by the queue's
// thread with plain stores and readable from any thread (a snapshot). Queue, device and pool are
// labels, never part of a name.
#ifndef DMAKIT_NIC_STATS_H_
#define DMAKIT_NIC_STATS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "frag/page_pool.h"
#include "iova/counter.h"

namespace dmakit::nic {

struct RxQueueStats {
  uint64_t frames = 0;  // handed to the application
  uint64_t bytes = 0;
  // bad_fcs, truncated, bad_completions and device_no_buffer together.
  uint64_t dropped = 0;
  uint64_t bad_fcs = 0;
  uint64_t truncated = 0;         // longer than the buffers
  uint64_t bad_completions = 0;   // index, length or order impossible: a faulty or hostile device
  uint64_t device_no_buffer = 0;  // the device's own count: no descriptor was posted
  uint64_t refill_failed = 0;     // buffer wanted and not to be had (rx_alloc_failed)
  uint64_t skipped = 0;           // buffers the device gave back unused
  uint64_t left_at_stop = 0;      // frames received and not yet asked for when the port stopped
  uint64_t doorbells = 0;
  uint64_t ring_allocations = 0;  // coherent ones, for rings; one each time a ring is set up
  uint64_t info_maps = 0;         // made for info buffers beside a ring: one if they are coherent
  uint64_t posted = 0;            // now: buffers the device holds
  uint64_t kept = 0;          // now: received before a change of the port, and not asked for yet
  uint64_t device_error = 0;  // now: not 0 when the device has stopped the queue by itself
};

struct TxQueueStats {
  uint64_t frames = 0;  // the device reported them done
  uint64_t bytes = 0;
  // Taken and never sent; all but the last are refused before the device sees them: too_long,
  // too_many_segments, empty, unsupported_offload, addressing_failed and device_errors together.
  uint64_t dropped = 0;
  uint64_t too_long = 0;
  uint64_t too_many_segments = 0;
  uint64_t empty = 0;                // no bytes at all
  uint64_t unsupported_offload = 0;  // tx flags that the backend does not do, or not to this frame
  uint64_t addressing_failed = 0;
  uint64_t device_errors = 0;  // given to the device, which never reported them done
  uint64_t bad_completions = 0;
  uint64_t ring_full = 0;  // Transmit calls that left packets behind
  uint64_t doorbells = 0;
  uint64_t ring_allocations = 0;  // as above
  uint64_t list_maps = 0;         // made for gather lists: one a ring if they are coherent
  uint64_t in_flight = 0;         // now: packets
  uint64_t device_error = 0;      // now: not 0 when the device has stopped the queue by itself
};

struct QueueStats {
  RxQueueStats rx;
  TxQueueStats tx;
  frag::PagePoolStats pool;  // of the receive queue
};

struct PortStats {
  std::string name;
  std::vector<QueueStats> queues;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_STATS_H_
