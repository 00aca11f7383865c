// SPDX-License-Identifier: Apache-2.0
//
// Forwarding through enics that misbehave: one or two of them in one address space, restarts and
// resets when they do not recover by themselves, and what must be left at the end.
#ifndef DMAKIT_TESTS_NIC_ENIC_HOSTILE_RIG_H_
#define DMAKIT_TESTS_NIC_ENIC_HOSTILE_RIG_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "dma/quarantine.h"
#include "tests/nic/enic/hostile_nic.h"

namespace dmakit::nic::enic {

class HostileRun {
 public:
  static constexpr uint32_t kMtu = 1500;
  static constexpr size_t kBurst = 32;

  explicit HostileRun(const HostileSetup& setup)
      : in("enic0", setup.seed), setup_(setup), random_(setup.seed), lanes_(setup.queues) {
    if (setup_.two_nics) other_.emplace("enic1", setup.seed + 1000);
    in.model.hostile()->SetKinds(setup_.kinds);
    out().model.hostile()->SetKinds(setup_.kinds);
    // A hostile device does everything an audit looks for.
    for (int code = 1; code <= dma::kAuditCodes; ++code) {
      const auto c = static_cast<dma::AuditCode>(code);
      if (!dma::IsWarning(c)) audit_.Expect(c);
    }
    space = *dma::AddressSpace::Create(
        {.name = "hostile",
         .memory = &memory,
         .clock = &clock_,
         .policy = setup_.policy,
         .report = [this](std::string_view line) { reports.emplace_back(line); },
         .on_attach = audit_.on_attach()});
    for (Lane& lane : lanes_) lane.packets.resize(kBurst);
    Open();
    REQUIRE(StartAll());
  }
  ~HostileRun() {
    ReleaseLanes();
    out().port.reset();
    in.port.reset();
    space.reset();
  }
  HostileNic& out() { return other_ ? *other_ : in; }

  // Forwards until the wire has given `frames` and nothing moves any more. A queue that stands
  // still, or says that it has an error, is taken down and set up again.
  void Forward(uint64_t frames) {
    in.wire.left = frames;
    for (uint32_t idle = 0; in.wire.left > 0 || idle < kPatience;) {
      idle = Round() ? 0 : idle + 1;
      if (Broken() || (idle >= kPatience && in.wire.left > 0) || random_() % 4000 == 0) {
        Restart();
        idle = 0;
      }
    }
  }

  // Down, and up again; by way of a reset if anything went wrong.
  void Restart() {
    ++restarts;
    bool clean = StopAll();
    if (clean) {
      CheckNothingMapped();
      clean = StartAll();
    }
    for (int attempts = 0; !clean; ++attempts) {
      REQUIRE(attempts < 20);
      ++resets;
      Clear();
      Open();
      clean = StartAll();
    }
  }

  // Both ports by their deadlines, in the order their packets want. True: without a complaint.
  bool StopAll() {
    ReleaseLanes();
    bool clean = true;
    for (HostileNic* nic : {&out(), &in}) {
      const dma::Nanos begin = nic->waiter.Now();
      const absl::Status stopped = nic->port->Stop();
      CHECK(nic->waiter.Now() - begin < kStopBound);
      if (!stopped.ok()) {
        ++failed_stops;
        INFO(stopped);
        CHECK(stopped.message().find(nic->name) != absl::string_view::npos);
        clean = false;
      }
      if (!setup_.two_nics) break;
    }
    return clean && space->quarantine().count() == 0;
  }

  // Destroys the ports, resets the devices, lets go of what was held for them: all is back.
  void Clear() {
    ReleaseLanes();
    out().port.reset();
    in.port.reset();
    in.Reset();
    if (other_) other_->Reset();
    const absl::Status released = space->quarantine().ReleaseAfterReset("");
    INFO(released);
    REQUIRE(released.ok());
    REQUIRE(space->quarantine().count() == 0);
    CheckNothingMapped();
    REQUIRE(memory.blocks() == 0);
    REQUIRE(memory.written_after_free() == 0);
  }

  void Open() {
    PortOptions options{.rx_queues = setup_.queues,
                        .tx_queues = setup_.two_nics ? 0 : setup_.queues,
                        .ring_size = setup_.ring,
                        .mtu = kMtu,
                        .policy = setup_.policy,
                        .extra_pages = 64,
                        .stop_deadline = kStopDeadline};
    REQUIRE(in.Open(*space, options).ok());
    if (other_) {
      std::swap(options.rx_queues, options.tx_queues);
      REQUIRE(other_->Open(*space, options).ok());
    }
    for (uint32_t q = 0; q < setup_.queues; ++q) {
      out().port->SetTxOwner(q, &in.port->rx_pool(q));
    }
  }
  bool StartAll() {
    if (other_ && !other_->port->Start().ok()) return false;
    return in.port->Start().ok();
  }

  void CheckNothingMapped() {
    REQUIRE(in.iommu->stats().live_mappings == 0);
    REQUIRE(out().iommu->stats().live_mappings == 0);
  }

  HostileNic in;
  dma::host::FakeMemory memory{{.capacity = Bytes{uint64_t{1} << 30}}};
  std::unique_ptr<dma::AddressSpace> space;
  std::vector<std::string> reports;
  uint64_t received = 0;
  uint64_t transmitted = 0;
  uint64_t restarts = 0, resets = 0, failed_stops = 0;
  Expected rx_total, tx_total;  // what the second opinion found, which is what the driver counted

 private:
  static constexpr uint32_t kPatience = 450;  // rounds: longer than anything is delayed
  static constexpr dma::Nanos kStopDeadline{2'000'000};
  // Each queue has 10 ms to halt even when the time is up, a receive queue twice.
  static constexpr dma::Nanos kStopBound{2'000'000 * 2 + 10'000'000 * 3 * 5};

  struct Lane {
    std::vector<Packet> packets;
    size_t begin = 0;
    size_t end = 0;
    RxQueueStats rx;
    TxQueueStats tx;
  };

  static void Add(Expected& sum, const Expected& e) {
    sum.frames += e.frames;
    sum.bad += e.bad;
    sum.bad_fcs += e.bad_fcs;
    sum.truncated += e.truncated;
    sum.skipped += e.skipped;
  }

  bool Round() {
    const uint64_t before = in.wire.taken;
    in.model.Step();
    if (other_) other_->model.Step();
    bool moved = in.wire.taken != before;
    for (uint32_t q = 0; q < setup_.queues; ++q) moved |= DrainQueue(q);
    return moved;
  }

  bool DrainQueue(uint32_t q) {
    bool moved = Reap(q);
    for (int bursts = 0; bursts < 8; ++bursts) {
      Lane& lane = lanes_[q];
      if (lane.begin == lane.end && Receive(q) == 0) break;
      const size_t taken = Transmit(q);
      moved = true;
      if (taken == 0 || lane.begin != lane.end) return taken > 0;
    }
    return moved;
  }

  size_t Receive(uint32_t q) {
    Lane& lane = lanes_[q];
    lane.rx = in.port->stats().queues[q].rx;
    const Expected expected = in.ExpectReceive(q, kBurst, kMtu + kFrameOverhead);
    lane.begin = 0;
    lane.end = in.port->Receive(q, lane.packets);
    REQUIRE(lane.end == expected.frames);
    REQUIRE(Since(lane.rx, in.port->stats().queues[q].rx) == expected);
    Add(rx_total, expected);
    received += lane.end;
    for (size_t i = 0; i < lane.end; ++i) Inspect(lane.packets[i]);
    return lane.end;
  }

  // Every packet lies in the buffer it names; what is in it is read and written, and may be split.
  void Inspect(Packet& packet) {
    const Segment whole = packet.segments[0];
    REQUIRE(packet.segment_count == 1);
    REQUIRE(whole.length > 0);
    REQUIRE(whole.length <= kMtu + kFrameOverhead);
    REQUIRE(uint64_t{whole.offset} + whole.length <= whole.page->size);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < whole.length; ++i) sum += std::to_integer<uint32_t>(whole.data()[i]);
    seen_ = seen_ + sum;  // read, whatever it is
    const uint32_t pieces = 1 + static_cast<uint32_t>(random_() % 4);
    if (random_() % 4 != 0 || whole.length < pieces) return;
    const uint32_t piece = whole.length / pieces;
    packet.ResetTo({whole.page, whole.offset, piece});
    for (uint32_t i = 1; i < pieces; ++i) {
      ++whole.page->outstanding;
      const uint32_t rest = i + 1 == pieces ? whole.length - i * piece : piece;
      REQUIRE(packet.Append({whole.page, whole.offset + i * piece, rest}));
    }
  }

  size_t Transmit(uint32_t q) {
    Lane& lane = lanes_[q];
    std::vector<uint32_t> pieces;
    for (size_t i = lane.begin; i < lane.end; ++i) {
      pieces.push_back(lane.packets[i].segment_count);
    }
    const uint32_t at = out().next_tx(q);
    lane.tx = out().port->stats().queues[q].tx;
    const Expected expected = out().ExpectReap(q);
    const size_t taken =
        out().port->Transmit(q, std::span(lane.packets).subspan(lane.begin, lane.end - lane.begin));
    out().Placed(q, at, std::span(pieces).first(taken));
    const TxQueueStats after = out().port->stats().queues[q].tx;
    REQUIRE(Since(lane.tx, after) == expected);
    REQUIRE(after.dropped == lane.tx.dropped);
    Add(tx_total, expected);
    lane.begin += taken;
    transmitted += taken;
    return taken;
  }

  bool Reap(uint32_t q) {
    const TxQueueStats before = out().port->stats().queues[q].tx;
    const Expected expected = out().ExpectReap(q);
    REQUIRE(out().port->Reap(q) == expected.frames);
    REQUIRE(Since(before, out().port->stats().queues[q].tx) == expected);
    Add(tx_total, expected);
    return expected.frames > 0;
  }

  bool Broken() {
    const auto broken = [](uint64_t error) { return error != 0 && error != kAllOnes; };
    for (const QueueStats& q : in.port->stats().queues) {
      if (broken(q.rx.device_error) || broken(q.tx.device_error)) return true;
    }
    for (const QueueStats& q : out().port->stats().queues) {
      if (broken(q.tx.device_error)) return true;
    }
    return false;
  }

  void ReleaseLanes() {
    for (uint32_t q = 0; q < setup_.queues; ++q) {
      Lane& lane = lanes_[q];
      if (lane.begin == lane.end) continue;
      Release(std::span(lane.packets).subspan(lane.begin, lane.end - lane.begin),
              &in.port->rx_pool(q));
      lane.begin = lane.end = 0;
    }
  }

  const HostileSetup setup_;
  std::mt19937_64 random_;
  std::optional<HostileNic> other_;
  dma::host::FakeClock clock_;
  dmakit::testing::CheckedAudit audit_;
  std::vector<Lane> lanes_;
  volatile uint64_t seen_ = 0;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_TESTS_NIC_ENIC_HOSTILE_RIG_H_
