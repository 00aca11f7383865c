// SPDX-License-Identifier: Apache-2.0
//
// The set-ups that the operations with a budget share: on fakes, on one thread, and with nothing
// that stands for the machine costing anything.
//
// Each file operations_*.cc is a set of test cases. One sets an operation up, lets it run until
// slow paths come as often as they ever will, and counts a fixed number of rounds. Without
// callgrind that is a test of the set-ups. They are files of their own so that what the compiler
// inlines into one does not depend on another.
#ifndef DMAKIT_BENCHMARKS_BUDGET_RIG_H_
#define DMAKIT_BENCHMARKS_BUDGET_RIG_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/address_space.h"
#include "dma/device.h"
#include "dma/domain.h"
#include "dma/host/fakes.h"
#include "iova/fence.h"
#include "tests/catch.h"

namespace dmakit::budget {

// One thread: nobody needs the barrier.
class NoFence final : public iova::AsymmetricFence {
 public:
  bool available() const override { return true; }
  void HeavyBarrier() override {}
};

// Translates nothing and agrees to everything.
class NoDomain final : public dma::Domain {
 public:
  NoDomain() { facts_.apertures = {{Iova(0x10000), Iova((uint64_t{1} << 48) - 1)}}; }
  std::string_view name() const override { return "none"; }
  const dma::DomainFacts& facts() const override { return facts_; }
  absl::Status Map(Range, dma::MemoryView, dma::Access) override { return absl::OkStatus(); }
  absl::StatusOr<Bytes> Unmap(Range range) override { return range.size; }
  absl::Status Invalidate(Range) override { return absl::OkStatus(); }
  absl::Status InvalidateAll() override { return absl::OkStatus(); }
  dma::DomainStats stats() const override { return {}; }

 private:
  dma::DomainFacts facts_;
};

struct Rig {
  explicit Rig(dma::Policy policy) {
    dma::AddressSpace::Options options;
    options.memory = &memory;
    options.clock = &clock;
    options.fence = &fence;
    options.policy = policy;
    auto made = dma::AddressSpace::Create(std::move(options));
    REQUIRE(made.ok());
    space = *std::move(made);
    auto attached = space->Attach({.name = "nic", .domain = &domain});
    REQUIRE(attached.ok());
    device = *std::move(attached);
  }

  NoFence fence;
  NoDomain domain;
  dma::host::FakeMemory memory;
  dma::host::FakeClock clock;
  std::unique_ptr<dma::AddressSpace> space;
  std::unique_ptr<dma::Device> device;
};

}  // namespace dmakit::budget

#endif  // DMAKIT_BENCHMARKS_BUDGET_RIG_H_
