// SPDX-License-Identifier: Apache-2.0
//
// Audit classes 9 to 16 and 30: what is looked at when something is mapped or posted.
#include <sys/mman.h>

#include "dma/host/memory_kind.h"
#include "tests/dma/audit_testing.h"

namespace dmakit::dma {
namespace {

using testing::AuditRig;
using testing::Buffer;
using testing::Fixture;
using testing::Only;
using testing::Says;
using testing::Silent;

constexpr Direction kTo = Direction::kToDevice;
constexpr Direction kFrom = Direction::kFromDevice;

const char kConstant[4096] = "read-only data";

// The real classification: of this process.
struct RealMemory : AuditRig {
  host::ProcessMemory process;
  Audit real{{.memory = &process, .clock = &clock}};
  RealMemory() {
    audit.Detach(*nic);
    REQUIRE(real.Attach(*nic).ok());
  }
};

TEST_CASE("Class 9: a buffer on the stack; heap, page-aligned and static buffers are fine") {
  RealMemory r;
  SECTION("wrong") {
    // The frame itself: a sanitizer may keep local arrays elsewhere.
    auto* frame = static_cast<std::byte*>(__builtin_frame_address(0));
    r.Unmap(r.Map({frame, 8}, kTo, "tx0"));
    const AuditReport report = Only(r.real, AuditCode::kOnStack);
    CHECK(report.owner == "tx0");
    CHECK(Says(report, "stack"));
  }
  SECTION("right") {
    static std::byte writable[256];
    std::vector<std::byte> heap(100'000);
    r.Unmap(r.Map(writable, kTo));
    r.Unmap(r.Map(heap, kFrom));
    r.Unmap(r.Map(r.buffer.part(0, 8), kFrom));
    CHECK(Silent(r.real));
  }
}

TEST_CASE("Class 9: one entry of a list on the stack is enough") {
  RealMemory r;
  auto* frame = static_cast<std::byte*>(__builtin_frame_address(0));
  const std::span<std::byte> list[] = {r.buffer.part(0, 64), {frame, 8}};
  REQUIRE(r.nic->Unmap(*r.nic->MapSg(list, kTo, {.owner = "tx0"})).ok());
  CHECK(Only(r.real, AuditCode::kOnStack).kind == MappingKind::kScatterGather);
}

TEST_CASE("Class 10: read-only data, and program text") {
  RealMemory r;
  SECTION("data") {
    REQUIRE(
        r.nic->Unmap(*r.nic->MapToDevice(std::as_bytes(std::span(kConstant, 64)), {.owner = "tx1"}))
            .ok());
  }
  SECTION("text") {
    const auto* code = reinterpret_cast<const std::byte*>(&testing::Silent);
    REQUIRE(r.nic->Unmap(*r.nic->MapToDevice({code, 16}, {.owner = "tx1"})).ok());
  }
  SECTION("right: a copy of it") {
    std::memcpy(r.buffer.data(), kConstant, 64);
    REQUIRE(r.nic->Unmap(*r.nic->MapToDevice(r.buffer.part(0, 64))).ok());
    CHECK(Silent(r.real));
    return;
  }
  const AuditReport report = Only(r.real, AuditCode::kProgramMemory);
  CHECK(report.owner == "tx1");
  CHECK(Says(report, "read-only"));
}

TEST_CASE("Class 11: an address where no memory is; the same address with memory is fine") {
  RealMemory r;
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  const std::span<std::byte> bytes{static_cast<std::byte*>(page), 4096};
  SECTION("right") {
    r.Unmap(r.Map(bytes, kTo, "tx2"));
    CHECK(Silent(r.real));
    munmap(page, 4096);
  }
  SECTION("wrong") {
    munmap(page, 4096);
    r.Unmap(r.Map(bytes, kTo, "tx2"));
    const AuditReport report = Only(r.real, AuditCode::kNotMemory);
    CHECK(report.owner == "tx2");
    CHECK(Says(report, "not mapped memory"));
  }
}

// Translates only what lies in one block that was registered; `strict`: and refuses the rest.
class RegisteredDomain final : public Domain {
 public:
  RegisteredDomain(MemoryView block, bool strict) : block_(block), strict_(strict) {}
  std::string_view name() const override { return "umem"; }
  const DomainFacts& facts() const override { return fake_.facts(); }
  absl::Status Map(Range range, MemoryView memory, Access access) override {
    if (strict_ && !Reachable(memory)) return absl::FailedPreconditionError("not registered");
    return fake_.Map(range, memory, access);
  }
  absl::StatusOr<Bytes> Unmap(Range range) override { return fake_.Unmap(range); }
  absl::Status Invalidate(Range range) override { return fake_.Invalidate(range); }
  absl::Status InvalidateAll() override { return fake_.InvalidateAll(); }
  DomainStats stats() const override { return fake_.stats(); }
  bool Reachable(MemoryView memory) const override {
    return memory.cpu >= block_.cpu && memory.cpu + memory.size <= block_.cpu + block_.size;
  }

 private:
  MemoryView block_;
  bool strict_;
  FakeDomain fake_;
};

TEST_CASE("Class 12: memory that the domain wants registered, and is not") {
  const bool strict = GENERATE(false, true);
  Buffer buffer(4 * 4096);
  RegisteredDomain domain(buffer.view(0, 2 * 4096), strict);
  host::FakeMemoryKinds kinds;
  Audit audit({.memory = &kinds});
  Fixture f;
  f.NewSpace();
  auto nic = f.space->Attach({.name = "nic0", .domain = &domain});
  REQUIRE(nic.ok());
  REQUIRE(audit.Attach(**nic).ok());
  SECTION("right") {
    CHECK((*nic)->Map(buffer.part(4096, 4096), kTo).ok());
    const std::span<std::byte> list[] = {buffer.part(0, 10), buffer.part(4096, 10)};
    CHECK((*nic)->MapSg(list, kTo).ok());
    CHECK(Silent(audit));
  }
  SECTION("wrong") {
    CHECK((*nic)->Map(buffer.part(8192, 100), kTo, {.owner = "tx0"}).ok() == !strict);
    const AuditReport report = Only(audit, AuditCode::kNotReachable);
    CHECK(report.owner == "tx0");
    CHECK(Says(report, "umem"));
  }
  SECTION("wrong, in a list") {
    const std::span<std::byte> list[] = {buffer.part(0, 10), buffer.part(8192, 10)};
    CHECK((*nic)->MapSg(list, kTo, {.owner = "tx0"}).ok() == !strict);
    CHECK(Only(audit, AuditCode::kNotReachable).owner == "tx0");
  }
}

TEST_CASE("Class 13: a segment longer than the device takes, posted or in a raw list") {
  AuditRig r({.max_segment = Bytes(2048)});
  Mapping m = r.Map(r.buffer.part(0, 8192), kFrom);
  const auto post = [&](uint64_t size) {
    r.nic->observer()->OnPosted(*r.nic, {.range = {m.iova(), Bytes(size)}, .ring = "rx0"});
    r.nic->observer()->OnCompleted(*r.nic, m.iova(), Bytes(size));
  };
  SECTION("posted") {
    post(2049);
    const AuditReport report = Only(r.audit, AuditCode::kSegmentTooLong);
    CHECK(report.owner == "rx0");
    CHECK(Says(report, "2049 bytes"));
    CHECK(Says(report, "2048"));
  }
  SECTION("raw list") {
    RawDma raw(*r.nic);
    const std::span<std::byte> list[] = {r.buffer.part(8192, 100), r.buffer.part(12288, 2049)};
    CHECK(raw.MapSg(list, kTo, "tx5").empty());
    CHECK(absl::IsInvalidArgument(raw.last_error()));
    CHECK(Says(Only(r.audit, AuditCode::kSegmentTooLong), "entry 1 of 'tx5' has 2049 bytes"));
  }
  SECTION("right") {
    post(2048);
    const std::span<std::byte> list[] = {r.buffer.part(8192, 4096)};  // is cut into segments
    CHECK(r.nic->MapSg(list, kTo)->segments().size() == 2);
    RawDma raw(*r.nic);
    const std::span<std::byte> fits[] = {r.buffer.part(16384, 2048)};
    const auto segments = raw.MapSg(fits, kTo, "tx5");
    REQUIRE_FALSE(raw.IsError(segments[0].iova));
    CHECK(raw.UnmapSg(segments[0].iova, 1, kTo).ok());
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 14: a segment across the device's boundary, posted or in a raw list") {
  AuditRig r({.segment_boundary = Bytes(4096)});
  Mapping m = r.Map(r.buffer.part(0, 8192), kFrom);
  const auto post = [&](uint64_t offset, uint64_t size) {
    const Iova at = m.iova() + Bytes(offset);
    r.nic->observer()->OnPosted(*r.nic, {.range = {at, Bytes(size)}, .ring = "rx0"});
    r.nic->observer()->OnCompleted(*r.nic, at, Bytes(size));
  };
  SECTION("posted") {
    post(4000, 97);
    const AuditReport report = Only(r.audit, AuditCode::kSegmentCrossesBoundary);
    CHECK(report.owner == "rx0");
    CHECK(Says(report, "multiple of 4096"));
  }
  SECTION("raw list") {
    RawDma raw(*r.nic);
    const std::span<std::byte> list[] = {r.buffer.part(8192, 4097)};
    CHECK(raw.MapSg(list, kTo, "tx5").empty());
    CHECK(Says(Only(r.audit, AuditCode::kSegmentCrossesBoundary), "4097 bytes"));
  }
  SECTION("right") {
    post(4000, 96);  // ends at the boundary
    post(0, 4096);
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 15: a cache line in common with a buffer that the device writes") {
  AuditRig r;
  Mapping written = r.Map(r.buffer.part(64, 100), kFrom, "rx0");  // lines 1 and 2
  SECTION("its last line") {
    r.Map(r.buffer.part(164, 20), kTo, "tx0");
    const AuditReport report = Only(r.audit, AuditCode::kSharedCacheLine);
    CHECK(report.owner == "tx0");
    CHECK(Says(report, "'rx0'"));
  }
  SECTION("a long one around it") {
    r.Map(r.buffer.part(0, 4096 * 3), kTo, "tx0");
    CHECK(Only(r.audit, AuditCode::kSharedCacheLine).owner == "tx0");
  }
  SECTION("one entry of a list") {
    const std::span<std::byte> list[] = {r.buffer.part(8192, 64), r.buffer.part(70, 4)};
    auto m = r.nic->MapSg(list, kTo, {.owner = "tx0"});
    REQUIRE(m.ok());
    CHECK(Only(r.audit, AuditCode::kSharedCacheLine).owner == "tx0");
  }
  SECTION("right: the next line; after the unmap; among buffers that are only read") {
    Mapping next = r.Map(r.buffer.part(192, 64), kFrom);
    Mapping before = r.Map(r.buffer.part(0, 64), kFrom);
    r.Unmap(std::move(written));
    Mapping again = r.Map(r.buffer.part(100, 64), kTo);
    Mapping same = r.Map(r.buffer.part(100, 64), kTo);
    const std::span<std::byte> list[] = {r.buffer.part(4096, 10), r.buffer.part(4106, 10)};
    auto header_and_data = r.nic->MapSg(list, kFrom);  // one transfer shares what it likes
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 16: one cache line in too many mappings") {
  AuditRig r({.audit = {.max_per_line = 3}});
  std::vector<Mapping> live;
  for (int i = 0; i < 3; ++i) live.push_back(r.Map(r.buffer.part(0, 64), kTo, "tx0"));
  REQUIRE(Silent(r.audit));
  SECTION("wrong") {
    live.push_back(r.Map(r.buffer.part(32, 8), kTo, "tx9"));
    const AuditReport report = Only(r.audit, AuditCode::kCacheLineMappedOften);
    CHECK(report.owner == "tx9");
    CHECK(Says(report, "more than 3"));
    CHECK(r.audit.errors() == 0);  // a hint
  }
  SECTION("right: other lines, also under one long mapping; and after an unmap") {
    for (int i = 1; i < 9; ++i) live.push_back(r.Map(r.buffer.part(64 * i, 64), kTo));
    live.push_back(r.Map(r.buffer.part(64, 4096), kTo));
    live.erase(live.begin());
    live.push_back(r.Map(r.buffer.part(0, 64), kTo));
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 30: nine tenths of the domain's mappings are used, said once") {
  AuditRig r({.max_mappings = 20});
  std::vector<Mapping> live;
  const auto map = [&](size_t count) {
    while (live.size() < count) {
      live.push_back(r.Map(r.buffer.part(live.size() % 8 * 4096, 64), kTo, "tx4"));
    }
  };
  map(17);
  REQUIRE(Silent(r.audit));
  map(18);
  const AuditReport report = Only(r.audit, AuditCode::kBudgetNearlyUsed);
  CHECK(report.owner == "tx4");
  CHECK(Says(report, "18 of at most 20"));
  map(20);
  CHECK(r.audit.warnings() == 1);
  CHECK(r.audit.errors() == 0);
  live.resize(16);
  map(18);  // not far enough down in between
  CHECK(r.audit.warnings() == 1);
  live.resize(14);
  map(18);
  CHECK(r.audit.warnings() == 2);
}

}  // namespace
}  // namespace dmakit::dma
