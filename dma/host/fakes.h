// SPDX-License-Identifier: Apache-2.0
//
// The system's edges owned by a test. Each fake enforces the real contract and can be told to fail
// its k-th call; each passes the same conformance suite as the real thing. One fail point can be
// shared by several fakes, so that a test can fail "the k-th thing that can fail" of a whole
// set-up, for all k.
#ifndef DMAKIT_DMA_HOST_FAKES_H_
#define DMAKIT_DMA_HOST_FAKES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dma/host/clock.h"
#include "dma/host/memory.h"
#include "dma/host/memory_kind.h"

namespace dmakit::dma::host {

// Counts calls and fails chosen ones. Any thread.
class FailPoint {
 public:
  // The k-th call from now (1 = the next) fails; with `forever`, all after it too. 0: none.
  void FailAt(uint64_t k, bool forever = false);
  // Called by the fake at each fallible call: true = fail this one.
  bool Hit();
  uint64_t calls() const;  // since the last FailAt
  bool triggered() const;  // whether the chosen call has come

 private:
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> at_{0};
  std::atomic<bool> forever_{false};
};

// Ordinary memory, poisoned when freed (never zero by luck: new blocks are zeroed explicitly), with
// checks: every block comes back exactly once, and all of them before the source dies (else the
// test is aborted with a message). Freed blocks are held back for a while, so that a device's late
// write hurts nobody and is counted; under AddressSanitizer it is reported where it happens. Any
// thread.
class FakeMemory : public MemorySource {
 public:
  struct Options {
    Bytes capacity{uint64_t{4} << 30};
    FailPoint* fail = nullptr;    // nullptr: only capacity fails
    Bytes largest{~uint64_t{0}};  // requests above it fail: "high orders are gone"
    bool second_view = false;     // device view at another address (memfd)
  };
  explicit FakeMemory(Options options);
  FakeMemory() : FakeMemory(Options{}) {}
  ~FakeMemory() override;

  absl::StatusOr<Memory> Allocate(const MemoryRequest& request) override;
  Bytes page_size() const override { return Bytes{4096}; }
  Bytes bytes_in_use() const override;
  uint64_t blocks() const;
  // Freed blocks whose poison did not survive, as far as they are still held back (16 MiB).
  uint64_t written_after_free() const;
  void set_largest(Bytes largest);

 protected:
  void Free(const MemoryView& view) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Stands still until told; Sleep advances it. What "its k-th call fails" means for a clock: from
// that call on it is `jump` ahead of what it was (back, if negative). Any thread.
class FakeClock final : public Clock {
 public:
  struct Options {
    FailPoint* fail = nullptr;
    Nanos jump{0};
  };
  explicit FakeClock(Options options) : options_(options) {}
  FakeClock() : FakeClock(Options{}) {}

  Nanos Now() override {
    if (options_.fail != nullptr && options_.fail->Hit()) Advance(options_.jump);
    return Nanos{now_.load(std::memory_order_relaxed)};
  }
  void Sleep(Nanos duration) override { Advance(duration); }
  void Advance(Nanos duration) { now_.fetch_add(duration.count(), std::memory_order_relaxed); }

 private:
  const Options options_;
  std::atomic<int64_t> now_{0};
};

// Starts real threads unless told to fail.
class FakeThreads final : public ThreadStarter {
 public:
  explicit FakeThreads(FailPoint* fail) : fail_(fail) {}
  absl::StatusOr<std::jthread> Start(std::string_view name,
                                     std::function<void(std::stop_token)> body) override;

 private:
  FailPoint* fail_;
  SystemThreads real_;
};

// Everything is ordinary memory, except what it was told about. Any thread.
class FakeMemoryKinds final : public MemoryClassifier {
 public:
  void Set(std::span<const std::byte> memory, MemoryKind kind) {
    std::lock_guard<std::mutex> lock(mutex_);
    kinds_.emplace_back(memory, kind);
  }
  MemoryKind Classify(std::span<const std::byte> memory) override {
    std::lock_guard<std::mutex> lock(mutex_);
    MemoryKind worst = MemoryKind::kOrdinary;
    for (const auto& [where, kind] : kinds_) {
      const bool overlaps = memory.data() < where.data() + where.size() &&
                            where.data() < memory.data() + memory.size();
      if (overlaps && kind > worst) worst = kind;
    }
    return worst;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::span<const std::byte>, MemoryKind>> kinds_;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_FAKES_H_
