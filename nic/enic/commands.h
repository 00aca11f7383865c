// SPDX-License-Identifier: Apache-2.0
//
// devcmd, the command interface of an enic (section 2.6 of the enic sheet): its region in BAR 0,
// the command word, and the structures that commands exchange. How a driver runs a command is in
// devcmd.h.
//
// Everything is little-endian. No state, no I/O; any thread.
#ifndef DMAKIT_NIC_ENIC_COMMANDS_H_
#define DMAKIT_NIC_ENIC_COMMANDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nic/endian.h"

namespace dmakit::nic::enic {

inline constexpr size_t kDevcmdStatus = 0x00;
inline constexpr size_t kDevcmdCmd = 0x04;
inline constexpr size_t kDevcmdArgs = 0x08;
inline constexpr size_t kDevcmdArgCount = 15;  // of 64 bits
inline constexpr size_t kDevcmdBytes = kDevcmdArgs + 8 * kDevcmdArgCount;
static_assert(kDevcmdBytes == 128);

inline constexpr uint32_t kDevcmdBusy = 1;   // bits of status
inline constexpr uint32_t kDevcmdError = 2;  // the code is in args[0]

enum class Devcmd : uint16_t {
  kDevSpec = 2,
  kStatsDump = 4,
  kPacketFilter = 7,
  kGetMacAddr = 9,
  kAddrAdd = 12,
  kAddrDel = 13,
  kVlanAdd = 14,
  kVlanDel = 15,
  kNicCfg = 16,
  kRssKey = 17,
  kRssCpu = 18,
  kSoftReset = 19,
  kSoftResetStatus = 20,
  kNotify = 21,
  kOpen = 23,
  kOpenStatus = 24,
  kClose = 25,
  kEnable = 28,
  kDisable = 29,
  kInitStatus = 31,
  kDeinit = 34,
  kInit = 35,
  kCapability = 36,
  kIntrCoalConvert = 50,
};

inline constexpr uint16_t kVtypeEthernet = 1;
inline constexpr uint16_t kVtypeAll = 7;
inline constexpr uint8_t kFlagNoWait = 1;
inline constexpr uint8_t kDirNone = 0;
inline constexpr uint8_t kDirWrite = 1;  // the device looks at the arguments
inline constexpr uint8_t kDirRead = 2;   // the device writes results there
inline constexpr uint8_t kDirBoth = 3;

struct DevcmdWord {
  uint16_t number = 0;  // 14 bits; a Devcmd
  uint16_t vtype = 0;   // 10 bits
  uint8_t flags = 0;    // 6 bits
  uint8_t direction = 0;

  constexpr Devcmd command() const { return static_cast<Devcmd>(number); }
};
constexpr uint32_t Encode(const DevcmdWord& w) {
  return (w.number & 0x3fffu) | (w.vtype & 0x3ffu) << 14 | (w.flags & 0x3fu) << 24 |
         (w.direction & 3u) << 30;
}
constexpr DevcmdWord DecodeDevcmd(uint32_t word) {
  return {static_cast<uint16_t>(word & 0x3fff), static_cast<uint16_t>(word >> 14 & 0x3ff),
          static_cast<uint8_t>(word >> 24 & 0x3f), static_cast<uint8_t>(word >> 30)};
}

// NIC_CFG: args[0].
enum RssHashType : uint8_t {
  kHashUdpIpv4 = 1 << 0,
  kHashIpv4 = 1 << 1,
  kHashTcpIpv4 = 1 << 2,
  kHashIpv6 = 1 << 3,
  kHashTcpIpv6 = 1 << 4,
  kHashIpv6Ex = 1 << 5,
  kHashTcpIpv6Ex = 1 << 6,
  kHashUdpIpv6 = 1 << 7,
};
struct NicCfg {
  uint8_t rss_default_cpu = 0;
  uint8_t rss_hash_type = 0;  // RssHashType bits
  uint8_t rss_hash_bits = 0;  // 3 bits: how many bits of the hash choose the table entry
  uint8_t rss_base_cpu = 0;   // 3 bits
  bool rss_enable = false;
  bool tso_ipid_split = false;
  bool vlan_strip = false;
};
constexpr uint32_t Encode(const NicCfg& c) {
  return c.rss_default_cpu | uint32_t{c.rss_hash_type} << 8 | (c.rss_hash_bits & 7u) << 16 |
         (c.rss_base_cpu & 7u) << 19 | uint32_t{c.rss_enable} << 22 |
         uint32_t{c.tso_ipid_split} << 23 | uint32_t{c.vlan_strip} << 24;
}
constexpr NicCfg DecodeNicCfg(uint32_t w) {
  return {static_cast<uint8_t>(w),
          static_cast<uint8_t>(w >> 8),
          static_cast<uint8_t>(w >> 16 & 7),
          static_cast<uint8_t>(w >> 19 & 7),
          (w >> 22 & 1) != 0,
          (w >> 23 & 1) != 0,
          (w >> 24 & 1) != 0};
}

// PACKET_FILTER: args[0].
inline constexpr uint32_t kFilterDirected = 0x01;
inline constexpr uint32_t kFilterMulticast = 0x02;
inline constexpr uint32_t kFilterBroadcast = 0x04;
inline constexpr uint32_t kFilterPromiscuous = 0x08;
inline constexpr uint32_t kFilterAllMulticast = 0x10;

// DEV_SPEC: args[0] is the address of this structure, args[1] its size. The device writes it.
inline constexpr size_t kDevSpecBytes = 48;
struct DevSpec {
  uint32_t flags = 0;
  uint32_t wq_descriptors = 0;  // the largest ring
  uint32_t rq_descriptors = 0;
  uint16_t mtu = 0;
};
constexpr std::array<std::byte, kDevSpecBytes> Encode(const DevSpec& s) {
  std::array<std::byte, kDevSpecBytes> bytes{};
  StoreLe<uint32_t>(bytes, 0, s.flags);
  StoreLe<uint32_t>(bytes, 4, s.wq_descriptors);
  StoreLe<uint32_t>(bytes, 8, s.rq_descriptors);
  StoreLe<uint16_t>(bytes, 12, s.mtu);
  return bytes;
}
constexpr DevSpec DecodeDevSpec(std::span<const std::byte, kDevSpecBytes> bytes) {
  return {LoadLe<uint32_t>(bytes, 0), LoadLe<uint32_t>(bytes, 4), LoadLe<uint32_t>(bytes, 8),
          LoadLe<uint16_t>(bytes, 12)};
}

// NOTIFY: args[0] is the address of this structure, args[1] its size and more. The device keeps it
// up to date.
inline constexpr size_t kNotifyBytes = 40;
struct Notify {
  uint32_t checksum = 0;  // over the words that follow
  uint32_t link_up = 0;
  uint32_t link_mbps = 0;
  uint32_t mtu = 0;
  uint32_t message_level = 0;
  uint32_t uif = 0;
  uint32_t status = 0;
  uint32_t error = 0;
  uint32_t link_downs = 0;
};
constexpr Notify DecodeNotify(std::span<const std::byte, kNotifyBytes> b) {
  return {LoadLe<uint32_t>(b, 0),  LoadLe<uint32_t>(b, 4),  LoadLe<uint32_t>(b, 8),
          LoadLe<uint32_t>(b, 12), LoadLe<uint32_t>(b, 16), LoadLe<uint32_t>(b, 20),
          LoadLe<uint32_t>(b, 24), LoadLe<uint32_t>(b, 28), LoadLe<uint32_t>(b, 32)};
}

// RSS_KEY and RSS_CPU: args[0] is the address of the table, args[1] its size; the device reads it.
// The sheet does not give the tables' layout; this one, not checked against silicon, is used by
// driver and model: the key's 40 bytes in four groups of 10 padded to 16, the 128 queue numbers in
// groups of 4 padded to 8.
inline constexpr size_t kRssKeyLength = 40;
inline constexpr size_t kRssKeyBytes = 64;
inline constexpr size_t kRssCpuEntries = 128;  // 7 hash bits
inline constexpr uint8_t kRssHashBits = 7;
inline constexpr size_t kRssCpuBytes = 256;
constexpr size_t RssKeyOffset(size_t i) { return i / 10 * 16 + i % 10; }
constexpr size_t RssCpuOffset(size_t i) { return i / 4 * 8 + i % 4; }
static_assert(RssKeyOffset(kRssKeyLength - 1) < kRssKeyBytes);
static_assert(RssCpuOffset(kRssCpuEntries - 1) < kRssCpuBytes);

// GET_MAC_ADDR: args[0], bytes 0 to 5 in memory order.
constexpr std::array<uint8_t, 6> MacOfArg(uint64_t arg) {
  std::array<uint8_t, 6> mac{};
  for (size_t i = 0; i < mac.size(); ++i) mac[i] = static_cast<uint8_t>(arg >> (8 * i));
  return mac;
}
constexpr uint64_t ArgOfMac(const std::array<uint8_t, 6>& mac) {
  uint64_t arg = 0;
  for (size_t i = 0; i < mac.size(); ++i) arg |= uint64_t{mac[i]} << (8 * i);
  return arg;
}

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_COMMANDS_H_
