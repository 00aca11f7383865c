// SPDX-License-Identifier: Apache-2.0
//
// The 82574L's registers in BAR 0, as offsets and bits, in the order of section 1 of the e1000e
// sheet. All are 32 bits wide. Queue 1 has its own ring registers, 0x100 behind those of queue 0.
// Constants; any thread.
#ifndef DMAKIT_NIC_E1000E_REGISTERS_H_
#define DMAKIT_NIC_E1000E_REGISTERS_H_

#include <cstddef>
#include <cstdint>

namespace dmakit::nic::e1000e {

inline constexpr size_t kBarBytes = 128 * 1024;
inline constexpr uint32_t kMaxQueues = 2;
inline constexpr uint32_t kAllOnes = 0xffffffff;  // what a device that is gone reads as

enum class Reg : uint32_t {
  kCtrl = 0x0000,
  kStatus = 0x0008,
  kEecd = 0x0010,
  kEerd = 0x0014,
  kCtrlExt = 0x0018,
  kFcal = 0x0028,  // pause frames: FCAL, FCAH, FCT, FCTTV, FCRTL, FCRTH
  kFcah = 0x002c,
  kFct = 0x0030,
  kVet = 0x0038,  // Ethernet type of a VLAN tag
  kIcr = 0x00c0,
  kItr = 0x00c4,
  kIms = 0x00d0,
  kImc = 0x00d8,
  kEiac = 0x00dc,
  kIam = 0x00e0,
  kIvar = 0x00e4,
  kEitr = 0x00e8,  // of vector 0; 4 bytes each, 5 of them
  kRctl = 0x0100,
  kFcttv = 0x0170,
  kTctl = 0x0400,
  kTipg = 0x0410,
  kExtcnfCtrl = 0x0f00,
  kPba = 0x1000,
  kFcrtl = 0x2160,
  kFcrth = 0x2168,
  kRdbal = 0x2800,
  kRdbah = 0x2804,
  kRdlen = 0x2808,
  kRdh = 0x2810,
  kRdt = 0x2818,
  kRdtr = 0x2820,
  kRxdctl = 0x2828,
  kRadv = 0x282c,
  kTdbal = 0x3800,
  kTdbah = 0x3804,
  kTdlen = 0x3808,
  kTdh = 0x3810,
  kTdt = 0x3818,
  kTidv = 0x3820,
  kTxdctl = 0x3828,
  kTadv = 0x382c,
  kTarc = 0x3840,
  kCrcErrors = 0x4000,  // statistics: they start anew when they are read
  kAlignmentErrors = 0x4004,
  kSymbolErrors = 0x4008,
  kRxErrors = 0x400c,
  kMissedPackets = 0x4010,
  kSequenceErrors = 0x4038,
  kCarrierErrors = 0x403c,
  kLengthErrors = 0x4040,
  kGoodReceived = 0x4074,
  kGoodSent = 0x4080,
  kNoBuffers = 0x40a0,
  kUndersize = 0x40a4,
  kFragments = 0x40a8,
  kOversize = 0x40ac,
  kJabbers = 0x40b0,
  kRxcsum = 0x5000,
  kRfctl = 0x5008,
  kMta = 0x5200,  // 128 words
  kRal = 0x5400,  // 16 pairs, 8 bytes each
  kRah = 0x5404,
  kVfta = 0x5600,  // 128 words
  kMrqc = 0x5818,
  kGcr = 0x5b00,
  kReta = 0x5c00,   // 32 words of 4 entries
  kRssrk = 0x5c80,  // 10 words
};

constexpr size_t OffsetOf(Reg reg) { return static_cast<size_t>(reg); }
inline constexpr size_t kQueueStride = 0x100;
constexpr size_t OffsetOf(Reg reg, size_t queue) { return OffsetOf(reg) + queue * kQueueStride; }

inline constexpr size_t kMtaWords = 128;
inline constexpr size_t kVftaWords = 128;
inline constexpr size_t kReceiveAddresses = 16;
inline constexpr size_t kRetaWords = 32;
inline constexpr size_t kRssKeyWords = 10;
inline constexpr size_t kVectors = 5;

// CTRL
inline constexpr uint32_t kCtrlMasterDisable = 1u << 2;
inline constexpr uint32_t kCtrlLinkReset = 1u << 3;
inline constexpr uint32_t kCtrlAsde = 1u << 5;
inline constexpr uint32_t kCtrlSlu = 1u << 6;
inline constexpr uint32_t kCtrlForceSpeed = 1u << 11;
inline constexpr uint32_t kCtrlForceDuplex = 1u << 12;
inline constexpr uint32_t kCtrlReset = 1u << 26;
inline constexpr uint32_t kCtrlRxPause = 1u << 27;
inline constexpr uint32_t kCtrlTxPause = 1u << 28;
inline constexpr uint32_t kCtrlBit29 = 1u << 29;
inline constexpr uint32_t kCtrlVlan = 1u << 30;
inline constexpr uint32_t kCtrlPhyReset = 1u << 31;
// STATUS
inline constexpr uint32_t kStatusLinkUp = 1u << 1;
inline constexpr uint32_t kStatusMasterEnable = 1u << 19;
// EECD, EERD
inline constexpr uint32_t kEecdAutoReadDone = 1u << 9;
inline constexpr uint32_t kEerdStart = 1u << 0;
inline constexpr uint32_t kEerdDone = 1u << 1;
// CTRL_EXT
inline constexpr uint32_t kCtrlExtBit22 = 1u << 22;
inline constexpr uint32_t kCtrlExtBit23 = 1u << 23;
inline constexpr uint32_t kCtrlExtEiame = 1u << 24;
inline constexpr uint32_t kCtrlExtIame = 1u << 27;
inline constexpr uint32_t kCtrlExtPbaClear = 1u << 31;
// ICR, IMS, IMC, EIAC
constexpr uint32_t RxCause(size_t queue) { return 1u << (20 + queue); }
// IVAR: a vector and a valid bit for each of Rx 0, Rx 1, Tx 0, Tx 1, and all else.
constexpr uint32_t IvarRx(size_t queue, uint32_t vector) { return (8u | vector) << (4 * queue); }
// RCTL
inline constexpr uint32_t kRctlEnable = 1u << 1;
inline constexpr uint32_t kRctlUnicastPromiscuous = 1u << 3;
inline constexpr uint32_t kRctlMulticastPromiscuous = 1u << 4;
inline constexpr uint32_t kRctlLongPackets = 1u << 5;
inline constexpr uint32_t kRctlBroadcast = 1u << 15;
inline constexpr uint32_t kRctlStripCrc = 1u << 26;
// TCTL: collision threshold and distance as for full duplex.
inline constexpr uint32_t kTctlEnable = 1u << 1;
inline constexpr uint32_t kTctlPadShort = 1u << 3;
inline constexpr uint32_t kTctlCollisions = 0x0fu << 4 | 0x3fu << 12;
inline constexpr uint32_t kTctlRetransmitLate = 1u << 24;
// RXDCTL, TXDCTL: descriptors are written back one at a time, at once; the granularity is
// descriptors.
inline constexpr uint32_t kDctlWriteBackEach = 0x0101'0000;
inline constexpr uint32_t kTxdctlBit22 = 1u << 22;
// EXTCNF_CTRL: the driver, and not firmware, has the PHY and may reset the chip.
inline constexpr uint32_t kExtcnfMdioOwner = 1u << 5;
// TIPG, VET, PBA: what they are at power-on.
inline constexpr uint32_t kTipgDefault = 0x0060'2008;
inline constexpr uint32_t kVetDefault = 0x8100;
inline constexpr uint32_t kPbaDefault = 20;  // KB for receive; transmit has the rest
// TARC
inline constexpr uint32_t kTarcCount = 3;  // the share of a queue, at power-on
inline constexpr uint32_t kTarcEnable = 1u << 10;
inline constexpr uint32_t kTarcBit26 = 1u << 26;
inline constexpr uint32_t kTarcBits27To30 = 0xfu << 27;
// RXCSUM, RFCTL
inline constexpr uint32_t kRxcsumIp = 1u << 8;
inline constexpr uint32_t kRxcsumL4 = 1u << 9;
inline constexpr uint32_t kRxcsumHash = 1u << 13;  // PCSD: the hash, in place of the checksum
inline constexpr uint32_t kRfctlExtended = 1u << 15;
// RAH
inline constexpr uint32_t kRahValid = 1u << 31;
// GCR
inline constexpr uint32_t kGcrBit22 = 1u << 22;
// MRQC: two queues, chosen by the hash of IPv4 and IPv6, with TCP.
inline constexpr uint32_t kMrqcTwoQueues = 1u << 0;
inline constexpr uint32_t kMrqcHashes = 0x1fu << 16;
// RETA: an entry's top bit is the queue.
constexpr uint32_t RetaEntry(uint32_t queue) { return queue << 7; }

// The ring length registers take bytes.
inline constexpr uint32_t kRingUnit = 16;

// Receive buffers are as small as a frame allows, of the sizes that RCTL.BSIZE has, and at most
// 2048 bytes: a longer frame takes several.
inline constexpr uint32_t kMinRxBuffer = 256;
inline constexpr uint32_t kMaxRxBuffer = 2048;
constexpr uint32_t RxBufferBytes(uint32_t max_frame) {
  uint32_t bytes = kMinRxBuffer;
  while (bytes < max_frame && bytes < kMaxRxBuffer) bytes *= 2;
  return bytes;
}
inline constexpr unsigned kRctlSizeAt = 16;  // BSIZE, 2 bits: 2048 >> BSIZE
constexpr uint32_t RctlSize(uint32_t buffer_bytes) {
  uint32_t code = 0;
  while (kMaxRxBuffer >> code > buffer_bytes && code < 3) ++code;
  return code << kRctlSizeAt;
}
constexpr uint32_t RctlBufferBytes(uint32_t rctl) {
  return kMaxRxBuffer >> (rctl >> kRctlSizeAt & 3);
}
static_assert(RctlSize(2048) == 0 && RctlSize(256) == 3u << kRctlSizeAt);

// The largest frame without LPE, FCS included; and with it.
inline constexpr uint32_t kLongestStandard = 1522;
inline constexpr uint32_t kCrcBytes = 4;

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_REGISTERS_H_
