// SPDX-License-Identifier: Apache-2.0
//
// The receive queue against a device played by hand: packets of one buffer and of many in both
// modes, what is said in front of them, credits, and what a device that lies gets.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/nic/liquidio/testing.h"

namespace dmakit::nic::liquidio {
namespace {

using testing::NumberedFrame;

HandRigOptions OptionsFor(ReceiveMode mode, uint32_t ring = 128, uint32_t mtu = 9000) {
  HandRigOptions options;
  options.port = {.ring_size = ring, .mtu = mtu};
  options.extra.mode = mode;
  return options;
}

struct RxRig : HandRig {
  explicit RxRig(HandRigOptions options) : HandRig(std::move(options)) { Start(); }
  std::vector<Frame> Receive(size_t most = 64) {
    std::vector<Packet> packets(most);
    const size_t got = port->Receive(0, packets);
    std::vector<Frame> frames;
    for (size_t i = 0; i < got; ++i) {
      frames.push_back(BytesOf(packets[i]));
      CHECK(packets[i].length == frames.back().size());
    }
    Release(std::span(packets).first(got), &port->rx_pool(0));
    return frames;
  }
  HandDevice::Ring& ring() { return model.ring(0); }
  uint32_t in_ring() { return ring().credits; }
};

// --- Packets -------------------------------------------------------------------------------------

TEST_CASE("a frame that fits a buffer is one segment, a longer one as many as it takes") {
  for (const ReceiveMode mode : kModes) {
    RxRig rig(OptionsFor(mode));
    const uint32_t size = rig.ring().buffer_bytes();
    CHECK(size == 1664);
    const uint32_t front = mode == ReceiveMode::kInfo ? 0 : 16;
    for (uint32_t bytes : {1u, 60u, size - front - 1, size - front, size - front + 1,
                           2 * size - front, 2 * size - front + 1, 5000u, 9018u}) {
      INFO(bytes);
      const Frame frame = NumberedFrame(bytes, std::max(bytes, 60u));
      const Frame cut(frame.begin(), frame.begin() + bytes);
      REQUIRE(rig.model.Deliver(0, cut));
      std::vector<Packet> packets(2);
      REQUIRE(rig.port->Receive(0, packets) == 1);
      CHECK(packets[0].segment_count == (bytes + front + size - 1) / size);
      CHECK(BytesOf(packets[0]) == cut);
      CHECK(packets[0].length == bytes);
      Release(std::span(packets).first(1), &rig.port->rx_pool(0));
    }
    CHECK(rig.rx().dropped == 0);
    rig.CheckClean();
  }
}

TEST_CASE("frames of every length around a buffer's, mixed, in rings that wrap anywhere") {
  for (const ReceiveMode mode : kModes) {
    for (const uint32_t ring : {128u, 133u, 2048u}) {
      RxRig rig(OptionsFor(mode, ring));
      std::mt19937 random(3);
      std::vector<Frame> sent, got;
      for (uint32_t i = 0; i < 3000; ++i) {
        Frame frame = NumberedFrame(i, 60 + random() % 8900);
        Said said;
        said.hashed = random() % 2 == 0;
        said.stamped = mode == ReceiveMode::kBuffer && random() % 2 == 0;
        if (mode == ReceiveMode::kBuffer) said.extra = random() % 3;
        if (!rig.model.Deliver(0, frame, said)) {
          for (Frame& f : rig.Receive(1 + random() % 20)) got.push_back(std::move(f));
          if (!rig.model.Deliver(0, frame, said)) {
            --i;
            continue;
          }
        }
        sent.push_back(std::move(frame));
      }
      for (auto more = rig.Receive(); !more.empty(); more = rig.Receive()) {
        got.insert(got.end(), more.begin(), more.end());
      }
      CHECK(got == sent);
      CHECK(rig.rx().dropped == 0);
      CHECK(rig.rx().bad_completions == 0);
      REQUIRE(rig.port->Stop().ok());
      CHECK(rig.iommu->stats().live_mappings == 0);
      rig.CheckClean();
    }
  }
}

TEST_CASE("a packet of 18 buffers is received, of 19 dropped and counted, with all its buffers") {
  for (const ReceiveMode mode : kModes) {
    HandRig rig(OptionsFor(mode));
    REQUIRE(rig.MakeSpace().ok());
    auto device =
        rig.space->Attach({.name = "liquidio0", .domain = &rig.domain, .waiter = &rig.waiter})
            .value();
    auto pool = frag::PagePool::Create(*rig.space, {.label = "rx", .order = 3}).value();
    std::vector<FragSource> sources;
    sources.push_back(FragSource::Create(*pool, {.size = 512, .capacity = 512}).value());
    auto driver = Driver<>::Create(*device, rig.registers(),
                                   {.ring_size = 128, .mtu = 9000, .buffer_bytes = 496},
                                   std::move(sources), {})
                      .value();
    REQUIRE(driver->Start().ok());
    const uint32_t front = mode == ReceiveMode::kInfo ? 0 : 16;
    for (const uint32_t buffers : {18u, 19u, 18u}) {
      const Frame frame = NumberedFrame(buffers, buffers * 496 - front);
      std::vector<Packet> packets(2);
      REQUIRE(rig.model.Deliver(0, frame));
      const size_t got = driver->rx(0).Receive(packets);
      // 19 buffers are also longer than the MTU allows.
      REQUIRE(got == (buffers == 18 ? 1 : 0));
      if (got == 0) continue;
      CHECK(packets[0].segment_count == 18);
      CHECK(BytesOf(packets[0]) == frame);
      Release(std::span(packets).first(1), pool.get());
    }
    CHECK(driver->rx_stats(0).truncated == 1);
    CHECK(driver->rx_stats(0).bad_completions == 0);
    REQUIRE(driver->Stop().ok());
    driver.reset();
    pool->Fold();
    CHECK(pool->pages_in_use() == 0);
    pool.reset();
    device.reset();
    rig.CheckClean();
  }
}

TEST_CASE("a frame longer than the MTU allows is dropped, counted, and hurts no other") {
  for (const ReceiveMode mode : kModes) {
    RxRig rig(OptionsFor(mode, 128, 1500));
    for (const uint32_t bytes : {1518u, 1519u, 9000u, 20000u, 60u}) {
      REQUIRE(rig.model.Deliver(0, Frame(bytes)));
    }
    CHECK(rig.Receive().size() == 2);
    CHECK(rig.rx().truncated == 3);
    CHECK(rig.rx().dropped == 3);
    CHECK(rig.in_ring() == 128);
    rig.CheckClean();
  }
}

TEST_CASE("messages of the firmware are passed over, with their buffers") {
  for (const ReceiveMode mode : kModes) {
    RxRig rig(OptionsFor(mode));
    const uint64_t link_status = uint64_t{1} << 60 | uint64_t{4} << 52;
    REQUIRE(rig.model.Deliver(0, Frame(3000), {.header = link_status}));
    REQUIRE(rig.model.Deliver(0, NumberedFrame(1, 60)));
    CHECK(rig.Receive().size() == 1);
    CHECK(rig.rx().skipped == 2);
    CHECK(rig.rx().dropped == 0);
    rig.Receive();
    CHECK(rig.in_ring() == 128);
  }
}

TEST_CASE("hash, tag and checksums come from the header") {
  for (const ReceiveMode mode : kModes) {
    RxRig rig(OptionsFor(mode));
    struct Case {
      Said said;
      RxFlags flags;
    };
    const std::vector<Case> cases = {
        {{}, RxFlags::kNone},
        {{.hashed = true}, RxFlags::kRssHash},
        {{.vlan = 0x6064}, RxFlags::kVlanStripped},
        {{.checksums = 1}, RxFlags::kL4ChecksumGood},
        {{.checksums = 2}, RxFlags::kIpv4ChecksumGood},
        {{.checksums = 3}, RxFlags::kIpv4ChecksumGood | RxFlags::kL4ChecksumGood},
        {{.checksums = 4}, RxFlags::kNone},
        {{.hashed = true, .vlan = 0x0001, .checksums = 7},
         RxFlags::kRssHash | RxFlags::kVlanStripped | RxFlags::kIpv4ChecksumGood |
             RxFlags::kL4ChecksumGood}};
    for (const Case& c : cases) {
      const Frame frame = NumberedFrame(1, 80);
      REQUIRE(rig.model.Deliver(0, frame, c.said));
      std::vector<Packet> packets(1);
      REQUIRE(rig.port->Receive(0, packets) == 1);
      CHECK(packets[0].rx == c.flags);
      CHECK(packets[0].vlan == c.said.vlan);
      if (c.said.hashed) CHECK(packets[0].hash == 0x89abcdef);
      CHECK(BytesOf(packets[0]) == frame);
      Release(packets, &rig.port->rx_pool(0));
    }
  }
}

TEST_CASE("buffer mode: the hash is the last extra word, or the one before a time stamp") {
  RxRig rig(OptionsFor(ReceiveMode::kBuffer));
  for (unsigned extra = 0; extra <= 5; ++extra) {
    for (const bool stamped : {false, true}) {
      const Frame frame = NumberedFrame(extra, 200);
      REQUIRE(rig.model.Deliver(0, frame, {.hashed = true, .stamped = stamped, .extra = extra}));
      std::vector<Packet> packets(1);
      REQUIRE(rig.port->Receive(0, packets) == 1);
      CHECK(packets[0].hash == 0x89abcdef);
      CHECK(BytesOf(packets[0]) == frame);
      Release(packets, &rig.port->rx_pool(0));
    }
  }
}

// --- Credits and counters ------------------------------------------------------------------------

TEST_CASE("the whole ring is given at start, refills wait for 16, and none waits for a packet") {
  for (const ReceiveMode mode : kModes) {
    RxRig rig(OptionsFor(mode, 200));
    CHECK(rig.ring().credit_writes == std::vector<uint32_t>{200});
    for (int i = 0; i < 15; ++i) {
      REQUIRE(rig.model.Deliver(0, NumberedFrame(1, 60)));
      REQUIRE(rig.Receive(1).size() == 1);
    }
    CHECK(rig.in_ring() == 185);
    REQUIRE(rig.model.Deliver(0, NumberedFrame(1, 60)));
    REQUIRE(rig.Receive(1).size() == 1);
    CHECK(rig.in_ring() == 200);
    CHECK(rig.ring().credit_writes == std::vector<uint32_t>{200, 16});
    REQUIRE(rig.model.Deliver(0, NumberedFrame(1, 60)));
    REQUIRE(rig.Receive(1).size() == 1);
    CHECK(rig.in_ring() == 199);
    CHECK(rig.Receive(1).empty());  // nothing came: the one that is missing goes out
    CHECK(rig.in_ring() == 200);
    CHECK(rig.rx().posted == 200);
    rig.CheckClean();
  }
}

TEST_CASE("what was received is subtracted from the counter, which wraps in both directions") {
  for (const ReceiveMode mode : kModes) {
    for (const uint32_t start : {0u, 0xffffffffu, 0xfffffff8u, 0x7fffffffu}) {
      HandRigOptions options = OptionsFor(mode);
      options.extra.counter_start = start;
      RxRig rig(std::move(options));
      CHECK(static_cast<uint32_t>(rig.ring().sent) == start);
      for (uint32_t i = 0; i < 500; ++i) {
        REQUIRE(rig.model.Deliver(0, NumberedFrame(i, 60)));
        REQUIRE(rig.Receive().size() == 1);
      }
      rig.Receive();
      CHECK(static_cast<uint32_t>(rig.ring().sent) == start);
      CHECK(rig.rx().bad_completions == 0);
    }
  }
}

TEST_CASE("out of memory: the ring stays short without a hole, and fills again without a packet") {
  for (const ReceiveMode mode : kModes) {
    HandRigOptions options = OptionsFor(mode, 128, 1500);
    options.port.page_order = 0;
    options.port.extra_pages = 0;
    RxRig rig(std::move(options));
    std::vector<Packet> held(100);
    for (int i = 0; i < 100; ++i) REQUIRE(rig.model.Deliver(0, NumberedFrame(1, 60)));
    REQUIRE(rig.port->Receive(0, held) == 100);
    rig.Receive();
    CHECK(rig.in_ring() < 128);
    CHECK(rig.rx().refill_failed > 0);
    Release(held, &rig.port->rx_pool(0));
    CHECK(rig.Receive().empty());
    CHECK(rig.in_ring() == 128);
    for (int i = 0; i < 300; ++i) {
      REQUIRE(rig.model.Deliver(0, NumberedFrame(i, 60)));
      REQUIRE(rig.Receive().at(0) == NumberedFrame(i, 60));
    }
    rig.CheckClean();
  }
}

// --- A device that lies --------------------------------------------------------------------------

TEST_CASE("a count of more packets than buffers is counted once and believed never") {
  for (const ReceiveMode mode : kModes) {
    RxRig rig(OptionsFor(mode));
    REQUIRE(rig.model.Deliver(0, NumberedFrame(1, 60)));
    const uint64_t truth = rig.ring().sent;
    for (const uint64_t lie : {truth + 200, uint64_t{0xffffffff}, truth + 0x80000000}) {
      const uint64_t before = rig.rx().bad_completions;
      rig.ring().sent = static_cast<uint32_t>(lie);
      CHECK(rig.Receive().empty());
      CHECK(rig.Receive().empty());
      CHECK(rig.rx().bad_completions == before + 1);
      CHECK(rig.rx().device_error == kImpossibleCount);
    }
    rig.ring().sent = truth;
    CHECK(rig.Receive().size() == 1);
    CHECK(rig.rx().device_error == 0);
  }
}

TEST_CASE("info mode: packets that are counted and not there are waited for, and cost nothing") {
  RxRig rig(OptionsFor(ReceiveMode::kInfo));
  REQUIRE(rig.model.Deliver(0, NumberedFrame(0, 60), {.count = 4}));
  CHECK(rig.Receive().size() == 1);
  CHECK(rig.Receive().empty());
  CHECK(rig.Receive().empty());
  CHECK(rig.rx().bad_completions == 1);
  for (uint32_t i = 1; i <= 300; ++i) {
    REQUIRE(rig.model.Deliver(0, NumberedFrame(i, 60 + i * 20)));
    const auto got = rig.Receive();
    REQUIRE(got.size() == 1);
    REQUIRE(got[0] == NumberedFrame(i, 60 + i * 20));
  }
  REQUIRE(rig.port->Stop().ok());
  CHECK(rig.rx().frames == 301);
  rig.CheckClean();
}

TEST_CASE(
    "info mode: a length that cannot be costs its packet, and the next sets the queue right") {
  for (const uint64_t length :
       {uint64_t{1}, uint64_t{7}, uint64_t{8}, uint64_t{1} << 20, uint64_t{1} << 32, ~uint64_t{0},
        ~uint64_t{0} - 8, uint64_t{1664} * 128 + 9}) {
    for (const uint32_t bytes : {60u, 4000u}) {
      INFO(length << " " << bytes);
      RxRig rig(OptionsFor(ReceiveMode::kInfo));
      REQUIRE(rig.model.Deliver(0, NumberedFrame(0, bytes), {.length = length}));
      CHECK(rig.Receive().empty());
      CHECK(rig.rx().bad_completions == 1);
      for (uint32_t i = 1; i < 200; ++i) {
        REQUIRE(rig.model.Deliver(0, NumberedFrame(i, 60)));
        const auto got = rig.Receive();
        REQUIRE(got.size() == 1);
        REQUIRE(got[0] == NumberedFrame(i, 60));
      }
      REQUIRE(rig.port->Stop().ok());
      CHECK(rig.iommu->stats().live_mappings == 0);
    }
  }
}

TEST_CASE("buffer mode: lengths and headers that cannot be are counted, and read nothing beyond") {
  const uint64_t good = uint64_t{1} << 60 | uint64_t{2} << 52;
  struct Lie {
    uint64_t length;
    uint64_t header;
  };
  const std::vector<Lie> lies = {{0, good},
                                 {7, good},
                                 {8, good},
                                 {8 + 56, good | uint64_t{7} << 49},
                                 {100, good | 1},                      // hashed, no word for it
                                 {100, good | 5 | uint64_t{1} << 49},  // and stamped, one word
                                 {uint64_t{1664} * 128, good},
                                 {uint64_t{1} << 32, good},
                                 {~uint64_t{0}, good},
                                 {~uint64_t{0} - 7, good}};
  for (const Lie& lie : lies) {
    INFO(lie.length << " " << lie.header);
    RxRig rig(OptionsFor(ReceiveMode::kBuffer));
    REQUIRE(
        rig.model.Deliver(0, NumberedFrame(0, 60), {.length = lie.length, .header = lie.header}));
    CHECK(rig.Receive().empty());
    CHECK(rig.rx().bad_completions == 1);
    REQUIRE(rig.model.Deliver(0, NumberedFrame(1, 60)));
    CHECK(rig.Receive().at(0) == NumberedFrame(1, 60));
    REQUIRE(rig.port->Stop().ok());
    CHECK(rig.iommu->stats().live_mappings == 0);
  }
}

TEST_CASE("a device that is gone delivers nothing; its ring and buffers are held, and named") {
  for (const ReceiveMode mode : kModes) {
    RxRig rig(OptionsFor(mode));
    rig.model.gone = true;
    CHECK(rig.Receive().empty());
    CHECK(rig.rx().device_error == 0xffffffff);
    CHECK(rig.rx().bad_completions == 0);
    const absl::Status stopped = rig.port->Stop();
    CHECK(std::string(stopped.message()).find("liquidio0 oq 0: the device is gone") !=
          std::string::npos);
    // Both rings, gather lists, and info buffers where there are any.
    CHECK(rig.space->quarantine().count() == (mode == ReceiveMode::kInfo ? 4u : 3u));
    rig.port.reset();
    CHECK(rig.space->quarantine().ReleaseAfterReset("").ok());
    CHECK(rig.memory.blocks() == 0);
  }
}

// --- Memory --------------------------------------------------------------------------------------

TEST_CASE("info buffers are one coherent allocation, and in steady state nothing is mapped") {
  for (const ReceiveMode mode : kModes) {
    RxRig rig(OptionsFor(mode, 256));
    CHECK(rig.rx().ring_allocations == 1);
    CHECK(rig.rx().info_maps == (mode == ReceiveMode::kInfo ? 1 : 0));
    const dma::DomainStats before = rig.iommu->stats();
    for (uint32_t i = 0; i < 2000; ++i) {
      REQUIRE(rig.model.Deliver(0, NumberedFrame(i, 60 + i % 4000)));
      REQUIRE(rig.Receive().size() == 1);
    }
    const dma::DomainStats after = rig.iommu->stats();
    CHECK(after.maps - before.maps <= 2);  // spare pages of the pool
    CHECK(after.unmaps == before.unmaps);
    CHECK(after.invalidations == before.invalidations);
    CHECK(rig.rx().info_maps == (mode == ReceiveMode::kInfo ? 1 : 0));
  }
}

}  // namespace
}  // namespace dmakit::nic::liquidio
