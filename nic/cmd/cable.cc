// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/cable.h"

namespace dmakit::nic::cmd {
namespace {

uint64_t Dropped(const PortStats& stats) {
  uint64_t dropped = 0;
  for (const QueueStats& queue : stats.queues) dropped += queue.rx.dropped;
  return dropped;
}

}  // namespace

void Cable::Freeze() { dropped_ = Dropped(port_ == nullptr ? last_ : port_->stats()); }

void Cable::Disconnect(const PortStats& last) {
  last_ = last;
  port_ = nullptr;
}

WireStats Cable::stats() const {
  const PortStats port = port_ == nullptr ? last_ : port_->stats();
  WireStats stats;
  for (const QueueStats& queue : port.queues) {
    stats.frames_to_nic += queue.rx.frames;
    stats.bytes_to_nic += queue.rx.bytes;
    stats.frames_from_nic += queue.tx.frames;
    stats.bytes_from_nic += queue.tx.bytes;
  }
  stats.frames_to_nic += dropped_.value_or(Dropped(port));
  return stats;
}

}  // namespace dmakit::nic::cmd
