// SPDX-License-Identifier: Apache-2.0
//
// The edges of a NIC under test, which can be told to fail: its domain, its time, its registers.
#ifndef DMAKIT_TESTS_NIC_EDGES_H_
#define DMAKIT_TESTS_NIC_EDGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/domain.h"
#include "dma/host/fakes.h"
#include "dma/mmio.h"
#include "dma/poll.h"

namespace dmakit::nic {

using dma::host::FailPoint;

// A SoftwareIommu whose k-th map, unmap or invalidation fails.
class FailingDomain final : public dma::Domain {
 public:
  FailingDomain(dma::Domain& real, FailPoint* fail, FailPoint* unmap, FailPoint* invalidate)
      : real_(real), fail_(fail), unmap_(unmap), invalidate_(invalidate) {}
  std::string_view name() const override { return real_.name(); }
  const dma::DomainFacts& facts() const override { return real_.facts(); }
  absl::Status Map(Range range, dma::MemoryView memory, dma::Access access) override {
    if (fail_ != nullptr && fail_->Hit()) {
      return absl::ResourceExhaustedError("injected: no room in the tables");
    }
    return real_.Map(range, memory, access);
  }
  absl::StatusOr<Bytes> Unmap(Range range) override {
    if (unmap_ != nullptr && unmap_->Hit()) return absl::InternalError("injected: not unmapped");
    return real_.Unmap(range);
  }
  absl::Status Invalidate(Range range) override {
    if (absl::Status s = CheckInvalidate(); !s.ok()) return s;
    return real_.Invalidate(range);
  }
  absl::Status InvalidateAll() override {
    if (absl::Status s = CheckInvalidate(); !s.ok()) return s;
    return real_.InvalidateAll();
  }
  dma::DomainStats stats() const override { return real_.stats(); }

 private:
  absl::Status CheckInvalidate() {
    if (invalidate_ == nullptr || !invalidate_->Hit()) return absl::OkStatus();
    return absl::InternalError("injected: not invalidated");
  }

  dma::Domain& real_;
  FailPoint* fail_;
  FailPoint* unmap_;
  FailPoint* invalidate_;
};

// Time that jumps ahead, or back, at a chosen look at it.
class UnsteadyWaiter final : public dma::Waiter {
 public:
  UnsteadyWaiter(dma::Waiter& real, FailPoint* fail, dma::Nanos jump)
      : real_(real), fail_(fail), jump_(jump) {}
  dma::Nanos Now() override {
    if (fail_ != nullptr && fail_->Hit()) offset_ += jump_;
    return real_.Now() + offset_;
  }
  void Pause() override {
    ++pauses;
    real_.Pause();
  }
  uint64_t pauses = 0;

 private:
  dma::Waiter& real_;
  FailPoint* fail_;
  const dma::Nanos jump_;
  dma::Nanos offset_{0};
};

// A model's BAR with a listener: every write is logged if asked for, and a read may be answered by
// the test.
class ListeningBar final : public dma::MmioHandler {
 public:
  struct Write {
    uint64_t offset = 0;
    uint64_t value = 0;
  };
  explicit ListeningBar(dma::MmioRegion real) : real_(real) {}

  uint64_t MmioRead(uint64_t offset, size_t width) override {
    if (on_read) {
      if (const std::optional<uint64_t> answer = on_read(offset)) return *answer;
    }
    return width == 8 ? real_.Read64(offset) : real_.Read32(offset);
  }
  void MmioWrite(uint64_t offset, uint64_t value, size_t width) override {
    if (logging) writes.push_back({offset, value});
    if (on_write && !on_write(offset, value)) return;
    if (width == 8) {
      real_.Write64(offset, value);
    } else {
      real_.Write32(offset, static_cast<uint32_t>(value));
    }
  }

  std::function<std::optional<uint64_t>(uint64_t)> on_read;
  std::function<bool(uint64_t, uint64_t)> on_write;  // false: the write is lost
  bool logging = false;
  std::vector<Write> writes;

 private:
  dma::MmioRegion real_;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_TESTS_NIC_EDGES_H_
