// SPDX-License-Identifier: Apache-2.0
//
// What a driver must never do, done on purpose: the emulated IOMMU stops it, the guest's kernel
// logs it, and the library reports the same accesses.

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "nic/e1000e/driver.h"
#include "nic/frag_source.h"
#include "tests/nic/frames.h"
#include "tests/qemu/function.h"
#include "tests/qemu/pair.h"

namespace dmakit::qemu {
namespace {

using nic::Packet;
using nic::PageAddressing;
using nic::RxBuffer;
using nic::e1000e::Driver;
using nic::e1000e::DriverOptions;

constexpr DriverOptions kOptions = {.ring_size = 64, .mtu = 1500};
constexpr auto kPatience = std::chrono::seconds(10);
// The kernel logs no more than ten lines about faults in five seconds.
constexpr auto kLogPause = std::chrono::milliseconds(5'200);

// Hands out one buffer, once, under any address a test likes.
struct OneAddress {
  frag::Page* page = nullptr;
  Iova iova{0};
  uint32_t capacity = 2048;
  bool taken = false;

  bool Take(RxBuffer& out) {
    if (std::exchange(taken, true)) return false;
    out = {.page = page, .offset = 0, .capacity = capacity, .iova = iova, .token = 0};
    return true;
  }
  void OnReceived(const RxBuffer&, uint32_t) {}
  void Put(const RxBuffer&) {}
};
static_assert(nic::RxBufferSource<OneAddress>);

// Sends from any address a test likes.
struct OtherAddress {
  Iova iova{0};
  bool Address(const nic::Segment&, Iova& out, uint64_t& token) {
    out = iova;
    token = 0;
    return true;
  }
  void Done(const nic::Segment&, uint64_t) {}
};
static_assert(nic::TxAddressing<OtherAddress>);

class Recorder final : public dma::FaultListener {
 public:
  struct Fault {
    Iova iova;
    dma::Access access;
  };
  void OnFault(const dma::DomainFault& fault) override {
    faults.push_back({fault.iova, fault.access});
    std::printf("library: %s %s at 0x%llx (%s)\n", std::string(fault.device).c_str(),
                fault.access == dma::Access::kWrite ? "write" : "read",
                static_cast<unsigned long long>(fault.iova.value()),
                std::string(fault.reason).c_str());
  }
  std::vector<Fault> faults;
};

// NIC 0 is under test, NIC 1 an ordinary one at the other end.
struct Bench {
  Bench() : victim(kernel, 0), peer(kernel, 1), memory(dma::Policy::kStrict, &audit) {
    std::this_thread::sleep_for(kLogPause);
    victim.vfio().domain().AddFaultListener(&recorder);
    victim.Attach(memory.space());
    peer.Attach(memory.space());
    packets.emplace(memory.space());
    pool = Need(frag::PagePool::Create(memory.space(), {.label = "receive", .order = 4}));
    page = pool->Take();
    REQUIRE(page != nullptr);
    std::fill_n(page->base, page->size, std::byte{0xa5});
  }
  ~Bench() {
    victim.vfio().domain().RemoveFaultListener(&recorder);
    pool->Release(page);
    pool.reset();
    packets.reset();
    victim.Detach();
    peer.Detach();
    audit_text = audit.Text();
  }

  // Until the kernel has logged a fault of the victim.
  void WaitForFault() {
    const auto start = std::chrono::steady_clock::now();
    while (recorder.faults.empty()) {
      victim.vfio().PollFaults();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      REQUIRE(std::chrono::steady_clock::now() - start < kPatience);
    }
  }
  // Of the victim's page.
  bool Untouched() const {
    return std::all_of(page->base, page->base + page->size,
                       [](std::byte b) { return b == std::byte{0xa5}; });
  }
  std::unique_ptr<Driver<nic::FragSource, PageAddressing>> StartPeer() {
    auto source = Need(nic::FragSource::Create(*pool, {.size = 2048, .capacity = 2048}));
    std::vector<nic::FragSource> sources;
    sources.push_back(std::move(source));
    return peer.Start(kOptions, std::move(sources), std::vector<PageAddressing>(1));
  }
  void SendFromPeer(Driver<nic::FragSource, PageAddressing>& driver, uint32_t serial) {
    Packet packet = packets->Carry(nic::testing::NumberedFrame(serial, 800));
    driver.tx(0).SetOwner(&packets->pool());
    REQUIRE(driver.tx(0).Transmit({&packet, 1}) == 1);
  }

  dma::host::SystemVfioKernel kernel;
  Function victim;
  Function peer;
  dma::Audit audit;
  Recorder recorder;
  Memory memory;
  std::optional<Packets> packets;
  std::unique_ptr<frag::PagePool> pool;
  frag::Page* page = nullptr;
  std::string audit_text;
};

// A frame arrives for the one buffer, at `iova`, that the victim has posted; `before`: what happens
// between. The IOMMU refuses it, and not a byte has arrived.
void ReceiveBlocked(Bench& bench, Iova iova, const std::function<void()>& before = {}) {
  auto victim = bench.victim.Start(kOptions, std::vector<OneAddress>{{bench.page, iova}},
                                   std::vector<PageAddressing>(1));
  auto peer = bench.StartPeer();
  if (before) before();
  bench.SendFromPeer(*peer, 1);
  bench.WaitForFault();
  for (const Recorder::Fault& fault : bench.recorder.faults) {
    CHECK(fault.access == dma::Access::kWrite);
    CHECK(fault.iova.value() / 4096 == iova.value() / 4096);
  }
  CHECK(bench.Untouched());
  // What the device claims to have received is handed out; its buffer is the test's own.
  Packet burst[8];
  victim->rx(0).Receive(burst);
  CHECK(victim->Stop().ok());
  CHECK(peer->Stop().ok());
  CHECK(bench.Untouched());
}

TEST_CASE("a receive buffer that was unmapped cannot be written", "[blocked]") {
  Bench bench;
  auto mapping = Need(bench.victim.device().Map(std::span(bench.page->base, 4096),
                                                dma::Direction::kFromDevice, {.owner = "test rq"}));
  ReceiveBlocked(bench, mapping.iova(),
                 [&] { REQUIRE(bench.victim.device().Unmap(std::move(mapping)).ok()); });
  // The books knew as much before the device tried, and name the fault's mapping afterwards.
  INFO(bench.audit.Text());
  CHECK(bench.audit.total(dma::AuditCode::kReusedWhilePosted) > 0);
  CHECK(bench.audit.total(dma::AuditCode::kAccessAfterUnmap) > 0);
}

TEST_CASE("a receive buffer that the device may only read cannot be written", "[blocked]") {
  Bench bench;
  auto mapping = Need(bench.victim.device().MapToDevice(
      std::span<const std::byte>(bench.page->base, 4096), {.owner = "test rq"}));
  ReceiveBlocked(bench, mapping.iova());
  INFO(bench.audit.Text());
  CHECK(bench.audit.total(dma::AuditCode::kWrongDirection) > 0);
  REQUIRE(bench.victim.device().Unmap(std::move(mapping)).ok());
}

TEST_CASE("an IOVA beyond any mapping cannot be written", "[blocked]") {
  Bench bench;
  ReceiveBlocked(bench, Iova{0x40'0000'0000});
  INFO(bench.audit.Text());
  CHECK(bench.audit.total(dma::AuditCode::kNothingMapped) > 0);
}

TEST_CASE("what is sent from an unmapped address shows nobody a byte", "[blocked]") {
  Bench bench;
  auto peer = bench.StartPeer();
  auto victim = bench.victim.Start(kOptions, std::vector<OneAddress>{},
                                   std::vector<OtherAddress>{{Iova{0x40'0000'0000}}});
  victim->tx(0).SetOwner(&bench.packets->pool());
  const Frame secret = nic::testing::NumberedFrame(77, 800);
  Packet packet = bench.packets->Carry(secret);
  REQUIRE(victim->tx(0).Transmit({&packet, 1}) == 1);
  bench.WaitForFault();
  CHECK(bench.recorder.faults[0].access == dma::Access::kRead);
  // The emulation still sends a frame: of zeros.
  Packet burst[8];
  size_t got = 0;
  const auto start = std::chrono::steady_clock::now();
  while (got == 0 && std::chrono::steady_clock::now() - start < std::chrono::seconds(2)) {
    got = peer->rx(0).Receive(burst);
  }
  for (size_t i = 0; i < got; ++i) {
    const Frame frame = TakeBytes(burst[i], *bench.pool);
    CHECK(std::all_of(frame.begin(), frame.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
  CHECK(victim->Stop().ok());
  CHECK(peer->Stop().ok());
}

}  // namespace
}  // namespace dmakit::qemu
