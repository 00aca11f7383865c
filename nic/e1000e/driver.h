// SPDX-License-Identifier: Apache-2.0
//
// Driver: an 82574L from BAR to packets, for a program that polls, or sleeps until there is
// something to poll. It resets the device, fills the rings, and takes it down with packets in
// flight (e1000e sheet 2); the datapaths are RxQueue and TxQueue. Where receive buffers come from
// and how transmitted ones are addressed are template arguments; the default is page fragments that
// stay mapped. A source's buffers hold at least what RxBufferBytes (registers.h) says of max_frame,
// which the device may write.
//
// The device accepts every frame, whatever its address. Bus mastering is the caller's to switch on,
// after Quiesce (chip.h) and before Start.
//
// Start and Stop: one control thread, while no queue is used. Each queue: one thread at a time.
// Device and registers outlive the driver, which stops when it dies.
#ifndef DMAKIT_NIC_E1000E_DRIVER_H_
#define DMAKIT_NIC_E1000E_DRIVER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/mmio.h"
#include "dma/ring_pool.h"
#include "dma/types.h"
#include "nic/e1000e/chip.h"
#include "nic/e1000e/rx_queue.h"
#include "nic/e1000e/tx_queue.h"
#include "nic/frag_source.h"
#include "nic/port.h"
#include "nic/queue.h"
#include "nic/stats.h"
#include "nic/teardown.h"

namespace dmakit::nic::e1000e {

struct DriverOptions {
  uint32_t ring_size = 512;  // a multiple of 8 between 64 and 4096; of every queue
  uint32_t mtu = 9000;       // 68 to 9000
  // Tags are taken out of received frames, and inserted where a packet asks for it: the chip has
  // one switch for both. Without it a packet that asks is dropped as unsupported.
  bool vlan_strip = false;
  // Frames received by queue i raise MSI-X vector i (RxQueue::Arm), not sooner than `coalescing`
  // after the one before. Else the device's interrupts stay masked.
  bool interrupts = false;
  dma::Nanos coalescing{0};
  // How long Stop may take: half for packets that are still to be sent, all for the device to let
  // go. At least 10 ms for the latter.
  dma::Nanos stop_deadline{1'000'000'000};
  // How long Start waits for the link, before it goes on without.
  dma::Nanos link_wait{5'000'000'000};
};

// What does not depend on the policies: options, device, chip, and the order of things.
class DriverBase {
 public:
  static absl::Status CheckOptions(const DriverOptions& options, size_t rx_queues,
                                   size_t tx_queues);

  const std::string& name() const { return name_; }
  const DriverOptions& options() const { return options_; }
  uint32_t max_frame() const;  // bytes, without FCS
  // Whether Reshape would do this.
  absl::Status CheckShape(const DriverOptions& options, size_t rx_queues, size_t tx_queues) const;
  // After a first Start.
  const std::array<uint8_t, 6>& mac() const { return chip_.mac(); }
  bool link_up() const { return chip_.link_up(); }
  // Of the whole device. Any thread.
  ChipCounters counters() const { return chip_.counters(running_.load(std::memory_order_relaxed)); }

 protected:
  DriverBase(dma::Device& device, const dma::MmioRegion& registers, const DriverOptions& options,
             size_t rx_queues, size_t tx_queues);
  absl::Status Named(const absl::Status& status) const;
  Chip::Settings SettingsOf() const;
  std::string RxLabel(size_t queue) const;
  std::string TxLabel(size_t queue) const;
  RxSettings RxSettingsOf() const {
    return {.max_frame = max_frame(),
            .buffer_bytes = RxBufferBytes(max_frame()),
            .form = rx_queues_ > 1 ? RxForm::kHash : RxForm::kIpId,
            .vlan_strip = options_.vlan_strip,
            .interrupts = options_.interrupts};
  }

  dma::Device& device_;
  const std::string name_;
  Chip chip_;
  DriverOptions options_;
  // Queues now; there may be more RxQueues and TxQueues, at rest.
  size_t rx_queues_;
  size_t tx_queues_;
  std::atomic<bool> running_{false};
};

template <RxBufferSource Source = FragSource, TxAddressing Addressing = PageAddressing>
class Driver final : public DriverBase {
 public:
  using Rx = RxQueue<Source>;
  using Tx = TxQueue<Addressing>;

  // One receive queue per source, one transmit queue per addressing, two of each at most.
  // InvalidArgument names value and rule. Touches nothing of the device.
  static absl::StatusOr<std::unique_ptr<Driver>> Create(dma::Device& device,
                                                        const dma::MmioRegion& registers,
                                                        const DriverOptions& options,
                                                        std::vector<Source> sources,
                                                        std::vector<Addressing> addressings);
  ~Driver() { Stop().IgnoreError(); }

  // Brings the device up, rings filled. On failure everything is as before, and it can be tried
  // again.
  absl::Status Start() { return Begin(/*keep=*/false); }
  // Sends what is in the transmit rings, as long as there is time, then makes the device let go.
  // What it does not let go of is quarantined and named in the error; the driver has stopped all
  // the same. Idempotent.
  absl::Status Stop() { return End(/*keep=*/false); }
  // Stop, but frames that the device has completed and nobody has received stay with the queues:
  // the next Receive hands them out, on a ring of any size.
  absl::Status Suspend() { return End(/*keep=*/true); }
  // Start after Suspend: a failure does not lose those frames either.
  absl::Status Resume() { return Begin(/*keep=*/true); }
  // Another shape, while it does not run: options, and queues by the number of sources and
  // addressings, of which all sources and only new addressings are used. Queues that are left over
  // rest and keep their counters; frames that they have kept go to another. On failure nothing is
  // changed.
  absl::Status Reshape(const DriverOptions& options, std::vector<Source> sources,
                       std::vector<Addressing> addressings);
  bool running() const { return running_.load(std::memory_order_relaxed); }

  size_t rx_count() const { return rx_queues_; }
  size_t tx_count() const { return tx_queues_; }
  // Those at rest included.
  size_t rx_made() const { return rx_.size(); }
  size_t tx_made() const { return tx_.size(); }
  Rx& rx(size_t i) { return rx_[i]; }
  Tx& tx(size_t i) { return tx_[i]; }

  // Any thread, not while Reshape runs. Of any queue that was made. What the device had no room for
  // it does not count by queue: it is in the first one's.
  RxQueueStats rx_stats(size_t i) const;
  TxQueueStats tx_stats(size_t i) const { return tx_[i].stats(); }

 private:
  using DriverBase::DriverBase;
  absl::Status BringUp();
  absl::Status SetUpRings();
  void Drain(const StopDeadline& deadline);
  absl::Status Begin(bool keep);
  absl::Status End(bool keep);
  void AddQueues(std::vector<Source>& sources, std::vector<Addressing>& addressings);
  void TakeDown(const StopDeadline& deadline, bool keep, StopProblems& problems);
  void LetGo(Halt halt, bool keep, StopProblems& problems);

  std::deque<Rx> rx_;
  std::deque<Tx> tx_;
};

extern template class Driver<FragSource, PageAddressing>;

}  // namespace dmakit::nic::e1000e

#include "nic/e1000e/driver_inl.h"

#endif  // DMAKIT_NIC_E1000E_DRIVER_H_
