// SPDX-License-Identifier: Apache-2.0
//
// Bringing a port up and down: whatever fails on the way, a thousand times, with full rings, with
// packets in other hands, and with devices that do not let go. What is measured is always what is
// left: blocks of memory, mappings, IOVAs.
#include <string>
#include <vector>

#include "dma/quarantine.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {
namespace {

TEST_CASE("the k-th failure of memory, map or thread, for all k, leaves everything as it was") {
  for (const dma::Policy policy :
       {dma::Policy::kPersistent, dma::Policy::kStrict, dma::Policy::kDeferred}) {
    INFO(dma::Name(policy));
    int failed_opens = 0, failed_starts = 0, short_starts = 0;
    for (uint64_t k = 1;; ++k) {
      INFO("k = " << k);
      FailPoint fail;
      RigOptions options = Small(policy);
      options.fail = &fail;
      Rig rig(options);
      REQUIRE(rig.MakeSpace().ok());
      REQUIRE(rig.Open().ok());  // once without failure, so that the space knows its device
      rig.port.reset();
      const Footprint closed = Measure(rig);

      fail.FailAt(k);
      if (!rig.Open().ok()) {
        ++failed_opens;
        REQUIRE(rig.port == nullptr);
        REQUIRE(Measure(rig) == closed);
        continue;
      }
      const Footprint opened = Measure(rig);
      const absl::Status started = rig.port->Start();
      if (!started.ok()) {
        ++failed_starts;
        INFO(started);
        REQUIRE(Measure(rig) == opened);
        fail.FailAt(0);
        REQUIRE(rig.port->Start().ok());  // and it can be tried again
      } else if (fail.triggered()) {
        ++short_starts;  // one page less: the ring is filled later
      }
      const bool done = !fail.triggered() && started.ok();
      rig.wire.Send(testing::NumberedFrame(1, 100));
      CHECK(Loop(rig, 2) == 1);
      REQUIRE(rig.port->Stop().ok());
      rig.port.reset();
      REQUIRE(Measure(rig) == closed);
      rig.CheckClean();
      if (done) break;
    }
    CHECK(failed_starts >= 9);  // two blocks and their maps for each of four queues, and more
    CHECK(short_starts > 0);
    CHECK(failed_opens + failed_starts + short_starts > 20);
  }
}

TEST_CASE("all failures from the k-th on, too") {
  for (uint64_t k = 1; k < 60; ++k) {
    FailPoint fail;
    RigOptions options = Small();
    options.fail = &fail;
    Rig rig(options);
    REQUIRE(rig.MakeSpace().ok());
    REQUIRE(rig.Open().ok());
    const Footprint opened = Measure(rig);
    fail.FailAt(k, true);
    const absl::Status started = rig.port->Start();
    if (!started.ok()) {
      CHECK_FALSE(started.message().empty());
      REQUIRE(Measure(rig) == opened);
    }
    fail.FailAt(0);
    rig.port.reset();
    REQUIRE(rig.iommu->stats().live_mappings == 0);
    rig.CheckClean();
  }
}

TEST_CASE("the thread of a model can fail to start, and a model without one is simply not run") {
  FailPoint fail;
  dma::host::FakeThreads threads(&fail);
  Rig rig(Small());
  fail.FailAt(1);
  CHECK_FALSE(nic::ModelThread::Start(rig.model, threads).ok());
  CHECK(nic::ModelThread::Start(rig.model, threads).ok());
}

TEST_CASE("every devcmd of the way up can fail") {
  int failures = 0;
  for (int k = 1;; ++k) {
    Rig rig(Small());
    REQUIRE(rig.MakeSpace().ok());
    REQUIRE(rig.Open().ok());
    const Footprint opened = Measure(rig);
    const uint64_t devcmd = BlockAt(rig.model.bar0(), ResourceType::kDevcmd, 0);
    // The k-th command is said to have failed.
    int commands = 0;
    bool spoilt = false;
    rig.bar.on_write = [&](uint64_t offset, uint64_t) {
      if (offset == devcmd + kDevcmdCmd) spoilt = ++commands == k;
      return true;
    };
    rig.bar.on_read = [&](uint64_t offset) -> std::optional<uint64_t> {
      if (!spoilt || offset != devcmd + kDevcmdStatus) return std::nullopt;
      const uint32_t real = rig.model.bar0().Read32(offset);
      return (real & kDevcmdBusy) != 0 ? real : real | kDevcmdError;
    };
    const absl::Status started = rig.port->Start();
    rig.bar.on_read = nullptr;
    if (commands < k) {
      CHECK(started.ok());
      break;
    }
    ++failures;
    CHECK(started.code() == absl::StatusCode::kInternal);
    REQUIRE(Measure(rig) == opened);
    rig.bar.on_write = nullptr;
    // The command was done all the same, so an OPEN that "failed" is the only one not undone.
    if (k > 1) {
      const absl::Status again = rig.port->Start();
      INFO("k = " << k << ": " << started << ", then " << again);
      REQUIRE(again.ok());
      REQUIRE(rig.port->Stop().ok());
      rig.CheckClean();
    }
  }
  CHECK(failures >= 9);
}

TEST_CASE("a device that refuses a ring makes Start fail by name") {
  Rig rig(Small());
  REQUIRE(rig.MakeSpace().ok());
  REQUIRE(rig.Open().ok());
  const uint64_t rq = BlockAt(rig.model.bar0(), ResourceType::kRq, 1);
  rig.bar.on_write = [&](uint64_t offset, uint64_t) {
    return offset != rq + OffsetOf(RqReg::kRingSize);  // lost: the device keeps size 0 = 4096
  };
  rig.bar.on_read = [&](uint64_t offset) -> std::optional<uint64_t> {
    if (offset == rq + OffsetOf(RqReg::kErrorStatus)) return 77;
    return std::nullopt;
  };
  const absl::Status started = rig.port->Start();
  CHECK(started.message() == "enic0 rq 1: the device refused its set-up with error_status 77");
  CHECK(rig.iommu->stats().live_mappings == 0);
}

TEST_CASE("1,000 times Start, traffic and Stop") {
  Rig rig(Small());
  REQUIRE(rig.MakeSpace().ok());
  REQUIRE(rig.Open().ok());
  const Footprint opened = Measure(rig);
  uint64_t moved = 0;
  for (int round = 0; round < 1000; ++round) {
    REQUIRE(rig.port->Start().ok());
    for (uint32_t i = 0; i < 3; ++i) {
      rig.wire.Send(
          testing::MakeFrame({.size = 60 + i * 1000, .source_port = static_cast<uint16_t>(round)}));
    }
    moved += Loop(rig, 2);
    REQUIRE(rig.port->Stop().ok());
    REQUIRE(Measure(rig) == opened);
  }
  CHECK(moved == 3000);
  CHECK(rig.wire.from_nic.size() == 3000);
  CHECK(rig.port->Stop().ok());  // idempotent
  const PortStats stats = rig.port->stats();
  CHECK(stats.queues[0].rx.frames + stats.queues[1].rx.frames == 3000);  // since it was opened
  rig.CheckClean();
}

TEST_CASE("1,000 times open and close") {
  Rig rig(Small());
  REQUIRE(rig.MakeSpace().ok());
  REQUIRE(rig.Open().ok());
  rig.port.reset();
  const Footprint closed = Measure(rig);
  for (int round = 0; round < 1000; ++round) {
    REQUIRE(rig.Open().ok());
    if (round % 2 == 0) {
      REQUIRE(rig.port->Start().ok());
      rig.wire.Send(testing::NumberedFrame(1, 2000));
      REQUIRE(Loop(rig, 2) == 1);
    }
    rig.port.reset();  // stops it
    REQUIRE(Measure(rig) == closed);
  }
  rig.CheckClean();
}

TEST_CASE("Start of a running port changes nothing") {
  Rig rig(Small());
  rig.Start();
  CHECK(rig.port->Start().code() == absl::StatusCode::kFailedPrecondition);
  rig.wire.Send(testing::NumberedFrame(1, 100));
  CHECK(Loop(rig, 2) == 1);
}

TEST_CASE("a stopped port receives and sends nothing, and says so") {
  Rig rig(Small());
  rig.Start();
  REQUIRE(rig.port->Stop().ok());
  std::vector<Packet> packets(4);
  CHECK(rig.port->Receive(0, packets) == 0);
  CHECK(rig.port->Reap(0) == 0);
  frag::Page page;
  packets[0].ResetTo({&page, 0, 60});
  CHECK(rig.port->Transmit(0, std::span(packets).first(1)) == 0);
  CHECK(packets[0].segment_count == 1);  // still the caller's
}

TEST_CASE("Stop with full receive rings, and frames in them that nobody asked for") {
  Rig rig(Small());
  rig.Start();
  for (uint32_t i = 0; i < 50; ++i) {
    rig.wire.Send(testing::MakeFrame({.size = 200, .source_port = static_cast<uint16_t>(i)}));
  }
  rig.StepAll();
  REQUIRE(rig.port->Stop().ok());
  CHECK(rig.rx(0).left_at_stop + rig.rx(1).left_at_stop == 50);
  CHECK(rig.rx(0).left_at_stop > 0);
  CHECK(rig.rx(0).posted == 0);
  CHECK(rig.rx(0).dropped == 0);
  CHECK(rig.iommu->stats().live_mappings == 0);
  CHECK(rig.space->quarantine().count() == 0);
  rig.CheckClean();
}

TEST_CASE("Stop sends what is in the transmit ring first") {
  Rig rig(Small());
  rig.Start();
  std::vector<Packet> packets(32);
  for (uint32_t i = 0; i < 20; ++i) rig.wire.Send(testing::NumberedFrame(i, 500));
  size_t sent = 0;
  rig.StepAll();
  for (uint32_t q = 0; q < 2; ++q) {
    const size_t got = rig.port->Receive(q, packets);
    sent += rig.port->Transmit(q, std::span(packets).first(got));
  }
  CHECK(sent == 20);
  CHECK(rig.wire.from_nic.empty());
  REQUIRE(rig.port->Stop().ok());
  CHECK(rig.wire.from_nic.size() == 20);
  CHECK(rig.tx(0).frames + rig.tx(1).frames == 20);
  rig.CheckClean();
}

TEST_CASE("packets held by the application are named, waited for, and good until released") {
  Rig rig(Small());
  rig.Start();
  const Frame frame = testing::NumberedFrame(3, 700);
  rig.wire.Send(frame);
  rig.StepAll();
  std::vector<Packet> held(2);
  size_t got = 0;
  uint32_t queue = 0;
  for (; got == 0; ++queue) got = rig.port->Receive(queue, held);
  --queue;
  const dma::Nanos before = rig.waiter.Now();
  const absl::Status stopped = rig.port->Stop();
  CHECK(stopped.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(stopped.message())
            .find("enic0 rq " + std::to_string(queue) + " buffers: 1 pages are still held") !=
        std::string::npos);
  CHECK(rig.waiter.Now() - before >= rig.options_.port.stop_deadline);
  CHECK(BytesOf(held[0]) == frame);
  CHECK(rig.iommu->stats().live_mappings == 1);

  // It can go on meanwhile; and once the packet is back, stopping is clean.
  REQUIRE(rig.port->Start().ok());
  Release(std::span(held).first(1), nullptr);
  CHECK(rig.port->Stop().ok());
  CHECK(rig.iommu->stats().live_mappings == 0);
  rig.CheckClean();
}

TEST_CASE("packets held beyond the port's end are quarantined with their memory") {
  Rig rig(Small());
  rig.Start();
  const Frame frame = testing::NumberedFrame(3, 700);
  rig.wire.Send(frame);
  rig.StepAll();
  std::vector<Packet> held(1);
  for (uint32_t q = 0; q < 2 && rig.port->Receive(q, held) == 0; ++q) {
  }
  rig.port.reset();
  CHECK(rig.space->quarantine().count() == 1);
  CHECK(BytesOf(held[0]) == frame);
  Release(held, nullptr);  // late, and harmless
  CHECK(rig.space->quarantine().ReleaseAfterReset("").ok());
  CHECK(rig.memory.blocks() == 0);
  CHECK(rig.iommu->stats().live_mappings == 0);
}

// --- Devices that do not let go ------------------------------------------------------------------

// Where the device would write: the first buffer of receive queue 0.
Iova FirstBuffer(Rig& rig, dma::DevicePort& port) {
  std::array<std::byte, 16> bytes{};
  REQUIRE(port.Read(Iova{rig.ReadReg(ResourceType::kRq, 0, RqReg::kRingBase, 8)}, bytes));
  return Iova{DecodeRq(FromBytes(bytes)).address};
}

TEST_CASE("a receive queue that keeps running: everything it may write to is quarantined") {
  Rig rig(Small());
  rig.audit.Expect(dma::AuditCode::kLeaked);
  rig.Start();
  const auto device = rig.iommu->NewPort("late device");
  const Iova buffer = FirstBuffer(rig, *device);
  const Iova ring{rig.ReadReg(ResourceType::kCq, 0, CqReg::kRingBase, 8)};
  const uint64_t running =
      BlockAt(rig.model.bar0(), ResourceType::kRq, 0) + OffsetOf(RqReg::kRunning);
  rig.bar.on_read = [&](uint64_t offset) -> std::optional<uint64_t> {
    return offset == running ? std::optional<uint64_t>(1) : std::nullopt;
  };
  const absl::Status stopped = rig.port->Stop();
  CHECK(std::string(stopped.message())
            .find("enic0 rq 0: still running when the stop deadline passed") != std::string::npos);
  CHECK(rig.space->quarantine().count() == 2);  // ring and completion ring

  // It cannot be started over a running queue.
  const absl::Status again = rig.port->Start();
  CHECK(again.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(again.message()).find("enic0 rq 0: in use before it was set up") == 0);

  // Late writes hurt nobody, now and after the port is gone.
  const Frame late(1000, std::byte{0xee});
  CHECK(device->Write(buffer, late));
  CHECK(device->Write(ring, std::span(late).first(16)));
  rig.port.reset();
  CHECK(device->Write(buffer, late) == false);  // detached: a fault, on record
  CHECK(rig.memory.written_after_free() == 0);
  CHECK(rig.space->quarantine().count() > 2);  // the posted pages came as well
  CHECK(rig.space->quarantine().ReleaseAfterReset("").ok());
  CHECK(rig.space->quarantine().count() == 0);
  CHECK(rig.memory.blocks() == 0);
  CHECK(rig.iommu->stats().live_mappings == 0);
}

TEST_CASE("a transmit queue that keeps running keeps its packets' pages") {
  Rig rig(Small());
  rig.audit.Expect(dma::AuditCode::kLeaked);
  rig.Start();
  std::vector<Packet> packets(32);
  rig.wire.Send(testing::NumberedFrame(1, 500));
  rig.StepAll();
  size_t got = 0;
  for (uint32_t q = 0; got == 0; ++q) got = rig.port->Receive(q, packets);
  const uint64_t wq = BlockAt(rig.model.bar0(), ResourceType::kWq, 0);
  rig.bar.on_write = [&](uint64_t offset, uint64_t) {
    return offset != wq + OffsetOf(WqReg::kPostedIndex);  // the doorbell never arrives
  };
  rig.bar.on_read = [&](uint64_t offset) -> std::optional<uint64_t> {
    return offset == wq + OffsetOf(WqReg::kRunning) ? std::optional<uint64_t>(1) : std::nullopt;
  };
  REQUIRE(rig.port->Transmit(0, std::span(packets).first(1)) == 1);
  const absl::Status stopped = rig.port->Stop();
  INFO(stopped);
  CHECK(std::string(stopped.message()).find("enic0 wq 0: still running") != std::string::npos);
  CHECK(std::string(stopped.message()).find("1 pages are still held") != std::string::npos);
  CHECK(rig.tx().device_errors == 1);
  CHECK(rig.tx().in_flight == 0);
  rig.port.reset();
  CHECK(rig.space->quarantine().ReleaseAfterReset("").ok());
  CHECK(rig.memory.blocks() == 0);
}

TEST_CASE("a doorbell that never arrives: the packets are given back, counted and named") {
  Rig rig(Small());
  rig.Start();
  std::vector<Packet> packets(32);
  for (uint32_t i = 0; i < 5; ++i) rig.wire.Send(testing::NumberedFrame(1, 500));
  rig.StepAll();
  size_t got = 0;
  for (uint32_t q = 0; got == 0; ++q) got = rig.port->Receive(q, packets);
  const uint64_t wq = BlockAt(rig.model.bar0(), ResourceType::kWq, 0);
  rig.bar.on_write = [&](uint64_t offset, uint64_t value) {
    return offset != wq + OffsetOf(WqReg::kPostedIndex) || value == 0;
  };
  REQUIRE(rig.port->Transmit(0, std::span(packets).first(got)) == got);
  const absl::Status stopped = rig.port->Stop();
  CHECK(stopped.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(stopped.message()).find("enic0 wq 0: 5 packets not sent") != std::string::npos);
  CHECK(rig.tx().dropped == 5);
  CHECK(rig.iommu->stats().live_mappings == 0);
  CHECK(rig.space->quarantine().count() == 0);
  rig.bar.on_write = nullptr;
  REQUIRE(rig.port->Start().ok());
  rig.wire.Send(testing::NumberedFrame(1, 500));
  CHECK(Loop(rig, 2) == 1);
  rig.CheckClean();
}

TEST_CASE("a device that is gone ends Stop at once, with everything quarantined") {
  Rig rig(Small());
  rig.audit.Expect(dma::AuditCode::kLeaked);
  rig.Start();
  rig.bar.on_read = [](uint64_t) -> std::optional<uint64_t> { return ~uint64_t{0}; };
  const dma::Nanos before = rig.waiter.Now();
  const absl::Status stopped = rig.port->Stop();
  INFO(stopped);
  CHECK(std::string(stopped.message()).find("the device is gone") != std::string::npos);
  CHECK(rig.space->quarantine().count() == 8);  // four queues
  CHECK(rig.waiter.Now() - before <= rig.options_.port.stop_deadline * 2);
  const PortStats stats = rig.port->stats();
  CHECK(stats.queues[0].rx.device_no_buffer == 0);
  CHECK_FALSE(rig.port->Start().ok());
  rig.port.reset();
  CHECK(rig.space->quarantine().ReleaseAfterReset("").ok());
  CHECK(rig.memory.blocks() == 0);
}

TEST_CASE("a command that never ends keeps what it points to in quarantine") {
  Rig rig(Small());
  rig.audit.Expect(dma::AuditCode::kLeaked);
  REQUIRE(rig.MakeSpace().ok());
  REQUIRE(rig.Open().ok());
  const uint64_t devcmd = BlockAt(rig.model.bar0(), ResourceType::kDevcmd, 0);
  bool stuck = false;
  rig.bar.on_write = [&](uint64_t offset, uint64_t value) {
    const DevcmdWord word = DecodeDevcmd(static_cast<uint32_t>(value));
    stuck |= offset == devcmd + kDevcmdCmd && word.command() == Devcmd::kDevSpec;
    return true;
  };
  rig.bar.on_read = [&](uint64_t offset) -> std::optional<uint64_t> {
    if (stuck && offset == devcmd + kDevcmdStatus) return kDevcmdBusy;
    return std::nullopt;
  };
  const absl::Status started = rig.port->Start();
  CHECK(started.code() == absl::StatusCode::kDeadlineExceeded);
  REQUIRE(rig.space->quarantine().count() == 1);
  CHECK(rig.space->quarantine().Describe()[0].find("enic0 devcmd parameters") != std::string::npos);
  rig.port.reset();
  CHECK(rig.space->quarantine().ReleaseAfterReset("enic0").ok());
  CHECK(rig.memory.blocks() == 0);
}

}  // namespace
}  // namespace dmakit::nic::enic
