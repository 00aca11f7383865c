// SPDX-License-Identifier: Apache-2.0
//
// What a NIC does to the headers of a frame on its way out: checksums, a VLAN tag, TCP segments.
// For device models; frame_info.h has what they find out about a frame. No state; any thread.
#ifndef DMAKIT_NIC_FRAME_EDIT_H_
#define DMAKIT_NIC_FRAME_EDIT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nic/frame_info.h"

namespace dmakit::nic {

// Where the checksum of a TCP or UDP header is.
size_t L4ChecksumAt(const FrameInfo& info);
// Zero means "no checksum" in UDP.
uint16_t FinishL4Checksum(uint64_t sum, bool udp);
// Both write the field anew, whatever is in it. The frame has such a header, as `info` says.
void WriteIpv4Checksum(std::span<std::byte> frame, const FrameInfo& info);
void WriteL4Checksum(std::span<std::byte> frame, const FrameInfo& info);
// The same value modulo 0xffff, in which these sums count.
bool SameChecksum(uint64_t a, uint64_t b);

// Behind both addresses; the frame has at least 14 bytes.
void InsertVlanTag(std::vector<std::byte>& frame, uint16_t tci);

// The lengths in a packet to be segmented are those of the whole, which may say anything: where it
// is not seen to be TCP they are written anew first.
FrameInfo ParseTsoFrame(std::span<std::byte> frame);
// The frame of `mss` bytes of payload or less that begins at `at`, of a TCP packet with `header`
// bytes in front of its payload and the pseudo header's sum, without a length, in its checksum.
void CutTcpSegment(std::span<const std::byte> frame, size_t header, size_t mss, size_t at,
                   std::vector<std::byte>& piece);

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_FRAME_EDIT_H_
