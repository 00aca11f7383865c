// SPDX-License-Identifier: Apache-2.0
//
// What lies in BAR 0 of a CN23XX (section 1 of the liquidio sheet), as tables
// in the sheet's order. Physical and virtual functions see the same offsets. No
// state, no I/O; any thread.
#ifndef DMAKIT_NIC_LIQUIDIO_REGISTERS_H_
#define DMAKIT_NIC_LIQUIDIO_REGISTERS_H_

#include <cstdint>

namespace dmakit::nic::liquidio {

inline constexpr uint32_t kRingStride = 0x20000;
inline constexpr uint32_t kPfRings = 64;
inline constexpr uint32_t kVfRings = 8;

inline constexpr uint32_t kAllOnes32 = ~uint32_t{0};
inline constexpr uint64_t kAllOnes64 = ~uint64_t{0};

// Of ring 0.
enum class RingReg : uint32_t {
  kInputControl = 0x10000,    // 64 bits
  kInstrBaddr = 0x10010,      // 64
  kInstrDoorbell = 0x10020,   // 32; a write adds
  kInstrFifoRsize = 0x10030,  // 32, in instructions
  kInDoneCnts = 0x10040,      // 64; a write to the low half subtracts
  kOutputControl = 0x10050,   // 32
  kOutSize = 0x10060,         // 32
  kSlistBaddr = 0x10070,      // 64
  kSlistDoorbell = 0x10080,   // 32; a write adds, a read gives the credits left
  kSlistFifoRsize = 0x10090,  // 32, in descriptors
  kIntLevels = 0x100a0,       // 64
  kPktCnts = 0x100b0,         // 64; a write to the low half subtracts
};
constexpr uint64_t OffsetOf(RingReg reg) { return static_cast<uint64_t>(reg); }

enum class GlobalReg : uint32_t {
  kInJabber = 0x29170,
  kOqWmark = 0x29180,
};
constexpr uint64_t OffsetOf(GlobalReg reg) { return static_cast<uint64_t>(reg); }
inline constexpr uint64_t kOqWatermark = 0x40;

// A 64-bit write of this clears a doorbell or the credits.
inline constexpr uint64_t kClearCount = 0xffffffff;

// INPUT_CONTROL.
inline constexpr uint64_t kInputQuiet = uint64_t{1} << 28;
inline constexpr uint64_t kInputIs64B = uint64_t{1} << 24;
inline constexpr uint64_t kInputReset = uint64_t{1} << 23;
inline constexpr uint64_t kInputRingEnable = uint64_t{1} << 22;
// RDSIZE 3, DATA_ES, USE_CSR: of a little-endian host.
inline constexpr uint64_t kInputControlValue = 0x06000050;
// RPVF, PF_NUM, VF_NUM, MAC_NUM.
inline constexpr uint64_t kInputOwnerMask =
    uint64_t{0x3f} << 48 | uint64_t{7} << 45 | uint64_t{0x1fff} << 32 | uint64_t{3} << 29;

// What a polling driver changes of INPUT_CONTROL besides: nothing. Bits nobody may set.
inline constexpr uint64_t kInputReserved =
    ~(kInputOwnerMask | kInputQuiet | kInputIs64B | kInputReset | kInputRingEnable | 0x0600017b);

// IN_DONE_CNTS: count, WMARK, CINT_ENB. PKTS_SENT: count, PO_INT. Of both: RESEND.
inline constexpr uint64_t kInDoneKept = uint64_t{0x1ffff} << 32;
inline constexpr uint64_t kPktCntsInterrupt = uint64_t{1} << 63;
inline constexpr uint64_t kInDoneResend = uint64_t{1} << 60;
inline constexpr uint64_t kPktCntsResend = uint64_t{1} << 60;

// OUTPUT_CONTROL.
inline constexpr uint32_t kOutputTimeInterrupt = 1u << 13;
inline constexpr uint32_t kOutputCountInterrupt = 1u << 12;
inline constexpr uint32_t kOutputInfoPointer = 1u << 11;
inline constexpr uint32_t kOutputRingEnable = 1u << 0;
// Every bit above, ES, NSR, ROR, DPTR, BMODE, ES_P, NSR_P, ROR_P.
inline constexpr uint32_t kOutputControlMask = 0x3bef;
inline constexpr uint32_t kOutputControlValue = 0x240;  // ES, DPTR: of a little-endian host

inline constexpr uint32_t kOutSizeInfoShift = 16;

// INT_LEVELS: an interrupt when more than so many packets are in PKTS_SENT (CENB), or so many ticks
// after the first of them (TENB). The sheet leaves open how long a tick is: here 1024 cycles of a
// coprocessor at 1 GHz.
inline constexpr uint32_t kIntLevelsTimeShift = 32;
inline constexpr uint64_t kIntLevelsTimeMax = 0x3fffff;
inline constexpr uint64_t kNanosPerTick = 1024;

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_REGISTERS_H_
