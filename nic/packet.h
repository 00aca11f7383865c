// SPDX-License-Identifier: Apache-2.0
//
// Packet: one frame as a driver gives it up or takes it: segments (a piece of a mapped page each)
// and offload metadata. A plain value of fixed size: bursts are std::span<Packet>, and nothing is
// allocated per frame.
//
//   segment:  page memory   | headroom | data: offset .. offset + length | tailroom |
//                           ^ fragment (one reference to the page)
//
// Ownership: a packet holds one page reference per segment. Receive hands packets (and references)
// to the caller; Transmit takes those it accepts; what the caller keeps or drops it releases with
// ReleaseSegments, once.
#ifndef DMAKIT_NIC_PACKET_H_
#define DMAKIT_NIC_PACKET_H_

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "frag/page.h"
#include "frag/returner.h"
#include "iova/types.h"

namespace dmakit::nic {

struct Segment {
  frag::Page* page = nullptr;
  uint32_t offset = 0;  // of the first byte, in the page
  uint32_t length = 0;

  std::byte* data() const { return page->base + offset; }
  // The same on every device of the address space.
  Iova iova() const { return page->iova + Bytes{offset}; }
  std::span<std::byte> bytes() const { return {data(), length}; }
};

// What the device found out about a received frame.
enum class RxFlags : uint16_t {
  kNone = 0,
  kIpv4ChecksumGood = 1 << 0,
  kIpv4ChecksumBad = 1 << 1,
  kL4ChecksumGood = 1 << 2,
  kL4ChecksumBad = 1 << 3,
  kVlanStripped = 1 << 4,  // `vlan` is valid and no longer in the frame
  kRssHash = 1 << 5,       // `hash` is valid
};

// What the device is asked to do to a frame it sends. Headers lie in the first segment; the driver
// preloads the checksum fields there (tx_offload.h). A request that does not fit the frame is
// dropped and counted.
enum class TxFlags : uint16_t {
  kNone = 0,
  kVlanInsert = 1 << 0,
  kIpv4Checksum = 1 << 1,
  kL4Checksum = 1 << 2,
  kTso = 1 << 3,
};

template <typename F>
requires std::same_as<F, RxFlags> || std::same_as<F, TxFlags>
constexpr F operator|(F a, F b) {
  return static_cast<F>(static_cast<uint16_t>(a) | static_cast<uint16_t>(b));
}
template <typename F>
requires std::same_as<F, RxFlags> || std::same_as<F, TxFlags>
constexpr bool Has(F set, F flag) {
  return (static_cast<uint16_t>(set) & static_cast<uint16_t>(flag)) != 0;
}

struct Packet {
  // The most pieces any backend sends or receives as one frame (LiquidIO: a head and 17 fragments).
  static constexpr size_t kMaxSegments = 18;

  uint32_t length = 0;  // sum over the segments
  uint16_t segment_count = 0;
  RxFlags rx = RxFlags::kNone;
  TxFlags tx = TxFlags::kNone;
  uint16_t vlan = 0;                           // TCI, with kVlanStripped or kVlanInsert
  uint32_t hash = 0;                           // with kRssHash
  uint8_t hash_type = 0;                       // as the backend's sheet defines it
  uint8_t l3_offset = 0;                       // kTso and checksums: where the IP header starts,
  uint16_t l4_offset = 0;                      // and the TCP or UDP header
  uint16_t segment_size = 0;                   // kTso: payload bytes per frame sent
  std::array<Segment, kMaxSegments> segments;  // the first segment_count are valid

  // User-provided so that making an array of packets does not write all the segments.
  Packet() {}  // NOLINT: `segments` is deliberately left alone

  std::span<Segment> parts() { return {segments.data(), segment_count}; }
  std::span<const Segment> parts() const { return {segments.data(), segment_count}; }

  // Empties the packet (without releasing anything) and starts it anew with one segment.
  void ResetTo(const Segment& first) {
    length = first.length;
    segment_count = 1;
    rx = RxFlags::kNone;
    tx = TxFlags::kNone;
    segments[0] = first;
  }
  // False when the packet is full; the segment is then still the caller's.
  [[nodiscard]] bool Append(const Segment& segment) {
    if (segment_count == kMaxSegments) return false;
    segments[segment_count++] = segment;
    length += segment.length;
    return true;
  }
};

// Gives back every reference of `packet`, which is empty afterwards. Flush the returner at the end
// of the burst.
inline void ReleaseSegments(Packet& packet, frag::Returner& returner) {
  for (const Segment& s : packet.parts()) returner.Return(s.page);
  packet.segment_count = 0;
  packet.length = 0;
}

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_PACKET_H_
