// SPDX-License-Identifier: Apache-2.0
//
// What the tests of frag/ share: an address space with one device on a fake domain or on a
// SoftwareIommu, a waiter that owns its time, memory that costs nothing, a seeded random source.
#ifndef DMAKIT_TESTS_FRAG_TESTING_H_
#define DMAKIT_TESTS_FRAG_TESTING_H_

#include <sys/mman.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dma/address_space.h"
#include "dma/device.h"
#include "dma/fakes.h"
#include "dma/host/fakes.h"
#include "dma/poll.h"
#include "dma/software_iommu.h"
#include "frag/frag_allocator.h"
#include "frag/page_pool.h"
#include "frag/returner.h"
#include "tests/catch.h"
#include "tests/checked_audit.h"

namespace dmakit::frag::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

using dma::Policy;
using Random = std::mt19937_64;
inline uint64_t Below(Random& random, uint64_t n) { return random() % n; }

// A millisecond passes with each pause, and `on_pause` may let things happen.
class FakeWaiter final : public dma::Waiter {
 public:
  dma::Nanos Now() override { return now_; }
  void Pause() override {
    now_ += dma::Nanos{1'000'000};
    ++pauses;
    if (on_pause) on_pause();
  }
  std::function<void()> on_pause;
  uint64_t pauses = 0;

 private:
  dma::Nanos now_{0};
};

// Address space that nobody touches, for counting hundreds of MiB.
class UntouchedMemory final : public dma::host::MemorySource {
 public:
  ~UntouchedMemory() override {
    for (auto [base, size] : maps_) munmap(base, size);
  }
  absl::StatusOr<dma::host::Memory> Allocate(const dma::host::MemoryRequest& request) override {
    const size_t size = request.size.value();
    const size_t room = size + request.alignment.value();
    void* base = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return absl::ResourceExhaustedError("mmap failed");
    maps_.emplace_back(base, room);
    const auto start = reinterpret_cast<uintptr_t>(base);
    auto* aligned =
        reinterpret_cast<std::byte*>((start + room - size) & ~(request.alignment.value() - 1));
    in_use_ += size;
    return dma::host::Memory(this, {aligned, aligned, size});
  }
  Bytes page_size() const override { return Bytes{4096}; }
  Bytes bytes_in_use() const override { return Bytes{in_use_}; }

 protected:
  void Free(const dma::MemoryView& view) override { in_use_ -= view.size; }

 private:
  std::vector<std::pair<void*, size_t>> maps_;
  uint64_t in_use_ = 0;
};

struct RigOptions {
  // kDeferred gives the space a flush queue, which flushes only when told or at its bounds.
  Policy policy = Policy::kDeferred;
  dma::DeferredLimits deferred{.max_age = dma::Nanos{3'600'000'000'000}};
  Bytes largest{~uint64_t{0}};
  dma::FakeDomain::Options domain{};
  dma::SoftwareIommu::Options iommu{};
  dma::host::MemorySource* memory = nullptr;  // nullptr: the rig's FakeMemory
};

// The space and one device of it, on a domain that the derived rig owns.
class Rig {
 public:
  explicit Rig(RigOptions options)
      : options_(options), memory({.fail = &fail_memory, .largest = options.largest}) {}

  dma::AddressSpace& operator*() { return *space; }

  std::unique_ptr<PagePool> Pool(PagePool::Options options = {}) {
    if (options.label.empty()) options.label = "rx0";
    if (options.waiter == nullptr) options.waiter = &waiter;
    auto pool = PagePool::Create(*space, std::move(options));
    INFO(pool.status());
    REQUIRE(pool.ok());
    return *std::move(pool);
  }

 protected:
  void Open(dma::Domain& domain) {
    auto made = dma::AddressSpace::Create(
        {.memory = options_.memory != nullptr ? options_.memory : &memory,
         .clock = &clock,
         .policy = options_.policy,
         .deferred = options_.deferred,
         .report = [this](std::string_view line) { reports.emplace_back(line); },
         .on_attach = audit.on_attach()});
    INFO(made.status());
    REQUIRE(made.ok());
    space = *std::move(made);
    auto attached = space->Attach({.name = "nic0", .domain = &domain});
    INFO(attached.status());
    REQUIRE(attached.ok());
    device = *std::move(attached);
  }

  RigOptions options_;

 public:
  dma::host::FailPoint fail_memory;
  dma::host::FakeMemory memory;
  dma::host::FakeClock clock;
  FakeWaiter waiter;
  std::vector<std::string> reports;  // what died with live mappings
  dmakit::testing::CheckedAudit audit;
  std::unique_ptr<dma::AddressSpace> space;
  std::unique_ptr<dma::Device> device;
};

struct FakeDomainPart {
  dma::host::FailPoint fail_map, fail_unmap, fail_invalidate, short_unmap;
  dma::FakeDomain domain;
  explicit FakeDomainPart(dma::FakeDomain::Options options)
      : domain([&] {
          options.fail_map = &fail_map;
          options.fail_unmap = &fail_unmap;
          options.fail_invalidate = &fail_invalidate;
          options.short_unmap = &short_unmap;
          return options;
        }()) {}
};

class FakeRig : public FakeDomainPart, public Rig {
 public:
  explicit FakeRig(RigOptions options = {}) : FakeDomainPart(options.domain), Rig(options) {
    Open(domain);
  }
};

struct IommuPart {
  std::unique_ptr<dma::SoftwareIommu> iommu;
  std::unique_ptr<dma::DevicePort> port;
  explicit IommuPart(dma::SoftwareIommu::Options options) {
    auto made = dma::SoftwareIommu::Create(std::move(options));
    REQUIRE(made.ok());
    iommu = *std::move(made);
    port = iommu->NewPort("nic0");
  }
};

class IommuRig : public IommuPart, public Rig {
 public:
  explicit IommuRig(RigOptions options = {}) : IommuPart(options.iommu), Rig(options) {
    Open(*iommu);
  }
  // The device writes `value` to the first byte of the fragment.
  bool Write(Iova to, uint8_t value) {
    const std::byte byte{value};
    return port->Write(to, {&byte, 1});
  }
};

inline FragAllocator Cutter(PagePool& pool, FragAllocator::Options options) {
  auto made = FragAllocator::Create(pool, options);
  INFO(made.status());
  REQUIRE(made.ok());
  return *std::move(made);
}

// The buffer of the NIC layer: frame, 14 bytes of header and 4 of CRC, headroom; whole cache lines.
constexpr uint32_t BufferSize(uint32_t mtu, uint32_t headroom = 64) {
  return (mtu + 18 + headroom + 63) / 64 * 64;
}

}  // namespace dmakit::frag::testing

#endif  // DMAKIT_TESTS_FRAG_TESTING_H_
