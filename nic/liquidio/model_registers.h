// SPDX-License-Identifier: Apache-2.0
//
// The registers of the liquidio model (liquidio sheet 1): a trap latches, with atomics, and records
// what it forbids; Step() does the work. Registers: any thread.
#ifndef DMAKIT_NIC_LIQUIDIO_MODEL_REGISTERS_H_
#define DMAKIT_NIC_LIQUIDIO_MODEL_REGISTERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "dma/mmio.h"
#include "nic/liquidio/model_violations.h"
#include "nic/liquidio/registers.h"

namespace dmakit::nic::liquidio {

// One ring's. Counts are what is left: doorbell and credits grow by writes of the driver and shrink
// by the device's work, the counters of done work the other way round.
struct RingRegisters {
  std::atomic<uint64_t> input_control{0};
  std::atomic<uint64_t> instr_base{0};
  std::atomic<uint32_t> doorbell{0};
  std::atomic<uint32_t> instr_size{0};
  std::atomic<uint32_t> in_done{0};
  std::atomic<uint64_t> in_done_upper{0};
  std::atomic<uint32_t> output_control{0};
  std::atomic<uint32_t> out_size{0};
  std::atomic<uint64_t> list_base{0};
  std::atomic<uint32_t> credits{0};
  std::atomic<uint32_t> list_size{0};
  std::atomic<uint64_t> int_levels{0};
  std::atomic<uint32_t> sent{0};
  std::atomic<bool> interrupt_raised{false};  // PO_INT; RESEND takes it back

  bool input_on() const {
    const uint64_t control = input_control.load(std::memory_order_acquire);
    return (control & kInputRingEnable) != 0 && (control & kInputReset) == 0;
  }
  bool output_on() const {
    return (output_control.load(std::memory_order_acquire) & kOutputRingEnable) != 0 &&
           (input_control.load(std::memory_order_acquire) & kInputReset) == 0;
  }
  bool info_mode() const {
    return (output_control.load(std::memory_order_acquire) & kOutputInfoPointer) != 0;
  }
  uint32_t buffer_bytes() const { return out_size.load(std::memory_order_acquire) & 0xffff; }
  // Sheet 9: indices, counters and enables are gone. INPUT_CONTROL last: it says that it is over.
  void Reset();
};

// What a hostile device says instead of the truth.
class RegisterLies {
 public:
  virtual ~RegisterLies() = default;
  virtual uint64_t Answer(uint32_t ring, RingReg reg, uint64_t truth) = 0;
};

class RegisterFile final : public dma::MmioHandler {
 public:
  RegisterFile(uint32_t rings, bool vf, ViolationLog& log);

  size_t bar_bytes() const { return size_t{kRingStride} * rings_.size(); }
  uint32_t rings() const { return static_cast<uint32_t>(rings_.size()); }
  RingRegisters& ring(uint32_t i) { return rings_[i]; }
  const RingRegisters& ring(uint32_t i) const { return rings_[i]; }
  void set_lies(RegisterLies* lies) { lies_ = lies; }

  uint64_t MmioRead(uint64_t offset, size_t width) override;
  void MmioWrite(uint64_t offset, uint64_t value, size_t width) override;

 private:
  uint64_t Read(const RingRegisters& ring, RingReg reg) const;
  void Write(uint32_t index, RingReg reg, uint64_t value, size_t width);
  void WriteInputControl(uint32_t index, uint64_t value);
  void WriteOutputControl(uint32_t index, uint32_t value);
  void AddCount(uint32_t index, std::atomic<uint32_t>& count, uint32_t limit, uint64_t value,
                const char* rule);
  // A base, a size: while the direction runs they may not change.
  template <typename Word>
  void SetQuiet(uint32_t index, bool on, std::atomic<Word>& word, uint64_t value);
  void Violate(const char* rule, uint32_t ring, uint64_t value) { log_.Record(rule, ring, value); }

  const bool vf_;
  ViolationLog& log_;
  std::deque<RingRegisters> rings_;
  std::atomic<uint64_t> watermark_{0};
  RegisterLies* lies_ = nullptr;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_MODEL_REGISTERS_H_
