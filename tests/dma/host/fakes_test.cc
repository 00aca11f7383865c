// SPDX-License-Identifier: Apache-2.0
//
// The fakes are as strict as what they stand for: the suite of every memory source, the checks that
// end a test, and failing on demand.
#include "dma/host/fakes.h"

#include <csignal>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "tests/catch.h"
#include "tests/dma/host/child.h"
#include "tests/dma/host/memory_conformance.h"

namespace dmakit::dma::host {
namespace {

using testing::InChild;

TEST_CASE("FakeMemory with one view is a MemorySource") {
  testing::CheckMemoryConformance([](Bytes capacity) {
    return std::make_unique<FakeMemory>(FakeMemory::Options{.capacity = capacity});
  });
}

TEST_CASE("FakeMemory with two views is a MemorySource") {
  testing::CheckMemoryConformance([](Bytes capacity) {
    return std::make_unique<FakeMemory>(
        FakeMemory::Options{.capacity = capacity, .second_view = true});
  });
}

TEST_CASE("fail point: the k-th call from now fails, or all from the k-th on") {
  FailPoint point;
  const auto hits = [&point] {
    std::vector<bool> result;
    for (int i = 0; i < 5; ++i) result.push_back(point.Hit());
    return result;
  };
  CHECK(hits() == std::vector<bool>(5, false));
  CHECK(point.calls() == 5);
  CHECK_FALSE(point.triggered());

  point.FailAt(2);
  CHECK(point.calls() == 0);
  CHECK(hits() == std::vector{false, true, false, false, false});
  CHECK(point.triggered());

  point.FailAt(3, /*forever=*/true);
  CHECK(hits() == std::vector{false, false, true, true, true});

  point.FailAt(6);
  CHECK(hits() == std::vector<bool>(5, false));
  CHECK_FALSE(point.triggered());
  CHECK(point.Hit());

  point.FailAt(0);
  CHECK(hits() == std::vector<bool>(5, false));
}

TEST_CASE("fake memory: fails the k-th call, and requests above the largest block") {
  FailPoint point;
  FakeMemory source({.fail = &point});
  point.FailAt(2);
  const auto first = source.Allocate({.size = Bytes(4096)});
  CHECK(first.ok());
  CHECK(source.Allocate({.size = Bytes(4096)}).status().code() ==
        absl::StatusCode::kResourceExhausted);
  CHECK(source.blocks() == 1);
  CHECK(source.Allocate({.size = Bytes(4096)}).ok());

  source.set_largest(Bytes(8192));
  CHECK(source.Allocate({.size = Bytes(8192)}).ok());
  CHECK(source.Allocate({.size = Bytes(8193)}).status().code() ==
        absl::StatusCode::kResourceExhausted);
  source.set_largest(Bytes(~uint64_t{0}));
  CHECK(source.Allocate({.size = Bytes(8193)}).ok());
}

TEST_CASE("fake memory: a write after the block was freed is counted") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // There it is reported where it happens.
  return;
#endif
  for (const bool second_view : {false, true}) {
    FakeMemory source({.second_view = second_view});
    auto memory = source.Allocate({.size = Bytes(8192)});
    REQUIRE(memory.ok());
    std::byte* const late = memory->view().device;
    *memory = Memory();
    CHECK(source.written_after_free() == 0);
    // Through memcpy of a volatile pointer: the compiler may not know that this is freed memory.
    std::byte* volatile hidden = late;
    hidden[5000] = std::byte{1};
    CHECK(source.written_after_free() == 1);
  }
}

TEST_CASE("fake memory: a block given back twice ends the test") {
  const int result = InChild([] {
    FakeMemory source;
    auto memory = source.Allocate({.size = Bytes(4096)});
    if (!memory.ok()) return 1;
    const MemoryView view = memory->view();
    *memory = Memory();
    const Memory again(&source, view);
    return 0;
  });
  CHECK(result == -SIGABRT);
}

TEST_CASE("fake memory: a block given back in part ends the test") {
  const int result = InChild([] {
    FakeMemory source;
    auto memory = source.Allocate({.size = Bytes(8192)});
    if (!memory.ok()) return 1;
    const Memory part(&source, memory->view().Sub(0, 4096));
    return 0;
  });
  CHECK(result == -SIGABRT);
}

TEST_CASE("fake memory: a source that dies before its blocks ends the test") {
  const int result = InChild([] {
    std::optional<FakeMemory> source;
    source.emplace();
    auto memory = source->Allocate({.size = Bytes(4096)});
    source.reset();
    return memory.ok() ? 0 : 1;
  });
  CHECK(result == -SIGABRT);
}

TEST_CASE("fake clock: moves when told, by sleeping too") {
  FakeClock clock;
  CHECK(clock.Now() == Nanos{0});
  clock.Advance(Nanos{250});
  clock.Sleep(std::chrono::milliseconds(3));
  CHECK(clock.Now() == Nanos{3'000'250});
}

TEST_CASE("fake clock: jumps at the k-th call, ahead or back") {
  for (const Nanos jump : {Nanos{1000}, Nanos{-1000}}) {
    FailPoint point;
    FakeClock clock({.fail = &point, .jump = jump});
    clock.Advance(Nanos{5000});
    point.FailAt(2);
    CHECK(clock.Now() == Nanos{5000});
    CHECK(clock.Now() == Nanos{5000} + jump);
    CHECK(clock.Now() == Nanos{5000} + jump);
  }
}

TEST_CASE("fake threads: fail on demand, else run") {
  FailPoint point;
  FakeThreads threads(&point);
  point.FailAt(1);
  std::atomic<int> ran{0};
  const auto body = [&ran](const std::stop_token&) { ran = 1; };
  CHECK(threads.Start("worker", body).status().code() == absl::StatusCode::kResourceExhausted);
  {
    auto thread = threads.Start("worker", body);
    REQUIRE(thread.ok());
  }
  CHECK(ran == 1);
}

}  // namespace
}  // namespace dmakit::dma::host
