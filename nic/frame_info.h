// SPDX-License-Identifier: Apache-2.0
//
// What a NIC finds out about a frame when it looks at its headers: VLAN tag, network and transport
// protocol, checksums, and the Toeplitz hash that spreads flows over queues. For device models and
// tests; drivers take the device's word for what they receive, and use the sums for what a device
// wants preloaded.
//
// Frames come from outside and may be anything: every length in them is checked, and what does not
// fit is "not that protocol". No state; any thread.
#ifndef DMAKIT_NIC_FRAME_INFO_H_
#define DMAKIT_NIC_FRAME_INFO_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace dmakit::nic {

inline constexpr size_t kEthernetHeader = 14;
inline constexpr size_t kIpv4Header = 20;  // without options
inline constexpr size_t kIpv6Header = 40;
inline constexpr size_t kTcpHeader = 20;  // without options
inline constexpr size_t kUdpHeader = 8;
inline constexpr uint8_t kProtocolTcp = 6;
inline constexpr uint8_t kProtocolUdp = 17;
inline constexpr uint8_t kProtocolFragment = 44;  // IPv6

struct FrameInfo {
  bool vlan = false;  // one 802.1Q tag, at byte 12
  uint16_t tci = 0;

  bool ipv4 = false;
  bool ipv6 = false;
  bool fragment = false;  // a piece of a larger packet: its transport header is not looked at
  bool tcp = false;
  bool udp = false;
  uint16_t l3_offset = 0;  // with ipv4 or ipv6
  uint16_t l4_offset = 0;  // with tcp or udp
  uint16_t l3_end = 0;     // where the network packet ends; a frame may be padded beyond

  bool ip() const { return ipv4 || ipv6; }
  bool l4() const { return tcp || udp; }
};

// Looks at headers only.
FrameInfo ParseFrame(std::span<const std::byte> frame);

// The Internet checksum's sum over `bytes`, not folded, added to `sum`. An odd last byte counts as
// if a zero followed it.
uint64_t ChecksumAdd(std::span<const std::byte> bytes, uint64_t sum = 0);
// The sum of the pseudo header of a TCP or UDP segment of `length` bytes. Of `info` it needs the
// kinds and l3_offset; of the frame, the IP header.
uint64_t PseudoHeaderSum(std::span<const std::byte> frame, const FrameInfo& info, size_t length);
// Folds a sum to 16 bits and inverts it: what is written to a header.
uint16_t ChecksumFinish(uint64_t sum);

enum class ChecksumState : uint8_t {
  kNone,  // the frame has no such checksum, or it cannot be told from this frame
  kGood,
  kBad,
};
ChecksumState Ipv4ChecksumState(std::span<const std::byte> frame, const FrameInfo& info);
// TCP or UDP. A UDP checksum of zero over IPv4 is "none".
ChecksumState L4ChecksumState(std::span<const std::byte> frame, const FrameInfo& info);

// The bytes a receive-side hash covers: source and destination address, then both ports.
struct HashInput {
  std::array<std::byte, 36> bytes{};
  size_t addresses = 0;   // length without ports; 0: not IP
  size_t with_ports = 0;  // length with ports; 0: there are none
};
HashInput HashInputOf(std::span<const std::byte> frame, const FrameInfo& info);

// `key` has at least input.size() + 4 bytes.
uint32_t ToeplitzHash(std::span<const std::byte> key, std::span<const std::byte> input);

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_FRAME_INFO_H_
