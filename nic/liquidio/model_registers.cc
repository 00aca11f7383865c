// SPDX-License-Identifier: Apache-2.0

#include "nic/liquidio/model_registers.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "nic/liquidio/descriptors.h"

namespace dmakit::nic::liquidio {
namespace {

struct Register {
  RingReg reg;
  size_t width;
  bool narrow;  // may be written as its low half
  bool wide;    // may be written with 64 bits, to clear it
};
constexpr Register kRegisters[] = {
    {RingReg::kInputControl, 8, false, false}, {RingReg::kInstrBaddr, 8, false, false},
    {RingReg::kInstrDoorbell, 4, false, true}, {RingReg::kInstrFifoRsize, 4, false, false},
    {RingReg::kInDoneCnts, 8, true, false},    {RingReg::kOutputControl, 4, false, false},
    {RingReg::kOutSize, 4, false, false},      {RingReg::kSlistBaddr, 8, false, false},
    {RingReg::kSlistDoorbell, 4, false, true}, {RingReg::kSlistFifoRsize, 4, false, false},
    {RingReg::kIntLevels, 8, false, false},    {RingReg::kPktCnts, 8, true, false},
};

const Register* Find(uint64_t offset) {
  for (const Register& r : kRegisters) {
    if (OffsetOf(r.reg) == offset) return &r;
  }
  return nullptr;
}

constexpr auto kGet = std::memory_order_acquire;
constexpr auto kSet = std::memory_order_release;

}  // namespace

std::vector<std::string> ViolationLog::Words() const {
  std::vector<std::string> words;
  for (const Violation& violation : kept_) {
    const char* const rule = violation.rule.load(std::memory_order_acquire);
    if (rule == nullptr) continue;
    words.push_back(absl::StrCat("ring ", violation.ring, ": ", rule, ": ", violation.value));
  }
  return words;
}

void RingRegisters::Reset() {
  for (std::atomic<uint32_t>* word : {&doorbell, &instr_size, &in_done, &output_control, &out_size,
                                      &credits, &list_size, &sent}) {
    word->store(0, kSet);
  }
  for (std::atomic<uint64_t>* word : {&instr_base, &in_done_upper, &list_base, &int_levels}) {
    word->store(0, kSet);
  }
  interrupt_raised.store(false, kSet);
  input_control.store(input_control.load(kGet) & kInputOwnerMask, kSet);
}

RegisterFile::RegisterFile(uint32_t rings, bool vf, ViolationLog& log)
    : vf_(vf), log_(log), rings_(rings) {}

// --- Reads ---------------------------------------------------------------------------------------

uint64_t RegisterFile::MmioRead(uint64_t offset, size_t width) {
  const uint64_t index = offset / kRingStride;
  const Register* const found = Find(offset % kRingStride);
  if (index >= rings_.size() || found == nullptr) {
    Violate("no register there was read; offset", static_cast<uint32_t>(index), offset);
    return 0;
  }
  if (width > 4 && found->width == 4) {
    Violate("read wider than the register; offset", static_cast<uint32_t>(index), offset);
  }
  const uint64_t truth = Read(rings_[index], found->reg);
  if (lies_ == nullptr) return truth;
  return lies_->Answer(static_cast<uint32_t>(index), found->reg, truth);
}

uint64_t RegisterFile::Read(const RingRegisters& ring, RingReg reg) const {
  switch (reg) {
    case RingReg::kInputControl:
      return ring.input_control.load(kGet);
    case RingReg::kInstrBaddr:
      return ring.instr_base.load(kGet);
    case RingReg::kInstrDoorbell:
      return ring.doorbell.load(kGet);
    case RingReg::kInstrFifoRsize:
      return ring.instr_size.load(kGet);
    case RingReg::kInDoneCnts:
      return ring.in_done_upper.load(kGet) | ring.in_done.load(kGet);
    case RingReg::kOutputControl:
      return ring.output_control.load(kGet);
    case RingReg::kOutSize:
      return ring.out_size.load(kGet);
    case RingReg::kSlistBaddr:
      return ring.list_base.load(kGet);
    case RingReg::kSlistDoorbell:
      return ring.credits.load(kGet);
    case RingReg::kSlistFifoRsize:
      return ring.list_size.load(kGet);
    case RingReg::kIntLevels:
      return ring.int_levels.load(kGet);
    case RingReg::kPktCnts:
      return (ring.interrupt_raised.load(kGet) ? kPktCntsInterrupt : 0) | ring.sent.load(kGet);
  }
  return 0;
}

// --- Writes --------------------------------------------------------------------------------------

void RegisterFile::MmioWrite(uint64_t offset, uint64_t value, size_t width) {
  if (!vf_ && offset == OffsetOf(GlobalReg::kOqWmark) && width == 8) {
    watermark_.store(value, kSet);
    return;
  }
  const uint64_t index = offset / kRingStride;
  const Register* const found = Find(offset % kRingStride);
  if (index >= rings_.size() || found == nullptr) {
    return Violate("no register there was written; offset", static_cast<uint32_t>(index), offset);
  }
  const bool fits = width == found->width || (width == 4 && found->narrow) ||
                    (width == 8 && found->wide && value == kClearCount);
  if (!fits) Violate("written with another width; offset", static_cast<uint32_t>(index), offset);
  Write(static_cast<uint32_t>(index), found->reg, value, width);
}

void RegisterFile::WriteInputControl(uint32_t index, uint64_t value) {
  RingRegisters& ring = rings_[index];
  const uint64_t before = ring.input_control.load(kGet);
  if ((value & kInputReserved) != 0) {
    Violate("reserved bits of INPUT_CONTROL set", index, value);
  }
  if ((value & kInputReset) == 0) {
    if ((before & kInputRingEnable) != 0 && (value & kInputRingEnable) == 0) {
      Violate("RING_ENB cleared: a ring is disabled by a reset only; INPUT_CONTROL", index, value);
    }
    if ((before & kInputRingEnable) == 0 && (value & kInputRingEnable) != 0) {
      if ((before & kInputIs64B) == 0) Violate("enabled before IS_64B was set", index, value);
      const uint64_t size = ring.instr_size.load(kGet);
      if (size < kMinRing || size > kMaxRing) Violate("input ring size", index, size);
      const uint64_t base = ring.instr_base.load(kGet);
      if (base == 0 || base % kInstructionBytes != 0) Violate("input ring base", index, base);
    }
  }
  ring.input_control.store(value, kSet);
}

void RegisterFile::WriteOutputControl(uint32_t index, uint32_t value) {
  RingRegisters& ring = rings_[index];
  const uint32_t before = ring.output_control.load(kGet);
  const bool was_on = (before & kOutputRingEnable) != 0;
  if (was_on && (value & kOutputRingEnable) == 0) {
    Violate("an output ring is disabled by a reset only; OUTPUT_CONTROL", index, value);
  }
  if (!was_on && (value & kOutputRingEnable) != 0) {
    const uint64_t size = ring.list_size.load(kGet);
    if (size < kMinRing || size > kMaxRing) Violate("output ring size", index, size);
    const uint64_t base = ring.list_base.load(kGet);
    if (base == 0 || base % kDroqDescriptorBytes != 0) Violate("output ring base", index, base);
    const uint32_t buffer = ring.out_size.load(kGet);
    const uint32_t info = (value & kOutputInfoPointer) != 0 ? kInfoHeaderBytes : 0;
    if ((buffer & 0xffff) == 0 || buffer >> kOutSizeInfoShift != info) {
      Violate("OUT_SIZE does not fit the mode", index, buffer);
    }
    if (ring.credits.load(kGet) != 0) Violate("credits before the ring was enabled", index, 0);
  }
  ring.output_control.store(value, kSet);
}

void RegisterFile::AddCount(uint32_t index, std::atomic<uint32_t>& count, uint32_t limit,
                            uint64_t value, const char* rule) {
  if (value == kClearCount) return count.store(0, kSet);
  const uint64_t now = uint64_t{count.fetch_add(static_cast<uint32_t>(value))} + value;
  if (now > limit || value == 0) Violate(rule, index, now);
}

template <typename Word>
void RegisterFile::SetQuiet(uint32_t index, bool on, std::atomic<Word>& word, uint64_t value) {
  if (on) Violate("a base or size was written while the ring runs", index, value);
  word.store(static_cast<Word>(value), kSet);
}

void RegisterFile::Write(uint32_t index, RingReg reg, uint64_t value, size_t width) {
  RingRegisters& ring = rings_[index];
  const uint32_t low = static_cast<uint32_t>(value);
  switch (reg) {
    case RingReg::kInputControl:
      return WriteInputControl(index, value);
    case RingReg::kInstrBaddr:
      return SetQuiet(index, ring.input_on(), ring.instr_base, value);
    case RingReg::kInstrDoorbell:
      if (!ring.input_on() && low != kClearCount) Violate("doorbell before enable", index, low);
      return AddCount(index, ring.doorbell, ring.instr_size.load(kGet), low,
                      "doorbells for more than the ring holds");
    case RingReg::kInstrFifoRsize:
      return SetQuiet(index, ring.input_on(), ring.instr_size, value);
    case RingReg::kInDoneCnts:
      if (width == 8) ring.in_done_upper.store(value & kInDoneKept, kSet);
      ring.in_done.fetch_sub(low, std::memory_order_acq_rel);
      return;
    case RingReg::kOutputControl:
      return WriteOutputControl(index, low);
    case RingReg::kOutSize:
      return SetQuiet(index, ring.output_on(), ring.out_size, value);
    case RingReg::kSlistBaddr:
      return SetQuiet(index, ring.output_on(), ring.list_base, value);
    case RingReg::kSlistDoorbell:
      if (!ring.output_on() && low != kClearCount) Violate("credits before enable", index, low);
      return AddCount(index, ring.credits, ring.list_size.load(kGet), low,
                      "credits for more than the ring holds");
    case RingReg::kSlistFifoRsize:
      return SetQuiet(index, ring.output_on(), ring.list_size, value);
    case RingReg::kIntLevels:
      ring.int_levels.store(value, kSet);
      return;
    case RingReg::kPktCnts:
      ring.sent.fetch_sub(low, std::memory_order_acq_rel);
      if (width == 8 && (value & kPktCntsResend) != 0) ring.interrupt_raised.store(false, kSet);
      return;
  }
}

}  // namespace dmakit::nic::liquidio
