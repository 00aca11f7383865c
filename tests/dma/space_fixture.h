// SPDX-License-Identifier: Apache-2.0
//
// What most tests of address spaces and devices start from: fakes for every edge, one fail point
// for each, and the state that a failed call must leave as it was. Not a Catch2 fixture; one per
// test.
#ifndef DMAKIT_TESTS_DMA_SPACE_FIXTURE_H_
#define DMAKIT_TESTS_DMA_SPACE_FIXTURE_H_

#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dma/address_space.h"
#include "dma/device.h"
#include "dma/fakes.h"
#include "dma/host/fakes.h"
#include "tests/catch.h"

namespace dmakit::dma::testing {

// Memory of the caller's own, aligned to a page.
class Buffer {
 public:
  explicit Buffer(size_t size)
      : size_(size),
        data_(static_cast<std::byte*>(std::aligned_alloc(4096, (size + 4095) & ~4095ull))) {}
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  std::span<std::byte> all() const { return {data_, size_}; }
  std::span<std::byte> part(size_t offset, size_t length) const { return {data_ + offset, length}; }
  MemoryView view(size_t offset, size_t length) const {
    return MemoryView::Of(part(offset, length));
  }

 private:
  const size_t size_;
  std::byte* const data_;
};

// A FakeDomain whose invalidations call out first: to block, to look around.
class HookedDomain final : public Domain {
 public:
  explicit HookedDomain(FakeDomain::Options options = {}) : fake(std::move(options)) {}

  std::string_view name() const override { return fake.name(); }
  const DomainFacts& facts() const override { return fake.facts(); }
  absl::Status Map(Range range, MemoryView memory, Access access) override {
    return fake.Map(range, memory, access);
  }
  absl::StatusOr<Bytes> Unmap(Range range) override { return fake.Unmap(range); }
  absl::Status Invalidate(Range range) override {
    if (before_invalidate) before_invalidate();
    return fake.Invalidate(range);
  }
  absl::Status InvalidateAll() override {
    if (before_invalidate) before_invalidate();
    return fake.InvalidateAll();
  }
  DomainStats stats() const override { return fake.stats(); }

  FakeDomain fake;
  std::function<void()> before_invalidate;  // set while no other thread uses the domain
};

// One thread waits, another lets it go. For choosing an interleaving, not for measuring one.
class Gate {
 public:
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

// Faults of the edges, by kind.
struct Faults {
  host::FailPoint memory, threads, map, unmap, invalidate, short_unmap;
};

struct Fixture {
  Faults faults;
  host::FakeClock clock;
  host::FakeThreads threads{&faults.threads};
  host::FakeMemory memory{{.fail = &faults.memory}};
  std::vector<std::unique_ptr<FakeDomain>> domains;
  std::mutex lines_mutex;
  std::vector<std::string> lines;
  std::unique_ptr<AddressSpace> space;

  FakeDomain& NewDomain(DomainFacts facts = {}) {
    domains.push_back(std::make_unique<FakeDomain>(
        FakeDomain::Options{.name = "domain" + std::to_string(domains.size()),
                            .facts = std::move(facts),
                            .fail_map = &faults.map,
                            .fail_unmap = &faults.unmap,
                            .fail_invalidate = &faults.invalidate,
                            .short_unmap = &faults.short_unmap}));
    return *domains.back();
  }
  AddressSpace::Options Options() {
    AddressSpace::Options options;
    options.name = "test";
    options.memory = &memory;
    options.clock = &clock;
    options.report = [this](std::string_view line) {
      std::lock_guard<std::mutex> lock(lines_mutex);
      lines.emplace_back(line);
    };
    return options;
  }
  AddressSpace& NewSpace(AddressSpace::Options options) {
    auto made = AddressSpace::Create(std::move(options));
    REQUIRE(made.ok());
    space = *std::move(made);
    return *space;
  }
  AddressSpace& NewSpace() { return NewSpace(Options()); }

  // One device in a domain of its own.
  std::unique_ptr<Device> Attach(const std::string& name, FakeDomain& domain) {
    auto device = space->Attach({.name = name, .domain = &domain});
    INFO(device.status().ToString());
    REQUIRE(device.ok());
    return *std::move(device);
  }

  bool Reported(const std::string& text) const {
    for (const std::string& line : lines) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }
};

inline bool Has(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

}  // namespace dmakit::dma::testing

#endif  // DMAKIT_TESTS_DMA_SPACE_FIXTURE_H_
