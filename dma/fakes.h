// SPDX-License-Identifier: Apache-2.0
//
// FakeDomain: a translation with no hardware and no tables behind it, for unit tests. It enforces
// the whole contract of dma::Domain (alignment, aperture, overlap, budget, splitting, double unmap,
// invalidation owed) and can be told to fail its k-th map, unmap or invalidation, or to remove less
// than it was asked to. It passes the same conformance suite as SoftwareIommu.
#ifndef DMAKIT_DMA_FAKES_H_
#define DMAKIT_DMA_FAKES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dma/domain.h"
#include "dma/host/fakes.h"

namespace dmakit::dma {

class FakeDomain final : public Domain {
 public:
  struct Options {
    std::string name = "fake";
    DomainFacts facts{};  // empty apertures: [0, 2^width - 1]
    host::FailPoint* fail_map = nullptr;
    host::FailPoint* fail_unmap = nullptr;
    host::FailPoint* fail_invalidate = nullptr;
    host::FailPoint* short_unmap = nullptr;       // the chosen unmap leaves its last granule mapped
    std::function<bool(MemoryView)> reachable{};  // empty: all memory is; see facts.fixed_memory
  };
  explicit FakeDomain(Options options);
  FakeDomain() : FakeDomain(Options{}) {}
  ~FakeDomain() override;

  std::string_view name() const override;
  const DomainFacts& facts() const override;
  absl::Status Map(Range range, MemoryView memory, Access access) override;
  absl::StatusOr<Bytes> Unmap(Range range) override;
  absl::Status Invalidate(Range range) override;
  absl::Status InvalidateAll() override;
  DomainStats stats() const override;
  void SyncForCpu(Range range) override;
  void SyncForDevice(Range range) override;
  bool Reachable(MemoryView memory) const override;

  struct Entry {
    Range range{};
    MemoryView memory{};
    Access access = Access::kNone;
  };
  std::vector<Entry> live() const;
  // Unmapped, but a device might still reach it: no invalidation has covered it since.
  std::vector<Range> stale() const;
  // Maps over a stale range: an IOVA was reused before its invalidation, the fault that a deferred
  // policy must never have.
  uint64_t stale_reuses() const;
  // One line per call that succeeded, for tests on order; the newest 65,536:
  //   "map [0x1000, 0x1fff] read-write", "unmap [0x1000, 0x1fff]", "invalidate [0x1000, 0x1fff]",
  //   "invalidate all", "sync [0x1000, 0x10ff] for the CPU", "sync [0x1000, 0x10ff] for the device"
  std::vector<std::string> log() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_FAKES_H_
