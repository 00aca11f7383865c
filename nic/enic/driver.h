// SPDX-License-Identifier: Apache-2.0
//
// Driver: an enic from BAR to packets, for a program that polls, or sleeps until there is something
// to poll. It brings the device up, fills the
// rings, and takes it down with packets in flight (enic sheet 4); the datapaths are RxQueue and
// TxQueue. Where receive buffers come from and how transmitted ones are addressed are template
// arguments; the default is page fragments that stay mapped.
//
// Not done: scattered receive.
//
// Start and Stop: one control thread, while no queue is used. Each queue: one thread at a time.
// Device and registers outlive the driver, which stops when it dies.
#ifndef DMAKIT_NIC_ENIC_DRIVER_H_
#define DMAKIT_NIC_ENIC_DRIVER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/mmio.h"
#include "dma/types.h"
#include "nic/enic/rx_queue.h"
#include "nic/enic/tx_queue.h"
#include "nic/enic/vnic.h"
#include "nic/frag_source.h"
#include "nic/port.h"
#include "nic/queue.h"
#include "nic/stats.h"
#include "nic/teardown.h"

namespace dmakit::nic::enic {

struct DriverOptions {
  uint32_t ring_size = 512;  // a multiple of 32 between 64 and 4096; of every queue
  uint32_t mtu = 9000;       // 68 to 9000
  bool vlan_strip = false;
  // Completions of receive queue i raise interrupt i (RxQueue::Arm), not sooner than `coalescing`
  // after the first of them. Else the device's interrupts stay masked.
  bool interrupts = false;
  dma::Nanos coalescing{0};
  // How long Stop may take: half for packets that are still to be sent, all for the device to let
  // go. At least 10 ms for the latter.
  dma::Nanos stop_deadline{1'000'000'000};
};

// What does not depend on the policies: options, device, registers, and the order of things.
class DriverBase {
 public:
  static absl::Status CheckOptions(const DriverOptions& options, size_t rx_queues,
                                   size_t tx_queues);

  const std::string& name() const { return vnic_.name(); }
  const DriverOptions& options() const { return options_; }
  uint32_t max_frame() const;  // bytes, without FCS
  // Whether Reshape would do this. What the device itself allows is known after a first Start.
  absl::Status CheckShape(const DriverOptions& options, size_t rx_queues, size_t tx_queues) const;
  // After a first Start.
  const std::array<uint8_t, 6>& mac() const { return vnic_.mac(); }

 protected:
  // Receive queue i completes into CQ i, transmit queue j into CQ rx_queues + j.
  struct Control {
    std::string label;
    QueueRegisters registers;
  };

  DriverBase(Vnic vnic, const DriverOptions& options, size_t rx_queues, size_t tx_queues);
  // The resource table has what is asked for.
  absl::Status CheckResources(const DriverOptions& options, size_t rx, size_t tx) const;
  // What the device said when it was opened.
  absl::Status CheckSpec(const DriverOptions& options) const;
  void SetShape(const DriverOptions& options, size_t rx_queues, size_t tx_queues);
  absl::Status QuiesceAll();
  // Receive settings were accepted and no queue refused its set-up.
  absl::Status EnableDevice();
  static void EnableQueue(const Control& control);

  // dropped_packet_count since the driver was made, over restarts.
  struct DropCount {
    std::atomic<uint64_t> before{0};
    std::atomic<uint32_t> origin{0};
  };
  uint64_t DeviceDrops(size_t rx) const;
  void BeginDropCount(size_t rx);
  void EndDropCount(size_t rx);
  uint32_t RxError(size_t rx) const;
  uint32_t TxError(size_t tx) const;

  Vnic vnic_;
  DriverOptions options_;
  // As many as there are queues now; there may be more RxQueues and TxQueues, at rest.
  std::vector<Control> rx_control_;
  std::vector<Control> tx_control_;
  std::deque<DropCount> drops_;
  std::atomic<bool> running_{false};
};

template <RxBufferSource Source = FragSource, TxAddressing Addressing = PageAddressing>
class Driver final : public DriverBase {
 public:
  using Rx = RxQueue<Source>;
  using Tx = TxQueue<Addressing>;

  // One receive queue per source, one transmit queue per addressing. InvalidArgument names value
  // and rule; FailedPrecondition: this device cannot. Nothing of the device is changed.
  static absl::StatusOr<std::unique_ptr<Driver>> Create(dma::Device& device,
                                                        const dma::MmioRegion& bar0,
                                                        const DriverOptions& options,
                                                        std::vector<Source> sources,
                                                        std::vector<Addressing> addressings);
  ~Driver() { Stop().IgnoreError(); }

  // Brings the device up, rings filled. On failure everything is as before, and it can be tried
  // again.
  absl::Status Start();
  // Sends what is in the transmit rings, as long as there is time, then makes the device let go.
  // What it does not let go of is quarantined and named in the error; the driver has stopped all
  // the same. Idempotent.
  absl::Status Stop();
  // Stop, but frames that the device has completed and nobody has received stay with the queues:
  // the next Receive hands them out, on a ring of any size.
  absl::Status Suspend();
  // Start after Suspend: a failure does not lose those frames either.
  absl::Status Resume();
  // Another shape, while it does not run: options, and queues by the number of sources and
  // addressings, of which all sources and only new addressings are used. Queues that are left over
  // rest and keep their counters; frames that they have kept go to another. On failure nothing is
  // changed.
  absl::Status Reshape(const DriverOptions& options, std::vector<Source> sources,
                       std::vector<Addressing> addressings);
  bool running() const { return running_.load(std::memory_order_relaxed); }

  size_t rx_count() const { return rx_control_.size(); }
  size_t tx_count() const { return tx_control_.size(); }
  // Those at rest included.
  size_t rx_made() const { return rx_.size(); }
  size_t tx_made() const { return tx_.size(); }
  Rx& rx(size_t i) { return rx_[i]; }
  Tx& tx(size_t i) { return tx_[i]; }

  // Any thread, not while Reshape runs. Of any queue that was made.
  RxQueueStats rx_stats(size_t i) const;
  TxQueueStats tx_stats(size_t i) const;

 private:
  using DriverBase::DriverBase;
  absl::Status BringUp();
  absl::Status SetUpQueues();
  absl::Status FillQueues();
  void Drain(const StopDeadline& deadline);
  absl::Status Begin(bool keep);
  absl::Status End(bool keep);
  void AddQueues(std::vector<Source>& sources, std::vector<Addressing>& addressings);
  void TakeDown(const StopDeadline& deadline, bool keep, StopProblems& problems);
  void StopRx(size_t i, const StopDeadline& deadline, bool keep, StopProblems& problems);
  void StopTx(size_t i, const StopDeadline& deadline, StopProblems& problems);

  std::deque<Rx> rx_;
  std::deque<Tx> tx_;
};

extern template class Driver<FragSource, PageAddressing>;

}  // namespace dmakit::nic::enic

#include "nic/enic/driver_inl.h"

#endif  // DMAKIT_NIC_ENIC_DRIVER_H_
