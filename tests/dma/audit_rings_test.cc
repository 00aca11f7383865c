// SPDX-License-Identifier: Apache-2.0
//
// Audit classes 25, 27, 28, 29 and 31: buffers in the hands of a ring, what is beside them, and the
// pages they are cut from.
#include <cstring>
#include <thread>

#include "dma/host/page_guard.h"
#include "frag/frag_allocator.h"
#include "frag/page_pool.h"
#include "frag/returner.h"
#include "tests/dma/audit_testing.h"

namespace dmakit::dma {
namespace {

using frag::Fragment;
using frag::PagePool;
using testing::AuditRig;
using testing::AuditRigOptions;
using testing::Only;
using testing::Says;
using testing::Silent;

constexpr Direction kTo = Direction::kToDevice;
constexpr Direction kFrom = Direction::kFromDevice;

// A driver in three lines: what one has to tell.
struct RingRig : AuditRig {
  explicit RingRig(AuditRigOptions options = {}) : AuditRig(std::move(options)) {}

  void Post(Range range, Direction direction = kFrom, RedZones zones = {}) {
    if (Observer* o = nic->observer()) {
      o->OnPosted(*nic, {range, direction, "rxq", zones});
    }
  }
  void Post(const Fragment& f, RedZones zones = {}) {
    Post({f.iova(), Bytes(f.size)}, kFrom, zones);
  }
  void Complete(Iova base, size_t written) {
    if (Observer* o = nic->observer()) o->OnCompleted(*nic, base, Bytes(written));
  }
  std::unique_ptr<PagePool> Pool(Policy policy = Policy::kPersistent, std::string label = "rx0") {
    auto pool = PagePool::Create(
        *space,
        {.label = std::move(label), .order = 0, .policy = policy, .teardown_deadline = Nanos{0}});
    INFO(pool.status());
    REQUIRE(pool.ok());
    return *std::move(pool);
  }
};

TEST_CASE("Class 25: the CPU wrote to what the device was reading") {
  AuditRig r({.audit = {.checked = true}});
  Mapping m = r.Map(r.buffer.part(8, 100), kTo, "tx0");
  SECTION("wrong") {
    r.buffer.data()[8 + 99] ^= std::byte{1};
    r.Unmap(std::move(m));
    const AuditReport report = Only(r.audit, AuditCode::kCpuAccess);
    CHECK(report.owner == "tx0");
    CHECK(Says(report, "byte 99 changed"));
  }
  SECTION("wrong: another byte was synced") {
    r.buffer.data()[8] ^= std::byte{1};
    REQUIRE(m.SyncForDevice(1, 99).ok());
    r.Unmap(std::move(m));
    CHECK(Says(Only(r.audit, AuditCode::kCpuAccess), "byte 0 changed"));
  }
  SECTION("wrong: in a list") {
    const std::span<std::byte> list[] = {r.buffer.part(4096, 10), r.buffer.part(8192, 10)};
    auto sg = r.nic->MapSg(list, kTo, {.owner = "tx1"});
    REQUIRE(sg.ok());
    r.buffer.data()[8192 + 3] ^= std::byte{1};
    REQUIRE(r.nic->Unmap(*std::move(sg)).ok());
    const AuditReport report = Only(r.audit, AuditCode::kCpuAccess);
    CHECK(report.owner == "tx1");
    CHECK(Says(report, "byte 13 changed"));
  }
  SECTION("right: synced after it was written; beside it; after the unmap; what it receives") {
    r.buffer.data()[8 + 99] ^= std::byte{1};
    REQUIRE(m.SyncForDevice(99, 1).ok());
    r.buffer.data()[7] ^= std::byte{1};
    r.buffer.data()[8 + 100] ^= std::byte{1};
    r.Unmap(std::move(m));
    r.buffer.data()[8] ^= std::byte{1};
    Mapping received = r.Map(r.buffer.part(4096, 100), kFrom);
    REQUIRE(r.DeviceWrites(received.iova(), 100));
    r.Unmap(std::move(received));
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 25: the CPU touched a page that is posted, seen by its protection") {
  host::FaultGuard guard;
  RingRig r({.audit = {.checked = true, .guard = &guard}, .second_view = true});
  auto pool = r.Pool();
  frag::Page* page = pool->Take();
  REQUIRE(page != nullptr);
  const Range whole{page->iova, Bytes(page->size)};
  volatile std::byte* const byte = page->base + 77;
  r.Post(whole);
  SECTION("read") { [[maybe_unused]] const std::byte value = *byte; }
  SECTION("written") { *byte = std::byte{3}; }
  SECTION("right: the device writes, the CPU reads when it is done") {
    REQUIRE(r.DeviceWrites(page->iova, 4096, 0x42));
    r.Complete(page->iova, 4096);
    CHECK(*byte == std::byte{0x42});
    pool->Release(page);
    CHECK(Silent(r.audit));
    return;
  }
  r.Complete(page->iova, 4096);
  const AuditReport report = Only(r.audit, AuditCode::kCpuAccess);
  CHECK(report.owner == "rxq");
  CHECK(Says(report, "byte 77"));
  *byte = std::byte{4};  // its own again
  pool->Release(page);
  CHECK(r.audit.errors() == 1);
}

TEST_CASE("Class 7: posted in a direction that the mapping does not have") {
  RingRig r;
  SECTION("wrong: for the device to write where it may read") {
    Mapping m = r.Map(r.buffer.part(0, 100), kTo, "tx9");
    r.Post({m.iova(), Bytes(100)}, kFrom);
    const AuditReport report = Only(r.audit, AuditCode::kWrongDirection);
    CHECK(report.owner == "tx9");
    CHECK(Says(report, "posted from-device"));
    r.Complete(m.iova(), 0);
  }
  SECTION("wrong: for the device to read where it may write") {
    Mapping m = r.Map(r.buffer.part(0, 100), kFrom, "rx9");
    r.Post({m.iova(), Bytes(100)}, kTo);
    CHECK(Only(r.audit, AuditCode::kWrongDirection).owner == "rx9");
    r.Complete(m.iova(), 0);
  }
  SECTION("right: either way where both are allowed") {
    Mapping m = r.Map(r.buffer.part(0, 100), Direction::kBidirectional, "both");
    r.Post({m.iova(), Bytes(100)}, kFrom);
    r.Complete(m.iova(), 100);
    r.Post({m.iova(), Bytes(100)}, kTo);
    r.Complete(m.iova(), 0);
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 25: a posted page is the CPU's again when the audit goes") {
  host::FaultGuard guard;
  RingRig r({.audit = {.checked = true, .guard = &guard}, .second_view = true});
  auto pool = r.Pool();
  frag::Page* page = pool->Take();
  r.Post({page->iova, Bytes(page->size)});
  r.audit.Detach(*r.nic);
  *page->base = std::byte{1};
  pool->Release(page);
  CHECK(Silent(r.audit));
}

TEST_CASE("Class 27: written behind a fragment, within its page") {
  RingRig r({.audit = {.checked = true}});
  auto pool = r.Pool();
  auto cutter = frag::FragAllocator::Create(*pool, {.size = 512, .tailroom = 64});
  REQUIRE(cutter.ok());
  const Fragment first = cutter->Allocate();
  const Fragment second = cutter->Allocate();
  r.Post(first, {.after = 64});
  r.Post(second, {.after = 64});
  SECTION("wrong") {
    REQUIRE(r.DeviceWrites(first.iova(), 513));
    r.Complete(first.iova(), 512);
    const AuditReport report = Only(r.audit, AuditCode::kWroteOutside);
    CHECK(report.owner == "rxq");
    CHECK(Says(report, "0 bytes behind its end"));
    r.Complete(second.iova(), 512);
    CHECK(r.audit.errors() == 1);
  }
  SECTION("wrong: the completion says so") {
    r.Complete(first.iova(), 600);
    CHECK(Says(Only(r.audit, AuditCode::kWroteOutside), "600 bytes completed in a buffer of 512"));
  }
  SECTION("wrong: the descriptor gives more than the mapping has") {
    Mapping m = r.Map(r.buffer.part(0, 100), kFrom, "rx9");
    r.Post({m.iova(), Bytes(101)});
    CHECK(Only(r.audit, AuditCode::kWroteOutside).owner == "rx9");
    r.Complete(m.iova(), 100);
  }
  SECTION("right") {
    REQUIRE(r.DeviceWrites(first.iova(), 512));
    REQUIRE(r.DeviceWrites(second.iova(), 512));
    r.Complete(first.iova(), 512);
    r.Complete(second.iova(), 10);
    CHECK(Silent(r.audit));
  }
  pool->Release(first);
  pool->Release(second);
}

TEST_CASE("Class 27: written beside a mapping, within its granule") {
  AuditRig r({.audit = {.checked = true}});
  Mapping m = r.Map(r.buffer.part(128, 256), kFrom, "rx1", {.before = 64, .after = 64});
  SECTION("behind, seen at the sync") {
    REQUIRE(r.DeviceWrites(m.iova() + Bytes(256 + 10), 1));
    REQUIRE(m.SyncForCpu(0, 256).ok());
    const AuditReport report = Only(r.audit, AuditCode::kWroteOutside);
    CHECK(report.owner == "rx1");
    CHECK(Says(report, "10 bytes behind"));
    r.Unmap(std::move(m));
    CHECK(r.audit.errors() == 1);  // said once
  }
  SECTION("before, seen at the unmap") {
    REQUIRE(r.DeviceWrites(m.iova() - Bytes(4), 1));
    r.Unmap(std::move(m));
    CHECK(Says(Only(r.audit, AuditCode::kWroteOutside), "4 bytes before"));
  }
  SECTION("right: every byte of it; and beyond the zones, which are someone else's") {
    REQUIRE(r.DeviceWrites(m.iova(), 256));
    r.buffer.data()[128 + 256 + 64] ^= std::byte{1};
    r.Unmap(std::move(m));
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 27: red zones of a mapping from before the audit were never filled") {
  AuditRig r({.audit = {.checked = true}});
  std::memset(r.buffer.data(), 0, 4096);
  r.audit.Detach(*r.nic);
  Mapping m = r.Map(r.buffer.part(128, 256), kFrom, "rx1", {.before = 64, .after = 64});
  REQUIRE(r.audit.Attach(*r.nic).ok());
  REQUIRE(m.SyncForCpu(0, 256).ok());
  r.Unmap(std::move(m));
  CHECK(Silent(r.audit));
}

TEST_CASE("Class 28: a page recycled while a fragment of it is posted") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict);
  RingRig r;
  auto pool = r.Pool(policy);
  auto cutter = frag::FragAllocator::Create(*pool, {.size = 1024});
  REQUIRE(cutter.ok());
  const Fragment fragment = cutter->Allocate();
  cutter->Retire();
  r.Post(fragment);
  SECTION("wrong") {
    pool->Release(fragment);
    const AuditReport report = Only(r.audit, AuditCode::kReusedWhilePosted);
    CHECK(report.owner == "rx0");
    CHECK(report.kind == MappingKind::kPage);
    CHECK(Says(report, "'rxq'"));
    CHECK(Says(report, "recycled"));
    const auto posted =
        std::count_if(report.history.begin(), report.history.end(),
                      [](const AuditEvent& e) { return e.what == AuditEvent::What::kPosted; });
    CHECK(posted == 1);
    CHECK(report.history.back().what == AuditEvent::What::kRecycled);
  }
  SECTION("right") {
    r.Complete(fragment.iova(), 60);
    pool->Release(fragment);
    const Fragment again = cutter->Allocate();
    r.Post(again);
    r.Complete(again.iova(), 60);
    pool->Release(again);
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 28: a mapping that ends, or is posted again, while a ring has it") {
  RingRig r;
  Mapping m = r.Map(r.buffer.part(0, 2048), Direction::kBidirectional, "rx2");
  const Range range{m.iova(), Bytes(2048)};
  r.Post(range);
  SECTION("unmapped") {
    r.Unmap(std::move(m));
    const AuditReport report = Only(r.audit, AuditCode::kReusedWhilePosted);
    CHECK(report.owner == "rx2");
    CHECK(Says(report, "unmapped"));
  }
  SECTION("posted again, in part") {
    r.Post({m.iova() + Bytes(1024), Bytes(1024)});
    CHECK(Says(Only(r.audit, AuditCode::kReusedWhilePosted), "still posted"));
  }
  SECTION("right: completed first; and read by two rings at a time") {
    r.Complete(m.iova(), 100);
    r.Post(range, kTo);
    r.Post({m.iova() + Bytes(64), Bytes(64)}, kTo);
    r.Complete(m.iova(), 0);
    r.Complete(m.iova() + Bytes(64), 0);
    r.Unmap(std::move(m));
    CHECK(Silent(r.audit));
  }
}

TEST_CASE("Class 29: a fragment released twice, and one released to a foreign pool") {
  RingRig r;
  auto pool = r.Pool();
  auto other = r.Pool(Policy::kPersistent, "rx1");
  frag::Page* page = pool->Take();
  REQUIRE(page != nullptr);
  SECTION("twice") {
    pool->Release(page);
    pool->Release(page);
    const AuditReport report = Only(r.audit, AuditCode::kBadRelease);
    CHECK(report.owner == "rx0");
    CHECK(Says(report, "released before"));
    CHECK(report.range == Range{page->iova, Bytes(4096)});
    CHECK_FALSE(report.history.empty());
    return;
  }
  SECTION("foreign") {
    other->Release(page);
    const AuditReport report = Only(r.audit, AuditCode::kBadRelease);
    CHECK(report.owner == "rx0");  // whose page it is
    CHECK(Says(report, "rx1"));
    pool->Release(page);
    CHECK(r.audit.errors() == 1);
  }
  SECTION("right: once, and again after it was taken again") {
    pool->Release(page);
    REQUIRE(pool->Take() == page);
    pool->Release(page);
    CHECK(Silent(r.audit));
  }
  CHECK(pool->pages_in_use() == 0);
}

TEST_CASE("Class 31: more references than are out, from the owner and from another thread") {
  RingRig r;
  auto pool = r.Pool();
  auto cutter = frag::FragAllocator::Create(*pool, {.size = 1024});
  REQUIRE(cutter.ok());
  const Fragment a = cutter->Allocate();
  const Fragment b = cutter->Allocate();
  SECTION("below zero, owner") {
    pool->Release(a.page, 3);
    const AuditReport report = Only(r.audit, AuditCode::kReferenceCount);
    CHECK(report.owner == "rx0");
    CHECK(Says(report, "3 references"));
    CHECK(Says(report, "2 are out"));
  }
  SECTION("below zero, another thread") {
    std::thread([&] {
      frag::Returner returner;
      for (int i = 0; i < 3; ++i) returner.Return(a);
    }).join();
    pool->Fold();
    CHECK(Says(Only(r.audit, AuditCode::kReferenceCount), "below zero"));
  }
  SECTION("above its bound") {
    pool->Release(a.page, 5000);
    CHECK(Says(Only(r.audit, AuditCode::kReferenceCount), "4096 bytes"));
  }
  SECTION("right") {
    std::thread([&] {
      frag::Returner returner;
      returner.Return(a);
    }).join();
    pool->Release(b);
    pool->Fold();
    cutter->Retire();
    CHECK(pool->pages_in_use() == 0);
    CHECK(Silent(r.audit));
    return;
  }
  pool->Release(a.page, 2);  // what is out is as it was
  cutter->Retire();
  CHECK(pool->pages_in_use() == 0);
  CHECK(r.audit.errors() == 1);
}

}  // namespace
}  // namespace dmakit::dma
