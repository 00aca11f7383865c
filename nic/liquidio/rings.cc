// SPDX-License-Identifier: Apache-2.0

#include "nic/liquidio/rings.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace dmakit::nic::liquidio {
namespace {

uint64_t Read(const dma::MmioRegion& ring, RingReg reg) { return ring.Read64(OffsetOf(reg)); }
void Write(const dma::MmioRegion& ring, RingReg reg, uint64_t value) {
  ring.Write64(OffsetOf(reg), value);
}
void Write32(const dma::MmioRegion& ring, RingReg reg, uint32_t value) {
  ring.Write32(OffsetOf(reg), value);
}
uint32_t Read32(const dma::MmioRegion& ring, RingReg reg) { return ring.Read32(OffsetOf(reg)); }

// The low half becomes `start` (a write subtracts), the upper half stays but for `clear`.
void ClearCounter(const dma::MmioRegion& ring, RingReg reg, uint32_t start, uint64_t clear) {
  const uint64_t value = Read(ring, reg);
  const uint64_t upper = value & ~clear & ~uint64_t{0xffffffff};
  Write(ring, reg, upper | (static_cast<uint32_t>(value) - start));
}

// Not sooner than asked for, as far as the register goes.
uint64_t TicksOf(dma::Nanos time) {
  const uint64_t nanos = static_cast<uint64_t>(std::max<int64_t>(time.count(), 0));
  return std::min((nanos + kNanosPerTick - 1) / kNanosPerTick, kIntLevelsTimeMax);
}

}  // namespace

namespace internal {

void Poison(std::byte* data, Bytes size) { std::memset(data, 0xff, size.value()); }

}  // namespace internal

// Sheet 2, the Linux column: raw, no parsing by the device, data behind 8 bytes.
PacketWords WordsOf(uint32_t queue) {
  return {.ih3 = Encode(Ih3{.fsz = kFrontSize}),
          .pki_ih3 = Encode(PkiIh3{.w = true,
                                   .raw = true,
                                   .utag = true,
                                   .pm = kParseNothing,
                                   .sl = kDataSkip,
                                   .utt = true,
                                   .tag = queue == 0 ? kDataTag : queue}),
          .irh = Encode(Irh{.opcode = kOpcodeNic, .subcode = kSubcodeData})};
}

std::string_view Describe(Halt halt) {
  switch (halt) {
    case Halt::kStopped:
      return "stopped";
    case Halt::kStillRunning:
      return "the ring was not reset before the deadline";
    case Halt::kGone:
      return "the device is gone: its registers read all ones";
  }
  return "?";
}

Halt ResetRing(const dma::MmioRegion& ring, dma::Waiter& waiter, dma::Nanos timeout) {
  uint64_t control = Read(ring, RingReg::kInputControl);
  if (control == kAllOnes64) return Halt::kGone;
  Write(ring, RingReg::kInputControl, control | kInputReset);
  // Over when RST has cleared itself, or the ring is quiet: then RST is taken back.
  bool reset = dma::PollUntil(waiter, timeout, [&] {
    control = Read(ring, RingReg::kInputControl);
    return (control & kInputReset) == 0 || (control & kInputQuiet) != 0;
  });
  if (control == kAllOnes64) return Halt::kGone;
  if (!reset) return Halt::kStillRunning;
  if ((control & kInputReset) == 0) return Halt::kStopped;
  Write(ring, RingReg::kInputControl, control & ~kInputReset);
  reset = dma::PollUntil(waiter, timeout, [&] {
    control = Read(ring, RingReg::kInputControl);
    return (control & kInputReset) == 0 || control == kAllOnes64;
  });
  if (control == kAllOnes64) return Halt::kGone;
  return reset ? Halt::kStopped : Halt::kStillRunning;
}

void ClearInput(const dma::MmioRegion& ring, uint32_t counter_start) {
  Write(ring, RingReg::kInstrDoorbell, kClearCount);
  ClearCounter(ring, RingReg::kInDoneCnts, counter_start, kInDoneResend);
  // Whose ring it is, is not ours to say.
  const uint64_t whose = Read(ring, RingReg::kInputControl) & kInputOwnerMask;
  Write(ring, RingReg::kInputControl, whose | kInputControlValue);
}

void ClearOutput(const dma::MmioRegion& ring, uint32_t counter_start) {
  Write(ring, RingReg::kSlistDoorbell, kClearCount);
  ClearCounter(ring, RingReg::kPktCnts, counter_start, kPktCntsResend);
}

void EnableInput(const dma::MmioRegion& ring, Iova base, uint32_t entries) {
  Write(ring, RingReg::kInstrBaddr, base.value());
  Write32(ring, RingReg::kInstrFifoRsize, entries);
  const uint64_t control = Read(ring, RingReg::kInputControl) | kInputIs64B;
  Write(ring, RingReg::kInputControl, control);
  Write(ring, RingReg::kInputControl, control | kInputRingEnable);
}

void EnableOutput(const dma::MmioRegion& ring, Iova base, uint32_t entries,
                  const OutputSetUp& set_up) {
  const bool info = set_up.mode == ReceiveMode::kInfo;
  uint32_t control = Read32(ring, RingReg::kOutputControl) & ~kOutputControlMask;
  control |= kOutputControlValue | (info ? kOutputInfoPointer : 0);
  if (set_up.interrupt) {
    const uint64_t ticks = TicksOf(set_up.coalescing);
    control |= ticks != 0 ? kOutputTimeInterrupt : kOutputCountInterrupt;
    Write(ring, RingReg::kIntLevels, ticks << kIntLevelsTimeShift);
  }
  Write32(ring, RingReg::kOutputControl, control);
  Write(ring, RingReg::kSlistBaddr, base.value());
  Write32(ring, RingReg::kSlistFifoRsize, entries);
  Write32(ring, RingReg::kOutSize,
          set_up.buffer_bytes | (info ? kInfoHeaderBytes << kOutSizeInfoShift : 0));
  Write32(ring, RingReg::kOutputControl, control | kOutputRingEnable);
}

uint32_t InputError(const dma::MmioRegion& ring) {
  const uint64_t control = Read(ring, RingReg::kInputControl);
  if (control == kAllOnes64) return kAllOnes32;
  return (control & kInputRingEnable) != 0 ? 0 : 1;
}

uint32_t OutputError(const dma::MmioRegion& ring) {
  const uint32_t control = Read32(ring, RingReg::kOutputControl);
  if (control == kAllOnes32) return kAllOnes32;
  return (control & kOutputRingEnable) != 0 ? 0 : 1;
}

}  // namespace dmakit::nic::liquidio
