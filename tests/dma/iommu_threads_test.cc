// SPDX-License-Identifier: Apache-2.0
//
// Fault class "use after invalidation": when Invalidate returns, no access through the old
// translation is running or can start. A device thread reads and writes without pause while the
// program unmaps, invalidates, and uses the memory for something else.
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "dma/software_iommu.h"
#include "tests/catch.h"
#include "tests/dma/iommu_testing.h"

namespace dmakit::dma {
namespace {

using namespace testing;

constexpr uint64_t kBase = k2M;
constexpr uint64_t kSize = 4 * k4K;
constexpr std::byte kPrivate{0xee};  // the program's own use of the memory
constexpr std::byte kDevice{0x11};

// The device of these tests: copies the buffer in and out until told to stop.
struct Device {
  explicit Device(SoftwareIommu& iommu, bool write) : port(iommu.NewPort("nic")), writes(write) {
    thread = std::jthread([this](const std::stop_token& stop) {
      const std::vector<std::byte> out(kSize - 100, kDevice);
      std::vector<std::byte> in(kSize - 100);
      while (!stop.stop_requested()) {
        if (writes) {
          done += port->Write(Iova(kBase + 50), out) ? 1 : 0;
        } else if (port->Read(Iova(kBase + 50), in)) {
          ++done;
          for (const std::byte b : in) leaks += b == kPrivate ? 1 : 0;
        }
        ++tries;
      }
    });
  }
  std::unique_ptr<DevicePort> port;
  const bool writes;
  std::atomic<uint64_t> tries{0};
  std::atomic<uint64_t> done{0};
  std::atomic<uint64_t> leaks{0};
  std::jthread thread;
};

void CheckNothingAfterInvalidate(bool device_writes, bool all) {
  const Backing memory(kSize);
  const auto iommu = NewIommu();
  std::vector<int> torn;
  uint64_t done = 0;
  {
    Device device(*iommu, device_writes);
    for (int round = 0; round < 40; ++round) {
      std::memset(memory.at(0), 0, kSize);
      REQUIRE(Map(*iommu, kBase, memory.View(0, kSize)));
      const uint64_t before = device.done;
      while (device.done < before + 2) std::this_thread::yield();
      REQUIRE(Unmap(*iommu, kBase, kSize));
      REQUIRE((all ? iommu->InvalidateAll() : iommu->Invalidate(At(kBase, kSize))).ok());
      // From here on the memory is ours: ThreadSanitizer sees any access of the device to it.
      std::memset(memory.at(0), static_cast<int>(kPrivate), kSize);
      const uint64_t tries = device.tries;
      while (device.tries < tries + 2) std::this_thread::yield();
      for (uint64_t i = 0; i < kSize; ++i) {
        if (*memory.at(i) != kPrivate) {
          torn.push_back(round);
          break;
        }
      }
    }
    done = device.done;
    CHECK(device.leaks == 0);
  }
  CHECK(torn.empty());
  CHECK(done >= 80);
}

TEST_CASE("threads: nothing is read after Invalidate has returned") {
  CheckNothingAfterInvalidate(/*device_writes=*/false, /*all=*/false);
}

TEST_CASE("threads: nothing is written after Invalidate has returned") {
  CheckNothingAfterInvalidate(/*device_writes=*/true, /*all=*/false);
}

TEST_CASE("threads: nor after InvalidateAll") {
  CheckNothingAfterInvalidate(/*device_writes=*/true, /*all=*/true);
}

// A body, then the word that hands it over; the reader looks at the word with acquire.
TEST_CASE("threads: what a device wrote before Publish is seen after LoadAcquire") {
  const Backing memory(k4K);
  const auto iommu = NewIommu();
  REQUIRE(Map(*iommu, k4K, memory.View(0, k4K)));
  const auto producer = iommu->NewPort("producer");
  const auto consumer = iommu->NewPort("consumer");
  constexpr uint64_t kRounds = 300;
  uint64_t wrong = 0;
  {
    const std::jthread thread([&] {
      for (uint64_t i = 1; i <= kRounds; ++i) {
        while (producer->LoadAcquire(Iova(k4K), 8) != 0) std::this_thread::yield();
        wrong += Poke(*producer, k4K + 64, i) ? 0 : 1;
        wrong += producer->Publish(Iova(k4K), i, 8) ? 0 : 1;
      }
    });
    for (uint64_t i = 1; i <= kRounds; ++i) {
      while (consumer->LoadAcquire(Iova(k4K), 8) != i) std::this_thread::yield();
      const bool same = Peek(*consumer, k4K + 64) == i;
      const bool given_back = consumer->Publish(Iova(k4K), 0, 8);
      if (!same || !given_back) FAIL("round " << i);
    }
  }
  CHECK(wrong == 0);
}

// Everything at once: ports come and go, maps of all sizes, tables freed, counters read.
TEST_CASE("threads: all methods beside each other") {
  const Backing memory(k2M);
  const auto iommu = NewIommu({.fault_records = 8});
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {  // devices
      while (!stop) {
        const auto port = iommu->NewPort("nic");
        for (uint64_t i = 0; i < 50; ++i) {
          Peek(*port, k1G * (1 + t) + i % 8 * k4K);
          std::this_thread::yield();
        }
      }
    });
    threads.emplace_back([&, t] {  // drivers
      while (!stop) {
        for (const uint64_t size : {k4K, 3 * k4K, k2M}) {
          const uint64_t base = k1G * (1 + t);
          const bool ok = Map(*iommu, base, memory.View(0, size)) && Unmap(*iommu, base, size) &&
                          iommu->Invalidate(At(base, size)).ok();
          failures += ok ? 0 : 1;
        }
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    const absl::Status status = iommu->FreeUnusedTables();
    if (!status.ok() && status.code() != absl::StatusCode::kFailedPrecondition) ++failures;
    if (iommu->walk_stats().stale_uses > 1'000'000 || iommu->faults().size() > 8) ++failures;
    std::this_thread::yield();
  }
  stop = true;
  threads.clear();
  CHECK(failures == 0);
  CHECK(iommu->stats().live_mappings == 0);
  REQUIRE(iommu->FreeUnusedTables().ok());
  CHECK(iommu->table_pages() == 1);
}

}  // namespace
}  // namespace dmakit::dma
