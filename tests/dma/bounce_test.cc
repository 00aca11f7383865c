// SPDX-License-Identifier: Apache-2.0
//
// Bounce buffering of single mappings: which are bounced, what the device can reach, what the
// caller gets back and when.
#include "dma/bounce.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/dma/bounce_testing.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::DeviceRig;
using testing::FillOriginal;
using testing::Fixture;
using testing::Has;
using testing::HookedDomain;
using testing::kBoth;
using testing::kFrom;
using testing::kTo;
using testing::Original;
using testing::Written;

// An untrusted device on a FakeDomain: which memory is the device given?
struct Untrusted : Fixture {
  FakeDomain* domain;
  std::unique_ptr<Device> nic;
  Buffer buffer{8 * 4096};

  explicit Untrusted(Policy policy = Policy::kStrict, Bytes limit = Bytes(1 << 20)) {
    AddressSpace::Options options = Options();
    options.policy = policy;
    options.deferred.max_age = Nanos{3'600'000'000'000};
    NewSpace(std::move(options));
    domain = &NewDomain();
    auto made =
        space->Attach({.name = "nic0", .domain = domain, .trusted = false, .bounce_limit = limit});
    REQUIRE(made.ok());
    nic = *std::move(made);
    FillOriginal(buffer.all());
  }
  bool Bounced(size_t live = 0) const {
    const std::byte* at = domain->live()[live].memory.cpu;
    return at < buffer.data() || at >= buffer.data() + buffer.all().size();
  }
  // What the device finds in the granules of the first mapping.
  std::span<std::byte> Slot() const { return domain->live()[0].memory.bytes(); }
};

TEST_CASE("Bounced is what does not fill its granules alone, in any size and direction") {
  Untrusted f;
  struct Case {
    size_t offset, length, granules;
    bool bounced;
  };
  const Direction direction = GENERATE(kTo, kFrom, kBoth);
  uint64_t bounced = 0;
  for (const Case& c :
       {Case{0, 1, 1, true}, Case{0, 4095, 1, true}, Case{0, 4096, 1, false},
        Case{0, 4097, 2, true}, Case{1, 4095, 1, true}, Case{1, 4096, 2, true},
        Case{4095, 1, 1, true}, Case{4095, 2, 2, true}, Case{4096, 8192, 2, false}}) {
    INFO(c.length << " bytes at " << c.offset);
    FillOriginal(f.buffer.all());
    auto m = f.nic->Map(f.buffer.part(c.offset, c.length), direction);
    REQUIRE(m.ok());
    REQUIRE(f.domain->live().size() == 1);
    CHECK(f.domain->live()[0].access == AccessFor(direction));
    CHECK(f.Bounced() == c.bounced);
    CHECK(m->bytes().data() == f.buffer.data() + c.offset);
    CHECK(m->iova().value() % 4096 == c.offset % 4096);
    CHECK(m->range().size == Bytes(c.granules * 4096));
    bounced += c.bounced ? 1 : 0;
    CHECK(f.nic->stats().bounced_maps == bounced);
    CHECK(f.nic->stats().bounce_bytes_now == (c.bounced ? c.granules * 4096 : 0));
    if (!c.bounced) continue;
    // The caller's bytes at their offset, zeros around them, whatever was in the slot before.
    const std::span<std::byte> slot = f.Slot();
    for (size_t i = 0; i < slot.size(); ++i) {
      const size_t at = c.offset / 4096 * 4096 + i;
      const bool inside = at >= c.offset && at < c.offset + c.length;
      if (slot[i] != (inside ? Original(at) : std::byte{0})) FAIL("byte " << i);
    }
    if (direction != kTo) std::fill(slot.begin(), slot.end(), std::byte{0x5a});
  }
  CHECK(f.nic->stats().bounce_bytes_now == 0);
  const auto none = f.nic->Map(f.buffer.part(0, 0), direction);
  CHECK(absl::IsInvalidArgument(none.status()));
}

TEST_CASE("A trusted device, and registers, are never bounced") {
  Untrusted f;
  auto trusted = f.space->Attach({.name = "nic1", .domain = &f.NewDomain()});
  REQUIRE(trusted.ok());
  auto direct = (*trusted)->Map(f.buffer.part(1, 10), kBoth);
  REQUIRE(direct.ok());
  CHECK(f.domains[1]->live()[0].memory.cpu == f.buffer.data());
  CHECK((*trusted)->stats().bounced_maps == 0);
  auto registers = f.nic->Map(f.buffer.part(64, 4), kBoth, {.resource = true});
  REQUIRE(registers.ok());
  CHECK_FALSE(f.Bounced());
}

TEST_CASE("A device that writes 10 of 64 bytes leaves 54 originals, in a slot used before") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  const Direction direction = GENERATE(kFrom, kBoth);
  DeviceRig r({.trusted = false, .policy = policy});
  {
    Mapping before = r.Map(r.buffer.part(4096, 4000), direction);
    REQUIRE(r.DeviceWrites(before.iova(), 0, 4000));  // secrets of another transfer
    r.Unmap(std::move(before));
    FillOriginal(r.buffer.all());
    if (policy == Policy::kDeferred) REQUIRE(r.space->flush_queue()->Flush().ok());
  }
  Mapping m = r.Map(r.buffer.part(100, 64), direction);
  REQUIRE(r.DeviceWrites(m.iova(), 100, 10));
  CHECK(r.OnlyWritten(0, 0));
  r.Unmap(std::move(m));
  CHECK(r.OnlyWritten(100, 10));
}

TEST_CASE("An untrusted device reaches no byte around, to read or to write") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  DeviceRig r({.trusted = false, .policy = policy, .second_view = true});
  Mapping m = r.Map(r.buffer.part(4096 + 100, 64), kBoth);
  const Range range = m.range();
  const std::vector<std::byte> seen = r.DeviceReads(range.base, range.size.value());
  for (size_t i = 0; i < seen.size(); ++i) {
    const bool inside = i >= 100 && i < 164;
    if (seen[i] != (inside ? Original(4096 + i) : std::byte{0})) FAIL("byte " << i);
  }
  REQUIRE(r.DeviceWrites(range.base, 4096, 4096));
  r.Unmap(std::move(m));
  CHECK(r.OnlyWritten(4096 + 100, 64));
  std::byte byte{};
  if (policy == Policy::kStrict) CHECK_FALSE(r.port->Read(range.base, {&byte, 1}));
}

TEST_CASE("What the device only reads is never written back") {
  DeviceRig r({.trusted = false});
  const std::span<const std::byte> data = r.buffer.part(10, 100);
  auto m = r.nic->MapToDevice(data);
  REQUIRE(m.ok());
  CHECK_FALSE(r.DeviceWrites(m->iova(), 10, 1));
  CHECK(r.DeviceReads(m->iova(), 100) == std::vector(data.begin(), data.end()));
  REQUIRE(m->SyncForCpu(0, 100).ok());
  r.buffer.data()[10] = std::byte{200};
  r.Unmap(*std::move(m));
  CHECK(r.buffer.data()[10] == std::byte{200});
  CHECK(r.nic->stats().bounced_bytes == 100);
}

TEST_CASE("A sync copies exactly its part") {
  DeviceRig r({.trusted = false});
  const Direction direction = GENERATE(kFrom, kBoth);
  Mapping m = r.Map(r.buffer.part(50, 1000), direction);
  REQUIRE(r.DeviceWrites(m.iova(), 50, 1000));
  REQUIRE(m.SyncForCpu(10, 20).ok());
  CHECK(r.OnlyWritten(60, 20));
  REQUIRE(m.SyncForCpu(0, 0).ok());
  CHECK(absl::IsOutOfRange(m.SyncForCpu(990, 11)));
  CHECK(r.OnlyWritten(60, 20));
  CHECK(r.nic->stats().bounced_bytes == 1020);
  // Back to the device: the part only, also where it just writes, so that it stays the caller's.
  for (std::byte& b : m.bytes()) b = std::byte{120};
  REQUIRE(m.SyncForDevice(100, 50).ok());
  r.Unmap(std::move(m));
  for (size_t i = 0; i < 1000; ++i) {
    const bool synced = i >= 100 && i < 150;
    if (r.buffer.data()[50 + i] != (synced ? std::byte{120} : Written(50 + i))) FAIL("byte " << i);
  }
}

TEST_CASE("Unmapped with skip_sync, what the CPU wrote after a partial sync survives") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  DeviceRig r({.trusted = false, .policy = policy});
  Mapping m = r.Map(r.buffer.part(0, 2000), kFrom);
  REQUIRE(r.DeviceWrites(m.iova() + Bytes(64), 64, 1500));
  REQUIRE(m.SyncForCpu(64, 1500).ok());
  std::memset(r.buffer.data() + 50, 0x11, 14);  // a header, prepared in the headroom
  SECTION("with skip") {
    r.Unmap(std::move(m), true);
    for (size_t i = 50; i < 64; ++i) CHECK(r.buffer.data()[i] == std::byte{0x11});
  }
  SECTION("without: the whole buffer is copied") {
    r.Unmap(std::move(m));
    CHECK(r.buffer.data()[50] == Original(50));
  }
  CHECK(r.buffer.data()[64] == Written(64));
  CHECK(r.buffer.data()[1563] == Written(1563));
}

TEST_CASE("Strict: copied back after the invalidation, not before") {
  Fixture f;
  HookedDomain domain;
  f.NewSpace();
  auto nic = f.space->Attach({.name = "nic0", .domain = &domain, .trusted = false});
  REQUIRE(nic.ok());
  Buffer buffer(4096);
  FillOriginal(buffer.all());
  auto m = (*nic)->Map(buffer.part(8, 8), kFrom);
  REQUIRE(m.ok());
  std::byte* const slot = domain.fake.live()[0].memory.device;
  slot[8] = Written(8);
  int calls = 0;
  domain.before_invalidate = [&] {
    ++calls;
    CHECK(buffer.data()[8] == Original(8));
    slot[9] = Written(9);  // through the cached translation, at the last moment
  };
  SECTION("by Unmap") { REQUIRE((*nic)->Unmap(*std::move(m)).ok()); }
  SECTION("by the destructor") { *m = Mapping(); }
  SECTION("by detach") { nic->reset(); }
  domain.before_invalidate = nullptr;
  CHECK(calls == 1);
  CHECK(buffer.data()[8] == Written(8));
  CHECK(buffer.data()[9] == Written(9));
  CHECK(buffer.data()[10] == Original(10));
}

TEST_CASE("Deferred: copied back at the unmap, the slot reused only after the ticket") {
  Untrusted f(Policy::kDeferred);
  auto m = f.nic->Map(f.buffer.part(8, 8), kFrom);
  REQUIRE(m.ok());
  std::byte* const slot = f.Slot().data();
  slot[8] = Written(8);
  auto ticket = f.nic->Unmap(*std::move(m));
  REQUIRE(ticket.ok());
  CHECK_FALSE(ticket->done());
  CHECK(f.buffer.data()[8] == Written(8));
  CHECK(f.nic->stats().bounce_bytes_now == 4096);
  auto other = f.nic->Map(f.buffer.part(8, 8), kFrom);
  REQUIRE(other.ok());
  CHECK(f.Slot().data() != slot);
  REQUIRE(f.space->flush_queue()->Flush().ok());
  CHECK(ticket->done());
  CHECK(f.nic->stats().bounce_bytes_now == 4096);
  auto third = f.nic->Map(f.buffer.part(100, 8), kFrom);
  REQUIRE(third.ok());
  CHECK(std::ranges::any_of(f.domain->live(),
                            [&](const FakeDomain::Entry& e) { return e.memory.cpu == slot; }));
}

TEST_CASE("At the limit the map fails and says what to do; deferred slots are flushed first") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  Untrusted f(policy, Bytes(2 * 4096));
  auto first = f.nic->Map(f.buffer.part(0, 10), kTo);
  auto second = f.nic->Map(f.buffer.part(10, 10), kTo);
  REQUIRE((first.ok() && second.ok()));
  auto third = f.nic->Map(f.buffer.part(20, 10), kTo, {.owner = "tx3"});
  REQUIRE(absl::IsResourceExhausted(third.status()));
  for (const char* text : {"nic0", "tx3", "4096 bytes needed", "8192 of at most 8192",
                           "DeviceOptions::bounce_limit"}) {
    INFO(text);
    CHECK(Has(third.status(), text));
  }
  CHECK(f.nic->stats().map_failures == 1);
  CHECK(f.domain->live().size() == 2);
  CHECK(f.nic->Map(f.buffer.part(4096, 4096), kTo).ok());  // needs none
  REQUIRE(f.nic->Unmap(*std::move(first)).ok());
  CHECK(f.nic->Map(f.buffer.part(20, 10), kTo).ok());
  REQUIRE(f.nic->Unmap(*std::move(second)).ok());
  CHECK(f.nic->Map(f.buffer.part(20, 4097), kTo).ok());  // two that were kept make room for one
  CHECK_FALSE(f.nic->Map(f.buffer.part(20, 8192), kTo).ok());
  CHECK(f.memory.bytes_in_use() <= Bytes(2 * 4096));
}

TEST_CASE("What cannot be undone keeps its slot until the device was reset") {
  Untrusted f;
  auto m = f.nic->Map(f.buffer.part(8, 8), kFrom);
  REQUIRE(m.ok());
  std::byte* const slot = f.Slot().data();
  slot[8] = Written(8);
  SECTION("unmap fails") { f.faults.unmap.FailAt(1); }
  SECTION("unmap is short") { f.faults.short_unmap.FailAt(1); }
  SECTION("invalidation fails") { f.faults.invalidate.FailAt(1); }
  CHECK_FALSE(f.nic->Unmap(*std::move(m)).ok());
  CHECK(f.buffer.data()[8] == Original(8));
  CHECK(f.nic->stats().bounce_bytes_now == 4096);
  slot[8] = Written(9);  // the device, still
  {
    auto other = f.nic->Map(f.buffer.part(8, 8), kFrom);
    REQUIRE(other.ok());
    for (const FakeDomain::Entry& e : f.domain->live()) {
      if (e.range == other->range()) CHECK(e.memory.cpu != slot);
    }
  }
  CHECK(f.space->quarantine().count() == 1);
  REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(f.nic->stats().bounce_bytes_now == 0);
  CHECK(f.domain->live().empty());
}

TEST_CASE("A failed flush keeps the slot as well") {
  Untrusted f(Policy::kDeferred);
  auto m = f.nic->Map(f.buffer.part(8, 8), kFrom);
  REQUIRE(m.ok());
  auto ticket = f.nic->Unmap(*std::move(m));
  REQUIRE(ticket.ok());
  f.faults.invalidate.FailAt(1, true);
  CHECK_FALSE(f.space->flush_queue()->Flush().ok());
  f.faults.invalidate.FailAt(0);
  CHECK(ticket->state() == FlushTicket::State::kQuarantined);
  CHECK(f.nic->stats().bounce_bytes_now == 4096);
  REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(f.nic->stats().bounce_bytes_now == 0);
}

TEST_CASE("A detach copies back and gives all bounce memory up; late handles are dead") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  Untrusted f(policy);
  auto m = f.nic->Map(f.buffer.part(8, 8), kFrom);
  auto ended = f.nic->Map(f.buffer.part(100, 8), kFrom);
  REQUIRE((m.ok() && ended.ok()));
  REQUIRE(f.nic->Unmap(*std::move(ended)).ok());
  f.Slot()[8] = Written(8);
  f.nic.reset();
  CHECK(f.buffer.data()[8] == Written(8));
  CHECK(f.memory.blocks() == 0);
  CHECK(absl::IsFailedPrecondition(m->SyncForCpu(0, 8)));
}

TEST_CASE("What the domain cannot reach is bounced into what it can") {
  Fixture f;
  f.NewSpace();
  Buffer buffer(4 * 4096);
  FillOriginal(buffer.all());
  bool source_reachable = true;
  const auto registered = [&](MemoryView m) {
    const bool own = m.cpu >= buffer.data() && m.cpu < buffer.data() + 4 * 4096;
    return own ? m.cpu + m.size <= buffer.data() + 4096 : source_reachable;
  };
  FakeDomain domain({.facts = {.fixed_memory = true}, .reachable = registered});
  auto nic = f.space->Attach({.name = "nic0", .domain = &domain});
  REQUIRE(nic.ok());
  SECTION("reached where it is, although others share the page: the device is trusted") {
    auto m = (*nic)->Map(buffer.part(1, 10), kFrom);
    REQUIRE(m.ok());
    CHECK(domain.live()[0].memory.cpu == buffer.data());
  }
  SECTION("bounced, whole granules or not") {
    auto m = (*nic)->Map(buffer.part(4096, 4096), kFrom);
    REQUIRE(m.ok());
    domain.live()[0].memory.device[5] = Written(5);
    REQUIRE((*nic)->Unmap(*std::move(m)).ok());
    CHECK(buffer.data()[4096 + 5] == Written(5));
    CHECK((*nic)->stats().bounced_maps == 1);
  }
  SECTION("neither: the domain's own words") {
    source_reachable = false;
    auto m = (*nic)->Map(buffer.part(4096, 4096), kFrom);
    CHECK(absl::IsFailedPrecondition(m.status()));
    CHECK(Has(m.status(), "registered"));
    CHECK((*nic)->stats().bounce_bytes_now == 0);
  }
}

// Address space that costs only the pages it touches.
class SparseSource final : public host::MemorySource {
 public:
  absl::StatusOr<host::Memory> Allocate(const host::MemoryRequest& request) override {
    void* at = mmap(nullptr, request.size.value(), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return absl::ResourceExhaustedError("no address space");
    return host::Memory(this, MemoryView::Of({static_cast<std::byte*>(at), request.size.value()}));
  }
  Bytes page_size() const override { return Bytes(4096); }
  Bytes bytes_in_use() const override { return Bytes(0); }

 protected:
  void Free(const MemoryView& view) override { munmap(view.cpu, view.size); }
};

TEST_CASE("The last granule of 8 GiB of bounce memory: no offset is cut to 32 bits") {
  constexpr uint64_t kSize = uint64_t{8} << 30;
  SparseSource source;
  auto pool = std::make_shared<internal::BouncePool>(source, host::NumaPolicy{}, Bytes(kSize));
  CHECK_FALSE(pool->Take(Bytes(kSize + 4096), Bytes(4096)).ok());
  auto slot = pool->Take(Bytes(kSize), Bytes(4096));
  REQUIRE(slot.ok());
  CHECK(pool->in_use() == Bytes(kSize));
  CHECK_FALSE(pool->Take(Bytes(4096), Bytes(4096)).ok());
  internal::Bounce bounce(*std::move(slot));
  Buffer buffer(4096);
  FillOriginal(buffer.all());
  const internal::Bounce::Piece last{buffer.part(0, 100), kSize - 200};
  CHECK(bounce.CopyToDevice(last, 10, 50) == 50);
  std::byte* const end = bounce.view().cpu + kSize;
  CHECK(bounce.bytes(last).data() == end - 200);
  CHECK(end[-190] == Original(10));
  CHECK(end[-191] == std::byte{0});
  end[-101] = Written(99);
  CHECK(bounce.CopyToCaller(last, 99, 1) == 1);
  CHECK(buffer.data()[99] == Written(99));
  CHECK(bounce.ViewOf({end - 100, 200}).size == 100);
  CHECK(bounce.ViewOf({bounce.view().cpu - 64, 100}).size == 64);
  pool->Close();
}

}  // namespace
}  // namespace dmakit::dma
