// SPDX-License-Identifier: Apache-2.0
//
// What a CN23XX reads from a host and writes to it: instructions, gather lists,
// output descriptors and the words in front of received packets (sections 2, 3
// and 5 of the liquidio sheet), each as a plain value with Encode and Decode.
// Registers are in registers.h. Driver and model both use this file and never
// each other; it is checked against vectors made by other code.
//
// Words are 64 bits in host order on a little-endian host, except where it says
// big-endian. No state, no I/O; any thread. Encode keeps the low bits of a
// field.
#ifndef DMAKIT_NIC_LIQUIDIO_DESCRIPTORS_H_
#define DMAKIT_NIC_LIQUIDIO_DESCRIPTORS_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace dmakit::nic::liquidio {

inline constexpr uint32_t kInstructionBytes = 64;
inline constexpr uint32_t kGatherEntryBytes = 40;  // four elements
inline constexpr uint32_t kDroqDescriptorBytes = 16;
inline constexpr uint32_t kInfoBytes = 16;       // of an info buffer
inline constexpr uint32_t kInfoHeaderBytes = 8;  // of them, what OUT_SIZE counts
inline constexpr uint32_t kMinRing = 128;        // slots (sheet 7)
inline constexpr uint32_t kMaxRing = 2048;
inline constexpr uint32_t kMaxDirectBytes = 16383;  // of one pointer without a list
inline constexpr uint32_t kMaxElementBytes = 65535;

namespace internal {
constexpr uint64_t Put(uint64_t value, unsigned at, unsigned bits) {
  return (value & ((uint64_t{1} << bits) - 1)) << at;
}
constexpr uint64_t Get(uint64_t word, unsigned at, unsigned bits) {
  return word >> at & ((uint64_t{1} << bits) - 1);
}
}  // namespace internal

// --- 2 Instructions
// ------------------------------------------------------------------------------

inline constexpr uint8_t kFrontSize = 32;          // bytes, of a packet without a response
inline constexpr uint8_t kFrontSizeResponse = 48;  // and with one

struct Ih3 {
  bool gather = false;   // dptr points to a gather list
  uint16_t dlengsz = 0;  // bytes, or elements of the list
  uint8_t fsz = 0;
  uint8_t pkind = 0;
};
constexpr uint64_t Encode(const Ih3& h) {
  using internal::Put;
  return Put(h.gather, 62, 1) | Put(h.dlengsz, 48, 14) | Put(h.fsz, 42, 6) | Put(h.pkind, 32, 6);
}
constexpr Ih3 DecodeIh3(uint64_t w) {
  using internal::Get;
  return {Get(w, 62, 1) != 0, static_cast<uint16_t>(Get(w, 48, 14)),
          static_cast<uint8_t>(Get(w, 42, 6)), static_cast<uint8_t>(Get(w, 32, 6))};
}

inline constexpr uint8_t kParseNothing = 7;
inline constexpr uint8_t kDataSkip = 8;
inline constexpr uint32_t kDataTag = 0x11111111;  // where the queue index is 0

struct PkiIh3 {
  bool w = false;
  bool raw = false;
  bool utag = false;
  bool uqpg = false;
  uint8_t pm = 0;
  uint8_t sl = 0;
  bool utt = false;
  uint8_t tagtype = 0;
  uint16_t qpg = 0;
  uint32_t tag = 0;
};
constexpr uint64_t Encode(const PkiIh3& h) {
  using internal::Put;
  return Put(h.w, 63, 1) | Put(h.raw, 62, 1) | Put(h.utag, 61, 1) | Put(h.uqpg, 60, 1) |
         Put(h.pm, 56, 3) | Put(h.sl, 48, 8) | Put(h.utt, 47, 1) | Put(h.tagtype, 45, 2) |
         Put(h.qpg, 32, 11) | h.tag;
}
constexpr PkiIh3 DecodePkiIh3(uint64_t w) {
  using internal::Get;
  return {Get(w, 63, 1) != 0,
          Get(w, 62, 1) != 0,
          Get(w, 61, 1) != 0,
          Get(w, 60, 1) != 0,
          static_cast<uint8_t>(Get(w, 56, 3)),
          static_cast<uint8_t>(Get(w, 48, 8)),
          Get(w, 47, 1) != 0,
          static_cast<uint8_t>(Get(w, 45, 2)),
          static_cast<uint16_t>(Get(w, 32, 11)),
          static_cast<uint32_t>(w)};
}

inline constexpr uint8_t kOpcodeNic = 1;
inline constexpr uint8_t kSubcodeData = 2;

struct Irh {
  uint8_t opcode = 0;
  bool rflag = false;
  uint8_t subcode = 0;
  uint16_t vlan = 0;  // identifier of a tag to insert; 0: none
  uint8_t priority = 0;
  uint32_t ossp = 0;
};
constexpr uint64_t Encode(const Irh& h) {
  using internal::Put;
  return Put(h.opcode, 60, 4) | Put(h.rflag, 59, 1) | Put(h.subcode, 52, 7) | Put(h.vlan, 40, 12) |
         Put(h.priority, 37, 3) | h.ossp;
}
constexpr Irh DecodeIrh(uint64_t w) {
  using internal::Get;
  return {static_cast<uint8_t>(Get(w, 60, 4)), Get(w, 59, 1) != 0,
          static_cast<uint8_t>(Get(w, 52, 7)), static_cast<uint16_t>(Get(w, 40, 12)),
          static_cast<uint8_t>(Get(w, 37, 3)), static_cast<uint32_t>(w)};
}

// irh.ossp of a data packet.
struct PacketParams {
  bool ip_csum = false;
  bool transport_csum = false;
  bool tnl_csum = false;
  bool tsflag = false;
  uint8_t ipsec_ops = 0;
};
constexpr uint32_t Encode(const PacketParams& p) {
  using internal::Put;
  return static_cast<uint32_t>(Put(p.ip_csum, 7, 1) | Put(p.transport_csum, 6, 1) |
                               Put(p.tnl_csum, 5, 1) | Put(p.tsflag, 4, 1) |
                               Put(p.ipsec_ops, 0, 4));
}
constexpr PacketParams DecodePacketParams(uint32_t w) {
  using internal::Get;
  return {Get(w, 7, 1) != 0, Get(w, 6, 1) != 0, Get(w, 5, 1) != 0, Get(w, 4, 1) != 0,
          static_cast<uint8_t>(Get(w, 0, 4))};
}

// ossp0 of a data packet.
struct TxInfo {
  uint16_t gso_size = 0;
  uint16_t gso_segs = 0;
};
constexpr uint64_t Encode(const TxInfo& i) {
  return internal::Put(i.gso_size, 48, 16) | internal::Put(i.gso_segs, 32, 16);
}
constexpr TxInfo DecodeTxInfo(uint64_t w) {
  return {static_cast<uint16_t>(internal::Get(w, 48, 16)),
          static_cast<uint16_t>(internal::Get(w, 32, 16))};
}

// --- 5.2 What stands in front of a received packet
// -----------------------------------------------

inline constexpr uint8_t kCsumL4Ok = 1;
inline constexpr uint8_t kCsumIpOk = 2;

struct RhData {
  uint8_t opcode = 0;
  uint8_t subcode = 0;
  uint8_t len = 0;  // extra words; buffer mode
  uint32_t extra = 0;
  uint16_t vlan = 0;  // identifier of a stripped tag; 0: none
  uint8_t priority = 0;
  uint8_t csum_verified = 0;
  bool has_hwtstamp = false;
  bool encap_on = false;
  bool has_hash = false;
};
constexpr uint64_t Encode(const RhData& h) {
  using internal::Put;
  return Put(h.opcode, 60, 4) | Put(h.subcode, 52, 8) | Put(h.len, 49, 3) | Put(h.extra, 21, 28) |
         Put(h.vlan, 9, 12) | Put(h.priority, 6, 3) | Put(h.csum_verified, 3, 3) |
         Put(h.has_hwtstamp, 2, 1) | Put(h.encap_on, 1, 1) | Put(h.has_hash, 0, 1);
}
constexpr RhData DecodeRhData(uint64_t w) {
  using internal::Get;
  return {static_cast<uint8_t>(Get(w, 60, 4)),
          static_cast<uint8_t>(Get(w, 52, 8)),
          static_cast<uint8_t>(Get(w, 49, 3)),
          static_cast<uint32_t>(Get(w, 21, 28)),
          static_cast<uint16_t>(Get(w, 9, 12)),
          static_cast<uint8_t>(Get(w, 6, 3)),
          static_cast<uint8_t>(Get(w, 3, 3)),
          Get(w, 2, 1) != 0,
          Get(w, 1, 1) != 0,
          Get(w, 0, 1) != 0};
}

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_DESCRIPTORS_H_
