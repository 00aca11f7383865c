// SPDX-License-Identifier: Apache-2.0
//
// What lies in an enic ring: the work queue (transmit), receive queue and completion queue entries
// of section 1 of the enic sheet, each as a plain value with Encode and Decode. Registers and
// commands are in registers.h. Driver and model both use this file and never each other; it is
// checked against vectors made by other code.
//
// Everything is little-endian. No state, no I/O; any thread. Encode keeps the low bits of a field.
#ifndef DMAKIT_NIC_ENIC_DESCRIPTORS_H_
#define DMAKIT_NIC_ENIC_DESCRIPTORS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nic/descriptor_words.h"
#include "nic/endian.h"

namespace dmakit::nic::enic {

inline constexpr size_t kDescriptorBytes = 16;  // of every entry of every ring
inline constexpr uint32_t kMinRing = 64;        // entries (enic sheet 3)
inline constexpr uint32_t kMaxRing = 4096;
inline constexpr uint32_t kRingMultiple = 32;
inline constexpr uint64_t kRingAlignment = 512;  // bytes, of a ring's base
// What a ring_size register means: 0 stands for 4096.
constexpr uint64_t RingEntries(uint64_t ring_size) { return ring_size == 0 ? kMaxRing : ring_size; }
constexpr bool IsRingSize(uint64_t entries) {
  return entries >= kMinRing && entries <= kMaxRing && entries % kRingMultiple == 0;
}

inline constexpr uint32_t kMaxTxDescriptors = 16;  // of one plain packet (enic sheet 1.1)
inline constexpr uint32_t kMaxTxFrame = 9208;      // bytes; a longer one stops the queue
inline constexpr uint32_t kMaxTsoPacket = 65535;   // bytes, headers included
// Of a packet to be segmented: 18 segments, five of which may be cut in two.
inline constexpr uint32_t kMaxTsoDescriptors = 23;
inline constexpr uint32_t kMaxHeaderLength = 1023;  // what header_length can say

// Lengths are 14 bits, and 0 stands for 16384.
inline constexpr uint32_t kMaxPiece = 16384;
constexpr uint16_t LengthField(uint32_t bytes) { return static_cast<uint16_t>(bytes & 0x3fff); }
constexpr uint32_t LengthOf(uint16_t field) { return field == 0 ? kMaxPiece : field; }

// --- 1.1 wq_enet_desc: one piece of a packet to send ---------------------------------------------

enum class OffloadMode : uint8_t { kCsum = 0, kReserved = 1, kCsumL4 = 2, kTso = 3 };

// What mss means with kCsum: a set of these.
inline constexpr uint16_t kCsumIpv4 = 1;
inline constexpr uint16_t kCsumTcpUdp = 2;
inline constexpr uint16_t kCsumEncapsulated = 7;

struct WqEnetDesc {
  uint64_t address = 0;
  uint16_t length = 0;  // a LengthField
  uint16_t mss = 0;     // 14 bits; kCsum: a set; kCsumL4: where the checksum is, from byte 0
  bool loopback = false;
  uint16_t header_length = 0;  // 10 bits
  OffloadMode offload_mode = OffloadMode::kCsum;
  bool eop = false;       // last piece of its packet
  bool cq_entry = false;  // asks for a completion; with eop only
  bool fcoe_encap = false;
  bool vlan_tag_insert = false;
  uint16_t vlan_tag = 0;  // TCI
};

// Bits that must be zero: length 15:14 and bit 0 of mss_loopback.
inline constexpr uint64_t kWqReservedHigh = 0x0000'0000'0001'c000;

constexpr Words Encode(const WqEnetDesc& d) {
  using bits::Put;
  return {d.address, Put(d.length, 0, 14) | Put(d.loopback, 17, 1) | Put(d.mss, 18, 14) |
                         Put(d.header_length, 32, 10) |
                         Put(static_cast<uint8_t>(d.offload_mode), 42, 2) | Put(d.eop, 44, 1) |
                         Put(d.cq_entry, 45, 1) | Put(d.fcoe_encap, 46, 1) |
                         Put(d.vlan_tag_insert, 47, 1) | Put(d.vlan_tag, 48, 16)};
}
constexpr WqEnetDesc DecodeWq(const Words& w) {
  using bits::Get;
  WqEnetDesc d;
  d.address = w.low;
  d.length = static_cast<uint16_t>(Get(w.high, 0, 14));
  d.loopback = Get(w.high, 17, 1) != 0;
  d.mss = static_cast<uint16_t>(Get(w.high, 18, 14));
  d.header_length = static_cast<uint16_t>(Get(w.high, 32, 10));
  d.offload_mode = static_cast<OffloadMode>(Get(w.high, 42, 2));
  d.eop = Get(w.high, 44, 1) != 0;
  d.cq_entry = Get(w.high, 45, 1) != 0;
  d.fcoe_encap = Get(w.high, 46, 1) != 0;
  d.vlan_tag_insert = Get(w.high, 47, 1) != 0;
  d.vlan_tag = static_cast<uint16_t>(Get(w.high, 48, 16));
  return d;
}

// --- 1.2 rq_enet_desc: one receive buffer --------------------------------------------------------

enum class RqType : uint8_t { kOnlySop = 0, kNotSop = 1, kReserved2 = 2, kReserved3 = 3 };

struct RqEnetDesc {
  uint64_t address = 0;
  uint16_t length = 0;  // a LengthField
  RqType type = RqType::kOnlySop;
};

inline constexpr uint64_t kRqReservedHigh = 0xffff'ffff'ffff'0000;

constexpr Words Encode(const RqEnetDesc& d) {
  using bits::Put;
  return {d.address, Put(d.length, 0, 14) | Put(static_cast<uint8_t>(d.type), 14, 2)};
}
constexpr RqEnetDesc DecodeRq(const Words& w) {
  using bits::Get;
  return {w.low, static_cast<uint16_t>(Get(w.high, 0, 14)),
          static_cast<RqType>(Get(w.high, 14, 2))};
}

// --- 1.3 to 1.5: completions ---------------------------------------------------------------------

enum class CqType : uint8_t { kWqEnet = 0, kDescCopy = 1, kWqExch = 2, kRqEnet = 3, kRqFcp = 4 };

// Byte 15 of an entry. The color says whether the entry is new; it is the last byte that the device
// writes.
inline constexpr size_t kColorByte = 15;
constexpr uint8_t TypeColor(CqType type, bool color) {
  return static_cast<uint8_t>((static_cast<uint8_t>(type) & 0xf) | (color ? 0x80 : 0));
}
constexpr CqType TypeOf(uint8_t type_color) { return static_cast<CqType>(type_color & 0xf); }
constexpr bool ColorOf(uint8_t type_color) { return (type_color & 0x80) != 0; }

// 1.4 cq_enet_wq_desc: every descriptor up to and including completed_index is done.
struct CqEnetWqDesc {
  uint16_t completed_index = 0;  // 12 bits
  uint16_t q_number = 0;         // 10 bits
  CqType type = CqType::kWqEnet;
  bool color = false;
};

constexpr Words Encode(const CqEnetWqDesc& d) {
  using bits::Put;
  return {Put(d.completed_index, 0, 12) | Put(d.q_number, 16, 10),
          Put(TypeColor(d.type, d.color), 56, 8)};
}
constexpr CqEnetWqDesc DecodeCqWq(const Words& w) {
  using bits::Get;
  const uint8_t type_color = static_cast<uint8_t>(Get(w.high, 56, 8));
  return {static_cast<uint16_t>(Get(w.low, 0, 12)), static_cast<uint16_t>(Get(w.low, 16, 10)),
          TypeOf(type_color), ColorOf(type_color)};
}

// 1.5 cq_enet_rq_desc: the buffer at completed_index was filled.
enum class RssType : uint8_t {
  kNone = 0,
  kIpv4 = 1,
  kTcpIpv4 = 2,
  kIpv6 = 3,
  kTcpIpv6 = 4,
  kIpv6Ex = 5,
  kTcpIpv6Ex = 6,
};

struct CqEnetRqDesc {
  uint16_t completed_index = 0;  // 12 bits
  bool ingress_port = false;
  bool fcoe = false;
  bool eop = false;
  bool sop = false;
  uint16_t q_number = 0;  // 10 bits
  RssType rss_type = RssType::kNone;
  bool csum_not_calc = false;
  uint32_t rss_hash = 0;       // 0: none
  uint16_t bytes_written = 0;  // 14 bits, without FCS
  bool truncated = false;      // packet error
  bool vlan_stripped = false;
  uint16_t vlan = 0;           // TCI
  uint16_t checksum_fcoe = 0;  // pseudo checksum, or FCoE SOF and EOF
  bool tcp_udp_csum_ok = false;
  bool udp = false;
  bool tcp = false;
  bool ipv4_csum_ok = false;
  bool ipv6 = false;
  bool ipv4 = false;
  bool ipv4_fragment = false;
  bool fcs_ok = false;
  CqType type = CqType::kRqEnet;
  bool color = false;
};

constexpr Words Encode(const CqEnetRqDesc& d) {
  using bits::Put;
  return {Put(d.completed_index, 0, 12) | Put(d.ingress_port, 12, 1) | Put(d.fcoe, 13, 1) |
              Put(d.eop, 14, 1) | Put(d.sop, 15, 1) | Put(d.q_number, 16, 10) |
              Put(static_cast<uint8_t>(d.rss_type), 26, 4) | Put(d.csum_not_calc, 30, 1) |
              Put(d.rss_hash, 32, 32),
          Put(d.bytes_written, 0, 14) | Put(d.truncated, 14, 1) | Put(d.vlan_stripped, 15, 1) |
              Put(d.vlan, 16, 16) | Put(d.checksum_fcoe, 32, 16) | Put(d.tcp_udp_csum_ok, 48, 1) |
              Put(d.udp, 49, 1) | Put(d.tcp, 50, 1) | Put(d.ipv4_csum_ok, 51, 1) |
              Put(d.ipv6, 52, 1) | Put(d.ipv4, 53, 1) | Put(d.ipv4_fragment, 54, 1) |
              Put(d.fcs_ok, 55, 1) | Put(TypeColor(d.type, d.color), 56, 8)};
}
constexpr CqEnetRqDesc DecodeCqRq(const Words& w) {
  using bits::Get;
  CqEnetRqDesc d;
  d.completed_index = static_cast<uint16_t>(Get(w.low, 0, 12));
  d.ingress_port = Get(w.low, 12, 1) != 0;
  d.fcoe = Get(w.low, 13, 1) != 0;
  d.eop = Get(w.low, 14, 1) != 0;
  d.sop = Get(w.low, 15, 1) != 0;
  d.q_number = static_cast<uint16_t>(Get(w.low, 16, 10));
  d.rss_type = static_cast<RssType>(Get(w.low, 26, 4));
  d.csum_not_calc = Get(w.low, 30, 1) != 0;
  d.rss_hash = static_cast<uint32_t>(Get(w.low, 32, 32));
  d.bytes_written = static_cast<uint16_t>(Get(w.high, 0, 14));
  d.truncated = Get(w.high, 14, 1) != 0;
  d.vlan_stripped = Get(w.high, 15, 1) != 0;
  d.vlan = static_cast<uint16_t>(Get(w.high, 16, 16));
  d.checksum_fcoe = static_cast<uint16_t>(Get(w.high, 32, 16));
  d.tcp_udp_csum_ok = Get(w.high, 48, 1) != 0;
  d.udp = Get(w.high, 49, 1) != 0;
  d.tcp = Get(w.high, 50, 1) != 0;
  d.ipv4_csum_ok = Get(w.high, 51, 1) != 0;
  d.ipv6 = Get(w.high, 52, 1) != 0;
  d.ipv4 = Get(w.high, 53, 1) != 0;
  d.ipv4_fragment = Get(w.high, 54, 1) != 0;
  d.fcs_ok = Get(w.high, 55, 1) != 0;
  d.type = TypeOf(static_cast<uint8_t>(Get(w.high, 56, 8)));
  d.color = ColorOf(static_cast<uint8_t>(Get(w.high, 56, 8)));
  return d;
}

// The 64-byte form of newer NICs: the same first 15 bytes; byte 15 holds two more index bits, and
// byte 63 the type and color.
inline constexpr size_t kCq64Bytes = 64;

constexpr std::array<std::byte, kCq64Bytes> Encode64(const CqEnetRqDesc& d) {
  std::array<std::byte, kCq64Bytes> bytes{};
  const Words words = Encode(d);
  StoreLe<uint64_t>(bytes, 0, words.low);
  StoreLe<uint64_t>(bytes, 8, words.high);
  bytes[15] = static_cast<std::byte>(d.completed_index >> 12 & 3);
  bytes[63] = static_cast<std::byte>(TypeColor(d.type, d.color));
  return bytes;
}
constexpr CqEnetRqDesc DecodeCqRq64(std::span<const std::byte, kCq64Bytes> bytes) {
  CqEnetRqDesc d = DecodeCqRq(FromBytes(bytes.first<kDescriptorBytes>()));
  d.completed_index |= static_cast<uint16_t>((std::to_integer<unsigned>(bytes[15]) & 3) << 12);
  d.type = TypeOf(std::to_integer<uint8_t>(bytes[63]));
  d.color = ColorOf(std::to_integer<uint8_t>(bytes[63]));
  return d;
}

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_DESCRIPTORS_H_
