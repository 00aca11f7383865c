// SPDX-License-Identifier: Apache-2.0
//
// Bounce buffering of scatter-gather lists; and what bounced maps leave behind when a step fails,
// and when two threads make them.
#include <algorithm>
#include <array>
#include <functional>
#include <thread>

#include "tests/dma/bounce_testing.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::DeviceRig;
using testing::FillOriginal;
using testing::kBoth;
using testing::kFrom;
using testing::kTo;
using testing::Original;
using testing::Written;

using List = std::vector<std::span<std::byte>>;

SgMapping MapList(DeviceRig& r, const List& list, Direction direction) {
  auto mapping = r.nic->MapSg(list, direction, {.owner = "q0"});
  INFO(mapping.status());
  REQUIRE(mapping.ok());
  return *std::move(mapping);
}

// The device reads or writes the bytes of the list, as its segments say.
std::vector<std::byte> Gather(DeviceRig& r, const SgMapping& m) {
  std::vector<std::byte> all;
  for (const SgSegment& segment : m.segments()) {
    const auto bytes = r.DeviceReads(segment.iova, segment.length.value());
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}
void Scatter(DeviceRig& r, const SgMapping& m, std::byte first) {
  for (const SgSegment& segment : m.segments()) {
    std::vector<std::byte> bytes(segment.length.value());
    for (std::byte& b : bytes) {
      b = first;
      first = static_cast<std::byte>(static_cast<int>(first) + 1);
    }
    REQUIRE(r.port->Write(segment.iova, bytes));
  }
}
std::vector<std::byte> Bytes(const List& list) {
  std::vector<std::byte> all;
  for (const auto& entry : list) all.insert(all.end(), entry.begin(), entry.end());
  return all;
}

TEST_CASE("One entry bounced, one direct: a sync without unmap shows the bytes of both") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  const Direction direction = GENERATE(kFrom, kBoth);
  DeviceRig r({.trusted = false, .policy = policy});
  const List list = {r.buffer.part(100, 64), r.buffer.part(4096, 4096)};
  SgMapping m = MapList(r, list, direction);
  CHECK(r.nic->stats().bounce_bytes_now == 4096);
  CHECK(r.nic->stats().bounced_bytes == 64);
  if (direction == kBoth) CHECK(Gather(r, m) == Bytes(list));
  Scatter(r, m, std::byte{130});
  CHECK(r.buffer.data()[100] == Original(100));
  REQUIRE(m.SyncForCpu().ok());
  CHECK(r.buffer.data()[100] == std::byte{130});
  CHECK(r.buffer.data()[163] == std::byte{193});
  CHECK(r.buffer.data()[4096] == std::byte{194});
  CHECK(r.buffer.data()[99] == Original(99));
  CHECK(r.buffer.data()[164] == Original(164));
  CHECK(r.nic->stats().bounced_bytes == 128);
  // And back: what the CPU writes now is what the device finds, or keeps.
  std::fill(list[0].begin(), list[0].end(), std::byte{77});
  REQUIRE(m.SyncForDevice().ok());
  if (direction == kBoth) CHECK(Gather(r, m)[63] == std::byte{77});
  REQUIRE(r.nic->Unmap(std::move(m)).ok());
  CHECK(r.buffer.data()[100] == std::byte{77});
}

TEST_CASE("A list unmapped with skip_sync keeps what the CPU wrote") {
  DeviceRig r({.trusted = false});
  const List list = {r.buffer.part(100, 64), r.buffer.part(5000, 64)};
  SgMapping m = MapList(r, list, kFrom);
  Scatter(r, m, std::byte{130});
  REQUIRE(m.SyncForCpu().ok());
  list[1][0] = std::byte{1};
  REQUIRE(r.nic->Unmap(std::move(m), {.skip_sync = true}).ok());
  CHECK(list[1][0] == std::byte{1});
  CHECK(list[1][1] == std::byte{195});
}

TEST_CASE("Entries that touch fill their granules together; the same bytes alone do not") {
  DeviceRig r({.trusted = false});
  SECTION("direct: 100 + 3996 + 4096 bytes from a granule's start to an end") {
    const List list = {r.buffer.part(0, 100), r.buffer.part(100, 3996), r.buffer.part(4096, 4096)};
    SgMapping m = MapList(r, list, kBoth);
    CHECK(m.segments().size() == 1);
    CHECK(r.nic->stats().bounced_maps == 0);
  }
  SECTION("an entry that is direct in one place and bounced in another") {
    const List list = {r.buffer.part(0, 100), r.buffer.part(100, 3996), r.buffer.part(0, 100)};
    SgMapping m = MapList(r, list, kBoth);
    CHECK(r.nic->stats().bounce_bytes_now == 4096);
    CHECK(Gather(r, m) == Bytes(list));
    CHECK(r.DeviceReads(m.range().base + dmakit::Bytes(4096 + 100), 1)[0] == std::byte{0});
  }
  SECTION("whole granules between parts of some") {
    const List list = {r.buffer.part(4000, 96), r.buffer.part(4096, 4096), r.buffer.part(8192, 1)};
    SgMapping m = MapList(r, list, kBoth);
    CHECK(r.nic->stats().bounce_bytes_now == 2 * 4096);
    CHECK(Gather(r, m) == Bytes(list));
  }
}

TEST_CASE("Lists of any sizes: the device finds them, writes them, and nothing else") {
  const Direction direction = GENERATE(kTo, kFrom, kBoth);
  const bool second_view = GENERATE(false, true);
  DeviceRig r({.trusted = false, .second_view = second_view});
  for (const size_t size : {1, 4095, 4096, 4097}) {
    for (const size_t offset : {0, 1, 4095}) {
      INFO(size << " bytes at " << offset);
      FillOriginal(r.buffer.all());
      const List list = {r.buffer.part(offset, size), r.buffer.part(12288 + offset, size),
                         r.buffer.part(24576, 10)};
      SgMapping m = MapList(r, list, direction);
      if (direction != kFrom) CHECK(Gather(r, m) == Bytes(list));
      if (direction != kTo) {
        for (const SgSegment& segment : m.segments()) {
          REQUIRE(r.port->Write(segment.iova,
                                std::vector<std::byte>(segment.length.value(), std::byte{200})));
        }
      }
      REQUIRE(r.nic->Unmap(std::move(m)).ok());
      for (size_t i = 0; i < r.buffer.all().size(); ++i) {
        const bool inside = (i >= offset && i < offset + size) ||
                            (i >= 12288 + offset && i < 12288 + offset + size) ||
                            (i >= 24576 && i < 24586);
        const bool written = inside && direction != kTo;
        if (r.buffer.data()[i] != (written ? std::byte{200} : Original(i))) FAIL("byte " << i);
      }
    }
  }
  const List empty = {r.buffer.part(0, 10), r.buffer.part(10, 0)};
  CHECK(absl::IsInvalidArgument(r.nic->MapSg(empty, direction).status()));
  CHECK(r.nic->stats().bounce_bytes_now == 0);
}

// --- Each step failing -----------------------------------------------------------------------

struct Failing {
  host::FailPoint fail;
  host::FakeClock clock;
  host::FakeMemory memory{{.fail = &fail}};
  FakeDomain domain{{.fail_map = &fail}};
  Buffer buffer{8 * 4096};
  std::unique_ptr<AddressSpace> space;
  std::unique_ptr<Device> nic;

  explicit Failing(Policy policy) {
    AddressSpace::Options options;
    options.memory = &memory;
    options.clock = &clock;
    options.policy = policy;
    space = *AddressSpace::Create(std::move(options));
    // So small that no slot is kept beside what the lists need: each map allocates.
    nic = *space->Attach({.name = "nic0",
                          .domain = &domain,
                          .trusted = false,
                          .bounce_limit = dmakit::Bytes(4 * 4096)});
    FillOriginal(buffer.all());
  }
  void Check() {
    CHECK(nic->stats().live_mappings == 0);
    CHECK(nic->stats().bounce_bytes_now == 0);
    CHECK(domain.live().empty());
    CHECK(space->quarantine().count() == 0);
    CHECK(space->iova_space().stats().live_ranges == 0);
    CHECK(space->iova_space().Validate().empty());
    for (size_t i = 0; i < buffer.all().size(); ++i) {
      if (buffer.data()[i] != Original(i)) FAIL("byte " << i);
    }
  }
  uint64_t FailEach(const std::function<absl::Status(Failing&)>& call) {
    for (uint64_t k = 1;; ++k) {
      REQUIRE(k < 20);
      // A slot of another size pushes the kept ones out, so that there is a step to fail.
      { REQUIRE(nic->Map(buffer.part(1, 4 * 4096 - 2), kTo).ok()); }
      if (space->flush_queue() != nullptr) REQUIRE(space->flush_queue()->Flush().ok());
      fail.FailAt(k);
      const absl::Status status = call(*this);
      const bool reached = fail.triggered();
      fail.FailAt(0);
      INFO("k = " << k << ": " << status);
      CHECK(status.ok() == !reached);
      Check();
      if (!reached) return k - 1;
    }
  }
};

TEST_CASE("The k-th step of a bounced map fails: nothing is left, and the same call works") {
  Failing f(GENERATE(Policy::kStrict, Policy::kDeferred));
  const Direction direction = GENERATE(kTo, kFrom, kBoth);
  CHECK(f.FailEach([&](Failing& w) {
    return w.nic->Map(w.buffer.part(100, 5000), direction).status();
  }) == 2);  // slot, map
  CHECK(f.FailEach([&](Failing& w) {
    const List list = {w.buffer.part(100, 10), w.buffer.part(4096, 4096), w.buffer.part(12288, 10)};
    return w.nic->MapSg(list, direction).status();
  }) == 4);  // one slot for both, three runs
}

TEST_CASE("A bounced list whose undoing fails too keeps its slot in quarantine") {
  host::FailPoint map, unmap;
  FakeDomain domain({.fail_map = &map, .fail_unmap = &unmap});
  host::FakeMemory memory;
  AddressSpace::Options options;
  options.memory = &memory;
  auto space = *AddressSpace::Create(std::move(options));
  auto nic = *space->Attach({.name = "nic0", .domain = &domain, .trusted = false});
  Buffer buffer(4 * 4096);
  const List list = {buffer.part(100, 10), buffer.part(4096, 4096)};
  map.FailAt(2);
  unmap.FailAt(1);
  CHECK_FALSE(nic->MapSg(list, kFrom).ok());
  CHECK(nic->stats().bounce_bytes_now == 4096);
  CHECK(space->quarantine().count() == 1);
  REQUIRE(space->quarantine().ReleaseAfterReset("nic0").ok());
  CHECK(nic->stats().bounce_bytes_now == 0);
}

TEST_CASE("Two threads bounce at once, in slots that go from one to the other") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  DeviceRig r({.trusted = false, .policy = policy, .bounce_limit = dmakit::Bytes(8 * 4096)});
  constexpr int kRounds = 300;
  std::array<int, 2> wrong{};
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        const auto port = r.iommu->NewPort("of thread " + std::to_string(t));
        for (int i = 0; i < kRounds; ++i) {
          const auto value = static_cast<std::byte>(130 + i % 100);
          const auto part = r.buffer.part(16384 * t + i % 64, 1 + i % 5000);
          auto m = r.nic->Map(part, kBoth, {.owner = "thread"});
          if (!m.ok()) {
            ++wrong[t];
            continue;
          }
          std::vector<std::byte> bytes(part.size());
          bool good = port->Read(m->iova(), bytes) && std::ranges::equal(bytes, part);
          std::fill(bytes.begin(), bytes.end(), value);
          good = port->Write(m->iova(), bytes) && good;
          good = m->SyncForCpu(0, part.size() / 2).ok() && good;
          good = r.nic->Unmap(*std::move(m)).ok() && good;
          good = std::ranges::all_of(part, [&](std::byte b) { return b == value; }) && good;
          wrong[t] += good ? 0 : 1;
        }
      });
    }
  }
  CHECK(wrong[0] == 0);
  CHECK(wrong[1] == 0);
  if (policy == Policy::kDeferred) REQUIRE(r.space->flush_queue()->Flush().ok());
  CHECK(r.nic->stats().bounce_bytes_now == 0);
  CHECK(r.nic->stats().bounced_maps == 2 * kRounds);
}

}  // namespace
}  // namespace dmakit::dma
