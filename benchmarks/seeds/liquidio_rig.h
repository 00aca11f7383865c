// SPDX-License-Identifier: Apache-2.0
//
// LiquidioRig: a LiquidIO that transmits packets of a head and a fragment, by any way to map gather
// lists and packet data, and what that costs: processor time of the driver, the device's left out,
// and counts. The device reads nothing before the driver has finished, so that one timer pair spans
// a whole ring. One thread.
#ifndef DMAKIT_BENCHMARKS_SEEDS_LIQUIDIO_RIG_H_
#define DMAKIT_BENCHMARKS_SEEDS_LIQUIDIO_RIG_H_

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dma/address_space.h"
#include "dma/device.h"
#include "dma/host/fence.h"
#include "dma/host/host_memory.h"
#include "dma/observer.h"
#include "dma/software_iommu.h"
#include "frag/frag_allocator.h"
#include "frag/page_pool.h"
#include "nic/liquidio/driver.h"
#include "nic/liquidio/model.h"
#include "nic/wire/null_wire.h"

namespace dmakit::seeds {

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(std::string(value.status().message()));
  return *std::move(value);
}

inline uint64_t ThreadNanos() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Syncs of one device's mappings while it lives, as the device's observer sees them; not while time
// is taken. The machine's device has no other observer.
class SyncCounter final : public dma::Observer {
 public:
  explicit SyncCounter(dma::Device& device) : device_(device) { device.set_observer(this); }
  ~SyncCounter() override { device_.set_observer(nullptr); }
  SyncCounter(const SyncCounter&) = delete;
  SyncCounter& operator=(const SyncCounter&) = delete;

  uint64_t for_cpu() const { return for_cpu_; }
  uint64_t for_device() const { return for_device_; }

  void OnMap(const dma::Device&, const dma::MappingEvent&) override {}
  void OnBeforeUnmap(const dma::Device&, const dma::MappingEvent&) override {}
  void OnRetired(const dma::Device&, Range) override {}
  void OnSync(const dma::Device&, Range, dma::Direction, bool for_cpu) override {
    ++(for_cpu ? for_cpu_ : for_device_);
  }
  void OnDetach(const dma::Device&, size_t) override {}

 private:
  dma::Device& device_;
  uint64_t for_cpu_ = 0;
  uint64_t for_device_ = 0;
};

// What every column stands on.
struct LiquidioMachine {
  explicit LiquidioMachine(bool vf)
      : vf(vf),
        memory(Must(dma::host::HostMemory::Create({.second_view = false}))),
        iommu(Must(dma::SoftwareIommu::Create({}))),
        model(iommu->NewPort("liquidio0"), {.vf = vf}),
        waiter(model) {
    dma::AddressSpace::Options options;
    options.memory = memory.get();
    options.fence = &fence;
    space = Must(dma::AddressSpace::Create(std::move(options)));
    device = Must(space->Attach({.name = "liquidio0", .domain = iommu.get(), .waiter = &waiter}));
    pool = Must(frag::PagePool::Create(*space, {.label = "packets", .order = 9}));
    // No divisor of a page: some pieces lie across two, as an application's do.
    fragments.emplace(Must(frag::FragAllocator::Create(*pool, {.size = 1600})));
    model.Plug(&wire);
  }
  ~LiquidioMachine() {
    fragments.reset();
    pool.reset();
    device.reset();
  }

  const bool vf;
  dma::host::MembarrierFence fence;
  std::unique_ptr<dma::host::HostMemory> memory;
  std::unique_ptr<dma::SoftwareIommu> iommu;
  nic::NullWire wire;
  nic::liquidio::Model model;
  nic::ModelWaiter waiter;
  std::unique_ptr<dma::AddressSpace> space;
  std::unique_ptr<dma::Device> device;
  std::unique_ptr<frag::PagePool> pool;
  std::optional<frag::FragAllocator> fragments;
};

template <typename Addressing, typename Lists>
class LiquidioRig {
 public:
  using Driver = nic::liquidio::Driver<nic::FragSource, Addressing, Lists>;
  static constexpr uint32_t kPieces = 2;  // of a packet, each addressed by itself

  // One queue per flow. `addressing` makes that of a queue.
  LiquidioRig(LiquidioMachine& machine, bool vf, uint32_t ring, size_t flows,
              const std::function<Addressing()>& addressing)
      : machine_(machine) {
    std::vector<Addressing> all;
    for (size_t i = 0; i < flows; ++i) all.push_back(addressing());
    driver_ = Must(Driver::Create(*machine.device, {.bar0 = machine.model.bar0(), .vf = vf},
                                  {.ring_size = ring, .mtu = 1500}, {}, std::move(all)));
    if (const absl::Status s = driver_->Start(); !s.ok()) {
      throw std::runtime_error(std::string(s.message()));
    }
    for (size_t i = 0; i < flows; ++i) driver_->tx(i).SetOwner(machine.pool.get());
  }
  ~LiquidioRig() { driver_->Stop().IgnoreError(); }

  // At least `packets` of `bytes` each: all rings are filled, then the device sends, then all are
  // reaped, over and over. The driver's nanoseconds per packet.
  double Send(uint32_t packets, uint32_t bytes) {
    uint64_t spent = 0;
    uint32_t sent = 0;
    while (sent < packets) {
      for (size_t flow = 0; flow < driver_->tx_count(); ++flow)
        sent += FillRing(flow, bytes, spent);
      while (machine_.model.Step()) {
      }
      for (size_t flow = 0; flow < driver_->tx_count(); ++flow) {
        const uint64_t begin = ThreadNanos();
        driver_->tx(flow).Reap();
        spent += ThreadNanos() - begin;
      }
    }
    return static_cast<double>(spent) / sent;
  }

  Driver& driver() { return *driver_; }

 private:
  uint32_t FillRing(size_t flow, uint32_t bytes, uint64_t& spent) {
    constexpr uint32_t kHead = 64;
    constexpr size_t kBurst = 256;
    std::vector<nic::Packet> burst(kBurst);
    for (uint32_t sent = 0;;) {
      for (nic::Packet& packet : burst) Make(packet, kHead, bytes - kHead);
      const uint64_t begin = ThreadNanos();
      const size_t taken = driver_->tx(flow).Transmit(burst);
      spent += ThreadNanos() - begin;
      // They are taken and fill no ring: without this the loop would not end.
      if (driver_->tx_stats(flow).dropped != 0) throw std::runtime_error("packets were dropped");
      sent += static_cast<uint32_t>(taken);
      if (taken == burst.size()) continue;
      for (size_t i = taken; i < burst.size(); ++i) Release(burst[i]);
      return sent;
    }
  }
  void Make(nic::Packet& packet, uint32_t head, uint32_t rest) {
    const frag::Fragment first = machine_.fragments->Allocate();
    const frag::Fragment second = machine_.fragments->Allocate();
    if (first.empty() || second.empty()) throw std::runtime_error("no packet memory");
    packet.tx = nic::TxFlags::kNone;
    packet.ResetTo({first.page, first.offset, head});
    (void)packet.Append({second.page, second.offset, rest});
  }
  void Release(nic::Packet& packet) {
    for (const nic::Segment& s : packet.parts()) machine_.pool->Release(s.page);
  }

  LiquidioMachine& machine_;
  std::unique_ptr<Driver> driver_;
};

}  // namespace dmakit::seeds

#endif  // DMAKIT_BENCHMARKS_SEEDS_LIQUIDIO_RIG_H_
