// SPDX-License-Identifier: Apache-2.0
//
// FakeNic: an 82574L for unit tests (e1000e sheet, 5), where the real peers are out of reach: a
// fault at every step, a device that lies, threads under a sanitizer. What the chip does to frames
// is judged against QEMU's, in tests/qemu; here are rings, registers and interrupts, with what a
// driver must not do put into words. As QEMU's it keeps rings and enables over a reset.
//
// Register writes latch, by any thread; Step does the work, by one.
#ifndef DMAKIT_TESTS_NIC_E1000E_FAKE_NIC_H_
#define DMAKIT_TESTS_NIC_E1000E_FAKE_NIC_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dma/device_port.h"
#include "dma/mmio.h"
#include "nic/e1000e/descriptors.h"
#include "nic/e1000e/registers.h"
#include "nic/model.h"
#include "nic/notifier.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::e1000e {

struct FakeNicOptions {
  bool lossless = true;  // a frame waits for buffers; else it is dropped, and counted by MPC
  uint64_t hostile = 0;  // a seed; 0: honest
};

class FakeNic final : public nic::Model, public InterruptSource, private dma::MmioHandler {
 public:
  FakeNic(std::unique_ptr<dma::DevicePort> port, const FakeNicOptions& options);

  bool Step() override;
  void Plug(Wire* wire) override { wire_ = wire; }
  std::vector<std::string> violations() const override;
  uint64_t violation_count() const override { return violation_count_.load(); }

  uint32_t vectors() const override { return kVectors; }
  absl::Status Connect(uint32_t vector, Notifier* notifier) override;

  dma::MmioRegion bar0() { return dma::MmioRegion::OfModel(*this, kBarBytes); }

  // For tests. Registers as they are, without the side effects of a read.
  uint32_t Get(Reg reg, size_t queue = 0) const { return Cell(OffsetOf(reg, queue)).load(); }
  void Set(Reg reg, uint32_t value, size_t queue = 0) { Cell(OffsetOf(reg, queue)) = value; }
  // What it was given to send, entry by entry, the newest; and the context in force.
  const std::vector<Words>& sent_entries() const { return sent_entries_; }
  std::optional<TxContext> context() const { return context_; }
  // It stays on the bus after its master was disabled; it never finishes what it sends.
  bool stuck = false;
  bool sends_nothing = false;
  // Of the next frame received.
  uint32_t rx_errors = 0;

 private:
  uint64_t MmioRead(uint64_t offset, size_t width) override;
  void MmioWrite(uint64_t offset, uint64_t value, size_t width) override;
  std::atomic<uint32_t>& Cell(size_t offset) { return cells_[offset / 4]; }
  const std::atomic<uint32_t>& Cell(size_t offset) const { return cells_[offset / 4]; }
  void WriteHead(size_t offset, uint32_t value);
  void Violate(std::string what);

  bool StepTx(size_t queue);
  void Take(const Words& entry, std::vector<std::byte>& frame);
  void Finish(size_t queue, const TxData& last);
  bool StepRx();
  size_t QueueOf(std::span<const std::byte> frame) const;
  bool Deliver(size_t queue, std::span<const std::byte> frame);
  void WriteBack(size_t queue, uint32_t at, const RxWriteBack& done);
  void Corrupt(RxWriteBack& done);
  void Raise(size_t queue);
  uint32_t Entries(Reg length, size_t queue) const { return Get(length, queue) / kRingUnit; }
  Iova EntryAt(Reg low, Reg high, size_t queue, uint32_t index) const;
  uint32_t Free(size_t queue) const;
  uint32_t Random(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  const std::unique_ptr<dma::DevicePort> port_;
  const FakeNicOptions options_;
  std::mt19937_64 random_;
  Wire* wire_ = nullptr;
  std::atomic<bool> stepping_{false};
  std::vector<std::atomic<uint32_t>> cells_;
  std::optional<TxContext> context_;
  std::array<std::vector<std::byte>, kMaxQueues> gathered_;
  std::vector<Words> sent_entries_;
  mutable std::mutex mutex_;  // of what follows
  std::vector<std::string> violations_;
  std::array<Notifier*, kVectors> notifiers_{};
  std::atomic<uint64_t> violation_count_{0};
};

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_TESTS_NIC_E1000E_FAKE_NIC_H_
