// SPDX-License-Identifier: Apache-2.0
//
// The transmit queue: how many descriptors a packet takes and when it fits, what is refused, what
// is undone when a segment has no address, and a device (the test) that completes as it should not.
#include "nic/enic/tx_queue.h"

#include <string>
#include <vector>

#include "tests/nic/enic/forger.h"
#include "tests/nic/enic/tx_rig.h"

namespace dmakit::nic::enic {
namespace {

TEST_CASE("packets of 1 to 16 segments arrive whole") {
  TxRig rig;
  std::vector<Frame> sent;
  for (uint32_t n = 1; n <= 16; ++n) {
    std::vector<uint32_t> lengths;
    for (uint32_t i = 0; i < n; ++i) lengths.push_back(14 + 7 * i);
    Packet packet = rig.Make(lengths);
    sent.push_back(BytesOf(packet));
    REQUIRE(rig.Send(packet) == 1);
    CHECK(packet.segment_count == 0);  // taken
    rig.StepAll();
  }
  CHECK(rig.tx().Reap() > 0);
  CHECK(rig.wire.from_nic == sent);
  CHECK(rig.stats().frames == 16);
  CHECK(rig.stats().in_flight == 0);
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("the device sees plain descriptors, EOP and CQ_ENTRY on the last") {
  TxRig rig;
  Packet packet = rig.Make({14, 20, 30});
  REQUIRE(rig.Send(packet) == 1);
  const auto port = rig.iommu->NewPort("looker");
  const Iova ring{rig.ReadReg(ResourceType::kWq, 0, WqReg::kRingBase, 8)};
  for (uint32_t i = 0; i < 3; ++i) {
    std::array<std::byte, 16> bytes{};
    REQUIRE(port->Read(ring + Bytes{16 * uint64_t{i}}, bytes));
    const WqEnetDesc d = DecodeWq(FromBytes(bytes));
    CHECK(d.length == std::array<int, 3>{14, 20, 30}[i]);
    CHECK(d.eop == (i == 2));
    CHECK(d.cq_entry == (i == 2));
    CHECK((FromBytes(bytes).high & ~0x0000'3000'0000'3fffull) == 0);
  }
  CHECK(rig.ReadReg(ResourceType::kWq, 0, WqReg::kPostedIndex) == 3);
}

TEST_CASE("what can never be sent is taken, released and counted by reason") {
  TxRig rig(64, 1500);
  struct Case {
    std::vector<uint32_t> lengths;
    TxFlags flags;
    uint64_t TxQueueStats::*counter;
  };
  const std::vector<uint32_t> seventeen(17, 60);
  const Case cases[] = {
      {{1519}, TxFlags::kNone, &TxQueueStats::too_long},
      {{1000, 519}, TxFlags::kNone, &TxQueueStats::too_long},
      {seventeen, TxFlags::kNone, &TxQueueStats::too_many_segments},
      {{}, TxFlags::kNone, &TxQueueStats::empty},
      {{0, 0}, TxFlags::kNone, &TxQueueStats::empty},
      {{1515}, TxFlags::kVlanInsert, &TxQueueStats::too_long},  // with its tag
      {{60}, TxFlags::kIpv4Checksum, &TxQueueStats::unsupported_offload},
      {{60}, TxFlags::kL4Checksum, &TxQueueStats::unsupported_offload},
      {{60}, TxFlags::kTso, &TxQueueStats::unsupported_offload},
  };
  uint64_t dropped = 0;
  for (const Case& c : cases) {
    // Between two good ones, in one burst.
    std::vector<Packet> burst = {rig.Make({60}), rig.Make(c.lengths), rig.Make({61})};
    burst[1].tx = c.flags;
    const uint64_t before = rig.stats().*c.counter;
    CHECK(rig.tx().Transmit(burst) == 3);
    CHECK(rig.stats().*c.counter == before + 1);
    CHECK(rig.stats().dropped == ++dropped);
    CHECK(burst[1].segment_count == 0);
    rig.StepAll();
    rig.tx().Reap();
  }
  CHECK(rig.wire.from_nic.size() == 2 * std::size(cases));
  CHECK(rig.stats().frames == 2 * std::size(cases));
  Packet longest = rig.Make({1518});
  CHECK(rig.Send(longest) == 1);
  rig.StepAll();
  CHECK(rig.wire.from_nic.back().size() == 1518);
  rig.tx().Reap();
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("segments without bytes get no descriptor and lose no page, wherever they are") {
  TxRig rig;
  for (const std::vector<uint32_t>& lengths :
       std::vector<std::vector<uint32_t>>{{60, 0}, {0, 60}, {30, 0, 30}, {0, 0, 60, 0}}) {
    Packet packet = rig.Make(lengths);
    const Frame bytes = BytesOf(packet);
    const uint64_t posted = rig.ReadReg(ResourceType::kWq, 0, WqReg::kPostedIndex);
    REQUIRE(rig.Send(packet) == 1);
    const size_t pieces = static_cast<size_t>(
        std::count_if(lengths.begin(), lengths.end(), [](uint32_t n) { return n != 0; }));
    CHECK(rig.ReadReg(ResourceType::kWq, 0, WqReg::kPostedIndex) == posted + pieces);
    rig.StepAll();
    CHECK(rig.wire.from_nic.back() == bytes);
  }
  // Not even where 16 descriptors are exactly filled.
  std::vector<uint32_t> lengths(16, 10);
  lengths.push_back(0);
  lengths.insert(lengths.begin(), 0);
  Packet packet = rig.Make(lengths);
  CHECK(rig.Send(packet) == 1);
  rig.StepAll();
  CHECK(rig.wire.from_nic.back().size() == 160);
  rig.tx().Reap();
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("a frame that fills whole pieces leaves no empty one behind") {
  TxRig rig;
  for (const uint32_t piece : {512u, 1024u, 2048u}) {
    for (uint32_t k = 1; k * piece <= 9018 && k <= 16; ++k) {
      Packet packet = rig.Make(std::vector<uint32_t>(k, piece));
      const Frame bytes = BytesOf(packet);
      REQUIRE(rig.Send(packet) == 1);
      rig.StepAll();
      REQUIRE(rig.wire.from_nic.back() == bytes);
      rig.tx().Reap();
    }
  }
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("1 to 4 free slots against packets of 1 to 5 segments") {
  for (uint32_t free = 0; free <= 4; ++free) {
    for (uint32_t segments = 1; segments <= 5; ++segments) {
      TxRig rig;
      // 63 slots at most; leave `free` of them.
      for (uint32_t used = free; used < 63; ++used) {
        Packet packet = rig.Make({60});
        REQUIRE(rig.Send(packet) == 1);
      }
      const uint64_t posted = rig.ReadReg(ResourceType::kWq, 0, WqReg::kPostedIndex);
      const uint64_t full = rig.stats().ring_full;
      Packet packet = rig.Make(std::vector<uint32_t>(segments, 20));
      const bool fits = segments <= free;
      CHECK(rig.Send(packet) == (fits ? 1 : 0));
      CHECK(rig.stats().ring_full == full + (fits ? 0 : 1));
      CHECK(rig.ReadReg(ResourceType::kWq, 0, WqReg::kPostedIndex) ==
            (fits ? (posted + segments) % 64 : posted));
      CHECK(packet.segment_count == (fits ? 0 : segments));
      // With room again, the same packet goes.
      rig.StepAll();
      if (!fits) CHECK(rig.Send(packet) == 1);
      rig.StepAll();
      rig.tx().Reap();
      CHECK(rig.wire.from_nic.size() == 63 - free + 1);
      rig.CheckAllReturned();
      rig.CheckClean();
    }
  }
}

// A header and n fragments; the address of segment k cannot be had.
TEST_CASE("a failed Address undoes exactly the segments before it") {
  for (uint32_t segments = 1; segments <= 16; ++segments) {
    for (uint32_t k = 1; k <= segments; ++k) {
      TxRig rig;
      Packet before = rig.Make({60});
      REQUIRE(rig.Send(before) == 1);
      rig.state.fail_at = k;
      Packet packet = rig.Make(std::vector<uint32_t>(segments, 20));
      REQUIRE(rig.Send(packet) == 1);
      REQUIRE(rig.state.done == k - 1);
      REQUIRE(rig.state.open.size() == 1);
      REQUIRE(rig.stats().addressing_failed == 1);
      REQUIRE(rig.stats().dropped == 1);
      REQUIRE(rig.ReadReg(ResourceType::kWq, 0, WqReg::kPostedIndex) == 1);
      Packet after = rig.Make({61});
      REQUIRE(rig.Send(after) == 1);
      rig.StepAll();
      rig.tx().Reap();
      REQUIRE(rig.wire.from_nic.size() == 2);
      REQUIRE(rig.wire.from_nic[1].size() == 61);
      rig.CheckAllReturned();
    }
  }
}

TEST_CASE("packets of 1 to 64 bytes: the descriptor says the length of the packet") {
  TxRig rig;
  std::vector<Frame> sent;
  for (uint32_t length = 1; length <= 64; ++length) {
    const auto slot = rig.ReadReg(ResourceType::kWq, 0, WqReg::kPostedIndex);
    Packet packet = rig.Make({length});
    const Frame bytes = BytesOf(packet);
    REQUIRE(rig.Send(packet) == 1);
    if (rig.ReadReg(ResourceType::kWq, 0, WqReg::kPostedIndex) == slot) continue;  // refused
    sent.push_back(bytes);
    std::array<std::byte, 16> entry{};
    const Iova ring{rig.ReadReg(ResourceType::kWq, 0, WqReg::kRingBase, 8)};
    REQUIRE(rig.iommu->NewPort("looker")->Read(ring + Bytes{16 * slot}, entry));
    REQUIRE(DecodeWq(FromBytes(entry)).length == length);
    rig.StepAll();
    rig.tx().Reap();
  }
  CHECK(sent.front().size() <= 14);
  CHECK(rig.stats().dropped + sent.size() == 64);
  CHECK(rig.wire.from_nic == sent);
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("one register write per burst, after the descriptors") {
  TxRig rig;
  rig.bar.logging = true;
  std::vector<Packet> burst;
  for (int i = 0; i < 20; ++i) burst.push_back(rig.Make({60, 60}));
  const uint64_t wq = BlockAt(rig.model.bar0(), ResourceType::kWq, 0);
  const auto port = rig.iommu->NewPort("looker");
  const Iova ring{rig.ReadReg(ResourceType::kWq, 0, WqReg::kRingBase, 8)};
  int complete = 0;
  rig.bar.on_write = [&](uint64_t offset, uint64_t value) {
    if (offset != wq + OffsetOf(WqReg::kPostedIndex)) return true;
    // What the doorbell shows is there already.
    for (uint64_t i = 0; i < value; ++i) {
      std::array<std::byte, 16> bytes{};
      if (port->Read(ring + Bytes{16 * i}, bytes) && DecodeWq(FromBytes(bytes)).length == 60) {
        ++complete;
      }
    }
    return true;
  };
  CHECK(rig.tx().Transmit(burst) == 20);
  REQUIRE(rig.bar.writes.size() == 1);
  CHECK(rig.bar.writes[0].value == 40);
  CHECK(complete == 40);
  CHECK(rig.stats().doorbells == 1);
  // Nothing sent: nothing written.
  CHECK(rig.tx().Transmit({}) == 0);
  Packet bad = rig.Make({60});
  bad.tx = TxFlags::kTso;
  CHECK(rig.Send(bad) == 1);
  CHECK(rig.bar.writes.size() == 1);
}

TEST_CASE("a completion covers everything up to it") {
  TxRig rig;
  for (int i = 0; i < 10; ++i) {
    Packet packet = rig.Make({20, 20, 20});
    REQUIRE(rig.Send(packet) == 1);
  }
  Forger forger(rig, 0);
  forger.Write(DoneTx(3 * 4 - 1));
  CHECK(rig.tx().Reap() == 4);
  CHECK(rig.stats().in_flight == 6);
  CHECK(rig.state.done == 12);
  forger.Write(DoneTx(3 * 10 - 1));
  CHECK(rig.tx().Reap() == 6);
  CHECK(rig.tx().Reap() == 0);
  CHECK(rig.stats().bytes == 600);
  rig.CheckAllReturned();
}

TEST_CASE("impossible completions release nothing") {
  struct Case {
    const char* what;
    CqEnetWqDesc done;
  };
  CqEnetWqDesc other_queue = DoneTx(2, 1);
  CqEnetWqDesc other_type = DoneTx(2);
  other_type.type = CqType::kRqEnet;
  const Case cases[] = {
      {"the middle of a packet", DoneTx(1)},
      {"not sent yet", DoneTx(6)},
      {"the slot before the oldest", DoneTx(63)},
      {"beyond the ring", DoneTx(64)},
      {"far beyond", DoneTx(4095)},
      {"another queue", other_queue},
      {"another type", other_type},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    TxRig rig;
    for (int i = 0; i < 2; ++i) {
      Packet packet = rig.Make({20, 20, 20});
      REQUIRE(rig.Send(packet) == 1);
    }
    Forger forger(rig, 0);
    forger.Write(c.done);
    CHECK(rig.tx().Reap() == 0);
    CHECK(rig.stats().bad_completions == 1);
    CHECK(rig.state.done == 0);
    CHECK(rig.stats().in_flight == 2);
    forger.Write(DoneTx(5));
    CHECK(rig.tx().Reap() == 2);
    forger.Write(DoneTx(5));  // twice
    CHECK(rig.tx().Reap() == 0);
    CHECK(rig.stats().bad_completions == 2);
    rig.CheckAllReturned();
  }
}

TEST_CASE("a device that completes without end does not hold Reap") {
  TxRig rig;
  Forger forger(rig, 0);
  for (int i = 0; i < 64; ++i) forger.Write(DoneTx(0));
  CHECK(rig.tx().Reap() == 0);
  CHECK(rig.stats().bad_completions == 64);
}

TEST_CASE("a queue that the device stopped says so, and its packets are given back at Stop") {
  TxRig rig;
  rig.audit.Expect(dma::AuditCode::kNothingMapped);
  Packet packet = rig.Make({60});
  packet.segments[0].offset += 100u << 20;  // an address nobody mapped
  REQUIRE(rig.Send(packet) == 1);
  Packet next = rig.Make({60});
  REQUIRE(rig.Send(next) == 1);
  rig.StepAll();
  CHECK(rig.wire.from_nic.empty());
  CHECK(rig.stats().device_error == static_cast<uint64_t>(QueueError::kAddressFault));
  const dma::Nanos before = rig.waiter.Now();
  const absl::Status stopped = rig.driver->Stop();
  CHECK(std::string(stopped.message()).find("enic0 wq 0: 2 packets not sent") != std::string::npos);
  CHECK(rig.waiter.Now() - before < dma::Nanos{100'000'000});  // no waiting for what cannot come
  CHECK(rig.stats().device_errors == 2);
  CHECK(rig.stats().dropped == 2);
  CHECK(rig.stats().in_flight == 0);
  rig.CheckAllReturned();
  CHECK(rig.model.violation_count() == 0);
  // And it works again.
  REQUIRE(rig.driver->Start().ok());
  Packet good = rig.Make({60});
  CHECK(rig.Send(good) == 1);
  rig.StepAll();
  CHECK(rig.wire.from_nic.size() == 1);
  CHECK(rig.stats().device_error == 0);
}

}  // namespace
}  // namespace dmakit::nic::enic
