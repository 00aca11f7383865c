// SPDX-License-Identifier: Apache-2.0
//
// Frames through a LiquidIO that misbehaves, and what must hold all the time: every packet lies in
// its pool's pages, no call goes on without end, and after a reset of the device all memory is
// back. A queue that stands still, or says that it has an error, is taken down and set up again.
#ifndef DMAKIT_TESTS_NIC_LIQUIDIO_HOSTILE_RUN_H_
#define DMAKIT_TESTS_NIC_LIQUIDIO_HOSTILE_RUN_H_

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dma/audit.h"
#include "nic/rx_pool.h"
#include "tests/nic/liquidio/testing.h"

namespace dmakit::nic::liquidio {

// Numbered frames, as many as it is told; the longest take two buffers.
class HostileWire final : public Wire {
 public:
  std::optional<std::span<const std::byte>> Peek() override {
    if (left == 0) return std::nullopt;
    if (frame_.empty()) frame_ = testing::NumberedFrame(taken, 60 + taken * 37 % kLongest);
    return std::span<const std::byte>(frame_);
  }
  void Pop() override {
    ++taken;
    --left;
    frame_.clear();
  }
  bool exhausted() const override { return left == 0; }
  void Accept(std::span<const std::byte> frame) override { sent += !frame.empty(); }
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return {}; }

  static constexpr uint64_t kLongest = 1900;
  uint64_t left = 0, taken = 0, sent = 0;

 private:
  Frame frame_;
};

class HostileRun {
 public:
  static constexpr uint32_t kMtu = 1982;

  HostileRun(uint64_t seed, const RigOptions& options) : rig(With(seed, options)), random_(seed) {
    // A hostile device does everything an audit looks for.
    for (int code = 1; code <= dma::kAuditCodes; ++code) {
      const auto c = static_cast<dma::AuditCode>(code);
      if (!dma::IsWarning(c)) rig.audit.Expect(c);
    }
    rig.model.Plug(&wire);
    REQUIRE(rig.MakeSpace().ok());
    REQUIRE(rig.Open().ok());
    Restart();
  }

  void Forward(uint64_t frames) {
    wire.left = frames;
    for (uint32_t idle = 0; wire.left > 0 || idle < kPatience;) {
      idle = Round() ? 0 : idle + 1;
      if (Broken() || (idle >= kPatience && wire.left > 0) || random_() % 4000 == 0) {
        ++restarts;
        Down();
        Restart();
        idle = 0;
      }
    }
  }

  // Stops the port. False: it complained; then the device was reset.
  bool Down() {
    const absl::Status stopped = rig.port->Stop();
    if (stopped.ok() && rig.space->quarantine().count() == 0) {
      REQUIRE(rig.iommu->stats().live_mappings == 0);
      return true;
    }
    INFO(stopped);
    CHECK(stopped.message().find("liquidio0") != absl::string_view::npos);
    Add();
    rig.port.reset();
    ++resets;
    rig.model.Reset();
    REQUIRE(rig.space->quarantine().ReleaseAfterReset("").ok());
    REQUIRE(rig.space->quarantine().count() == 0);
    REQUIRE(rig.iommu->stats().live_mappings == 0);
    REQUIRE(rig.memory.blocks() == 0);
    REQUIRE(rig.memory.written_after_free() == 0);
    REQUIRE(rig.Open().ok());
    return false;
  }
  void Restart() {
    for (int attempts = 0; !rig.port->Start().ok(); ++attempts) {
      REQUIRE(attempts < 20);
      REQUIRE(rig.port->Stop().ok());
      ++resets;
      rig.model.Reset();
    }
  }
  // Adds up what the port has counted, before it ends.
  void Add() {
    for (const QueueStats& q : rig.port->stats().queues) {
      bad += q.rx.bad_completions + q.tx.bad_completions;
      dropped += q.rx.truncated + q.rx.skipped;
      left += q.rx.left_at_stop;
    }
  }

  HostileWire wire;  // the model's until it ends
  Rig rig;
  uint64_t received = 0, restarts = 0, resets = 0, bad = 0, dropped = 0;
  uint64_t left = 0;  // in the ring when it was taken away

 private:
  static constexpr uint32_t kPatience = 450;  // rounds: longer than any lie

  static RigOptions With(uint64_t seed, RigOptions options) {
    options.model.hostile = seed;
    options.port.mtu = kMtu;
    options.port.extra_pages = 64;
    options.port.stop_deadline = dma::Nanos{2'000'000};
    return options;
  }

  bool Round() {
    const uint64_t before = wire.taken;
    rig.model.Step();
    bool moved = wire.taken != before;
    for (uint32_t q = 0; q < rig.options_.port.rx_queues; ++q) moved |= Queue(q);
    return moved;
  }
  bool Queue(uint32_t q) {
    bool moved = rig.port->Reap(q) > 0;
    for (int bursts = 0; bursts < 8; ++bursts) {
      std::span<Packet> burst(packets_);
      const size_t got = rig.port->Receive(q, burst);
      if (got == 0) break;
      moved = true;
      received += got;
      for (Packet& packet : burst.first(got)) Inspect(packet);
      const size_t taken = rig.port->Transmit(q, burst.first(got));
      Release(burst.subspan(taken, got - taken), &rig.port->rx_pool(q));
    }
    return moved;
  }

  // What is in it is read, whatever it is.
  void Inspect(Packet& packet) {
    uint32_t length = 0, sum = 0;
    REQUIRE(packet.segment_count >= 1);
    REQUIRE(packet.segment_count <= Packet::kMaxSegments);
    for (const Segment& s : packet.parts()) {
      REQUIRE(s.length > 0);
      REQUIRE(uint64_t{s.offset} + s.length <= s.page->size);
      for (uint32_t i = 0; i < s.length; ++i) sum += std::to_integer<uint32_t>(s.data()[i]);
      length += s.length;
    }
    seen_ = seen_ + sum;
    REQUIRE(length == packet.length);
    REQUIRE(length <= kMtu + kFrameOverhead);
    packet.tx = TxFlags::kNone;
  }

  bool Broken() const {
    for (const QueueStats& q : rig.port->stats().queues) {
      // Lies and absences end by themselves; a ring that was disabled does not run again.
      if (q.rx.device_error == 1 || q.tx.device_error == 1) return true;
    }
    return false;
  }

  std::mt19937_64 random_;
  std::vector<Packet> packets_ = std::vector<Packet>(32);
  volatile uint64_t seen_ = 0;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_TESTS_NIC_LIQUIDIO_HOSTILE_RUN_H_
