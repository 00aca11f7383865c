// SPDX-License-Identifier: Apache-2.0
//
// The register file of the enic model: BAR 0 as a driver sees it. Accesses are traps that only
// latch, and check what must be checked in the order it was written in (a posting before its
// enable, a command over a running one). The device's work is done elsewhere, in Model::Step.
//
// Every register is an atomic: writes are releases, reads acquires, so what a driver stored before
// it wrote posted_index is there when the model reads it, and the other way round. Traps: any
// thread. Get and Set: the model.
#ifndef DMAKIT_NIC_ENIC_MODEL_REGISTERS_H_
#define DMAKIT_NIC_ENIC_MODEL_REGISTERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "dma/mmio.h"
#include "nic/enic/commands.h"
#include "nic/enic/model_violations.h"
#include "nic/enic/registers.h"

namespace dmakit::nic::enic {

enum class OnWrite : uint8_t {
  kReadOnly,
  kWhileDisabled,  // a violation, and ignored, while the queue is enabled or still running
  kEnable,
  kPostedIndex,
  kCreditReturn,
  kAlways,
};
enum class OnRead : uint8_t { kValue, kClear };

// One line of a register table: what registers.h does not say, the behaviour.
struct RegisterRule {
  uint16_t offset = 0;
  OnWrite write = OnWrite::kReadOnly;
  OnRead read = OnRead::kValue;
  uint32_t reset = 0;
};

// One control block of 128 bytes.
class RegisterBlock {
 public:
  template <typename Reg>
  uint64_t Get(Reg reg) const {
    return words_[OffsetOf(reg) / 8].load(std::memory_order_acquire);
  }
  template <typename Reg>
  void Set(Reg reg, uint64_t value) {
    words_[OffsetOf(reg) / 8].store(value, std::memory_order_release);
  }
  std::atomic<uint64_t>& word(size_t offset) { return words_[offset / 8]; }

  // Trap state. RQ and WQ: disables since the last enable, and whether there was one. CQ: queues
  // that complete into it now.
  std::atomic<uint32_t> disables{0};
  std::atomic<bool> was_enabled{false};
  std::atomic<uint32_t> users{0};
  // INTR: a credit return asked for it, the model has not seen it yet.
  std::atomic<bool> timer_reset{false};

 private:
  std::array<std::atomic<uint64_t>, kBlockBytes / 8> words_{};
};

// Answers for the registers, where they are not to be believed. Any thread that reads registers.
class RegisterLies {
 public:
  virtual ~RegisterLies() = default;
  virtual uint64_t Answer(Place place, uint64_t offset, uint64_t truth) = 0;
};

class RegisterFile final : public dma::MmioHandler {
 public:
  struct Counts {
    uint32_t wqs = 0;
    uint32_t rqs = 0;
    uint32_t intrs = 0;
    uint32_t cqs() const { return wqs + rqs; }
  };
  static constexpr size_t kBarBytes = 0x10000;
  static constexpr uint32_t kMaxQueues = 64;  // of either kind

  RegisterFile(Counts counts, ViolationLog& log);

  uint64_t MmioRead(uint64_t offset, size_t width) override;
  void MmioWrite(uint64_t offset, uint64_t value, size_t width) override;

  const Counts& counts() const { return counts_; }
  RegisterBlock& wq(uint32_t i) { return wqs_[i]; }
  RegisterBlock& rq(uint32_t i) { return rqs_[i]; }
  RegisterBlock& cq(uint32_t i) { return cqs_[i]; }
  RegisterBlock& intr(uint32_t i) { return intrs_[i]; }
  // Asked about every read but those of the resource table. Set before anybody reads.
  void set_lies(RegisterLies* lies) { lies_ = lies; }
  // All registers of queues and interrupts to their reset values.
  void Reset();

  // devcmd. A command waits from the trap until Finish.
  bool CommandWaits() const { return (status_.load(std::memory_order_acquire) & kDevcmdBusy) != 0; }
  DevcmdWord command() const { return DecodeDevcmd(command_.load(std::memory_order_acquire)); }
  uint64_t arg(size_t i) const { return args_[i].load(std::memory_order_acquire); }
  void set_arg(size_t i, uint64_t value) { args_[i].store(value, std::memory_order_release); }
  void Finish(bool error) { status_.store(error ? kDevcmdError : 0, std::memory_order_release); }

 private:
  struct Window {
    Block block = Block::kBar;
    uint32_t base = 0;
    uint32_t count = 0;
    std::span<const RegisterField> fields;
    std::span<const RegisterRule> rules;
    std::deque<RegisterBlock>* blocks = nullptr;
  };
  struct Hit {
    Place place;
    const Window* window = nullptr;
    size_t line = 0;  // of the tables
    size_t byte = 0;  // in the register: 0 or, for the high half, 4
    RegisterBlock* registers = nullptr;
  };

  void BuildTable();
  void ResetWindow(const Window& window);
  bool Find(uint64_t offset, size_t width, Hit& hit);
  void WriteRegister(const Hit& hit, uint64_t value, size_t width);
  void WriteEnable(const Hit& hit, uint64_t value);
  void WritePosted(const Hit& hit, uint64_t value);
  void WriteCreditReturn(const Hit& hit, uint64_t value);
  void WriteDevcmd(uint64_t offset, uint64_t value, size_t width);
  uint64_t ReadDevcmd(uint64_t offset, size_t width);
  uint64_t Tell(Place place, uint64_t offset, uint64_t truth, size_t width);

  const Counts counts_;
  ViolationLog& log_;
  RegisterLies* lies_ = nullptr;
  std::vector<std::byte> table_;  // the resource table, constant
  std::deque<RegisterBlock> wqs_, rqs_, cqs_, intrs_;
  std::array<Window, 4> windows_;

  std::atomic<uint32_t> status_{0};
  std::atomic<uint32_t> command_{0};
  std::array<std::atomic<uint64_t>, kDevcmdArgCount> args_{};
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_MODEL_REGISTERS_H_
