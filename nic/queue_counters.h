// SPDX-License-Identifier: Apache-2.0
//
// What a queue counts, as its thread writes it; nic/stats.h says what each means. Get: any
// thread, a snapshot without what only the device or the driver knows.
#ifndef DMAKIT_NIC_QUEUE_COUNTERS_H_
#define DMAKIT_NIC_QUEUE_COUNTERS_H_

#include <cstdint>

#include "iova/counter.h"
#include "nic/stats.h"

namespace dmakit::nic {

// Why a transmit queue takes a packet and does not send it.
enum class TxVerdict : uint8_t { kGood, kEmpty, kTooLong, kTooManyPieces, kDoesNotFit };

struct RxCounters {
  Counter frames, bytes, bad_fcs, truncated, bad_completions, refill_failed, skipped;
  Counter left_at_stop, doorbells, ring_allocations, info_maps, posted, kept;

  // device_no_buffer and device_error are the driver's to add.
  RxQueueStats Get() const {
    RxQueueStats s;
    s.frames = frames.Get();
    s.bytes = bytes.Get();
    s.bad_fcs = bad_fcs.Get();
    s.truncated = truncated.Get();
    s.bad_completions = bad_completions.Get();
    s.refill_failed = refill_failed.Get();
    s.skipped = skipped.Get();
    s.left_at_stop = left_at_stop.Get();
    s.doorbells = doorbells.Get();
    s.ring_allocations = ring_allocations.Get();
    s.info_maps = info_maps.Get();
    s.posted = posted.Get();
    s.kept = kept.Get();
    s.dropped = s.bad_fcs + s.truncated + s.bad_completions;
    return s;
  }
};

struct TxCounters {
  Counter frames, bytes, too_long, too_many_segments, empty, unsupported_offload;
  Counter addressing_failed, device_errors, bad_completions, ring_full, doorbells;
  Counter ring_allocations, list_maps, in_flight;

  // Of why a packet cannot be sent; nullptr: it can.
  Counter* Reason(TxVerdict verdict) {
    switch (verdict) {
      case TxVerdict::kGood:
        return nullptr;
      case TxVerdict::kEmpty:
        return &empty;
      case TxVerdict::kTooLong:
        return &too_long;
      case TxVerdict::kTooManyPieces:
        return &too_many_segments;
      case TxVerdict::kDoesNotFit:
        break;
    }
    return &unsupported_offload;
  }

  // device_error is the driver's to add.
  TxQueueStats Get() const {
    TxQueueStats s;
    s.frames = frames.Get();
    s.bytes = bytes.Get();
    s.too_long = too_long.Get();
    s.too_many_segments = too_many_segments.Get();
    s.empty = empty.Get();
    s.unsupported_offload = unsupported_offload.Get();
    s.addressing_failed = addressing_failed.Get();
    s.device_errors = device_errors.Get();
    s.bad_completions = bad_completions.Get();
    s.ring_full = ring_full.Get();
    s.doorbells = doorbells.Get();
    s.ring_allocations = ring_allocations.Get();
    s.list_maps = list_maps.Get();
    s.in_flight = in_flight.Get();
    s.dropped = s.too_long + s.too_many_segments + s.empty + s.unsupported_offload +
                s.addressing_failed + s.device_errors;
    return s;
  }
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_QUEUE_COUNTERS_H_
