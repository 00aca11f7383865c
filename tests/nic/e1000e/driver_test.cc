// SPDX-License-Identifier: Apache-2.0
//
// Up, down and changes: options that are refused, what a start leaves in the registers whatever was
// there, set-up that fails at any step, and a Stop with packets in flight, on devices that let go
// and that do not.
#include <random>
#include <string>

#include "tests/nic/e1000e/testing.h"

namespace dmakit::nic::e1000e {
namespace {

using testing::NumberedFrame;

TEST_CASE("options are refused with value, rule and remedy") {
  const auto message = [](const PortOptions& port) {
    RigOptions options;
    options.port = port;
    Rig rig(options);
    REQUIRE(rig.MakeSpace().ok());
    const absl::Status status = rig.Open();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  CHECK(message({.ring_size = 56}) == "ring size 56: must be a multiple of 8 between 64 and 4096");
  CHECK(message({.ring_size = 4104}).find("ring size 4104") == 0);
  CHECK(message({.ring_size = 100}).find("ring size 100") == 0);
  CHECK(message({.mtu = 67}) == "mtu 67: must be between 68 and 9000");
  CHECK(message({.mtu = 9001}).find("mtu 9001") == 0);
  CHECK(message({.rx_queues = 3}) == "receive queues 3: this device has 2");
  CHECK(message({.tx_queues = 3}) == "transmit queues 3: this device has 2");
  CHECK(message({.rx_queues = 0, .tx_queues = 0}).find("queues 0") == 0);
  CHECK(message({.page_order = 30}).find("page order 30") == 0);
}

TEST_CASE("a start trusts nothing that an earlier driver left in the registers") {
  std::mt19937_64 random(7);
  RigOptions options = Small();
  Rig rig(options);
  REQUIRE(rig.MakeSpace().ok());
  REQUIRE(rig.Open().ok());
  // Another driver's rings, enables, filters, interrupts: anything, but what tells the MAC address.
  for (size_t at = 0; at < kBarBytes; at += 4) {
    const bool keep =
        (at >= 0x5400 && at < 0x5480) || at == OffsetOf(Reg::kStatus) || at == OffsetOf(Reg::kEecd);
    if (!keep) rig.model.Set(static_cast<Reg>(at), static_cast<uint32_t>(random()));
  }
  REQUIRE(rig.port->Start().ok());
  CHECK(rig.model.Get(Reg::kIms) == 0);
  CHECK(rig.model.Get(Reg::kRfctl) == kRfctlExtended);
  constexpr uint32_t kOff = kCtrlMasterDisable | kCtrlVlan | kCtrlForceSpeed | kCtrlForceDuplex |
                            kCtrlRxPause | kCtrlTxPause | kCtrlPhyReset | kCtrlLinkReset;
  CHECK((rig.model.Get(Reg::kCtrl) & kOff) == 0);
  CHECK((rig.model.Get(Reg::kCtrlExt) & (kCtrlExtEiame | kCtrlExtIame)) == 0);
  CHECK((rig.model.Get(Reg::kExtcnfCtrl) & kExtcnfMdioOwner) == 0);
  for (const Reg reg : {Reg::kIvar, Reg::kEiac, Reg::kIam, Reg::kItr, Reg::kEitr, Reg::kFcal,
                        Reg::kFcah, Reg::kFct, Reg::kFcttv, Reg::kFcrtl, Reg::kFcrth}) {
    INFO("register " << OffsetOf(reg));
    CHECK(rig.model.Get(reg) == 0);
  }
  CHECK(rig.model.Get(Reg::kVet) == 0x8100);
  CHECK(rig.model.Get(Reg::kTipg) == 0x602008);
  CHECK(rig.model.Get(Reg::kPba) == 20);
  for (size_t q = 0; q < kMaxQueues; ++q) {
    for (const Reg reg : {Reg::kRdtr, Reg::kRadv, Reg::kTidv, Reg::kTadv}) {
      CHECK(rig.model.Get(reg, q) == 0);
    }
    CHECK(rig.model.Get(Reg::kRxdctl, q) == 0x01010000);
    CHECK(rig.model.Get(Reg::kTxdctl, q) == 0x01410000);
    CHECK(rig.model.Get(Reg::kTarc, q) == (q == 0 ? 0x04000403 : 0x403));
  }
  CHECK((rig.model.Get(Reg::kRctl) & kRctlLongPackets) != 0);
  for (size_t i = 0; i < kMtaWords; ++i) {
    REQUIRE(rig.model.Get(static_cast<Reg>(OffsetOf(Reg::kMta) + 4 * i)) == 0);
    REQUIRE(rig.model.Get(static_cast<Reg>(OffsetOf(Reg::kVfta) + 4 * i)) == 0);
  }
  CHECK(rig.model.Get(Reg::kRah) == (kRahValid | 0x0100));
  for (uint32_t i = 0; i < 100; ++i) rig.wire.Send(NumberedFrame(i, 60 + i * 80));
  CHECK(Loop(rig, 2) == 100);
  CHECK(rig.wire.from_nic.size() == 100);
  REQUIRE(rig.port->Stop().ok());
  CHECK(rig.iommu->walk_stats().faults == 0);
  CHECK(rig.model.violations() == std::vector<std::string>{});
}

TEST_CASE("without a MAC address in RAL0 the NVM's is taken") {
  Rig rig(Small());
  rig.model.Set(Reg::kRah, 0);
  rig.model.Set(Reg::kRal, 0);
  rig.Start();
  CHECK(rig.port->driver().mac() == std::array<uint8_t, 6>{0x52, 0x54, 0, 0, 0, 1});
}

TEST_CASE("Quiesce ends the DMA of whoever had the device") {
  Rig rig(Small());
  rig.Start();
  REQUIRE(Quiesce(rig.registers(), rig.waiter).ok());
  rig.wire.Send(NumberedFrame(1, 100));
  rig.StepAll(100);
  CHECK(rig.wire.waiting() == 1);
  CHECK(rig.model.Get(Reg::kRctl) == 0);
  rig.model.stuck = true;
  CHECK(Quiesce(rig.registers(), rig.waiter).code() == absl::StatusCode::kDeadlineExceeded);
  rig.model.stuck = false;
  rig.bar.on_read = [](uint64_t) { return kAllOnes; };
  CHECK(Quiesce(rig.registers(), rig.waiter).code() == absl::StatusCode::kUnavailable);
  rig.bar.on_read = nullptr;
}

TEST_CASE("the k-th failure of memory or map, for all k, leaves everything as it was") {
  uint64_t k = 1;
  for (bool triggered = true; triggered; ++k) {
    INFO("k = " << k);
    FailPoint fail;
    RigOptions options = Small();
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
      CHECK(started.code() == absl::StatusCode::kResourceExhausted);
      CHECK(std::string(started.message()).find("e1000e0 ") != std::string::npos);
      CHECK(rig.space->quarantine().count() == 0);
      CHECK(Measure(rig) == before);
      REQUIRE(rig.port->Start().ok());
    }
    for (uint32_t i = 0; i < 40; ++i) rig.wire.Send(NumberedFrame(i, 3000));
    CHECK(Loop(rig, 2) == 40);
    REQUIRE(rig.port->Stop().ok());
    CHECK(Measure(rig) == before);
    rig.CheckClean();
  }
  CHECK(k > 8);
}

TEST_CASE("a device that is gone, or has no end to its reset, makes Start fail by name") {
  Rig rig(Small());
  REQUIRE(rig.MakeSpace().ok());
  REQUIRE(rig.Open().ok());
  rig.bar.on_read = [](uint64_t) { return kAllOnes; };
  const absl::Status gone = rig.port->Start();
  CHECK(gone.code() == absl::StatusCode::kUnavailable);
  CHECK(std::string(gone.message()).find("e1000e0: its registers read all ones") == 0);
  rig.bar.on_read = [](uint64_t offset) -> std::optional<uint64_t> {
    if (offset == OffsetOf(Reg::kEecd)) return 0;
    return std::nullopt;
  };
  const absl::Status endless = rig.port->Start();
  CHECK(endless.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(endless.message()).find("e1000e0: its reset does not end") == 0);
  rig.bar.on_read = nullptr;
  CHECK(rig.port->Start().ok());
}

TEST_CASE("without a link Start goes on, and frames wait") {
  Rig rig(Small());
  rig.model.Set(Reg::kStatus, 0);
  rig.Start();
  CHECK_FALSE(rig.port->driver().link_up());
  rig.model.Set(Reg::kStatus, kStatusLinkUp);
  CHECK(rig.port->driver().link_up());
}

TEST_CASE("Stop sends what is in the ring, counts what nobody asked for, and leaves nothing") {
  for (const dma::Policy policy :
       {dma::Policy::kPersistent, dma::Policy::kStrict, dma::Policy::kDeferred}) {
    INFO(dma::Name(policy));
    Rig rig(Small(policy));
    rig.Start();
    for (uint32_t i = 0; i < 30; ++i) rig.wire.Send(NumberedFrame(i, 500));
    rig.StepAll();
    std::vector<Packet> burst(10);
    uint64_t taken = 0;
    for (uint32_t q = 0; q < 2; ++q) {
      const size_t got = rig.port->Receive(q, burst);
      REQUIRE(rig.port->Transmit(q, std::span(burst).first(got)) == got);
      taken += got;
    }
    REQUIRE(rig.port->Stop().ok());
    CHECK(rig.wire.from_nic.size() == taken);
    CHECK(rig.rx(0).left_at_stop + rig.rx(1).left_at_stop == 30 - taken);
    CHECK(rig.iommu->stats().live_mappings == 0);
    rig.CheckClean();
  }
}

TEST_CASE("what is not sent within the deadline is counted and released") {
  Rig rig(Small());
  rig.Start();
  for (uint32_t i = 0; i < 5; ++i) rig.wire.Send(NumberedFrame(i, 500));
  rig.StepAll();
  rig.model.sends_nothing = true;
  std::vector<Packet> burst(10);
  uint64_t taken = 0;
  for (uint32_t q = 0; q < 2; ++q) {
    const size_t got = rig.port->Receive(q, burst);
    taken += rig.port->Transmit(0, std::span(burst).first(got));
  }
  CHECK(taken == 5);
  const absl::Status stopped = rig.port->Stop();
  CHECK(stopped.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(stopped.message()).find("e1000e0 tq 0: 5 packets not sent") !=
        std::string::npos);
  CHECK(rig.tx(0).device_errors == 5);
  CHECK(rig.iommu->stats().live_mappings == 0);
}

TEST_CASE("a stopped port receives and sends nothing, and packets stay the caller's") {
  Rig rig(Small());
  rig.Start();
  rig.wire.Send(NumberedFrame(1, 500));
  rig.StepAll();
  std::vector<Packet> burst(4);
  size_t got = 0;
  uint32_t queue = 0;
  for (; got == 0 && queue < 2; ++queue) got = rig.port->Receive(queue, burst);
  REQUIRE(got == 1);
  REQUIRE(rig.port->Stop().code() == absl::StatusCode::kDeadlineExceeded);  // the packet is out
  CHECK(rig.port->Receive(0, burst) == 0);
  CHECK(rig.port->Transmit(0, std::span(burst).first(1)) == 0);
  CHECK(burst[0].segment_count == 1);
  CHECK(rig.port->Reap(0) == 0);
  CHECK(rig.tx(0).dropped == 0);
  Release(std::span(burst).first(1), nullptr);
}

TEST_CASE("a device that does not let go has its rings and buffers quarantined") {
  for (const bool gone : {false, true}) {
    INFO((gone ? "gone" : "stuck"));
    Rig rig(Small());
    rig.audit.Expect(dma::AuditCode::kLeaked);
    rig.Start();
    if (gone) {
      rig.bar.on_read = [](uint64_t) { return kAllOnes; };
    } else {
      rig.model.stuck = true;
    }
    const absl::Status stopped = rig.port->Stop();
    CHECK(stopped.code() == absl::StatusCode::kDeadlineExceeded);
    CHECK(std::string(stopped.message()).find(gone ? "the device is gone" : "still doing DMA") !=
          std::string::npos);
    CHECK(rig.space->quarantine().count() >= 4);
    rig.port.reset();
    CHECK(rig.space->quarantine().ReleaseAfterReset("e1000e0").ok());
  }
}

TEST_CASE("a port changes its rings, MTU and queues, and loses no frame") {
  Rig rig(Small());
  rig.Start();
  uint32_t serial = 0;
  uint64_t moved = 0;
  for (const uint32_t ring : {64u, 72u, 4096u, 128u}) {
    for (const uint32_t queues : {1u, 2u}) {
      for (const uint32_t mtu : {1500u, 9000u}) {
        for (uint32_t i = 0; i < 40; ++i) rig.wire.Send(NumberedFrame(serial++, 60 + i * 30));
        rig.StepAll();  // received, and not asked for
        PortOptions options = rig.port->options();
        options.ring_size = ring;
        options.mtu = mtu;
        options.rx_queues = options.tx_queues = queues;
        const absl::Status changed = rig.port->Reconfigure(options);
        INFO(changed);
        REQUIRE(changed.ok());
        moved += Loop(rig, queues);
      }
    }
  }
  CHECK(moved == serial);
  CHECK(rig.wire.from_nic.size() == serial);
  REQUIRE(rig.port->Stop().ok());
  rig.CheckClean();
}

TEST_CASE("frames that the device has no room for are counted, over restarts") {
  RigOptions options = Small();
  options.port.rx_queues = 1;
  options.model.lossless = false;
  Rig rig(options);
  rig.Start();
  for (uint32_t i = 0; i < 100; ++i) rig.wire.Send(NumberedFrame(i, 100));
  rig.StepAll();
  CHECK(rig.rx().device_no_buffer == 100 - 63);
  CHECK(rig.rx().dropped == 100 - 63);
  REQUIRE(rig.port->Stop().ok());
  REQUIRE(rig.port->Start().ok());
  CHECK(rig.rx().device_no_buffer == 100 - 63);
}

TEST_CASE("what the chip counts adds up over looks and restarts, and not what was before") {
  Rig rig(Small());
  rig.model.Set(Reg::kCrcErrors, 77);  // an earlier driver's
  rig.Start();
  CHECK(rig.port->driver().counters().crc_errors == 0);
  rig.model.Set(Reg::kCrcErrors, 5);
  rig.model.Set(Reg::kJabbers, 1);
  rig.model.Set(Reg::kNoBuffers, 0xfffffff0);
  CHECK(rig.port->driver().counters().crc_errors == 5);
  CHECK(rig.port->driver().counters().crc_errors == 5);
  rig.model.Set(Reg::kCrcErrors, 2);
  rig.model.Set(Reg::kNoBuffers, 0xfffffff0);
  REQUIRE(rig.port->Stop().ok());
  rig.model.Set(Reg::kCrcErrors, 1000);  // while it is nobody's
  CHECK(rig.port->driver().counters().crc_errors == 7);
  REQUIRE(rig.port->Start().ok());
  for (uint32_t i = 0; i < 10; ++i) rig.wire.Send(NumberedFrame(i, 100));
  CHECK(Loop(rig, 2) == 10);
  const ChipCounters now = rig.port->driver().counters();
  CHECK(now.received == 10);
  CHECK(now.sent == 10);
  CHECK(now.crc_errors == 7);
  CHECK(now.jabbers == 1);
  CHECK(now.no_buffer == 2 * uint64_t{0xfffffff0});
  CHECK(now.missed == 0);
  // A count that reads all ones is one, unless everything does.
  rig.model.Set(Reg::kMissedPackets, kAllOnes);
  CHECK(rig.rx().device_no_buffer == kAllOnes);
  rig.bar.on_read = [](uint64_t) { return kAllOnes; };
  CHECK(rig.port->driver().counters().missed == kAllOnes);
  CHECK(rig.port->driver().counters().received == 10);
  rig.bar.on_read = nullptr;
  REQUIRE(rig.port->Stop().ok());
}

TEST_CASE("firmware that keeps the PHY delays a start, and does not stop it") {
  Rig rig(Small());
  rig.bar.on_write = [](uint64_t offset, uint64_t) { return offset != OffsetOf(Reg::kExtcnfCtrl); };
  rig.Start();
  rig.wire.Send(NumberedFrame(1, 100));
  CHECK(Loop(rig, 2) == 1);
  REQUIRE(rig.port->Stop().ok());
  rig.CheckClean();
}

}  // namespace
}  // namespace dmakit::nic::e1000e
