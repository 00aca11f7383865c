// SPDX-License-Identifier: Apache-2.0
//
// RingPool and the coherent block below it: arithmetic, alignment, boundary, limits, and who is
// named when memory ends.
#include "dma/ring_pool.h"

#include <algorithm>
#include <limits>

#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Fixture;
using testing::Has;

struct Descriptor {
  uint64_t address;
  uint32_t length;
  uint32_t flags;
};

struct Rings : Fixture {
  FakeDomain* domain;
  std::unique_ptr<Device> nic;

  explicit Rings(DomainFacts facts = {}, host::NumaPolicy numa = {}) {
    NewSpace();
    domain = &NewDomain(std::move(facts));
    auto made = space->Attach({.name = "nic0", .domain = domain, .numa = numa});
    REQUIRE(made.ok());
    nic = *std::move(made);
  }
  uint64_t live_ranges() { return space->iova_space().stats().live_ranges; }
};

TEST_CASE("Entries are base + index x size, in memory and for the device; all zero") {
  Rings f;
  for (const uint32_t count : {1u, 2u, 63u, 64u, 4096u}) {
    auto ring = RingPool<Descriptor>::Create(*f.nic, {.count = count, .label = "tx0"});
    REQUIRE(ring.ok());
    CHECK(ring->count() == count);
    CHECK(ring->entry_size() == 16);
    CHECK(ring->size() == Bytes(16ull * count));
    for (const uint32_t i : {0u, count / 2, count - 1}) {
      CHECK(reinterpret_cast<std::byte*>(ring->at(i)) == ring->data() + 16ull * i);
      CHECK(ring->iova(i).value() == ring->iova().value() + 16ull * i);
    }
    const std::byte* const end = ring->data() + ring->size().value();
    CHECK(std::all_of(ring->data(), const_cast<std::byte*>(end),
                      [](std::byte b) { return b == std::byte{0}; }));
    ring->at(count - 1)->address = 1;  // the last byte is there
  }
  CHECK(f.domain->live().empty());
  CHECK(f.memory.blocks() == 0);
}

TEST_CASE("A run-time entry size, for tables without a fixed type") {
  Rings f;
  auto table = RingPool<std::byte>::Create(
      *f.nic, {.count = 100, .entry_size = Bytes(1500), .label = "gather"});
  REQUIRE(table.ok());
  CHECK(table->iova(99).value() == table->iova().value() + 99 * 1500);
}

TEST_CASE("Recycled memory is zero again") {
  Rings f;
  for (int i = 0; i < 3; ++i) {
    auto ring = RingPool<uint64_t>::Create(*f.nic, {.count = 512, .label = "rx0"});
    REQUIRE(ring.ok());
    CHECK(*ring->at(511) == 0);
    *ring->at(511) = ~uint64_t{0};
  }
}

TEST_CASE("Alignment holds for device and CPU address, from 64 bytes up") {
  Rings f;
  for (uint64_t alignment = 64; alignment <= (uint64_t{1} << 22); alignment *= 4) {
    auto ring = RingPool<uint64_t>::Create(
        *f.nic, {.count = 3, .alignment = Bytes(alignment), .label = "cq"});
    REQUIRE(ring.ok());
    CHECK(ring->iova().value() % alignment == 0);
    CHECK(reinterpret_cast<uintptr_t>(ring->data()) % alignment == 0);
  }
}

TEST_CASE("A ring crosses no multiple of its boundary, and costs one block") {
  Rings f;
  std::vector<RingPool<std::byte>> odd;  // shifts what comes next
  for (uint64_t boundary = 1024; boundary <= (1u << 20); boundary *= 2) {
    for (const uint64_t size : {uint64_t{1}, boundary / 2 + 1, boundary - 1, boundary}) {
      const uint64_t blocks = f.memory.blocks();
      auto ring = RingPool<std::byte>::Create(
          *f.nic,
          {.count = static_cast<uint32_t>(size), .boundary = Bytes(boundary), .label = "rx0"});
      REQUIRE(ring.ok());
      const uint64_t first = ring->iova().value();
      CHECK(first / boundary == (first + size - 1) / boundary);
      CHECK(f.memory.blocks() == blocks + 1);
      odd.push_back(*std::move(ring));
    }
  }
  CHECK(f.nic->stats().live_mappings == odd.size());
}

TEST_CASE("Bad options name ring, value and rule; nothing is taken") {
  Rings f;
  const uint32_t max = std::numeric_limits<uint32_t>::max();
  struct Case {
    RingPoolOptions options;
    const char* said;
  };
  const Case cases[] = {
      {{.count = 0}, "count 0"},
      {{.count = 4, .entry_size = Bytes(8)}, "entry_size 8"},
      {{.count = 4, .entry_size = Bytes(17)}, "multiple of 8"},
      {{.count = 4, .alignment = Bytes(0)}, "alignment 0"},
      {{.count = 4, .alignment = Bytes(48)}, "alignment 48"},
      {{.count = 4, .alignment = GiB(2)}, "power of two up to"},
      {{.count = 4, .boundary = Bytes(32)}, "boundary 32"},
      {{.count = 4, .boundary = Bytes(96)}, "boundary 96"},
      {{.count = max, .entry_size = Bytes(uint64_t{1} << 60)}, "64 bits"},
      {{.count = 16, .entry_size = Bytes(uint64_t{1} << 60)}, "64 bits"},
      {{.count = 1, .entry_size = Bytes(~uint64_t{7})}, "below 2^64"},
  };
  for (Case c : cases) {
    c.options.label = "tx7";
    const absl::Status s = RingPool<Descriptor>::Create(*f.nic, c.options).status();
    INFO(s.ToString());
    CHECK(absl::IsInvalidArgument(s));
    CHECK(Has(s, "tx7"));
    CHECK(Has(s, c.said));
  }
  CHECK(f.memory.blocks() == 0);
  CHECK(f.live_ranges() == 0);
}

TEST_CASE("Out of memory names the ring, as ResourceExhausted") {
  Rings f;
  f.faults.memory.FailAt(1);
  const absl::Status s =
      RingPool<Descriptor>::Create(*f.nic, {.count = 64, .label = "rx3"}).status();
  CHECK(absl::IsResourceExhausted(s));
  CHECK(Has(s, "rx3"));
  CHECK(Has(s, "out of memory"));
  // More than there is, without overflow: the largest product that fits.
  const absl::Status huge =
      RingPool<std::byte>::Create(*f.nic, {.count = 1u << 20, .entry_size = MiB(4), .label = "big"})
          .status();
  CHECK(absl::IsResourceExhausted(huge));
  CHECK(Has(huge, "big"));
  CHECK(f.live_ranges() == 0);
}

TEST_CASE("Out of device addresses and a failed map give memory back and name the ring") {
  Rings f({.width = AddressBits(16)});
  const absl::Status s =
      RingPool<std::byte>::Create(*f.nic, {.count = 1u << 16, .label = "rx0"}).status();
  CHECK(absl::IsResourceExhausted(s));
  CHECK(Has(s, "rx0"));
  CHECK(f.memory.blocks() == 0);
  f.faults.map.FailAt(1);
  const absl::Status t =
      RingPool<std::byte>::Create(*f.nic, {.count = 10, .label = "rx1"}).status();
  CHECK_FALSE(t.ok());
  CHECK(Has(t, "rx1"));
  CHECK(f.memory.blocks() == 0);
  CHECK(f.live_ranges() == 0);
  CHECK(f.nic->stats().map_failures == 2);
}

TEST_CASE("A ring is in its own device's domain only, readable and writable") {
  Rings f;
  FakeDomain& other = f.NewDomain();
  auto nic1 = f.Attach("nic1", other);
  auto ring = RingPool<uint64_t>::Create(*f.nic, {.count = 8, .label = "rx0"});
  REQUIRE(ring.ok());
  CHECK(other.live().empty());
  REQUIRE(f.domain->live().size() == 1);
  CHECK(f.domain->live()[0].access == Access::kReadWrite);
  CHECK(f.nic->stats().coherent_bytes == 4096);
}

TEST_CASE("A moved-from ring is empty; assignment ends the old one") {
  Rings f;
  RingPool<uint64_t> a = *RingPool<uint64_t>::Create(*f.nic, {.count = 8, .label = "a"});
  RingPool<uint64_t> b = std::move(a);
  CHECK(a.empty());
  CHECK(a.count() == 0);
  CHECK(a.size() == Bytes(0));
  b = *RingPool<uint64_t>::Create(*f.nic, {.count = 16, .label = "b"});
  CHECK(b.count() == 16);
  CHECK(f.domain->live().size() == 1);
  CHECK(f.memory.blocks() == 1);
}

TEST_CASE("A ring that cannot be unmapped keeps its memory in quarantine") {
  for (const bool invalidate : {false, true}) {
    Rings f;
    {
      auto ring = RingPool<uint64_t>::Create(*f.nic, {.count = 8, .label = "rx0"});
      REQUIRE(ring.ok());
      (invalidate ? f.faults.invalidate : f.faults.unmap).FailAt(1);
    }
    CHECK(f.memory.blocks() == 1);
    CHECK(f.space->quarantine().count() == 1);
    CHECK(f.space->quarantine().bytes() == Bytes(4096));
    REQUIRE(f.space->quarantine().ReleaseAfterReset("nic0").ok());
    CHECK(f.memory.blocks() == 0);
    CHECK(f.live_ranges() == 0);
    CHECK(f.domain->live().empty());
  }
}

// Open and close with sizes that differ from granules, again and again.
TEST_CASE("Rings come and go a thousand times and leave nothing") {
  Rings f;
  for (uint32_t i = 1; i <= 1000; ++i) {
    auto ring = RingPool<Descriptor>::Create(*f.nic, {.count = i, .label = "tx0"});
    REQUIRE(ring.ok());
  }
  CHECK(f.domain->live().empty());
  CHECK(f.live_ranges() == 0);
  CHECK(f.memory.blocks() == 0);
  CHECK(f.domain->stats().maps == 1000);
  CHECK(f.domain->stats().unmaps == 1000);
}

// Where the memory was asked to be placed.
class NotingMemory final : public host::FakeMemory {
 public:
  absl::StatusOr<host::Memory> Allocate(const host::MemoryRequest& request) override {
    numa = request.numa;
    label = std::string(request.label);
    return host::FakeMemory::Allocate(request);
  }
  host::NumaPolicy numa;
  std::string label;
};

TEST_CASE("The device's NUMA policy and the ring's name reach the memory source") {
  Fixture f;
  NotingMemory memory;
  AddressSpace::Options options = f.Options();
  options.memory = &memory;
  AddressSpace& space = f.NewSpace(std::move(options));
  auto nic =
      space.Attach({.name = "nic0",
                    .domain = &f.NewDomain(),
                    .numa = {.mode = host::NumaPolicy::Mode::kEnforce, .node = NumaNode(3)}});
  REQUIRE(nic.ok());
  auto ring = RingPool<uint64_t>::Create(**nic, {.count = 8, .label = "rx5"});
  REQUIRE(ring.ok());
  CHECK(memory.numa.mode == host::NumaPolicy::Mode::kEnforce);
  CHECK(memory.numa.node == NumaNode(3));
  CHECK(memory.label == "rx5");
  ring = RingPool<uint64_t>();
  nic->reset();
  f.space.reset();
}

}  // namespace
}  // namespace dmakit::dma
