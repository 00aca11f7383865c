// SPDX-License-Identifier: Apache-2.0
//
// Every legal ring size wraps: in both directions, with bursts that end on the last slot but one,
// on the last and on the first, and with packets of several descriptors across the end. Most sizes
// are no power of two.
#include <set>
#include <utility>
#include <vector>

#include "nic/endian.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {
namespace {

// 60 bytes that begin with a number.
Frame Numbered(uint64_t n) {
  Frame frame(60, std::byte{0x5a});
  StoreBe<uint64_t>(frame, 0, n);
  return frame;
}

struct WrapRig : Rig {
  explicit WrapRig(uint32_t ring)
      : Rig({.port = {.ring_size = ring, .mtu = 68, .headroom = 0, .extra_pages = 32}}),
        packets(ring) {
    Start();
  }
  // Moves `count` frames through; false if one is missing, wrong or out of order.
  bool Move(uint32_t count, uint32_t segments) {
    for (uint32_t i = 0; i < count; ++i) wire.Send(Numbered(next_in++));
    StepAll();
    if (port->Receive(0, std::span(packets).first(count)) != count) return false;
    for (uint32_t i = 0; i < count; ++i) Split(packets[i], segments);
    for (uint32_t sent = 0; sent < count;) {
      sent +=
          static_cast<uint32_t>(port->Transmit(0, std::span(packets).subspan(sent, count - sent)));
      StepAll();
    }
    port->Reap(0);
    for (const Frame& frame : wire.from_nic) {
      if (frame.size() != 60 || LoadBe<uint64_t>(frame) != next_out++) return false;
    }
    wire.from_nic.clear();
    return next_in == next_out;
  }
  // The same bytes in `segments` pieces, each with a reference of its own.
  static void Split(Packet& packet, uint32_t segments) {
    const Segment whole = packet.segments[0];
    const uint32_t piece = whole.length / segments;
    packet.ResetTo({whole.page, whole.offset, piece});
    for (uint32_t i = 1; i < segments; ++i) {
      ++whole.page->outstanding;
      const uint32_t rest = i + 1 == segments ? whole.length - i * piece : piece;
      REQUIRE(packet.Append({whole.page, whole.offset + i * piece, rest}));
    }
  }
  uint64_t RxIndex() { return ReadReg(ResourceType::kRq, 0, RqReg::kFetchIndex); }
  uint64_t TxIndex() { return ReadReg(ResourceType::kWq, 0, WqReg::kFetchIndex); }

  std::vector<Packet> packets;
  uint64_t next_in = 0;
  uint64_t next_out = 0;
};

TEST_CASE("every ring size from 64 to 4096 wraps at its end") {
  for (uint32_t ring = kMinRing; ring <= kMaxRing; ring += kRingMultiple) {
    INFO("ring size " << ring);
    WrapRig rig(ring);
    // Bursts that end on slot size - 2, size - 1 and 0, and that begin there.
    const std::pair<uint32_t, uint64_t> bursts[] = {{ring - 1, ring - 1}, {1, 0},        {1, 1},
                                                    {ring - 3, ring - 2}, {1, ring - 1}, {2, 1},
                                                    {ring - 1, 0}};
    for (const auto& [count, end] : bursts) {
      REQUIRE(rig.Move(count, 1));
      REQUIRE(rig.RxIndex() == end);
      REQUIRE(rig.TxIndex() == end);
    }
    REQUIRE(rig.port->Stop().ok());
    REQUIRE(rig.model.violation_count() == 0);
    REQUIRE(rig.rx().dropped + rig.rx().skipped + rig.tx().dropped == 0);
  }
}

TEST_CASE("packets of 3, 5 and 16 descriptors lie across the end of the ring") {
  for (const uint32_t ring : {64u, 96u, 160u, 4064u}) {
    for (const uint32_t segments : {3u, 5u, 16u}) {
      WrapRig rig(ring);
      std::set<uint64_t> ends;
      // 3 packets at a time, and one lap to change the phase.
      for (uint32_t laps = 0; laps < 6; ++laps) {
        for (uint64_t moved = 0; moved < ring; moved += uint64_t{3} * segments) {
          REQUIRE(rig.Move(3, segments));
          ends.insert(rig.TxIndex());
        }
        REQUIRE(rig.Move(1, 1));
      }
      CHECK(ends.size() >= 6);
      REQUIRE(rig.port->Stop().ok());
      rig.CheckClean();
    }
  }
}

}  // namespace
}  // namespace dmakit::nic::enic
