// SPDX-License-Identifier: Apache-2.0
//
// A device that writes back what it likes: wrong lengths, ends and errors, in the wrong places,
// late, twice and never. Nothing is read out of bounds, nothing is lost, and all of it is back in
// the end.
#include <string>
#include <vector>

#include "tests/nic/e1000e/testing.h"

namespace dmakit::nic::e1000e {
namespace {

using testing::MakeFrame;

#if defined(__SANITIZE_THREAD__)
constexpr uint32_t kFrames = 4'000;
#else
constexpr uint32_t kFrames = 50'000;
#endif
constexpr uint64_t kSeeds = 20;

// Of many sizes and flows, over and over.
const std::vector<Frame>& Frames() {
  static const std::vector<Frame> frames = [] {
    std::vector<Frame> made;
    for (uint32_t n = 0; n < 997; ++n) {
      made.push_back(MakeFrame(
          {.size = 60 + n * 37 % 5000, .source_port = static_cast<uint16_t>(n % 97), .serial = n}));
    }
    return made;
  }();
  return frames;
}

void Run(uint64_t seed) {
  INFO("seed " << seed);
  RigOptions options = Small();
  options.port.rx_queues = options.port.tx_queues = 1 + seed % 2;
  options.port.policy = static_cast<dma::Policy>(seed % 3);
  options.model = {.lossless = false, .hostile = seed};
  Rig rig(options);
  // What a lying device makes the books say is not the driver's mistake.
  rig.audit.Expect(dma::AuditCode::kWroteOutside);
  rig.audit.Expect(dma::AuditCode::kReusedWhilePosted);
  rig.audit.Expect(dma::AuditCode::kAccessAfterUnmap);
  rig.audit.Expect(dma::AuditCode::kCpuAccess);
  rig.Start();
  const uint32_t queues = rig.port->options().rx_queues;
  std::vector<Packet> burst(32);
  uint64_t received = 0;
  uint64_t sent = 0;
  uint32_t stuck = 0;
  for (uint32_t n = 0; n < kFrames;) {
    for (int i = 0; i < 16; ++i, ++n) rig.wire.Send(Frames()[n % Frames().size()]);
    rig.StepAll(96);
    for (uint32_t q = 0; q < queues; ++q) {
      const size_t got = rig.port->Receive(q, burst);
      for (size_t i = 0; i < got; ++i) {
        REQUIRE(burst[i].length > 0);
        REQUIRE(burst[i].length <= rig.port->max_frame());
        uint32_t sum = 0;
        for (const Segment& s : burst[i].parts()) {
          REQUIRE(s.length > 0);
          REQUIRE(s.offset + s.length <= s.page->size);
          sum += s.length;
        }
        REQUIRE(sum == burst[i].length);
      }
      received += got;
      const size_t taken = rig.port->Transmit(q, std::span(burst).first(got));
      sent += taken;
      Release(std::span(burst).subspan(taken, got - taken), &rig.port->rx_pool(q));
      rig.port->Reap(q);
    }
    // A ring whose oldest packet is never done, or whose entries are given back in no order, stands
    // still for good: what a watchdog would do.
    if (++stuck == 8) {
      stuck = 0;
      rig.port->Stop().IgnoreError();
      REQUIRE(rig.port->Start().ok());
    }
  }
  rig.port->Stop().IgnoreError();
  CHECK(received > kFrames / 10);
  CHECK(rig.port->stats().queues[0].pool.bad_releases == 0);
  CHECK(rig.iommu->stats().live_mappings == 0);
  CHECK(rig.space->quarantine().count() == 0);
  uint64_t frames = 0, tx = 0, bad = 0;
  for (const QueueStats& queue : rig.port->stats().queues) {
    frames += queue.rx.frames;
    bad += queue.rx.bad_completions;
    tx += queue.tx.frames + queue.tx.dropped;
  }
  CHECK(bad > 0);
  CHECK(frames == received);
  CHECK(tx == sent);
}

TEST_CASE("hostile devices, 20 seeds") {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) Run(seed);
}

}  // namespace
}  // namespace dmakit::nic::e1000e
