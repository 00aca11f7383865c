// SPDX-License-Identifier: Apache-2.0
//
// Up and down: options that are refused, set-up that fails at any step, what a start writes to the
// registers, and a Stop with frames and packets in flight, on devices that let go and that do not.
#include <string>
#include <vector>

#include "nic/endian.h"
#include "tests/nic/liquidio/testing.h"

namespace dmakit::nic::liquidio {
namespace {

using testing::NumberedFrame;

// --- Options -------------------------------------------------------------------------------------

TEST_CASE("options are refused with value, rule and remedy") {
  const auto message = [](const PortOptions& port, const DrivenAs& as = {}) {
    RigOptions options;
    options.port = port;
    options.extra = as;
    Rig rig(options);
    REQUIRE(rig.MakeSpace().ok());
    const absl::Status status = rig.Open();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  CHECK(message({.ring_size = 127}) == "ring size 127: must be between 128 and 2048");
  CHECK(message({.ring_size = 2049}).find("ring size 2049") == 0);
  CHECK(message({.ring_size = 0}).find("ring size 0") == 0);
  CHECK(message({.mtu = 67}) == "mtu 67: must be between 68 and 9000");
  CHECK(message({.mtu = 9001}) == "mtu 9001: must be between 68 and 9000");
  CHECK(message({.rx_queues = 0, .tx_queues = 0}).find("queues 0") == 0);
  CHECK(message({.rx_queues = 65}) ==
        "liquidio0: receive queues 65: this physical function has 64 rings");
  CHECK(message({.tx_queues = 9}, {.vf = true}) ==
        "liquidio0: transmit queues 9: this virtual function has 8 rings");
  CHECK(message({.vlan_strip = true}).find("vlan_strip 1: needs a command") == 0);
  CHECK(message({.page_order = 30}).find("page order 30") == 0);
}

// --- Set-up --------------------------------------------------------------------------------------

TEST_CASE("the k-th failure of memory or map, for all k, leaves everything as it was") {
  for (const ReceiveMode mode : kModes) {
    bool rings = false, lists = false, infos = false;
    uint64_t k = 1;
    for (bool triggered = true; triggered; ++k) {
      INFO("k = " << k);
      FailPoint fail;
      RigOptions options = Small();
      options.extra.mode = mode;
      options.fail = &fail;
      Rig rig(options);
      REQUIRE(rig.MakeSpace().ok());
      REQUIRE(rig.Open().ok());
      const Footprint before = Measure(rig);
      fail.FailAt(k);
      const absl::Status started = rig.port->Start();
      triggered = fail.triggered();
      fail.FailAt(0);
      INFO(started);
      if (!started.ok()) {
        // A page that is not to be had at one size is had at another; a ring is not.
        CHECK(started.code() == absl::StatusCode::kResourceExhausted);
        const std::string words(started.message());
        CHECK(words.find("liquidio0 ") != std::string::npos);
        rings |= words.find("liquidio0 iq 1'") != std::string::npos ||
                 words.find("liquidio0 iq 1") != std::string::npos;
        lists |= words.find("liquidio0 iq 0 gather lists") != std::string::npos;
        infos |= words.find("liquidio0 oq 1 info buffers") != std::string::npos;
        CHECK(rig.space->quarantine().count() == 0);
        CHECK(Measure(rig) == before);
        REQUIRE(rig.port->Start().ok());
      }
      for (uint32_t i = 0; i < 40; ++i) rig.wire.Send(NumberedFrame(i, 2000));
      CHECK(Loop(rig, 2) == 40);
      REQUIRE(rig.port->Stop().ok());
      CHECK(Measure(rig) == before);
      rig.CheckClean();
    }
    CHECK(k > 8);
    CHECK(rings);
    CHECK(lists);
    CHECK(infos == (mode == ReceiveMode::kInfo));
  }
}

TEST_CASE("a start clears and enables as the sheet says, in its order") {
  for (const ReceiveMode mode : kModes) {
    HandRigOptions options;
    options.port = {.ring_size = 200, .mtu = 1500};
    options.extra.mode = mode;
    HandRig rig(options);
    rig.bar.logging = true;
    rig.Start();
    CHECK(rig.model.resets[0] == 1);
    CHECK(rig.model.resets[1] == 0);
    const HandDevice::Ring& ring = rig.model.ring(0);
    // IS_64B and RING_ENB over RDSIZE 3, DATA_ES, USE_CSR.
    CHECK(ring.input_control == (0x06000050 | 1 << 24 | 1 << 22));
    CHECK(ring.output_control == (mode == ReceiveMode::kInfo ? 0xa41u : 0x241u));
    CHECK(ring.iq_size == 200);
    CHECK(ring.oq_size == 200);
    CHECK(ring.out_size >> 16 == (mode == ReceiveMode::kInfo ? 8u : 0u));
    CHECK(ring.buffer_bytes() == 1544);
    CHECK(ring.iq_base % 128 == 0);
    CHECK(ring.oq_base % 128 == 0);
    CHECK(ring.credits == 200);
    CHECK(ring.iq_doorbell == 0);
    CHECK(static_cast<uint32_t>(ring.in_done) == 0);
    CHECK(static_cast<uint32_t>(ring.sent) == 0);
    // Credits are the last word of a ring.
    CHECK(rig.bar.writes.back().offset == 0x10080);
    CHECK(rig.bar.writes.back().value == 200);
    rig.CheckClean();
  }
}

TEST_CASE("rings are poisoned before the device sees them, info buffers are zero") {
  HandRigOptions options;
  options.port = {.ring_size = 128, .mtu = 1500};
  HandRig rig(options);
  rig.Start();
  const auto port = rig.iommu->NewPort("looker");
  std::array<std::byte, 64> bytes{};
  REQUIRE(port->Read(Iova{rig.model.ring(0).iq_base}, bytes));
  for (const std::byte b : bytes) CHECK(b == std::byte{0xff});
  for (uint32_t i = 0; i < 128; ++i) {
    std::array<std::byte, 16> slot{}, info{};
    REQUIRE(port->Read(Iova{rig.model.ring(0).oq_base + 16 * i}, slot));
    REQUIRE(port->Read(Iova{LoadLe<uint64_t>(slot, 8)}, info));
    REQUIRE(LoadBe<uint64_t>(info, 8) == 0);
  }
}

TEST_CASE("a ring that cannot be taken over makes Start fail by name") {
  for (const bool gone : {false, true}) {
    HandRig rig;
    REQUIRE(rig.MakeSpace().ok());
    REQUIRE(rig.Open().ok());
    (gone ? rig.model.gone : rig.model.stuck) = true;
    const absl::Status started = rig.port->Start();
    CHECK(started.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(std::string(started.message()).find("liquidio0 ring 0: could not be taken over") == 0);
    CHECK(rig.iommu->stats().live_mappings == 0);
    rig.model.gone = rig.model.stuck = false;
    CHECK(rig.port->Start().ok());
    CHECK(rig.port->Stop().ok());
  }
}

// --- Stop ----------------------------------------------------------------------------------------

TEST_CASE("1,000 times Start, traffic and Stop") {
  Rig rig(Small());
  REQUIRE(rig.MakeSpace().ok());
  REQUIRE(rig.Open().ok());
  const Footprint before = Measure(rig);
  for (uint32_t round = 0; round < 1000; ++round) {
    REQUIRE(rig.port->Start().ok());
    for (uint32_t i = 0; i < 10; ++i) rig.wire.Send(NumberedFrame(i, 60 + round * 7 % 8000));
    REQUIRE(Loop(rig, 2) == 10);
    REQUIRE(rig.port->Stop().ok());
    REQUIRE(Measure(rig) == before);
  }
  CHECK(rig.tx(0).frames + rig.tx(1).frames == 10000);
  rig.CheckClean();
}

TEST_CASE("a stopped port receives and sends nothing; Start of a running one changes nothing") {
  Rig rig(Small());
  REQUIRE(rig.MakeSpace().ok());
  REQUIRE(rig.Open().ok());
  std::vector<Packet> packets(4);
  CHECK(rig.port->Receive(0, packets) == 0);
  CHECK(rig.port->Reap(0) == 0);
  Packet packet;
  packet.ResetTo({});
  packet.length = packet.segments[0].length = 60;
  CHECK(rig.port->Transmit(0, {&packet, 1}) == 0);
  CHECK(rig.port->Transmit(0, {&packet, 1}) == 0);
  CHECK_FALSE(rig.port->Arm(0));
  CHECK(rig.port->Stop().ok());
  REQUIRE(rig.port->Start().ok());
  CHECK(rig.port->Start().code() == absl::StatusCode::kFailedPrecondition);
  rig.wire.Send(NumberedFrame(1, 60));
  CHECK(Loop(rig, 2) == 1);
  REQUIRE(rig.port->Stop().ok());
}

TEST_CASE("Stop with full receive rings, and frames in them that nobody asked for") {
  for (const ReceiveMode mode : kModes) {
    RigOptions options;
    options.port = {.ring_size = 128, .mtu = 1500};
    options.extra.mode = mode;
    Rig rig(options);
    rig.Start();
    for (uint32_t i = 0; i < 500; ++i) rig.wire.Send(NumberedFrame(i, 60));
    rig.StepAll();
    REQUIRE(rig.port->Stop().ok());
    CHECK(rig.rx().left_at_stop == 128);
    CHECK(rig.rx().frames == 0);
    CHECK(rig.iommu->stats().live_mappings == 0);
    rig.CheckClean();
  }
}

TEST_CASE("Stop sends what is in the transmit ring first") {
  HandTxRig rig;
  std::vector<Packet> packets;
  for (uint32_t i = 0; i < 100; ++i) packets.push_back(rig.Make({60, 60}));
  REQUIRE(rig.tx().Transmit(packets) == 100);
  REQUIRE(rig.driver->Stop().ok());
  CHECK(rig.wire.from_nic.size() == 100);
  CHECK(rig.stats().frames == 100);
  CHECK(rig.stats().device_errors == 0);
  rig.CheckAllReturned();
}

TEST_CASE("packets that the device does not fetch are given back, counted and named") {
  HandTxRig rig;
  rig.bar.on_write = [](uint64_t offset, uint64_t) { return offset != 0x10020; };
  std::vector<Packet> packets;
  for (uint32_t i = 0; i < 10; ++i) packets.push_back(rig.Make({60, 60}));
  REQUIRE(rig.tx().Transmit(packets) == 10);
  const absl::Status stopped = rig.driver->Stop();
  CHECK(stopped.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(stopped.message()).find("liquidio0 iq 0: 10 packets not sent") !=
        std::string::npos);
  CHECK(rig.stats().device_errors == 10);
  CHECK(rig.space->quarantine().count() == 0);
  rig.CheckAllReturned();
}

TEST_CASE(
    "a ring that is never reset: all that the device may still use is held, until its reset") {
  for (const ReceiveMode mode : kModes) {
    HandRigOptions options;
    options.port = {.ring_size = 128, .mtu = 1500, .stop_deadline = dma::Nanos{2'000'000}};
    options.extra.mode = mode;
    HandRig rig(options);
    rig.Start();
    rig.model.stuck = true;
    const absl::Status stopped = rig.port->Stop();
    CHECK(stopped.code() == absl::StatusCode::kDeadlineExceeded);
    const std::string words(stopped.message());
    CHECK(words.find("liquidio0 iq 0: the ring was not reset") != std::string::npos);
    CHECK(words.find("liquidio0 oq 0: the ring was not reset") != std::string::npos);
    const uint64_t blocks = mode == ReceiveMode::kInfo ? 4 : 3;
    CHECK(rig.space->quarantine().count() == blocks);
    rig.port.reset();
    CHECK(rig.space->quarantine().count() > blocks);  // the posted buffers' pages, too
    CHECK(rig.memory.blocks() > 0);
    rig.audit.Expect(dma::AuditCode::kLeaked);
    CHECK(rig.space->quarantine().ReleaseAfterReset("").ok());
    CHECK(rig.memory.blocks() == 0);
    CHECK(rig.iommu->stats().live_mappings == 0);
  }
}

}  // namespace
}  // namespace dmakit::nic::liquidio
