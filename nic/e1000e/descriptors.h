// SPDX-License-Identifier: Apache-2.0
//
// What lies in a ring of the 82574L: the receive and transmit entries of section 3 of the e1000e
// sheet, each as a plain value with Encode and Decode. Registers are in registers.h. It is checked
// against vectors made by other code. The driver uses the extended receive and the data and context
// transmit entries; the legacy ones are here for a device that tests play.
//
// Everything is little-endian. No state, no I/O; any thread. Encode keeps the low bits of a field.
#ifndef DMAKIT_NIC_E1000E_DESCRIPTORS_H_
#define DMAKIT_NIC_E1000E_DESCRIPTORS_H_

#include <cstddef>
#include <cstdint>

#include "nic/descriptor_words.h"

namespace dmakit::nic::e1000e {

inline constexpr size_t kDescriptorBytes = 16;  // of every entry of every ring
inline constexpr uint32_t kMinRing = 64;        // entries (sheet 3)
inline constexpr uint32_t kMaxRing = 4096;
inline constexpr uint32_t kRingMultiple = 8;     // a ring's length is a multiple of 128 bytes
inline constexpr uint64_t kRingAlignment = 128;  // bytes, of a ring's base; the device needs 16
constexpr bool IsRingSize(uint64_t entries) {
  return entries >= kMinRing && entries <= kMaxRing && entries % kRingMultiple == 0;
}

// --- 3.1 Receive, legacy -------------------------------------------------------------------------

// The status byte, also the low byte of the extended status.
inline constexpr uint32_t kRxDone = 0x01;
inline constexpr uint32_t kRxEndOfPacket = 0x02;
inline constexpr uint32_t kRxIgnoreChecksum = 0x04;
inline constexpr uint32_t kRxVlan = 0x08;         // the tag was taken out
inline constexpr uint32_t kRxUdpChecksum = 0x10;  // was looked at
inline constexpr uint32_t kRxTcpChecksum = 0x20;  // was looked at: TCP, or UDP
inline constexpr uint32_t kRxIpChecksum = 0x40;   // was looked at: IPv4

struct RxLegacy {
  uint64_t address = 0;
  uint16_t length = 0;
  uint16_t checksum = 0;
  uint8_t status = 0;
  uint8_t errors = 0;
  uint16_t special = 0;  // VLAN TCI
};

constexpr Words Encode(const RxLegacy& d) {
  using bits::Put;
  return {d.address, Put(d.length, 0, 16) | Put(d.checksum, 16, 16) | Put(d.status, 32, 8) |
                         Put(d.errors, 40, 8) | Put(d.special, 48, 16)};
}
constexpr RxLegacy DecodeRxLegacy(const Words& w) {
  using bits::Get;
  RxLegacy d;
  d.address = w.low;
  d.length = static_cast<uint16_t>(Get(w.high, 0, 16));
  d.checksum = static_cast<uint16_t>(Get(w.high, 16, 16));
  d.status = static_cast<uint8_t>(Get(w.high, 32, 8));
  d.errors = static_cast<uint8_t>(Get(w.high, 40, 8));
  d.special = static_cast<uint16_t>(Get(w.high, 48, 16));
  return d;
}

// --- 3.2 Receive, extended: what the driver writes, and what the device writes over it -----------

struct RxRead {
  uint64_t address = 0;
  uint64_t reserved = 0;  // 0: the status will be here
};

constexpr Words Encode(const RxRead& d) { return {d.address, d.reserved}; }
constexpr RxRead DecodeRxRead(const Words& w) { return {w.low, w.high}; }

// Errors stand at the top of the extended status, and mean something in a packet's last entry only.
inline constexpr uint32_t kRxErrorCrc = 0x0100'0000;
inline constexpr uint32_t kRxErrorSymbol = 0x0200'0000;
inline constexpr uint32_t kRxErrorSequence = 0x0400'0000;
inline constexpr uint32_t kRxErrorCarrier = 0x1000'0000;
inline constexpr uint32_t kRxErrorL4Checksum = 0x2000'0000;
inline constexpr uint32_t kRxErrorIpChecksum = 0x4000'0000;
inline constexpr uint32_t kRxErrorData = 0x8000'0000;
// The frame itself is broken.
inline constexpr uint32_t kRxFrameErrors = 0x9700'0000;

// What the second word of a write-back is: RXCSUM.PCSD chooses.
enum class RxForm : uint8_t { kIpId, kHash };

struct RxWriteBack {
  uint8_t rss_type = 0;   // 4 bits; 0: there is no hash
  uint8_t queue = 0;      // 5 bits
  uint32_t rss_hash = 0;  // RxForm::kHash
  uint16_t ip_id = 0;     // RxForm::kIpId
  uint16_t checksum = 0;
  uint32_t status_error = 0;
  uint16_t length = 0;
  uint16_t vlan = 0;  // TCI
};

constexpr Words Encode(const RxWriteBack& d, RxForm form) {
  using bits::Put;
  const uint64_t second = form == RxForm::kHash ? Put(d.rss_hash, 32, 32)
                                                : Put(d.ip_id, 32, 16) | Put(d.checksum, 48, 16);
  return {Put(d.rss_type, 0, 4) | Put(d.queue, 8, 5) | second,
          Put(d.status_error, 0, 32) | Put(d.length, 32, 16) | Put(d.vlan, 48, 16)};
}
constexpr RxWriteBack DecodeRxWriteBack(const Words& w, RxForm form) {
  using bits::Get;
  RxWriteBack d;
  d.rss_type = static_cast<uint8_t>(Get(w.low, 0, 4));
  d.queue = static_cast<uint8_t>(Get(w.low, 8, 5));
  if (form == RxForm::kHash) {
    d.rss_hash = static_cast<uint32_t>(Get(w.low, 32, 32));
  } else {
    d.ip_id = static_cast<uint16_t>(Get(w.low, 32, 16));
    d.checksum = static_cast<uint16_t>(Get(w.low, 48, 16));
  }
  d.status_error = static_cast<uint32_t>(Get(w.high, 0, 32));
  d.length = static_cast<uint16_t>(Get(w.high, 32, 16));
  d.vlan = static_cast<uint16_t>(Get(w.high, 48, 16));
  return d;
}

// --- 3.3 Transmit, legacy ------------------------------------------------------------------------

inline constexpr uint8_t kTxDone = 0x01;  // of the status of every transmit entry

struct TxLegacy {
  uint64_t address = 0;
  uint16_t length = 0;
  uint8_t cso = 0;
  uint8_t cmd = 0;
  uint8_t status = 0;
  uint8_t css = 0;
  uint16_t special = 0;
};

constexpr Words Encode(const TxLegacy& d) {
  using bits::Put;
  return {d.address, Put(d.length, 0, 16) | Put(d.cso, 16, 8) | Put(d.cmd, 24, 8) |
                         Put(d.status, 32, 8) | Put(d.css, 40, 8) | Put(d.special, 48, 16)};
}
constexpr TxLegacy DecodeTxLegacy(const Words& w) {
  using bits::Get;
  TxLegacy d;
  d.address = w.low;
  d.length = static_cast<uint16_t>(Get(w.high, 0, 16));
  d.cso = static_cast<uint8_t>(Get(w.high, 16, 8));
  d.cmd = static_cast<uint8_t>(Get(w.high, 24, 8));
  d.status = static_cast<uint8_t>(Get(w.high, 32, 8));
  d.css = static_cast<uint8_t>(Get(w.high, 40, 8));
  d.special = static_cast<uint16_t>(Get(w.high, 48, 16));
  return d;
}

// --- 3.4 Transmit, context: how the packets behind it are finished -------------------------------

inline constexpr uint8_t kTxTypeContext = 0;
inline constexpr uint8_t kTxTypeData = 1;

// Offsets are from the frame's first byte; ends are inclusive, 0 is the end of the packet.
struct TxContext {
  uint8_t ipcss = 0;  // where the IP checksum starts,
  uint8_t ipcso = 0;  // is put
  uint16_t ipcse = 0;
  uint8_t tucss = 0;  // and that of TCP or UDP
  uint8_t tucso = 0;
  uint16_t tucse = 0;
  uint32_t payload_length = 0;  // 20 bits, of a packet to be segmented: without its headers
  uint8_t type = kTxTypeContext;
  bool tcp = false;
  bool ip = false;  // IPv4
  bool tse = false;
  bool rs = false;
  bool dext = false;
  bool ide = false;
  uint8_t status = 0;
  uint8_t header_length = 0;
  uint16_t mss = 0;
};

constexpr Words Encode(const TxContext& d) {
  using bits::Put;
  return {Put(d.ipcss, 0, 8) | Put(d.ipcso, 8, 8) | Put(d.ipcse, 16, 16) | Put(d.tucss, 32, 8) |
              Put(d.tucso, 40, 8) | Put(d.tucse, 48, 16),
          Put(d.payload_length, 0, 20) | Put(d.type, 20, 4) | Put(d.tcp, 24, 1) | Put(d.ip, 25, 1) |
              Put(d.tse, 26, 1) | Put(d.rs, 27, 1) | Put(d.dext, 29, 1) | Put(d.ide, 31, 1) |
              Put(d.status, 32, 8) | Put(d.header_length, 40, 8) | Put(d.mss, 48, 16)};
}
constexpr TxContext DecodeTxContext(const Words& w) {
  using bits::Get;
  TxContext d;
  d.ipcss = static_cast<uint8_t>(Get(w.low, 0, 8));
  d.ipcso = static_cast<uint8_t>(Get(w.low, 8, 8));
  d.ipcse = static_cast<uint16_t>(Get(w.low, 16, 16));
  d.tucss = static_cast<uint8_t>(Get(w.low, 32, 8));
  d.tucso = static_cast<uint8_t>(Get(w.low, 40, 8));
  d.tucse = static_cast<uint16_t>(Get(w.low, 48, 16));
  d.payload_length = static_cast<uint32_t>(Get(w.high, 0, 20));
  d.type = static_cast<uint8_t>(Get(w.high, 20, 4));
  d.tcp = Get(w.high, 24, 1) != 0;
  d.ip = Get(w.high, 25, 1) != 0;
  d.tse = Get(w.high, 26, 1) != 0;
  d.rs = Get(w.high, 27, 1) != 0;
  d.dext = Get(w.high, 29, 1) != 0;
  d.ide = Get(w.high, 31, 1) != 0;
  d.status = static_cast<uint8_t>(Get(w.high, 32, 8));
  d.header_length = static_cast<uint8_t>(Get(w.high, 40, 8));
  d.mss = static_cast<uint16_t>(Get(w.high, 48, 16));
  return d;
}

// --- 3.5 Transmit, data: one piece of a packet ---------------------------------------------------

struct TxData {
  uint64_t address = 0;
  uint32_t length = 0;  // 20 bits
  uint8_t type = kTxTypeData;
  bool eop = false;
  bool ifcs = false;
  bool tse = false;
  bool rs = false;
  bool dext = false;
  bool vle = false;
  bool ide = false;
  bool dd = false;
  bool ixsm = false;     // IPv4's checksum is wanted
  bool txsm = false;     // TCP's or UDP's is
  uint16_t special = 0;  // VLAN TCI
};

constexpr Words Encode(const TxData& d) {
  using bits::Put;
  return {d.address, Put(d.length, 0, 20) | Put(d.type, 20, 4) | Put(d.eop, 24, 1) |
                         Put(d.ifcs, 25, 1) | Put(d.tse, 26, 1) | Put(d.rs, 27, 1) |
                         Put(d.dext, 29, 1) | Put(d.vle, 30, 1) | Put(d.ide, 31, 1) |
                         Put(d.dd, 32, 1) | Put(d.ixsm, 40, 1) | Put(d.txsm, 41, 1) |
                         Put(d.special, 48, 16)};
}
constexpr TxData DecodeTxData(const Words& w) {
  using bits::Get;
  TxData d;
  d.address = w.low;
  d.length = static_cast<uint32_t>(Get(w.high, 0, 20));
  d.type = static_cast<uint8_t>(Get(w.high, 20, 4));
  d.eop = Get(w.high, 24, 1) != 0;
  d.ifcs = Get(w.high, 25, 1) != 0;
  d.tse = Get(w.high, 26, 1) != 0;
  d.rs = Get(w.high, 27, 1) != 0;
  d.dext = Get(w.high, 29, 1) != 0;
  d.vle = Get(w.high, 30, 1) != 0;
  d.ide = Get(w.high, 31, 1) != 0;
  d.dd = Get(w.high, 32, 1) != 0;
  d.ixsm = Get(w.high, 40, 1) != 0;
  d.txsm = Get(w.high, 41, 1) != 0;
  d.special = static_cast<uint16_t>(Get(w.high, 48, 16));
  return d;
}

}  // namespace dmakit::nic::e1000e

#endif  // DMAKIT_NIC_E1000E_DESCRIPTORS_H_
