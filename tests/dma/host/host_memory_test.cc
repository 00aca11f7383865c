// SPDX-License-Identifier: Apache-2.0
//
// HostMemory: the suite of every source, and what only the real one has: shortage of memory,
// address space and huge pages, placement, fork.
#include "dma/host/host_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dma/host/available_memory.h"
#include "tests/catch.h"
#include "tests/dma/host/child.h"
#include "tests/dma/host/memory_conformance.h"

namespace dmakit::dma::host {
namespace {

using testing::InChild;
using testing::IsMapped;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // a sanitizer needs terabytes of address space itself
#else
constexpr bool kSanitized = false;
#endif

std::unique_ptr<HostMemory> Make(HostMemory::Options options) {
  auto source = HostMemory::Create(options);
  REQUIRE(source.ok());
  return *std::move(source);
}

// A field of /proc/self/status in KiB.
uint64_t StatusKib(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1));
  }
  return 0;
}

TEST_CASE("HostMemory with two views is a MemorySource") {
  testing::CheckMemoryConformance([](Bytes capacity) {
    return Make({.capacity = capacity, .segment = MiB(4), .second_view = true});
  });
}

TEST_CASE("HostMemory with one view is a MemorySource") {
  testing::CheckMemoryConformance(
      [](Bytes capacity) { return Make({.capacity = capacity, .second_view = false}); });
}

TEST_CASE("HostMemory with huge pages, if there are any, is a MemorySource") {
  testing::CheckMemoryConformance([](Bytes capacity) {
    return Make({.capacity = capacity,
                 .segment = MiB(2),
                 .huge_pages = HostMemory::HugePages::kIfAvailable});
  });
}

TEST_CASE("host memory: the views are two only where asked") {
  const auto two = Make({.second_view = true});
  const Memory a = *two->Allocate({.size = Bytes(4096)});
  CHECK(a.view().cpu != a.view().device);
  const auto one = Make({.second_view = false});
  const Memory b = *one->Allocate({.size = Bytes(4096)});
  CHECK(b.view().cpu == b.view().device);
}

TEST_CASE("host memory: alignment of 1 GiB holds in both views") {
  const auto source = Make({.second_view = true});
  const Memory memory = *source->Allocate({.size = Bytes(8192), .alignment = GiB(1)});
  CHECK(reinterpret_cast<uintptr_t>(memory.view().cpu) % GiB(1).value() == 0);
  CHECK(reinterpret_cast<uintptr_t>(memory.view().device) % GiB(1).value() == 0);
}

TEST_CASE("host memory: options out of bounds are named") {
  for (const Bytes bad : {Bytes(0), Bytes(4095), Bytes(~uint64_t{0})}) {
    const auto capacity = HostMemory::Create({.capacity = bad});
    CHECK(capacity.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(capacity.status().message()).find("capacity") != std::string::npos);
    const auto segment = HostMemory::Create({.segment = bad});
    CHECK(segment.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(segment.status().message()).find("segment") != std::string::npos);
  }
}

TEST_CASE("host memory: segments are shared by small blocks and as large as a large one") {
  const auto source = Make({.segment = MiB(4)});
  std::vector<Memory> held;
  for (int i = 0; i < 1024; ++i) held.push_back(*source->Allocate({.size = Bytes(4096)}));
  CHECK(source->stats().segments == 1);  // not one page of it is lost
  held.push_back(*source->Allocate({.size = Bytes(1)}));
  CHECK(source->stats().segments == 2);
  held.push_back(*source->Allocate({.size = MiB(9)}));
  CHECK(source->stats().segments == 3);
  held.clear();
  for (int i = 0; i < 1024; ++i) held.push_back(*source->Allocate({.size = Bytes(4096)}));
  CHECK(source->stats().segments == 3);
}

TEST_CASE("host memory: growing requests do not pile up empty segments above the capacity") {
  const auto source = Make({.capacity = MiB(64), .segment = MiB(2)});
  uint64_t most = 0;
  for (uint64_t mib = 1; mib <= 32; ++mib) {
    REQUIRE(source->Allocate({.size = MiB(mib)}).ok());
    most = std::max(most, source->stats().segments);
  }
  CHECK(source->bytes_in_use() == Bytes(0));
  CHECK(most <= 12);  // as many as add up to 64 MiB, of one size each
}

TEST_CASE("host memory: freed blocks give their pages back") {
  const auto source = Make({.segment = MiB(32)});
  const uint64_t before = StatusKib("RssShmem");
  auto memory = source->Allocate({.size = MiB(16)});
  REQUIRE(memory.ok());
  std::memset(memory->data(), 1, memory->size());
  CHECK(StatusKib("RssShmem") >= before + 16 * 1024);
  *memory = Memory();
  CHECK(StatusKib("RssShmem") <= before + 1024);
}

TEST_CASE("host memory: a late write to a freed block does not reach its next owner") {
  const auto source = Make({.capacity = MiB(2), .segment = MiB(2)});
  auto memory = source->Allocate({.size = MiB(2)});
  REQUIRE(memory.ok());
  std::byte* const late = memory->view().device;  // what a stale translation still knows
  *memory = Memory();
  std::memset(late + 5000, 0x99, 10000);
  memory = source->Allocate({.size = MiB(2)});
  REQUIRE(memory.ok());
  CHECK(memory->view().device == late);
  CHECK(std::ranges::all_of(memory->view().bytes(), [](std::byte b) { return b == std::byte{0}; }));
}

// --- Shortage: an error value at Allocate, never a SIGBUS later

TEST_CASE("host memory: what cannot be filled is refused before it is filled") {
  Bytes available = MiB(32);
  const auto source = Make({.available = [&available] { return available; }});
  const auto refused = source->Allocate({.size = MiB(31), .label = "too much"});
  CHECK(refused.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(refused.status().message()).find("too much") != std::string::npos);
  CHECK(source->stats().segments == 0);
  CHECK(source->bytes_in_use() == Bytes(0));
  CHECK(source->Allocate({.size = MiB(30)}).ok());  // 32 less one part in 16

  // Small blocks are not looked at one by one, but they do not slip through either.
  available = Bytes(0);
  std::vector<Memory> held;
  for (;;) {
    auto memory = source->Allocate({.size = Bytes(4096)});
    if (!memory.ok()) break;
    held.push_back(*std::move(memory));
    REQUIRE(held.size() <= MiB(2) / Bytes(4096));
  }
  CHECK_FALSE(source->Allocate({.size = Bytes(4096)}).ok());
  available = MiB(32);
  CHECK(source->Allocate({.size = Bytes(4096)}).ok());
}

TEST_CASE("host memory: more than the machine has is an error, and nobody is killed") {
  const int result = InChild([] {
    // Should the check ever be gone, this child is what the kernel kills.
    std::ofstream("/proc/self/oom_score_adj") << "1000";
    auto source = HostMemory::Create({.capacity = Bytes(uint64_t{1} << 46)});
    if (!source.ok()) return 1;
    const Bytes beyond(std::min(AvailableMemory().value(), uint64_t{1} << 44) / 4096 * 4096);
    const auto memory = (*source)->Allocate({.size = beyond});
    if (memory.status().code() != absl::StatusCode::kResourceExhausted) return 2;
    if ((*source)->bytes_in_use() != Bytes(0)) return 3;
    return (*source)->Allocate({.size = MiB(1)}).ok() ? 0 : 4;
  });
  CHECK(result == 0);
}

TEST_CASE("host memory: shortage of address space is an error, and smaller segments still fit") {
  if (kSanitized) return;
  const int result = InChild([] {
    auto source = HostMemory::Create({.segment = MiB(256), .second_view = true});
    if (!source.ok()) return 1;
    const uint64_t now = StatusKib("VmSize") * 1024;
    const rlimit limit{now + MiB(64).value(), now + MiB(64).value()};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
    auto small = (*source)->Allocate({.size = MiB(1)});  // a segment of 256 MiB cannot be had
    if (!small.ok()) return 3;
    std::memset(small->data(), 1, small->size());
    auto large = (*source)->Allocate({.size = MiB(100)});
    if (large.status().code() != absl::StatusCode::kResourceExhausted) return 4;
    if ((*source)->bytes_in_use() != MiB(1)) return 5;
    return (*source)->Allocate({.size = Bytes(4096)}).ok() ? 0 : 6;
  });
  CHECK(result == 0);
}

TEST_CASE("host memory: no file descriptors left is an error") {
  const int result = InChild([] {
    auto source = HostMemory::Create({});
    const rlimit limit{0, 0};
    if (!source.ok() || setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    const auto memory = (*source)->Allocate({.size = Bytes(4096)});
    return memory.status().code() == absl::StatusCode::kResourceExhausted ? 0 : 2;
  });
  CHECK(result == 0);
}

TEST_CASE("host memory: huge-page shortage falls back to ordinary pages and is counted") {
  const auto source = Make({.segment = MiB(2), .huge_pages = HostMemory::HugePages::kIfAvailable});
  auto memory = source->Allocate({.size = MiB(2), .alignment = MiB(2)});
  REQUIRE(memory.ok());
  CHECK(memory->size() == MiB(2).value());
  std::memset(memory->data(), 1, memory->size());
  const HostMemory::Stats stats = source->stats();
  CHECK(stats.segments == 1);
  CHECK(stats.huge_segments + stats.huge_fallbacks == 1);
}

TEST_CASE("host memory: required huge pages are had whole or refused") {
  const auto source = Make({.huge_pages = HostMemory::HugePages::kRequire});
  // More than any test machine reserves.
  const auto memory = source->Allocate({.size = GiB(512)});
  CHECK(memory.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(source->stats().segments == 0);
  CHECK(source->stats().huge_fallbacks == 0);
  const auto small = source->Allocate({.size = MiB(2)});
  CHECK(small.ok() == (source->stats().huge_segments == 1));
}

// A failed mapping of huge pages must not unmap what another thread has mapped meanwhile.
TEST_CASE("host memory: huge-page shortage leaves the mappings of other threads alone") {
  const auto source = Make({.segment = MiB(2), .huge_pages = HostMemory::HugePages::kRequire});
  const size_t size = MiB(2).value();
  std::atomic<uint64_t> rounds{0};
  {
    const std::jthread other([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        void* memory =
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) continue;
        // A segmentation fault if somebody unmapped it.
        for (size_t at = 0; at < size; at += 4096) static_cast<volatile char*>(memory)[at] = 1;
        munmap(memory, size);
        ++rounds;
      }
    });
    std::vector<Memory> held;  // where there are huge pages, so many can be had
    for (int i = 0; i < 500 || rounds < 100; ++i) {
      auto memory = source->Allocate({.size = MiB(2), .label = "huge"});
      if (memory.ok() && held.size() < 4) held.push_back(*std::move(memory));
    }
  }
  CHECK(rounds >= 100);
}

// --- Placement

// Two nodes; the second has `room` bytes left.
class TwoNodes final : public NumaPlacer {
 public:
  explicit TwoNodes(size_t room) : room_(room) {}
  absl::Status Place(std::span<std::byte> memory, const NumaPolicy& policy) override {
    ++calls;
    if (policy.mode == NumaPolicy::Mode::kEnforce && policy.node == NumaNode(1)) {
      if (memory.size() > room_) return absl::ResourceExhaustedError("node 1 is full");
      room_ -= memory.size();
    }
    return absl::OkStatus();
  }
  int calls = 0;

 private:
  size_t room_;
};

constexpr NumaPolicy kPrefer1{NumaPolicy::Mode::kPrefer, NumaNode(1)};
constexpr NumaPolicy kEnforce1{NumaPolicy::Mode::kEnforce, NumaNode(1)};

TEST_CASE("host memory: an empty node fails only who enforces it") {
  TwoNodes nodes(0);
  const auto source = Make({.segment = MiB(2), .numa = &nodes});
  CHECK(source->Allocate({.size = Bytes(4096)}).ok());
  CHECK(nodes.calls == 0);
  CHECK(source->Allocate({.size = Bytes(4096), .numa = kPrefer1}).ok());
  CHECK(nodes.calls == 1);
  const auto enforced = source->Allocate({.size = Bytes(4096), .numa = kEnforce1, .label = "rx0"});
  CHECK(enforced.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(enforced.status().message()).find("rx0") != std::string::npos);
  CHECK(std::string(enforced.status().message()).find("node 1") != std::string::npos);
  CHECK(source->bytes_in_use() == Bytes(0));
}

TEST_CASE("host memory: a block never comes from a segment placed otherwise") {
  TwoNodes nodes(MiB(2).value());
  const auto source = Make({.segment = MiB(2), .numa = &nodes});
  std::vector<Memory> held;
  held.push_back(*source->Allocate({.size = Bytes(4096)}));
  held.push_back(*source->Allocate({.size = Bytes(4096), .numa = kEnforce1}));
  held.push_back(*source->Allocate({.size = Bytes(4096), .numa = kPrefer1}));
  CHECK(source->stats().segments == 3);
  held.push_back(*source->Allocate({.size = Bytes(4096), .numa = kEnforce1}));
  held.push_back(*source->Allocate(
      {.size = Bytes(4096), .numa = {NumaPolicy::Mode::kAny, NumaNode(7)}}));  // any is any
  CHECK(source->stats().segments == 3);
  // The node's 2 MiB are all in the one segment there.
  CHECK_FALSE(source->Allocate({.size = MiB(2), .numa = kEnforce1}).ok());
}

TEST_CASE("host memory: without a placer a preference is accepted, enforcement refused") {
  const auto source = Make({});
  CHECK(source->Allocate({.size = Bytes(4096), .numa = kPrefer1}).ok());
  const auto enforced = source->Allocate({.size = Bytes(4096), .numa = kEnforce1});
  CHECK(enforced.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(enforced.status().message()).find("placer") != std::string::npos);
}

// --- Fork

TEST_CASE("host memory: a forked child neither sees nor alters a block") {
  const auto source = Make({.second_view = true});
  auto memory = source->Allocate({.size = Bytes(8192), .label = "parent"});
  REQUIRE(memory.ok());
  std::memset(memory->data(), 0x77, memory->size());
  REQUIRE(IsMapped(memory->view().cpu));

  const int result = InChild([&] {
    if (IsMapped(memory->view().cpu) || IsMapped(memory->view().device)) return 1;
    const auto own = source->Allocate({.size = Bytes(4096)});
    if (own.status().code() != absl::StatusCode::kFailedPrecondition) return 2;
    *memory = Memory();  // what a destructor in the child would do
    return 0;
  });
  CHECK(result == 0);
  CHECK(std::ranges::all_of(memory->view().bytes(),
                            [](std::byte b) { return b == std::byte{0x77}; }));
  CHECK(source->bytes_in_use() == Bytes(8192));
}

TEST_CASE("host memory: a child that destroys its copy of the source takes nothing along") {
  auto source = Make({.second_view = true});
  auto memory = source->Allocate({.size = Bytes(4096)});
  REQUIRE(memory.ok());
  std::memset(memory->data(), 0x66, memory->size());
  const int result = InChild([&] {
    *memory = Memory();
    source.reset();
    return 0;
  });
  CHECK(result == 0);
  CHECK(memory->data()[4095] == std::byte{0x66});
  CHECK(source->Allocate({.size = Bytes(4096)}).ok());
}

}  // namespace
}  // namespace dmakit::dma::host
