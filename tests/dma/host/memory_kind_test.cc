// SPDX-License-Identifier: Apache-2.0
//
// Which kind of memory an address is, of this very process.
#include "dma/host/memory_kind.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "dma/host/fakes.h"
#include "tests/catch.h"

namespace dmakit::dma::host {
namespace {

const char kConstant[64] = "constant";
char writable[64];

std::span<const std::byte> At(const void* address, size_t size = 1) {
  return {static_cast<const std::byte*>(address), size};
}

TEST_CASE("Stack, program, heap and nothing are told apart") {
  ProcessMemory memory;
  std::vector<char> heap(1 << 20);
  CHECK(memory.Classify(At(__builtin_frame_address(0))) == MemoryKind::kStack);
  CHECK(memory.Classify(At(kConstant, 64)) == MemoryKind::kProgram);
  CHECK(memory.Classify(At(reinterpret_cast<const void*>(&close))) == MemoryKind::kProgram);
  CHECK(memory.Classify(At(writable, 64)) == MemoryKind::kOrdinary);
  CHECK(memory.Classify(At(heap.data(), heap.size())) == MemoryKind::kOrdinary);
  CHECK(memory.Classify(At(nullptr)) == MemoryKind::kUnmapped);
  CHECK(memory.Classify({}) == MemoryKind::kOrdinary);
}

TEST_CASE("The stack of another thread, asked there") {
  ProcessMemory memory;
  MemoryKind kind = MemoryKind::kOrdinary;
  std::thread([&] { kind = memory.Classify(At(__builtin_frame_address(0))); }).join();
  CHECK(kind == MemoryKind::kStack);
}

TEST_CASE("Memory that came after the last look is found; what went is noticed at the next look") {
  ProcessMemory memory({.refresh = 8});
  CHECK(memory.Classify(At(writable)) == MemoryKind::kOrdinary);
  CHECK(memory.reads() == 1);
  void* page = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  CHECK(memory.Classify(At(page, 8192)) == MemoryKind::kOrdinary);
  munmap(page, 8192);
  MemoryKind last = MemoryKind::kOrdinary;
  for (int i = 0; i < 9; ++i) last = memory.Classify(At(page, 8192));
  CHECK(last == MemoryKind::kUnmapped);
}

TEST_CASE("The end of a span counts as well as its start") {
  ProcessMemory memory({.refresh = 1});
  void* pages = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  munmap(static_cast<char*>(pages) + 4096, 4096);
  CHECK(memory.Classify(At(pages, 4096)) == MemoryKind::kOrdinary);
  CHECK(memory.Classify(At(pages, 4097)) == MemoryKind::kUnmapped);
  munmap(pages, 4096);
}

TEST_CASE("A data file that is read through a mapping is no program") {
  ProcessMemory memory;
  const int file = memfd_create("data", 0);
  REQUIRE(file >= 0);
  REQUIRE(ftruncate(file, 4096) == 0);
  for (const int flags : {MAP_PRIVATE, MAP_SHARED}) {
    void* page = mmap(nullptr, 4096, PROT_READ, flags, file, 0);
    REQUIRE(page != MAP_FAILED);
    CHECK(memory.Classify(At(page, 4096)) == MemoryKind::kOrdinary);
    munmap(page, 4096);
  }
  close(file);
}

TEST_CASE("The fake says what it was told, the worst of it") {
  FakeMemoryKinds memory;
  memory.Set(At(writable, 16), MemoryKind::kStack);
  memory.Set(At(writable + 16, 16), MemoryKind::kUnmapped);
  CHECK(memory.Classify(At(writable, 8)) == MemoryKind::kStack);
  CHECK(memory.Classify(At(writable, 32)) == MemoryKind::kUnmapped);
  CHECK(memory.Classify(At(writable + 32, 8)) == MemoryKind::kOrdinary);
}

}  // namespace
}  // namespace dmakit::dma::host
