// SPDX-License-Identifier: Apache-2.0
//
// What a device says of a received packet in front of its bytes, in both modes (liquidio sheet
// 5.2), checked against what was posted, and in the words of nic/packet.h. Pure functions.
#ifndef DMAKIT_NIC_LIQUIDIO_RX_HEADER_H_
#define DMAKIT_NIC_LIQUIDIO_RX_HEADER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "dma/barrier.h"
#include "nic/endian.h"
#include "nic/liquidio/descriptors.h"
#include "nic/liquidio/rings.h"
#include "nic/packet.h"

namespace dmakit::nic::liquidio {

struct RxHeader {
  RhData rh;
  uint32_t buffers = 0;  // descriptors it takes; 0: what the device said cannot be
  uint32_t used = 0;     // bytes in them
  uint32_t skip = 0;     // bytes in front of the frame
  bool hashed = false;   // ReadHash finds it
};

// The most bytes in front of a frame: length, header and seven words.
inline constexpr uint32_t kMaxSkip = 16 + 7 * 8;

namespace internal {
// `used` bytes in buffers of `size` each, of which `posted` are there; at least one is the frame's.
inline void Fit(uint64_t used, uint32_t size, uint32_t posted, RxHeader& header) {
  if (used <= header.skip || used > uint64_t{size} * posted) return;
  header.used = static_cast<uint32_t>(used);
  header.buffers = (header.used + size - 1) / size;
}
}  // namespace internal

// Mode A. `length` is not 0.
inline RxHeader ParseInfo(uint64_t word, uint64_t length, uint32_t size, uint32_t posted) {
  RxHeader header{.rh = DecodeRhData(word)};
  header.hashed = header.rh.has_hash;
  header.skip = header.hashed ? 8 : 0;
  if (length > 8) internal::Fit(length - 8, size, posted, header);
  return header;
}

// Mode B: `word` and `length` are the first two of the buffer. The hash is the last of the extra
// words, or the one before if the last is a timestamp.
inline RxHeader ParseBuffer(uint64_t word, uint64_t length, uint32_t size, uint32_t posted) {
  RxHeader header{.rh = DecodeRhData(word)};
  header.hashed = header.rh.has_hash;
  header.skip = (header.rh.len + 2u) * 8;
  const uint32_t words = (header.rh.has_hash ? 1 : 0) + (header.rh.has_hwtstamp ? 1 : 0);
  if (words > header.rh.len || length > UINT32_MAX) return header;
  internal::Fit(length + 8, size, posted, header);
  return header;
}

// Reads a word of a buffer once: what is checked is what is used.
inline uint64_t LoadWord(const std::byte* at) {
  std::array<std::byte, 8> bytes;
  std::memcpy(bytes.data(), at, bytes.size());
  dma::BarrierAfterMmioRead();  // and not a second time
  return LoadBe<uint64_t>(bytes);
}

// Of a good header that is `hashed`; `data`: where the first buffer starts.
inline uint32_t ReadHash(const RxHeader& header, ReceiveMode mode, const std::byte* data) {
  if (mode == ReceiveMode::kInfo) return static_cast<uint32_t>(LoadWord(data));
  const uint32_t from_end = header.rh.has_hwtstamp ? 2 : 1;
  return static_cast<uint32_t>(LoadWord(data + header.skip - from_end * 8) >> 32);
}

// Whether it is a frame; else a message of the firmware.
constexpr bool IsFrame(const RhData& rh) {
  return rh.opcode == kOpcodeNic && rh.subcode == kSubcodeData;
}

// Sheet 5.2. What is not said to be right is not said to be wrong either.
constexpr RxFlags RxFlagsOf(const RhData& rh) {
  RxFlags flags = RxFlags::kNone;
  if (rh.vlan != 0) flags = flags | RxFlags::kVlanStripped;
  if (rh.has_hash) flags = flags | RxFlags::kRssHash;
  if ((rh.csum_verified & kCsumIpOk) != 0) flags = flags | RxFlags::kIpv4ChecksumGood;
  if ((rh.csum_verified & kCsumL4Ok) != 0) flags = flags | RxFlags::kL4ChecksumGood;
  return flags;
}
constexpr uint16_t TciOf(const RhData& rh) {
  return static_cast<uint16_t>(rh.vlan | rh.priority << 13);
}

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_NIC_LIQUIDIO_RX_HEADER_H_
