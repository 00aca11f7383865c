// SPDX-License-Identifier: Apache-2.0
//
// The clauses of dma/host/memory.h, one section each.
#include "tests/dma/host/memory_conformance.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace dmakit::dma::host::testing {
namespace {

constexpr uint64_t kPage = 4096;

bool AllAre(std::span<const std::byte> bytes, std::byte value) {
  // Each byte is like the next, and the first is right: fast under sanitizers too.
  return bytes.empty() ||
         (bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}
bool AllAre(const Memory& memory, std::byte value) {
  return AllAre(memory.view().bytes(), value) &&
         AllAre({memory.view().device, memory.size()}, value);
}
void Fill(const Memory& memory, std::byte value) {
  std::memset(memory.data(), static_cast<int>(value), memory.size());
}
absl::StatusCode CodeOf(MemorySource& source, const MemoryRequest& request) {
  return source.Allocate(request).status().code();
}

void CheckSizes(const SourceFactory& make) {
  const auto source = make(MiB(16));
  CHECK(source->page_size() == Bytes(kPage));
  for (const uint64_t size : {uint64_t{1}, kPage - 1, kPage, kPage + 1, uint64_t{100000}}) {
    auto memory = source->Allocate({.size = Bytes(size), .label = "sizes"});
    REQUIRE(memory.ok());
    const uint64_t rounded = (size + kPage - 1) / kPage * kPage;
    CHECK(memory->size() == rounded);
    CHECK(source->bytes_in_use() == Bytes(rounded));
    CHECK(AllAre(*memory, std::byte{0}));
  }
  CHECK(source->bytes_in_use() == Bytes(0));
}

void CheckBadRequests(const SourceFactory& make) {
  const auto source = make(MiB(16));
  const auto bad = absl::StatusCode::kInvalidArgument;
  CHECK(CodeOf(*source, {.size = Bytes(0)}) == bad);
  for (const uint64_t alignment : {uint64_t{0}, uint64_t{3}, kPage + 1, uint64_t{2} << 30}) {
    INFO("alignment " << alignment);
    CHECK(CodeOf(*source, {.size = Bytes(kPage), .alignment = Bytes(alignment)}) == bad);
  }
  for (const uint64_t below : {0, 1, 2, 63, 64, 127, 4094}) {
    INFO("size 2^64 - 1 - " << below);
    for (const uint64_t alignment : {uint64_t{1}, kPage, uint64_t{1} << 30}) {
      CHECK(CodeOf(*source, {.size = Bytes(~uint64_t{0} - below), .alignment = Bytes(alignment)}) ==
            bad);
    }
  }
  CHECK(CodeOf(*source, {.size = Bytes(~uint64_t{0} - 4095)}) ==
        absl::StatusCode::kResourceExhausted);
  CHECK(source->bytes_in_use() == Bytes(0));
}

void CheckAlignment(const SourceFactory& make) {
  const auto source = make(MiB(64));
  std::vector<Memory> held;
  for (uint64_t alignment = 1; alignment <= uint64_t{4} << 20; alignment *= 2) {
    auto memory = source->Allocate({.size = Bytes(kPage), .alignment = Bytes(alignment)});
    REQUIRE(memory.ok());
    INFO("alignment " << alignment);
    CHECK(reinterpret_cast<uintptr_t>(memory->view().cpu) % std::max(alignment, kPage) == 0);
    CHECK(reinterpret_cast<uintptr_t>(memory->view().device) % std::max(alignment, kPage) == 0);
    held.push_back(*std::move(memory));
  }
}

void CheckCapacity(const SourceFactory& make) {
  const auto source = make(Bytes(8 * kPage));
  std::vector<Memory> held;
  for (int i = 0; i < 8; ++i) {
    auto memory = source->Allocate({.size = Bytes(kPage)});
    REQUIRE(memory.ok());
    held.push_back(*std::move(memory));
  }
  const absl::Status status = source->Allocate({.size = Bytes(1), .label = "ring rx7"}).status();
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(status.message()).find("ring rx7") != std::string::npos);
  CHECK(std::string(status.message()).find("32768") != std::string::npos);  // names the limit
  CHECK(source->bytes_in_use() == Bytes(8 * kPage));
  held.pop_back();
  CHECK(CodeOf(*source, {.size = Bytes(2 * kPage)}) == absl::StatusCode::kResourceExhausted);
  CHECK(CodeOf(*source, {.size = Bytes(kPage)}) == absl::StatusCode::kOk);
  held.clear();
  CHECK(CodeOf(*source, {.size = Bytes(8 * kPage)}) == absl::StatusCode::kOk);
  CHECK(CodeOf(*source, {.size = Bytes(8 * kPage + 1)}) == absl::StatusCode::kResourceExhausted);
}

void CheckZeroAgain(const SourceFactory& make) {
  const auto source = make(MiB(1));
  for (int round = 0; round < 20; ++round) {
    auto memory = source->Allocate({.size = MiB(1)});
    REQUIRE(memory.ok());
    REQUIRE(AllAre(*memory, std::byte{0}));
    Fill(*memory, std::byte{0x5a});
  }
}

void CheckViews(const SourceFactory& make) {
  const auto source = make(MiB(1));
  auto memory = source->Allocate({.size = Bytes(3 * kPage)});
  REQUIRE(memory.ok());
  const MemoryView view = memory->view();
  for (size_t i = 0; i < view.size; i += 509) {
    view.cpu[i] = std::byte{0x11};
    CHECK(view.device[i] == std::byte{0x11});
    view.device[i] = std::byte{0x22};
    CHECK(view.cpu[i] == std::byte{0x22});
  }
  const MemoryView part = view.Sub(kPage, kPage);
  CHECK(part.cpu == view.cpu + kPage);
  CHECK(part.device == view.device + kPage);
}

void CheckMoves(const SourceFactory& make) {
  const auto source = make(MiB(1));
  Memory a = *source->Allocate({.size = Bytes(kPage)});
  Memory b = *source->Allocate({.size = Bytes(2 * kPage)});
  std::byte* const data = b.data();
  CHECK(source->bytes_in_use() == Bytes(3 * kPage));
  a = std::move(b);  // gives back the first
  CHECK(source->bytes_in_use() == Bytes(2 * kPage));
  CHECK(a.data() == data);
  CHECK(b.empty());
  CHECK(b.size() == 0);
  Memory& alias = a;
  a = std::move(alias);
  CHECK(a.data() == data);
  Memory c(std::move(a));
  CHECK(a.empty());
  CHECK(c.data() == data);
  c = Memory();
  CHECK(source->bytes_in_use() == Bytes(0));
}

// Blocks are disjoint and nobody's bytes change: each is filled with its own pattern.
void CheckChurn(const SourceFactory& make) {
  const auto source = make(MiB(8));
  std::mt19937 random(20240611);
  std::vector<std::pair<Memory, std::byte>> held;
  for (int i = 0; i < 1500; ++i) {
    if (!held.empty() && (random() % 5 < 2 || held.size() > 60)) {
      const size_t at = random() % held.size();
      REQUIRE(AllAre(held[at].first, held[at].second));
      std::swap(held[at], held.back());
      held.pop_back();
      continue;
    }
    auto memory = source->Allocate(
        {.size = Bytes(1 + random() % (12 * kPage)), .alignment = Bytes(kPage << random() % 4)});
    if (!memory.ok()) continue;
    REQUIRE(AllAre(*memory, std::byte{0}));
    const auto pattern = static_cast<std::byte>(1 + i % 255);
    Fill(*memory, pattern);
    held.emplace_back(*std::move(memory), pattern);
  }
  uint64_t sum = 0;
  for (const auto& [memory, pattern] : held) {
    CHECK(AllAre(memory, pattern));
    sum += memory.size();
  }
  CHECK(source->bytes_in_use() == Bytes(sum));
  held.clear();
  CHECK(source->bytes_in_use() == Bytes(0));
}

void CheckThreads(const SourceFactory& make) {
  const auto source = make(MiB(4));
  std::vector<int> failures(4, 0);
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < failures.size(); ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 150; ++i) {
          auto memory = source->Allocate({.size = Bytes((1 + (i + t) % 6) * kPage)});
          if (!memory.ok() || !AllAre(*memory, std::byte{0})) {
            ++failures[t];
            continue;
          }
          const auto pattern = static_cast<std::byte>(t + 1);
          Fill(*memory, pattern);
          if (!AllAre(*memory, pattern)) ++failures[t];
        }
      });
    }
  }
  for (const int count : failures) CHECK(count == 0);
  CHECK(source->bytes_in_use() == Bytes(0));
}

}  // namespace

void CheckMemoryConformance(const SourceFactory& make) {
  SECTION("sizes are rounded up, counted, and zero") { CheckSizes(make); }
  SECTION("impossible requests are refused, overflow included") { CheckBadRequests(make); }
  SECTION("both views are aligned") { CheckAlignment(make); }
  SECTION("the capacity holds to the byte and is named") { CheckCapacity(make); }
  SECTION("a block is zero again after use") { CheckZeroAgain(make); }
  SECTION("both views show the same bytes") { CheckViews(make); }
  SECTION("a block goes back once, whoever holds it") { CheckMoves(make); }
  SECTION("blocks never overlap") { CheckChurn(make); }
  SECTION("any thread may allocate and free") { CheckThreads(make); }
}

}  // namespace dmakit::dma::host::testing
