// SPDX-License-Identifier: Apache-2.0
//
// Driver: a LiquidIO II (CN23XX), physical or virtual function, from BAR to packets, for a program
// that polls, or sleeps until there is something to poll. It resets the rings, fills them, and
// takes them down with packets in flight (liquidio sheet 1); the datapaths are RxQueue and TxQueue.
// Where receive buffers come from, how transmitted ones are addressed, and where gather lists and
// info buffers live are template arguments; the default is page fragments that stay mapped, and one
// coherent allocation per ring for each kind of structure.
//
// Receive queue i is output ring i, transmit queue j input ring j.
//
// Not done: commands to the firmware. A ring's tags (pkind, qpg) are those it starts with.
//
// Start and Stop: one control thread, while no queue is used. Each queue: one thread at a time.
// Device and registers outlive the driver, which stops when it dies.
#ifndef DMAKIT_NIC_LIQUIDIO_DRIVER_H_
#define DMAKIT_NIC_LIQUIDIO_DRIVER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/mmio.h"
#include "dma/types.h"
#include "nic/frag_source.h"
#include "nic/liquidio/rings.h"
#include "nic/liquidio/rx_queue.h"
#include "nic/liquidio/slot_memory.h"
#include "nic/liquidio/tx_queue.h"
#include "nic/port.h"
#include "nic/queue.h"
#include "nic/stats.h"
#include "nic/teardown.h"

namespace dmakit::nic::liquidio {

// Which function of the device, and how it is to be driven. The BAR outlives the driver.
struct Function {
  dma::MmioRegion bar0{};
  bool vf = false;  // a virtual function has 8 rings at most, and no registers beyond them
  ReceiveMode mode = ReceiveMode::kInfo;
  // For tests of 32-bit wrap: what the rings' counters start at.
  uint32_t counter_start = 0;
};

struct DriverOptions {
  uint32_t ring_size = 512;   // 128 to 2048 slots, of every queue
  uint32_t mtu = 9000;        // 68 to 9000
  uint32_t buffer_bytes = 0;  // of a receive buffer, 128 to 65535; 0: 1536, in buffer mode 1664
  // Must be false: the firmware takes tags out only when a command tells it to. What it takes out
  // by itself is reported.
  bool vlan_strip = false;
  // Packets of receive queue i raise interrupt i (RxQueue::Arm), not sooner than `coalescing` after
  // the first of them.
  bool interrupts = false;
  dma::Nanos coalescing{0};
  // How long Stop may take: half for packets that are still to be sent, all for the device to let
  // go. At least 10 ms for the latter.
  dma::Nanos stop_deadline{1'000'000'000};
};

// device_error of a queue whose counter was last seen where it cannot be. 1: the device has
// disabled the ring; all ones: it is gone.
inline constexpr uint32_t kImpossibleCount = 2;

// What does not depend on the policies: options, device, registers, and the order of things.
class DriverBase {
 public:
  static absl::Status CheckOptions(const DriverOptions& options, size_t rx_queues,
                                   size_t tx_queues);

  const std::string& name() const { return name_; }
  const DriverOptions& options() const { return options_; }
  const Function& function() const { return function_; }
  uint32_t max_frame() const;  // bytes, without FCS
  // Whether Reshape would do this.
  absl::Status CheckShape(const DriverOptions& options, size_t rx_queues, size_t tx_queues) const;
  // Rings of this function.
  uint32_t ring_count() const;

 protected:
  DriverBase(dma::Device& device, const Function& function);

  void SetShape(const DriverOptions& options, size_t rx_queues, size_t tx_queues);
  dma::MmioRegion ring(size_t i) const;
  std::string RxLabel(size_t i) const;
  std::string TxLabel(size_t i) const;
  OutputSetUp output_set_up() const;
  // Sheet 1, steps 1 to 4, of every ring that is to be used.
  absl::Status ResetAll();
  uint32_t RxError(size_t i) const;
  uint32_t TxError(size_t i) const;

  dma::Device& device_;
  const std::string name_;
  const Function function_;
  DriverOptions options_;
  // As many as there are queues now; there may be more RxQueues and TxQueues, at rest.
  size_t rx_count_ = 0;
  size_t tx_count_ = 0;
  std::atomic<bool> running_{false};
};

template <RxBufferSource Source = FragSource, TxAddressing Addressing = PageAddressing,
          SlotMemory Lists = CoherentSlots, SlotMemory Infos = CoherentSlots>
class Driver final : public DriverBase {
 public:
  using Rx = RxQueue<Source, Infos>;
  using Tx = TxQueue<Addressing, Lists>;

  // One receive queue per source, one transmit queue per addressing. InvalidArgument names value
  // and rule; FailedPrecondition: this function cannot. Nothing of the device is changed.
  static absl::StatusOr<std::unique_ptr<Driver>> Create(dma::Device& device,
                                                        const Function& function,
                                                        const DriverOptions& options,
                                                        std::vector<Source> sources,
                                                        std::vector<Addressing> addressings);
  ~Driver() { Stop().IgnoreError(); }

  // Brings the rings up, filled. On failure everything is as before, and it can be tried again.
  absl::Status Start();
  // Sends what is in the transmit rings, as long as there is time, then resets the rings. What the
  // device does not let go of is quarantined and named in the error; the driver has stopped all the
  // same. Idempotent.
  absl::Status Stop();
  // Stop, but frames that the device has delivered and nobody has received stay with the queues:
  // the next Receive hands them out, on a ring of any size. In buffer mode frames that come during
  // the call may be lost with the ring.
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

  size_t rx_count() const { return rx_count_; }
  size_t tx_count() const { return tx_count_; }
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
  absl::Status Begin(bool keep);
  absl::Status BringUp();
  absl::Status SetUpRx(size_t i);
  absl::Status SetUpTx(size_t i);
  absl::Status End(bool keep);
  void Drain(const StopDeadline& deadline);
  void TakeDown(const StopDeadline& deadline, bool keep, StopProblems& problems);
  void StopRing(size_t i, const StopDeadline& deadline, bool keep, StopProblems& problems);
  void AddQueues(std::vector<Source>& sources, std::vector<Addressing>& addressings);

  std::deque<Rx> rx_;
  std::deque<Tx> tx_;
};

extern template class Driver<FragSource, PageAddressing>;

}  // namespace dmakit::nic::liquidio

#include "nic/liquidio/driver_inl.h"

#endif  // DMAKIT_NIC_LIQUIDIO_DRIVER_H_
