// SPDX-License-Identifier: Apache-2.0
//
// What the tests of a backend start from: one NIC with its model, IOMMU, address space and port on
// fakes, a wire that keeps frames, and a BAR that can be listened to and lied through. The same for
// every backend: a Kit says what is its own. Not a Catch2 fixture; one per test.
//
//   struct Kit {
//     using Model = ...;  using ModelOptions = ...;  using Port = ...;
//     static constexpr const char* kName = "enic0";
//     static constexpr size_t kBarBytes = ...;
//     // What Port::Create takes, with the BAR that the rig listens at.
//     static auto Registers(const dma::MmioRegion& bar, const Extra&);
//     struct Extra {};  // what else a test chooses
//   };
#ifndef DMAKIT_TESTS_NIC_NIC_RIG_H_
#define DMAKIT_TESTS_NIC_NIC_RIG_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dma/address_space.h"
#include "dma/host/fakes.h"
#include "dma/software_iommu.h"
#include "frag/returner.h"
#include "iova/space.h"
#include "nic/model.h"
#include "nic/packet.h"
#include "nic/port.h"
#include "nic/wire/wire.h"
#include "tests/catch.h"
#include "tests/checked_audit.h"
#include "tests/nic/edges.h"
#include "tests/nic/frames.h"

namespace dmakit::nic {

// --- Wire ----------------------------------------------------------------------------------------

// Offers what was queued and keeps what the NIC sent. Used while the model is not stepped, or by
// the thread that steps it; the counters by any.
class TestWire final : public Wire {
 public:
  void Send(Frame frame) {
    to_nic_.push_back(std::move(frame));
    waiting_.store(to_nic_.size());
  }
  std::optional<std::span<const std::byte>> Peek() override {
    if (to_nic_.empty()) return std::nullopt;
    return std::span<const std::byte>(to_nic_.front());
  }
  void Pop() override {
    to_nic_.pop_front();
    waiting_.store(to_nic_.size());
  }
  bool exhausted() const override { return waiting_.load() == 0; }
  void Accept(std::span<const std::byte> frame) override {
    from_nic.emplace_back(frame.begin(), frame.end());
  }
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return {}; }
  size_t waiting() const { return waiting_.load(); }

  std::vector<Frame> from_nic;

 private:
  std::deque<Frame> to_nic_;
  std::atomic<size_t> waiting_{0};
};

// --- One NIC -------------------------------------------------------------------------------------

template <typename Kit>
struct NicRigOptions {
  PortOptions port{};
  typename Kit::ModelOptions model{};
  bool threaded = false;
  FailPoint* fail = nullptr;  // memory, maps and threads, counted together
  FailPoint* fail_unmap = nullptr;
  FailPoint* fail_invalidate = nullptr;
  FailPoint* fail_time = nullptr;  // the waiter's, which jumps
  dma::Nanos time_jump{0};
  dma::SoftwareIommu::Options iommu{};
  dma::Access page_access = dma::Access::kReadWrite;
  typename Kit::Extra extra{};
};

template <typename Kit>
class NicRig {
 public:
  using Options = NicRigOptions<Kit>;

  explicit NicRig(Options options = {})
      : options_(std::move(options)),
        memory({.capacity = Bytes{uint64_t{2} << 30}, .fail = options_.fail}),
        threads(options_.fail),
        iommu(dma::SoftwareIommu::Create(options_.iommu).value()),
        domain(*iommu, options_.fail, options_.fail_unmap, options_.fail_invalidate),
        model(iommu->NewPort(Kit::kName), options_.model),
        bar(model.bar0()),
        waiter(model, dma::Nanos{10000}),
        unsteady(waiter, options_.fail_time, options_.time_jump) {
    model.Plug(&wire);
  }
  ~NicRig() {
    port.reset();
    space.reset();
  }

  absl::Status MakeSpace() {
    auto made = dma::AddressSpace::Create(
        {.name = "test",
         .memory = &memory,
         .clock = &clock,
         .threads = options_.threaded ? &threads : nullptr,
         .policy = options_.port.policy,
         .report = [this](std::string_view line) { reports.emplace_back(line); },
         .on_attach = audit.on_attach()});
    if (!made.ok()) return made.status();
    space = *std::move(made);
    return absl::OkStatus();
  }
  auto registers() {
    return Kit::Registers(dma::MmioRegion::OfModel(bar, Kit::kBarBytes), options_.extra);
  }
  dma::Waiter& device_waiter() {
    if (options_.threaded) return dma::SystemWaiter();
    if (options_.fail_time != nullptr) return unsteady;
    return waiter;
  }
  absl::Status Open() {
    auto device = space->Attach({.name = Kit::kName,
                                 .domain = &domain,
                                 .page_access = options_.page_access,
                                 .waiter = &device_waiter()});
    if (!device.ok()) return device.status();
    auto made = Kit::Port::Create(*std::move(device), registers(), options_.port);
    if (!made.ok()) return made.status();
    port = *std::move(made);
    return absl::OkStatus();
  }
  void Start() {
    REQUIRE(MakeSpace().ok());
    REQUIRE(Open().ok());
    const absl::Status started = port->Start();
    INFO(started);
    REQUIRE(started.ok());
  }

  void StepAll(int most = 1 << 20) {
    while (most-- > 0 && model.Step()) {
    }
  }
  RxQueueStats rx(size_t queue = 0) const { return port->stats().queues[queue].rx; }
  TxQueueStats tx(size_t queue = 0) const { return port->stats().queues[queue].tx; }
  frag::PagePoolStats pool(size_t queue = 0) const { return port->stats().queues[queue].pool; }

  // No fault, no violation, nothing stale.
  void CheckClean() {
    for (const std::string& words : model.violations()) UNSCOPED_INFO(words);
    CHECK(model.violation_count() == 0);
    CHECK(iommu->walk_stats().faults == 0);
    CHECK(iommu->walk_stats().stale_uses == 0);
    CHECK(memory.written_after_free() == 0);
  }

  const Options options_;
  std::vector<std::string> reports;
  dma::host::FakeMemory memory;
  dma::host::FakeClock clock;
  dma::host::FakeThreads threads;
  std::unique_ptr<dma::SoftwareIommu> iommu;
  FailingDomain domain;
  TestWire wire;
  typename Kit::Model model;
  ListeningBar bar;
  ModelWaiter waiter;
  dmakit::testing::CheckedAudit audit;
  UnsteadyWaiter unsteady;
  std::unique_ptr<dma::AddressSpace> space;
  std::unique_ptr<typename Kit::Port> port;
};

// What must be as it was.
struct Footprint {
  uint64_t blocks = 0;
  uint64_t mappings = 0;
  uint64_t free_iova = 0;
  friend bool operator==(const Footprint&, const Footprint&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Footprint& f) {
    return out << f.blocks << " blocks, " << f.mappings << " mappings, " << f.free_iova
               << " bytes of IOVA free";
  }
};

template <typename Rig>
Footprint Measure(Rig& rig) {
  Footprint f{rig.memory.blocks(), rig.iommu->stats().live_mappings, 0};
  if (rig.space->has_devices()) {
    rig.space->iova_space().ReclaimAll();
    f.free_iova = rig.space->iova_space().free_bytes().value();
  }
  return f;
}

inline void Release(std::span<Packet> packets, frag::PagePool* own) {
  frag::Returner returner(own);
  for (Packet& packet : packets) ReleaseSegments(packet, returner);
}

inline Frame BytesOf(const Packet& packet) {
  Frame bytes;
  for (const Segment& s : packet.parts()) {
    bytes.insert(bytes.end(), s.data(), s.data() + s.length);
  }
  return bytes;
}

// Receives and transmits on queues of one port until nothing moves. Returns frames transmitted.
template <typename Rig>
uint64_t Loop(Rig& rig, uint32_t queues = 1, size_t burst = 32) {
  std::vector<Packet> packets(burst);
  uint64_t moved = 0;
  for (bool busy = true; busy;) {
    busy = rig.model.Step();
    for (uint32_t q = 0; q < queues; ++q) {
      size_t have = rig.port->Receive(q, packets);
      busy |= have > 0;
      for (size_t sent = 0; sent < have;) {
        const size_t n = rig.port->Transmit(q, std::span(packets).subspan(sent, have - sent));
        if (n == 0) rig.model.Step();
        sent += n;
        moved += n;
      }
      busy |= rig.port->Reap(q) > 0;
    }
  }
  return moved;
}

}  // namespace dmakit::nic

#endif  // DMAKIT_TESTS_NIC_NIC_RIG_H_
