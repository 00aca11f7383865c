// SPDX-License-Identifier: Apache-2.0
//
// The registers of the 82574L that the driver writes, with their bits (e1000e sheet 1): BAR 0, 32
// bits each, little-endian. Interrupt vectors (IVAR, EIAC, EITR) are from the 82574's public
// register lists. No state; any thread.
#ifndef DMAKIT_NIC_E1000E_REGISTERS_H_
#define DMAKIT_NIC_E1000E_REGISTERS_H_

#include <cstdint>

namespace dmakit::nic::e1000e {

inline constexpr uint64_t kBar0Bytes = 0x20000;
inline constexpr uint32_t kAllOnes = ~uint32_t{0};  // what is read of a device that is gone
inline constexpr uint32_t kMaxQueues = 2;           // of each kind
inline constexpr uint32_t kVectors = 5;

enum class Reg : uint32_t {
  kCtrl = 0x0000,
  kStatus = 0x0008,
  kEecd = 0x0010,
  kEerd = 0x0014,
  kCtrlExt = 0x0018,
  kFcal = 0x0028,  // pause frames
  kFcah = 0x002c,
  kFct = 0x0030,
  kVet = 0x0038,  // Ethernet type of a VLAN tag
  kIcr = 0x00c0,
  kItr = 0x00c4,
  kIms = 0x00d0,
  kImc = 0x00d8,
  kEiac = 0x00dc,  // causes that their message clears
  kIam = 0x00e0,
  kIvar = 0x00e4,
  kEitr = 0x00e8,  // [5]: 256 ns between messages of a vector
  kRctl = 0x0100,
  kFcttv = 0x0170,
  kTctl = 0x0400,
  kTipg = 0x0410,
  kExtcnfCtrl = 0x0f00,
  kPba = 0x1000,
  kFcrtl = 0x2160,
  kFcrth = 0x2168,
  kCrcErrs = 0x4000,
  kAlgnErrC = 0x4004,
  kSymErrs = 0x4008,
  kRxErrC = 0x400c,
  kMpc = 0x4010,  // frames lost for want of room
  kSec = 0x4038,
  kCexterr = 0x403c,
  kRlec = 0x4040,
  kGprc = 0x4074,
  kGptc = 0x4080,
  kRnbc = 0x40a0,  // frames that came while no buffer was there
  kRuc = 0x40a4,
  kRfc = 0x40a8,
  kRoc = 0x40ac,
  kRjc = 0x40b0,
  kRxcsum = 0x5000,
  kRfctl = 0x5008,
  kMta = 0x5200,   // [128]
  kRal = 0x5400,   // [16], 8 bytes apart
  kRah = 0x5404,   // [16]
  kVfta = 0x5600,  // [128]
  kMrqc = 0x5818,
  kGcr = 0x5b00,
  kReta = 0x5c00,   // [32], four entries each
  kRssrk = 0x5c80,  // [10]
};
constexpr uint32_t OffsetOf(Reg reg) { return static_cast<uint32_t>(reg); }
constexpr uint32_t OffsetOf(Reg reg, uint32_t index, uint32_t stride = 4) {
  return static_cast<uint32_t>(reg) + index * stride;
}

// Of one queue, from its block on.
enum class QueueReg : uint32_t {
  kBaseLow = 0x00,
  kBaseHigh = 0x04,
  kLength = 0x08,  // bytes
  kHead = 0x10,
  kTail = 0x18,
  kDelay = 0x20,    // RDTR, TIDV
  kControl = 0x28,  // RXDCTL, TXDCTL
  kAbsoluteDelay = 0x2c,
  kArbitration = 0x40,  // TARC; transmit only
};
constexpr uint32_t OffsetOf(QueueReg reg) { return static_cast<uint32_t>(reg); }
inline constexpr uint32_t kQueueBytes = 0x100;  // from one queue of a kind to the next
constexpr uint32_t RxQueueAt(uint32_t index) { return 0x2800 + index * kQueueBytes; }
constexpr uint32_t TxQueueAt(uint32_t index) { return 0x3800 + index * kQueueBytes; }

inline constexpr uint32_t kAddresses = 16;     // RAL, RAH
inline constexpr uint32_t kFilterWords = 128;  // MTA, VFTA
inline constexpr uint32_t kRetaWords = 32;
inline constexpr uint32_t kKeyWords = 10;

namespace ctrl {
inline constexpr uint32_t kFullDuplex = 1u << 0;
inline constexpr uint32_t kMasterDisable = 1u << 2;
inline constexpr uint32_t kLinkReset = 1u << 3;
inline constexpr uint32_t kAutoSpeed = 1u << 5;  // ASDE
inline constexpr uint32_t kSetLinkUp = 1u << 6;  // SLU
inline constexpr uint32_t kForceSpeed = 1u << 11;
inline constexpr uint32_t kForceDuplex = 1u << 12;
inline constexpr uint32_t kReset = 1u << 26;
inline constexpr uint32_t kRxPause = 1u << 27;
inline constexpr uint32_t kTxPause = 1u << 28;
inline constexpr uint32_t kErratum29 = 1u << 29;  // clear on the 82574 (sheet 2)
inline constexpr uint32_t kVlanMode = 1u << 30;   // VME: strip and insert
inline constexpr uint32_t kPhyReset = 1u << 31;
}  // namespace ctrl

namespace status {
inline constexpr uint32_t kLinkUp = 1u << 1;
inline constexpr uint32_t kMasterEnable = 1u << 19;
}  // namespace status

inline constexpr uint32_t kEecdAutoRead = 1u << 9;

namespace eerd {
inline constexpr uint32_t kStart = 1u << 0;
inline constexpr uint32_t kDone = 1u << 1;
inline constexpr unsigned kAddressAt = 2;
inline constexpr unsigned kDataAt = 16;
}  // namespace eerd

namespace ctrl_ext {
inline constexpr uint32_t kErratum22 = 1u << 22;  // set,
inline constexpr uint32_t kErratum23 = 1u << 23;  // clear (sheet 2)
inline constexpr uint32_t kEiame = 1u << 24;      // a message masks the causes in EIAC
inline constexpr uint32_t kIame = 1u << 27;
inline constexpr uint32_t kPbaClear = 1u << 31;  // pending bits of MSI-X clear with the cause
}  // namespace ctrl_ext

inline constexpr uint32_t kGcrErratum22 = 1u << 22;    // set (sheet 2)
inline constexpr uint32_t kExtcnfMdioOwner = 1u << 5;  // software owns PHY and reset

namespace icr {
constexpr uint32_t RxQueue(uint32_t queue) { return 1u << (20 + queue); }
}  // namespace icr

namespace ivar {
inline constexpr uint32_t kValid = 1u << 3;
constexpr uint32_t RxVector(uint32_t queue, uint32_t vector) {
  return (vector | kValid) << (queue * 4);
}
}  // namespace ivar
inline constexpr uint32_t kMaxEitr = 0xffff;
inline constexpr uint32_t kEitrNanos = 256;

namespace rctl {
inline constexpr uint32_t kEnable = 1u << 1;
inline constexpr uint32_t kStoreBad = 1u << 2;        // SBP
inline constexpr uint32_t kAllUnicast = 1u << 3;      // UPE
inline constexpr uint32_t kAllMulticast = 1u << 4;    // MPE
inline constexpr uint32_t kLongPackets = 1u << 5;     // LPE
inline constexpr uint32_t kBroadcast = 1u << 15;      // BAM
inline constexpr unsigned kSizeAt = 16;               // BSIZE, 2 bits
inline constexpr uint32_t kSizeExtension = 1u << 25;  // BSEX: sizes times 16
inline constexpr uint32_t kStripCrc = 1u << 26;       // SECRC
}  // namespace rctl

// Buffer sizes that RCTL can name (sheet 1), and how.
constexpr bool IsBufferSize(uint32_t bytes) {
  return bytes >= 256 && bytes <= 16384 && (bytes & (bytes - 1)) == 0;
}
constexpr uint32_t BufferSizeBits(uint32_t bytes) {
  const bool extension = bytes > 2048;
  const uint32_t base = extension ? bytes / 16 : bytes;
  uint32_t code = 0;
  for (uint32_t size = base; size < 2048; size *= 2) ++code;
  return code << rctl::kSizeAt | (extension ? rctl::kSizeExtension : 0);
}
constexpr uint32_t BufferSizeOf(uint32_t rctl_value) {
  const uint32_t code = rctl_value >> rctl::kSizeAt & 3;
  const bool extension = (rctl_value & rctl::kSizeExtension) != 0;
  return (2048u >> code) * (extension && code != 0 ? 16 : 1);
}
static_assert(BufferSizeOf(BufferSizeBits(2048)) == 2048 && BufferSizeBits(2048) == 0);
static_assert(BufferSizeOf(BufferSizeBits(256)) == 256 && BufferSizeBits(256) == 3u << 16);
static_assert(BufferSizeOf(BufferSizeBits(16384)) == 16384);
static_assert(BufferSizeBits(16384) == (1u << 16 | rctl::kSizeExtension));
static_assert(BufferSizeBits(4096) == (3u << 16 | rctl::kSizeExtension));

namespace tctl {
inline constexpr uint32_t kEnable = 1u << 1;
inline constexpr uint32_t kPadShort = 1u << 3;        // PSP
inline constexpr uint32_t kCollisions = 0x0f << 4;    // CT
inline constexpr uint32_t kDistance = 0x3f << 12;     // COLD, full duplex
inline constexpr uint32_t kRetransmit = 1u << 24;     // RTLC
inline constexpr uint32_t kMultipleReads = 1u << 28;  // MULR
}  // namespace tctl
inline constexpr uint32_t kTipgValue = 0x0060'2008;

// Of RXDCTL and TXDCTL: thresholds in descriptors; WTHRESH 1 writes each one back at once.
namespace dctl {
inline constexpr uint32_t kPrefetch = 0x1f;
inline constexpr uint32_t kHost = 1u << 8;
inline constexpr uint32_t kWriteBackAt = 16;  // 6 bits
inline constexpr uint32_t kCountDescriptors = 1u << 22;
inline constexpr uint32_t kGranularity = 1u << 24;
inline constexpr uint32_t kRx = kPrefetch | kHost | 1u << kWriteBackAt | kGranularity;
inline constexpr uint32_t kTx = kRx | kCountDescriptors;
}  // namespace dctl

namespace tarc {
inline constexpr uint32_t kEnable = 1u << 10;
inline constexpr uint32_t kErratum26 = 1u << 26;       // set,
inline constexpr uint32_t kErrata27To30 = 0xfu << 27;  // clear, in TARC0 (sheet 2)
inline constexpr uint32_t kCount = 3;  // bytes in turn between two queues: the reset value
}  // namespace tarc

namespace rxcsum {
inline constexpr uint32_t kIp = 1u << 8;
inline constexpr uint32_t kTcpUdp = 1u << 9;
inline constexpr uint32_t kHashForm = 1u << 13;  // PCSD: the hash, not IP id and checksum
}  // namespace rxcsum

namespace rfctl {
inline constexpr uint32_t kAckDisable = 1u << 12;  // an ACK raises the same interrupt as others
inline constexpr uint32_t kExtended = 1u << 15;    // EXTEN
}  // namespace rfctl

inline constexpr uint32_t kRahValid = 1u << 31;
inline constexpr uint16_t kVlanEtherType = 0x8100;

namespace mrqc {
inline constexpr uint32_t kHash = 1u << 0;
inline constexpr uint32_t kTcpIpv4 = 1u << 16;
inline constexpr uint32_t kIpv4 = 1u << 17;
inline constexpr uint32_t kIpv6 = 1u << 20;
inline constexpr uint32_t kTcpIpv6 = 1u << 21;
}  // namespace mrqc
inline constexpr uint8_t kRetaQueue1 = 0x80;  // of a RETA entry

inline constexpr uint32_t kRxPacketBuffer = 20;  // KB of the packet buffer for receive (PBA)

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_REGISTERS_H_
