// SPDX-License-Identifier: Apache-2.0
//
// Two e1000e that exchange frames over QEMU's hub, both driven by this program.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "nic/endian.h"
#include "nic/frame_info.h"
#include "nic/wire/pcap_sink.h"
#include "tests/nic/frames.h"
#include "tests/qemu/pair.h"

namespace dmakit::qemu {
namespace {

using nic::Packet;
using nic::PcapSink;
using nic::Port;
using nic::PortOptions;

constexpr auto kPatience = std::chrono::seconds(20);  // without any progress
constexpr PortOptions kJumbo = {
    .ring_size = 256, .mtu = 9000, .stop_deadline = dma::Nanos{5'000'000'000}};

// Frame `n` from NIC `from`: 60 to 9,000 bytes, from its MAC to the other's, every byte a function
// of both numbers.
Frame MakeFrame(size_t from, uint64_t n) {
  uint64_t state = n * 0x9e3779b97f4a7c15u + from + 1;
  const auto next = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  for (int i = 0; i < 4; ++i) next();
  Frame frame(60 + next() % 8941);
  nic::StoreBe<uint64_t>(frame, 6, (uint64_t{0x525400000001} + from) << 16 | 0x88b5);
  nic::StoreBe<uint32_t>(frame, 0, 0x52540000);
  nic::StoreBe<uint16_t>(frame, 4, static_cast<uint16_t>(2 - from));
  nic::StoreBe<uint32_t>(frame, 14, static_cast<uint32_t>(n));
  for (size_t i = 18; i < frame.size(); i += 8) {
    const uint64_t word = next();
    for (size_t b = 0; b < 8 && i + b < frame.size(); ++b) {
      frame[i + b] = static_cast<std::byte>(word >> (8 * b));
    }
  }
  return frame;
}

// One direction: what NIC `from` sends the other.
struct Stream {
  size_t from = 0;
  uint64_t count = 0;
  std::unique_ptr<PcapSink> capture{};  // of what arrives
  uint64_t sent = 0;
  uint64_t arrived = 0;
  uint64_t several_segments = 0;

  // At most this many are under way, so that no ring and no queue of QEMU's overflows.
  static constexpr uint64_t kWindow = 32;

  bool Send(Pair& pair) {
    Port& port = pair.port(from);
    port.Reap(0);
    if (sent == count || sent - arrived >= kWindow) return false;
    Packet packet = pair.packets().Carry(MakeFrame(from, sent));
    if (port.Transmit(0, {&packet, 1}) == 0) {
      pair.packets().pool().Release(packet.segments[0].page);
      return false;
    }
    ++sent;
    return true;
  }
  bool Receive(Pair& pair) {
    Port& port = pair.port(1 - from);
    Packet burst[16];
    const size_t got = port.Receive(0, burst);
    for (size_t i = 0; i < got; ++i) {
      several_segments += burst[i].segment_count > 1 ? 1 : 0;
      const Frame frame = TakeBytes(burst[i], port.rx_pool(0));
      if (frame != MakeFrame(from, arrived)) {
        const nic::RxQueueStats rx = port.stats().queues[0].rx;
        FAIL("frame " << arrived << " from NIC " << from << " arrived changed, " << frame.size()
                      << " bytes; the receiver has dropped " << rx.dropped << ", of them "
                      << rx.device_no_buffer << " at the device, bad " << rx.bad_completions
                      << ", truncated " << rx.truncated << ", FCS " << rx.bad_fcs);
      }
      if (capture) capture->Accept(frame);
      ++arrived;
    }
    return got > 0;
  }
  bool done() const { return arrived == count; }
};

void Exchange(Pair& pair, Stream& there, Stream& back) {
  auto last = std::chrono::steady_clock::now();
  while (!there.done() || !back.done()) {
    bool moved = false;
    for (Stream* const stream : {&there, &back}) {
      moved |= stream->Send(pair);
      moved |= stream->Receive(pair);
    }
    const auto now = std::chrono::steady_clock::now();
    if (moved) last = now;
    if (now - last > kPatience) {
      FAIL("nothing moves: " << there.arrived << " of " << there.sent
                             << " sent frames arrived, and " << back.arrived << " of "
                             << back.sent);
    }
  }
}

TEST_CASE("100,000 frames of 60 to 9,000 bytes arrive as they were sent", "[large]") {
  Pair pair(kJumbo);
  Stream there{.from = 0, .count = 50'000, .capture = Need(PcapSink::Open("/share/from1.pcap"))};
  Stream back{.from = 1, .count = 50'000, .capture = Need(PcapSink::Open("/share/from2.pcap"))};
  const dma::host::VfioCallCounts before = pair.kernel().counts();
  Exchange(pair, there, back);
  CHECK(there.several_segments > 10'000);
  CHECK(there.capture->Close().ok());
  CHECK(back.capture->Close().ok());
  for (size_t i = 0; i < 2; ++i) {
    const nic::QueueStats queue = pair.port(i).stats().queues[0];
    CHECK(queue.rx.frames == 50'000);
    CHECK(queue.rx.dropped == 0);
    CHECK(queue.tx.dropped == 0);
    CHECK(queue.rx.bad_completions == 0);
  }
  const dma::host::VfioCallCounts after = pair.kernel().counts();
  std::printf("100,000 frames, %llu ioctls\n",
              static_cast<unsigned long long>(after.ioctls - before.ioctls));
}

TEST_CASE("under every policy, and with an audit that has nothing to say", "[exchange]") {
  for (const dma::Policy policy :
       {dma::Policy::kPersistent, dma::Policy::kDeferred, dma::Policy::kStrict}) {
    INFO(dma::Name(policy));
    PortOptions options = kJumbo;
    options.policy = policy;
    Pair pair(options, /*audited=*/true, policy);
    Stream there{.from = 0, .count = 1'000};
    Stream back{.from = 1, .count = 1'000};
    Exchange(pair, there, back);
  }
}

TEST_CASE("ring sizes wrap and MTUs change on the real thing", "[exchange]") {
  Pair pair(kJumbo);
  for (const uint32_t ring : {64u, 72u, 4096u, 128u}) {
    for (const uint32_t mtu : {9000u, 8990u}) {
      INFO("ring " << ring << ", mtu " << mtu);
      for (size_t i = 0; i < 2; ++i) {
        PortOptions options = pair.port(i).options();
        options.ring_size = ring;
        options.mtu = mtu;
        const absl::Status changed = pair.port(i).Reconfigure(options);
        INFO(changed.message());
        REQUIRE(changed.ok());
      }
      Stream there{.from = 0, .count = 500};
      Stream back{.from = 1, .count = 500};
      Exchange(pair, there, back);
    }
  }
}

TEST_CASE("a thread that sleeps for an interrupt is woken by each frame", "[interrupt]") {
  PortOptions options = kJumbo;
  options.interrupts = true;
  Pair pair(options);
  Port& receiver = pair.port(1);
  nic::Notifier* const notifier = receiver.notifier(0);
  REQUIRE(notifier != nullptr);
  uint64_t waits = 0;
  for (uint64_t n = 0; n < 2'000; ++n) {
    Packet burst[4];
    while (receiver.Receive(0, burst) > 0) FAIL("a frame that nobody sent");
    const bool armed = receiver.Arm(0);
    Packet packet = pair.packets().Carry(MakeFrame(0, n));
    REQUIRE(pair.port(0).Transmit(0, {&packet, 1}) == 1);
    if (armed) {
      ++waits;
      REQUIRE(notifier->Wait(dma::Nanos{10'000'000'000}));
    }
    size_t got = 0;
    const auto start = std::chrono::steady_clock::now();
    while ((got = receiver.Receive(0, burst)) == 0) {
      REQUIRE(std::chrono::steady_clock::now() - start < kPatience);
    }
    REQUIRE(got == 1);
    REQUIRE(TakeBytes(burst[0], receiver.rx_pool(0)) == MakeFrame(0, n));
    pair.port(0).Reap(0);
  }
  CHECK(waits > 1'900);
  // A wake-up may come late, when polling has found the frame already; but then there is quiet.
  (void)notifier->Wait(dma::Nanos{50'000'000});
  CHECK_FALSE(notifier->Wait(dma::Nanos{50'000'000}));
}

// --- Offloads ------------------------------------------------------------------------------------

// Sends one packet and returns what comes out at the other NIC: `count` packets, not yet given
// back.
std::vector<Packet> Send(Pair& pair, Packet packet, size_t count) {
  REQUIRE(pair.port(0).Transmit(0, {&packet, 1}) == 1);
  std::vector<Packet> out(count);
  size_t got = 0;
  const auto start = std::chrono::steady_clock::now();
  while (got < count) {
    got += pair.port(1).Receive(0, std::span(out).subspan(got));
    pair.port(0).Reap(0);
    if (std::chrono::steady_clock::now() - start > kPatience) {
      FAIL(got << " of " << count << " frames came");
    }
  }
  return out;
}

void Ask(Packet& packet, const nic::testing::FrameSpec& spec, nic::TxFlags flags) {
  packet.tx = flags;
  packet.l3_offset = 14;
  packet.l4_offset = static_cast<uint16_t>(14 + (spec.ipv6 ? 40 : 20));
}

void CheckSums(const Frame& frame) {
  const nic::FrameInfo info = nic::ParseFrame(frame);
  if (info.ipv4) CHECK(nic::Ipv4ChecksumState(frame, info) == nic::ChecksumState::kGood);
  CHECK(nic::L4ChecksumState(frame, info) == nic::ChecksumState::kGood);
}

TEST_CASE("checksums are made and judged by the NICs", "[offload]") {
  Pair pair(kJumbo);
  for (const bool ipv6 : {false, true}) {
    for (const bool tcp : {false, true}) {
      const nic::testing::FrameSpec spec = {.size = 300, .ipv6 = ipv6, .tcp = tcp};
      INFO((ipv6 ? "IPv6 " : "IPv4 ") << (tcp ? "TCP" : "UDP"));
      const Frame right = nic::testing::MakeFrame(spec);
      Frame wrong = right;
      const size_t l4 = 14 + (ipv6 ? 40 : 20);
      nic::testing::Put16(wrong, l4 + (tcp ? 16 : 6), 0xdead);
      if (!ipv6) nic::testing::Put16(wrong, 24, 0xbeef);
      Packet packet = pair.packets().Carry(wrong);
      Ask(packet, spec,
          ipv6 ? nic::TxFlags::kL4Checksum
               : nic::TxFlags::kL4Checksum | nic::TxFlags::kIpv4Checksum);
      std::vector<Packet> out = Send(pair, packet, 1);
      const nic::RxFlags flags = out[0].rx;
      CHECK(TakeBytes(out[0], pair.port(1).rx_pool(0)) == right);
      CHECK(Has(flags, nic::RxFlags::kL4ChecksumGood));
      CHECK_FALSE(Has(flags, nic::RxFlags::kL4ChecksumBad));
      // Not mended: seen to be wrong.
      std::vector<Packet> bad = Send(pair, pair.packets().Carry(wrong), 1);
      CHECK(Has(bad[0].rx, nic::RxFlags::kL4ChecksumBad));
      CHECK_FALSE(Has(bad[0].rx, nic::RxFlags::kL4ChecksumGood));
      if (!ipv6) CHECK(Has(bad[0].rx, nic::RxFlags::kIpv4ChecksumBad));
      CHECK(TakeBytes(bad[0], pair.port(1).rx_pool(0)) == wrong);
    }
  }
}

// Frames with TCP headers of their own, as the hardware makes them.
void CheckSegments(const Frame& large, size_t headers, const std::vector<Frame>& frames) {
  size_t at = headers;
  for (const Frame& frame : frames) {
    CheckSums(frame);
    REQUIRE(frame.size() > headers);
    const std::span<const std::byte> payload = std::span(frame).subspan(headers);
    REQUIRE(at + payload.size() <= large.size());
    CHECK(std::equal(payload.begin(), payload.end(), large.begin() + static_cast<ptrdiff_t>(at)));
    CHECK(nic::LoadBe<uint32_t>(frame, headers - 16) == 1 + at - headers);
    at += payload.size();
  }
  CHECK(at == large.size());
}

// QEMU before 8.1 cuts a large packet into IP fragments where nothing behind it takes it whole: the
// TCP header is in the first only, and what can be seen is that each byte came, in order, in pieces
// of the size that was asked for.
void CheckFragments(const Frame& large, size_t l4, const std::vector<Frame>& frames) {
  Frame joined;
  for (const Frame& frame : frames) {
    REQUIRE(frame.size() > l4);
    CHECK(frame.size() - l4 == std::min<size_t>(1'000, large.size() - l4 - joined.size()));
    joined.insert(joined.end(), frame.begin() + static_cast<ptrdiff_t>(l4), frame.end());
  }
  Frame expected(large.begin() + static_cast<ptrdiff_t>(l4), large.end());
  REQUIRE(joined.size() == expected.size());
  std::copy_n(joined.begin() + 16, 2, expected.begin() + 16);  // the checksum, of the whole
  CHECK(joined == expected);
}

TEST_CASE("a large TCP packet is cut into frames", "[offload]") {
  Pair pair(kJumbo);
  for (const bool ipv6 : {false, true}) {
    INFO((ipv6 ? "IPv6" : "IPv4"));
    const nic::testing::FrameSpec spec = {.size = 8'000, .ipv6 = ipv6, .tcp = true};
    const Frame large = nic::testing::MakeFrame(spec);
    Packet packet = pair.packets().Carry(large);
    Ask(packet, spec, nic::TxFlags::kTso);
    packet.segment_size = 1'000;
    const size_t l4 = 14 + (ipv6 ? 40 : 20);
    std::vector<Frame> frames;
    for (Packet& piece : Send(pair, packet, 8)) {
      frames.push_back(TakeBytes(piece, pair.port(1).rx_pool(0)));
    }
    if (std::getenv("CUTS_AT_IP") != nullptr) {
      CheckFragments(large, l4, frames);
    } else {
      CheckSegments(large, l4 + 20, frames);
    }
  }
}

TEST_CASE("VLAN tags go in and come out", "[offload]") {
  for (const bool strip : {false, true}) {
    INFO((strip ? "stripped" : "left in"));
    PortOptions sender = kJumbo;
    sender.vlan_strip = true;
    PortOptions receiver = kJumbo;
    receiver.vlan_strip = strip;
    Pair pair(std::array<PortOptions, 2>{sender, receiver});
    const Frame plain = nic::testing::MakeFrame({.size = 200});
    Packet packet = pair.packets().Carry(plain);
    packet.tx = nic::TxFlags::kVlanInsert;
    packet.vlan = 0x2345;
    std::vector<Packet> out = Send(pair, packet, 1);
    const nic::RxFlags flags = out[0].rx;
    const uint16_t tag = out[0].vlan;
    const Frame got = TakeBytes(out[0], pair.port(1).rx_pool(0));
    if (strip) {
      CHECK(Has(flags, nic::RxFlags::kVlanStripped));
      CHECK(tag == 0x2345);
      CHECK(got == plain);
    } else {
      CHECK(got == nic::testing::MakeFrame({.size = 204, .vlan = 0x2345}));
    }
  }
}

}  // namespace
}  // namespace dmakit::qemu
