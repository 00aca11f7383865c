// SPDX-License-Identifier: Apache-2.0
//
// The transmit queue against a device played by hand: what it writes, when it rings, what it
// releases, and what a count that cannot be does.
#include <cstdint>
#include <random>
#include <vector>

#include "tests/nic/liquidio/testing.h"

namespace dmakit::nic::liquidio {
namespace {

std::vector<std::byte> BytesOfAll(const Packet& packet) {
  const Frame bytes = BytesOf(packet);
  return {bytes.begin(), bytes.end()};
}

// --- Instructions --------------------------------------------------------------------------------

TEST_CASE("one segment of up to 16383 bytes is direct, one byte more needs a list") {
  for (const uint32_t length : {1u, 60u, 9000u, 9018u}) {
    HandTxRig rig;
    Packet packet = rig.Make({length});
    const auto bytes = BytesOfAll(packet);
    const uint64_t at = packet.segments[0].iova().value();
    REQUIRE(rig.Send(packet) == 1);
    const Fetched got = rig.model.Fetch(0);
    CHECK_FALSE(got.gather);
    CHECK(got.length == length);
    CHECK(got.words[0] == at);
    CHECK(got.bytes == bytes);
  }
}

TEST_CASE("a packet of 1 to 18 segments is one instruction, with a list from two on") {
  for (uint32_t n = 1; n <= 18; ++n) {
    INFO(n);
    HandTxRig rig;
    std::vector<uint32_t> lengths;
    for (uint32_t i = 0; i < n; ++i) lengths.push_back(1 + i * 29);
    Packet packet = rig.Make(lengths);
    const auto bytes = BytesOfAll(packet);
    REQUIRE(rig.Send(packet) == 1);
    CHECK(rig.ring0().iq_doorbell == 1);
    const Fetched got = rig.model.Fetch(0);
    CHECK(got.gather == (n > 1));
    CHECK(got.length == (n > 1 ? n : lengths[0]));
    CHECK(got.pieces == lengths);
    CHECK(got.bytes == bytes);
    CHECK(rig.tx().Reap() == 1);
    rig.CheckAllReturned();
  }
}

TEST_CASE("the words of a data packet are those of the sheet") {
  HandTxRig rig;
  Packet packet = rig.Make({60});
  REQUIRE(rig.Send(packet) == 1);
  const Fetched got = rig.model.Fetch(0);
  CHECK(got.words[1] == (uint64_t{60} << 48 | uint64_t{32} << 42));
  // w, raw, utag, pm 7, sl 8, utt, the tag that stands for queue 0.
  CHECK(got.words[2] == (uint64_t{7} << 61 | uint64_t{7} << 56 | uint64_t{8} << 48 |
                         uint64_t{1} << 47 | 0x11111111));
  CHECK(got.words[3] == (uint64_t{1} << 60 | uint64_t{2} << 52));
  for (size_t i = 4; i < 8; ++i) CHECK(got.words[i] == 0);
}

TEST_CASE("segments without bytes are released, and the device is told of the others only") {
  HandTxRig rig;
  Packet packet = rig.Make({0, 20, 0, 0, 30, 0});
  const auto bytes = BytesOfAll(packet);
  REQUIRE(rig.Send(packet) == 1);
  const Fetched got = rig.model.Fetch(0);
  CHECK(got.pieces == std::vector<uint32_t>{20, 30});
  CHECK(got.bytes == bytes);
  Packet one = rig.Make({0, 70});
  REQUIRE(rig.Send(one) == 1);
  CHECK_FALSE(rig.model.Fetch(0).gather);
  rig.tx().Reap();
  rig.CheckAllReturned();
}

TEST_CASE("packets that can never be sent are taken, released and counted") {
  HandTxRig rig(128, 1500);
  Packet empty = rig.Make({0, 0});
  Packet none;
  none.segment_count = 0;
  none.length = 0;
  none.tx = TxFlags::kNone;
  Packet longer = rig.Make({1000, 519});
  Packet longest = rig.Make({1000, 518});
  CHECK(rig.Send(empty) == 1);
  CHECK(rig.Send(none) == 1);
  CHECK(rig.Send(longer) == 1);
  CHECK(rig.Send(longest) == 1);
  CHECK(rig.stats().empty == 2);
  CHECK(rig.stats().too_long == 1);
  CHECK(rig.stats().dropped == 3);
  CHECK(rig.ring0().doorbells == std::vector<uint32_t>{1});
  rig.model.Fetch(0);
  rig.tx().Reap();
  rig.CheckAllReturned();
}

TEST_CASE("an address that is not to be had at any segment undoes the packet") {
  for (uint32_t n : {1u, 2u, 5u, 18u}) {
    for (uint32_t k = 1; k <= n; ++k) {
      HandTxRig rig;
      rig.state.fail_at = k;
      Packet packet = rig.Make(std::vector<uint32_t>(n, 50));
      Packet good = rig.Make({70});
      CHECK(rig.Send(packet) == 1);
      CHECK(rig.stats().addressing_failed == 1);
      CHECK(rig.Send(good) == 1);
      CHECK(rig.model.Fetch(0).length == 70);
      CHECK(rig.tx().Reap() == 1);
      rig.CheckAllReturned();
    }
  }
}

// --- Doorbell ------------------------------------------------------------------------------------

TEST_CASE("the doorbell says how many are new: every eight, and the rest at the end of the burst") {
  for (uint32_t burst = 0; burst <= 33; ++burst) {
    HandTxRig rig;
    std::vector<Packet> packets;
    for (uint32_t i = 0; i < burst; ++i) packets.push_back(rig.Make({60 + i}));
    REQUIRE(rig.tx().Transmit(packets) == burst);
    std::vector<uint32_t> expected(burst / 8, 8);
    if (burst % 8 != 0) expected.push_back(burst % 8);
    CHECK(rig.ring0().doorbells == expected);
    CHECK(rig.stats().doorbells == expected.size());
    for (uint32_t i = 0; i < burst; ++i) CHECK(rig.model.Fetch(0).length == 60 + i);
    CHECK(rig.tx().Reap() == burst);
  }
}

TEST_CASE("a burst that ends in a packet that cannot be sent leaves nothing unrung") {
  HandTxRig rig;
  std::vector<Packet> packets;
  for (uint32_t i = 0; i < 3; ++i) packets.push_back(rig.Make({60}));
  packets.push_back(rig.Make({0}));
  CHECK(rig.tx().Transmit(packets) == 4);
  CHECK(rig.ring0().iq_doorbell == 3);
}

// --- Full, stop and wake -------------------------------------------------------------------------

TEST_CASE("a ring stops two short of full and wakes when a doorbell's batch has room") {
  for (const uint32_t ring : {128u, 129u, 1000u, 2048u}) {
    INFO(ring);
    HandTxRig rig(ring);
    std::vector<Packet> packets;
    for (uint32_t i = 0; i < ring; ++i) packets.push_back(rig.Make({60}));
    const uint32_t most = ring - 2;
    CHECK(rig.tx().Transmit(packets) == most);
    CHECK(rig.tx().packets_in_flight() == most);
    CHECK(rig.stats().ring_full == 1);
    auto rest = std::span(packets).subspan(most);
    for (uint32_t i = 1; i < 8; ++i) {
      rig.model.Fetch(0);
      CHECK(rig.tx().Transmit(rest) == 0);
    }
    rig.model.Fetch(0);
    CHECK(rig.tx().Transmit(rest) == 2);
    while (rig.ring0().iq_doorbell > 0) rig.model.Fetch(0);
    rig.tx().Reap();
    CHECK(rig.tx().packets_in_flight() == 0);
    rig.CheckAllReturned();
    rig.CheckClean();
  }
}

TEST_CASE("rings of any size wrap, with bursts of any size") {
  std::mt19937 random(7);
  for (const uint32_t ring : {128u, 131u, 500u, 2047u}) {
    HandTxRig rig(ring);
    uint64_t sent = 0, got = 0;
    while (got < ring * 5u) {
      std::vector<Packet> packets;
      const uint32_t burst = 1 + random() % 40;
      for (uint32_t i = 0; i < burst; ++i) {
        packets.push_back(rig.Make(std::vector<uint32_t>(1 + (sent + i) % 4, 60)));
      }
      const size_t taken = rig.tx().Transmit(packets);
      Release(std::span(packets).subspan(taken), rig.pool.get());
      sent += taken;
      for (uint32_t n = random() % 60; n > 0 && rig.ring0().iq_doorbell > 0; --n, ++got) {
        REQUIRE(rig.model.Fetch(0).pieces.size() == 1 + got % 4);
      }
    }
    while (rig.ring0().iq_doorbell > 0) rig.model.Fetch(0);
    rig.tx().Reap();
    CHECK(rig.stats().frames == sent);
    CHECK(rig.iommu->walk_stats().faults == 0);
    rig.CheckAllReturned();
    rig.CheckClean();
  }
}

// --- Completion ----------------------------------------------------------------------------------

TEST_CASE("the counter of fetched instructions wraps at 2^32") {
  for (const uint32_t start : {0u, 0xffffffffu, 0xfffffff0u, 0x80000000u}) {
    HandRigOptions options;
    options.extra.counter_start = start;
    HandTxRig rig(128, 9000, std::move(options));
    CHECK(static_cast<uint32_t>(rig.ring0().in_done) == start);
    CHECK(rig.ring0().in_done >> 32 == 5);  // what else is in the register stays
    for (int round = 0; round < 10; ++round) {
      std::vector<Packet> packets;
      for (int i = 0; i < 7; ++i) packets.push_back(rig.Make({60}));
      REQUIRE(rig.tx().Transmit(packets) == 7);
      for (int i = 0; i < 7; ++i) rig.model.Fetch(0);
      REQUIRE(rig.tx().Reap() == 7);
    }
    CHECK(rig.stats().bad_completions == 0);
    rig.CheckAllReturned();
  }
}

TEST_CASE("a count of more than is in flight is counted once and releases nothing") {
  HandTxRig rig;
  std::vector<Packet> packets;
  for (int i = 0; i < 5; ++i) packets.push_back(rig.Make({60}));
  REQUIRE(rig.tx().Transmit(packets) == 5);
  for (const uint32_t lie : {6u, 1000u, 0xffffffffu, 0x80000000u}) {
    const uint64_t before = rig.stats().bad_completions;
    rig.ring0().in_done = lie;
    CHECK(rig.tx().Reap() == 0);
    CHECK(rig.tx().Reap() == 0);
    CHECK(rig.stats().bad_completions == before + 1);
    CHECK(rig.stats().device_error == kImpossibleCount);
    CHECK(rig.tx().packets_in_flight() == 5);
  }
  rig.ring0().in_done = 3;  // and what it says then is believed
  CHECK(rig.tx().Reap() == 3);
  CHECK(rig.stats().device_error == 0);
}

TEST_CASE("a device that is gone completes nothing, and Stop says so and holds its rings") {
  HandTxRig rig;
  Packet packet = rig.Make({60, 60});
  REQUIRE(rig.Send(packet) == 1);
  rig.model.gone = true;
  CHECK(rig.tx().Reap() == 0);
  CHECK(rig.stats().bad_completions == 0);
  CHECK(rig.stats().device_error == 0xffffffff);
  const absl::Status stopped = rig.driver->Stop();
  CHECK(std::string(stopped.message()).find("liquidio0 iq 0: the device is gone") !=
        std::string::npos);
  CHECK(rig.space->quarantine().count() == 2);  // ring and gather lists
  CHECK(rig.stats().device_errors == 1);
  CHECK(rig.space->quarantine().ReleaseAfterReset("").ok());
}

// --- Memory --------------------------------------------------------------------------------------

TEST_CASE("gather lists are one coherent allocation, and a list's address is arithmetic") {
  HandTxRig rig(200);
  CHECK(rig.stats().ring_allocations == 1);
  CHECK(rig.stats().list_maps == 1);
  const dma::DeviceStats before = rig.device->stats();  // packet pages are not in them
  const uint64_t invalidations = rig.iommu->stats().invalidations;
  uint64_t first = 0;
  for (uint32_t i = 0; i < 1000; ++i) {
    Packet packet = rig.Make({60, 70, 80});
    REQUIRE(rig.Send(packet) == 1);
    const Fetched got = rig.model.Fetch(0);
    if (i == 0) first = got.words[0];
    REQUIRE(got.words[0] == first + i % 200 * 200);
    REQUIRE(rig.tx().Reap() == 1);
  }
  CHECK(rig.device->stats().maps == before.maps);
  CHECK(rig.device->stats().unmaps == before.unmaps);
  CHECK(rig.iommu->stats().invalidations == invalidations);
  CHECK(rig.stats().list_maps == 1);
  rig.CheckAllReturned();
}

}  // namespace
}  // namespace dmakit::nic::liquidio
