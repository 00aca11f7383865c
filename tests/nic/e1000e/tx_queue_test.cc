// SPDX-License-Identifier: Apache-2.0
//
// Transmit: entries and contexts as the sheet has them, completion, full rings, packets that cannot
// be sent.
#include <string>
#include <vector>

#include "nic/endian.h"
#include "tests/nic/e1000e/testing.h"

namespace dmakit::nic::e1000e {
namespace {

using testing::FrameSpec;
using testing::MakeFrame;

void Ask(Packet& packet, const FrameSpec& spec, TxFlags flags) {
  packet.tx = flags;
  packet.l3_offset = static_cast<uint8_t>(14 + (spec.vlan ? 4 : 0));
  packet.l4_offset = static_cast<uint16_t>(packet.l3_offset + (spec.ipv6 ? 40 : 20));
}

TEST_CASE("a packet is an entry per segment, its last with EOP and RS") {
  TxRig rig;
  Packet packet = rig.Make({100, 1, 2000});
  REQUIRE(rig.Send(packet) == 1);
  rig.StepAll();
  const auto& entries = rig.model.sent_entries();
  REQUIRE(entries.size() == 3);
  const uint32_t lengths[] = {100, 1, 2000};
  for (size_t i = 0; i < 3; ++i) {
    const TxData d = DecodeTxData(entries[i]);
    CHECK(d.length == lengths[i]);
    CHECK(d.type == kTxTypeData);
    CHECK(d.dext);
    CHECK(d.ifcs);
    CHECK(d.eop == (i == 2));
    CHECK(d.rs == (i == 2));
    CHECK_FALSE(d.dd);
    CHECK_FALSE(d.ide);
  }
  CHECK(rig.tx().Reap() == 1);
  CHECK(rig.stats().frames == 1);
  CHECK(rig.stats().bytes == 2101);
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("a context goes before the first packet that needs it, and again when it changes") {
  TxRig rig;
  const auto contexts = [&] {
    size_t n = 0;
    for (const Words& w : rig.model.sent_entries()) n += DecodeTxData(w).type == kTxTypeContext;
    return n;
  };
  const auto send = [&](const FrameSpec& spec, TxFlags flags) {
    Packet packet = rig.Carry(MakeFrame(spec));
    Ask(packet, spec, flags);
    REQUIRE(rig.Send(packet) == 1);
    rig.StepAll();
    rig.tx().Reap();
  };
  const TxFlags both = TxFlags::kIpv4Checksum | TxFlags::kL4Checksum;
  send({.size = 300}, TxFlags::kNone);
  CHECK(contexts() == 0);
  send({.size = 300}, both);
  send({.size = 700}, both);
  CHECK(contexts() == 1);
  send({.size = 300, .tcp = true}, both);
  CHECK(contexts() == 2);
  send({.size = 300, .ipv6 = true, .tcp = true}, TxFlags::kL4Checksum);
  CHECK(contexts() == 3);
  const TxContext six = *rig.model.context();
  CHECK_FALSE(six.ip);
  CHECK(six.tcp);
  CHECK(six.tucss == 54);
  CHECK(six.tucso == 70);
  send({.size = 300}, both);
  const TxContext four = *rig.model.context();
  CHECK(four.ip);
  CHECK_FALSE(four.tcp);
  CHECK(four.ipcss == 14);
  CHECK(four.ipcso == 24);
  CHECK(four.ipcse == 33);
  CHECK(four.tucss == 34);
  CHECK(four.tucso == 40);
  CHECK(four.tucse == 0);
  // A reset forgets it.
  REQUIRE(rig.driver->Stop().ok());
  REQUIRE(rig.driver->Start().ok());
  send({.size = 300}, both);
  CHECK(contexts() == 5);
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("segmentation: the context says header, MSS and payload; lengths in IP are zero") {
  TxRig rig;
  for (const bool ipv6 : {false, true}) {
    const FrameSpec spec = {.size = 5000, .ipv6 = ipv6, .tcp = true};
    Packet packet = rig.Carry(MakeFrame(spec), {200, 2000});
    Ask(packet, spec, TxFlags::kTso);
    packet.segment_size = 1000;
    REQUIRE(rig.Send(packet) == 1);
    rig.StepAll();
    const uint8_t header = ipv6 ? 74 : 54;
    const TxContext context = *rig.model.context();
    CHECK(context.tse);
    CHECK(context.tcp);
    CHECK(context.ip == !ipv6);
    CHECK(context.header_length == header);
    CHECK(context.mss == 1000);
    CHECK(context.payload_length == 5000u - header);
    const TxData data = DecodeTxData(rig.model.sent_entries().back());
    CHECK(data.tse);
    CHECK(data.txsm);
    CHECK(data.ixsm == !ipv6);
    CHECK(LoadBe<uint16_t>(rig.wire.from_nic.back(), ipv6 ? 18 : 16) == 0);
    rig.tx().Reap();
  }
  rig.CheckAllReturned();
}

TEST_CASE("bytes behind the IP packet are kept out of its checksum") {
  TxRig rig;
  const FrameSpec spec = {.size = 100};
  Frame frame = MakeFrame(spec);
  frame.resize(120);
  Packet packet = rig.Carry(frame);
  Ask(packet, spec, TxFlags::kL4Checksum);
  REQUIRE(rig.Send(packet) == 1);
  rig.StepAll();
  CHECK(rig.model.context()->tucse == 99);
}

TEST_CASE("a tag is inserted where the driver strips them, and refused where it does not") {
  TxRig rig;
  const Frame plain = MakeFrame({.size = 100});
  Packet packet = rig.Carry(plain);
  packet.tx = TxFlags::kVlanInsert;
  packet.vlan = 0x2345;
  REQUIRE(rig.Send(packet) == 1);
  rig.StepAll();
  CHECK(rig.wire.from_nic.back() == MakeFrame({.size = 104, .vlan = uint16_t{0x2345}}));
  rig.tx().Reap();
  REQUIRE(rig.driver->Stop().ok());
  std::vector<CountingAddressing> none{{&rig.state}};
  REQUIRE(rig.driver->Reshape({.ring_size = 64, .vlan_strip = false}, {}, none).ok());
  REQUIRE(rig.driver->Start().ok());
  Packet again = rig.Carry(plain);
  again.tx = TxFlags::kVlanInsert;
  REQUIRE(rig.Send(again) == 1);
  CHECK(rig.stats().unsupported_offload == 1);
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("frames too short for the chip to pad are padded with zeros, up to what it takes") {
  TxRig rig;
  for (uint32_t length = 1; length < 20; ++length) {
    INFO(length << " bytes");
    Packet packet = rig.Make({length});
    const Frame before = BytesOf(packet);
    REQUIRE(rig.Send(packet) == 1);
    rig.StepAll();
    REQUIRE(rig.wire.from_nic.size() == length);
    Frame expected = before;
    expected.resize(std::max(length, 17u));
    CHECK(rig.wire.from_nic.back() == expected);
    CHECK(rig.tx().Reap() == 1);
  }
  CHECK(rig.stats().bytes == 19 * 20 / 2);
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("a header that begins where a context cannot point to is refused") {
  for (const uint32_t l3 : {245u, 246u, 255u}) {
    INFO("IP at " << l3);
    TxRig rig;
    const Frame inner = MakeFrame({.size = 100});
    Frame frame = MakeFrame({.size = l3});
    frame.insert(frame.end(), inner.begin() + 14, inner.end());
    Packet packet = rig.Carry(frame);
    packet.tx = TxFlags::kIpv4Checksum;
    packet.l3_offset = static_cast<uint8_t>(l3);
    REQUIRE(rig.Send(packet) == 1);
    rig.StepAll();
    CHECK(rig.stats().unsupported_offload == (l3 == 245 ? 0 : 1));
    CHECK(rig.wire.from_nic.size() == (l3 == 245 ? 1 : 0));
    if (l3 == 245) CHECK(rig.model.context()->ipcso == 255);
    rig.tx().Reap();
    rig.CheckAllReturned();
    rig.CheckClean();
  }
}

TEST_CASE("packets that can never be sent are taken, counted by reason and released") {
  TxRig rig(64, 1500);
  Packet empty = rig.Make({0});
  Packet too_long = rig.Make({1519});
  Packet many = rig.Make({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  Packet wrong = rig.Carry(MakeFrame({.size = 100}));
  wrong.tx = TxFlags::kL4Checksum;
  wrong.l3_offset = 13;
  wrong.l4_offset = 34;
  for (Packet* packet : {&empty, &too_long, &wrong}) CHECK(rig.Send(*packet) == 1);
  CHECK(rig.stats().empty == 1);
  CHECK(rig.stats().too_long == 1);
  CHECK(rig.stats().unsupported_offload == 1);
  CHECK(rig.Send(many) == 1);
  rig.StepAll();
  CHECK(rig.wire.from_nic.size() == 1);
  CHECK(rig.tx().Reap() == 1);
  rig.CheckAllReturned();
  rig.CheckClean();
}

TEST_CASE("a full ring leaves packets with the caller, and wraps at every size") {
  for (const uint32_t ring : {64u, 72u, 4096u}) {
    TxRig rig(ring, 1500);
    uint64_t sent = 0;
    while (sent < 3 * ring) {
      std::vector<Packet> burst;
      for (int i = 0; i < 48; ++i) burst.push_back(rig.Make({60, 40}));
      size_t taken = 0;
      for (int tries = 0; taken < burst.size() && tries < 100; ++tries) {
        taken += rig.tx().Transmit(std::span(burst).subspan(taken));
        if (taken < burst.size()) rig.StepAll(20);
      }
      REQUIRE(taken == burst.size());
      sent += taken;
    }
    rig.StepAll();
    rig.tx().Reap();
    CHECK(rig.stats().frames == sent);
    CHECK(rig.wire.from_nic.size() == sent);
    if (ring == 64) CHECK(rig.stats().ring_full > 0);
    rig.CheckAllReturned();
    rig.CheckClean();
  }
}

TEST_CASE("a segment that has no address drops its packet and undoes the others") {
  for (uint64_t k = 1; k <= 3; ++k) {
    TxRig rig;
    Packet packet = rig.Make({10, 20, 30});
    rig.state.fail_at = k;
    CHECK(rig.Send(packet) == 1);
    rig.state.fail_at = 0;
    CHECK(rig.stats().addressing_failed == 1);
    rig.StepAll();
    CHECK(rig.model.sent_entries().empty());
    rig.CheckAllReturned();
  }
}

TEST_CASE("no packet is released before its own last entry is done") {
  TxRig rig;
  rig.model.sends_nothing = true;
  std::vector<Packet> burst;
  for (int i = 0; i < 5; ++i) burst.push_back(rig.Make({100, 50}));
  REQUIRE(rig.tx().Transmit(burst) == 5);
  CHECK(rig.tx().Reap() == 0);
  CHECK(rig.stats().in_flight == 5);
  rig.model.sends_nothing = false;
  rig.model.Step();
  CHECK(rig.tx().Reap() == 0);  // one of its two
  rig.model.Step();
  CHECK(rig.tx().Reap() == 1);
  rig.StepAll();
  CHECK(rig.tx().Reap() == 4);
  rig.CheckAllReturned();
}

}  // namespace
}  // namespace dmakit::nic::e1000e
