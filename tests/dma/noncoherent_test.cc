// SPDX-License-Identifier: Apache-2.0
//
// Devices that are not coherent: they and the CPU see each other's writes after a sync only, a sync
// moves exactly its bytes, and rings need none.
#include <array>
#include <cstring>
#include <thread>

#include "dma/ring_pool.h"
#include "tests/dma/bounce_testing.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::DeviceRig;
using testing::DeviceRigOptions;
using testing::FillOriginal;
using testing::Fixture;
using testing::kBoth;
using testing::kFrom;
using testing::kTo;
using testing::Original;
using testing::Written;

DeviceRigOptions NonCoherent(Policy policy = Policy::kStrict) {
  return {.coherent = false, .policy = policy};
}

TEST_CASE("What the device writes is not in memory before a sync for the CPU, and then exactly") {
  DeviceRig r(NonCoherent());
  Mapping m = r.Map(r.buffer.part(100, 1000), GENERATE(kFrom, kBoth));
  REQUIRE(r.DeviceWrites(m.iova() + Bytes(50), 150, 500));
  CHECK(r.OnlyWritten(0, 0));
  REQUIRE(m.SyncForCpu(60, 70).ok());  // from one line into the next
  CHECK(r.OnlyWritten(160, 70));
  REQUIRE(m.SyncForCpu(0, 1000).ok());  // bytes that the device did not write stay
  CHECK(r.OnlyWritten(150, 500));
}

TEST_CASE("What the CPU writes the device does not see before a sync for the device") {
  DeviceRig r(NonCoherent());
  Mapping m = r.Map(r.buffer.part(100, 1000), GENERATE(kTo, kBoth));
  CHECK(r.DeviceReads(m.iova(), 200)[150] == Original(250));
  std::memset(r.buffer.data() + 100, 0x66, 200);
  CHECK(r.DeviceReads(m.iova(), 200)[150] == Original(250));
  REQUIRE(m.SyncForDevice(150, 1).ok());
  const auto seen = r.DeviceReads(m.iova(), 200);
  CHECK(seen[149] == Original(249));
  CHECK(seen[150] == std::byte{0x66});
  CHECK(seen[151] == Original(251));
}

TEST_CASE("The bytes next to those the device writes are the CPU's, in the same line too") {
  DeviceRig r(NonCoherent());
  Mapping m = r.Map(r.buffer.part(0, 32), kFrom);
  REQUIRE(r.DeviceWrites(m.iova(), 0, 32));
  std::memset(r.buffer.data() + 32, 0x66, 32);
  REQUIRE(m.SyncForCpu(0, 32).ok());
  CHECK(r.buffer.data()[31] == Written(31));
  CHECK(r.buffer.data()[32] == std::byte{0x66});
}

TEST_CASE("The cache is bounded: the oldest line is evicted, and only what was written goes out") {
  DeviceRig r({.coherent = false, .cache_lines = 4});
  Mapping m = r.Map(r.buffer.part(0, 4096), kBoth);
  REQUIRE(r.DeviceWrites(m.iova() + Bytes(10), 10, 5));
  (void)r.DeviceReads(m.iova() + Bytes(64), 3 * 64);  // three lines that were only read
  std::memset(r.buffer.data() + 15, 0x66, 64);        // the CPU's, around what was written
  CHECK(r.iommu->walk_stats().lines_evicted == 0);
  CHECK(r.buffer.data()[10] == Original(10));
  (void)r.DeviceReads(m.iova() + Bytes(256), 1);
  CHECK(r.iommu->walk_stats().lines_evicted == 1);
  CHECK(r.buffer.data()[9] == Original(9));
  CHECK(r.buffer.data()[10] == Written(10));
  CHECK(r.buffer.data()[14] == Written(14));
  CHECK(r.buffer.data()[15] == std::byte{0x66});
  (void)r.DeviceReads(m.iova() + Bytes(320), 1);  // a line that was only read: nothing goes out
  CHECK(r.buffer.data()[64] == std::byte{0x66});
}

TEST_CASE("An unmap writes back, unless skip_sync") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  DeviceRig r(NonCoherent(policy));
  Mapping m = r.Map(r.buffer.part(64, 128), kFrom);
  REQUIRE(r.DeviceWrites(m.iova(), 64, 128));
  size_t written = 128;
  SECTION("by Unmap") { r.Unmap(std::move(m)); }
  SECTION("by the destructor") { m = Mapping(); }
  SECTION("by detach") { r.nic.reset(); }
  SECTION("skipped: what was not synced before is lost") {
    REQUIRE(m.SyncForCpu(0, 32).ok());
    written = 32;
    r.Unmap(std::move(m), true);
  }
  CHECK(r.OnlyWritten(64, written));
  if (policy == Policy::kDeferred && r.nic != nullptr) {
    REQUIRE(r.space->flush_queue()->Flush().ok());
  }
  // Nothing of it is left to be written over what comes next.
  FillOriginal(r.buffer.all());
  if (r.nic != nullptr) {
    Mapping next = r.Map(r.buffer.part(64, 128), kFrom);
    r.Unmap(std::move(next));
  }
  CHECK(r.OnlyWritten(0, 0));
}

TEST_CASE("A write that comes after the unmap never reaches memory after the flush") {
  DeviceRig r(NonCoherent(Policy::kDeferred));
  Mapping other = r.Map(r.buffer.part(8192, 64), kFrom);
  REQUIRE(r.DeviceWrites(other.iova(), 8192, 64));
  Mapping m = r.Map(r.buffer.part(0, 64), kFrom);
  const Iova at = m.iova();
  REQUIRE(r.DeviceWrites(at, 0, 32));
  r.Unmap(std::move(m));
  CHECK(r.OnlyWritten(0, 32));
  REQUIRE(r.DeviceWrites(at + Bytes(32), 32, 32));  // through the cached translation
  REQUIRE(r.space->flush_queue()->Flush().ok());
  r.iommu->SyncForCpu({at, Bytes(64)});
  CHECK(r.OnlyWritten(0, 32));
  // The flush was no sync of anything else, and lost nothing of it either.
  CHECK(r.buffer.data()[8192] == Original(8192));
  REQUIRE(other.SyncForCpu(0, 64).ok());
  CHECK(r.buffer.data()[8192] == Written(8192));
}

TEST_CASE("Rings are seen by both sides at once") {
  DeviceRig r(NonCoherent());
  auto block = r.nic->AllocateCoherent({.size = Bytes(4096), .label = "ring"});
  REQUIRE(block.ok());
  std::memset(block->data(), 1, 64);
  CHECK(r.DeviceReads(block->iova(), 64)[0] == std::byte{1});
  std::memset(block->data(), 2, 64);
  CHECK(r.DeviceReads(block->iova(), 64)[63] == std::byte{2});
  REQUIRE(r.DeviceWrites(block->iova(), 0, 8));
  CHECK(block->data()[7] == Written(7));
  REQUIRE(r.port->Publish(block->iova() + Bytes(8), 0x1234, 2));
  CHECK(block->data()[8] == std::byte{0x34});
  block->data()[8] = std::byte{0x35};
  CHECK(r.port->LoadAcquire(block->iova() + Bytes(8), 2) == 0x1235);
}

TEST_CASE("Words in streaming memory go through the cache like all else") {
  DeviceRig r(NonCoherent());
  Mapping m = r.Map(r.buffer.part(0, 64), kBoth);
  const size_t width = GENERATE(1, 2, 4, 8);
  const uint64_t word = 0x8877665544332211 & (~uint64_t{0} >> (64 - 8 * width));
  REQUIRE(r.port->Publish(m.iova() + Bytes(16), word, width));
  CHECK(r.port->LoadAcquire(m.iova() + Bytes(16), width) == word);
  CHECK(r.OnlyWritten(0, 0));
  REQUIRE(m.SyncForCpu(0, 64).ok());
  CHECK(std::memcmp(r.buffer.data() + 16, &word, width) == 0);
  CHECK(r.buffer.data()[15] == Original(15));
  CHECK(r.buffer.data()[16 + width] == Original(16 + width));
}

TEST_CASE("A part of a packet page goes to and fro by the device's syncs") {
  DeviceRig r(NonCoherent());
  auto page = r.space->Reserve(Bytes(4096), Bytes(4096), "pool");
  REQUIRE(page.ok());
  REQUIRE(page->Map(r.buffer.view(0, 4096)).ok());
  const Range first{page->iova(), Bytes(100)};
  const Range second{page->iova() + Bytes(100), Bytes(100)};
  r.nic->SyncForDevice(first);
  REQUIRE(r.DeviceWrites(first.base, 0, 200));
  CHECK(r.OnlyWritten(0, 0));
  r.nic->SyncForCpu(first);
  CHECK(r.OnlyWritten(0, 100));
  r.nic->SyncForDevice(second);  // given back unread: what the device wrote there is gone
  r.nic->SyncForCpu(second);
  r.nic->SyncForCpu({second.base, Bytes(0)});
  CHECK(r.OnlyWritten(0, 100));
  CHECK(page->Unmap(Policy::kStrict).ok());
}

TEST_CASE("Only the domain of a device that is not coherent is told of syncs, in order") {
  Fixture f;
  f.NewSpace();
  Buffer buffer(4096);
  const bool coherent = GENERATE(false, true);
  FakeDomain& domain = f.NewDomain();
  auto nic = f.space->Attach({.name = "nic0", .domain = &domain, .coherent = coherent});
  REQUIRE(nic.ok());
  {
    auto m = (*nic)->Map(buffer.part(16, 32), kBoth);
    REQUIRE(m.ok());
    REQUIRE(m->SyncForCpu(8, 8).ok());
    REQUIRE(m->SyncForDevice(0, 32).ok());
    (*nic)->SyncForCpu({m->iova(), Bytes(1)});
    REQUIRE((*nic)->Unmap(*std::move(m)).ok());
    const std::span<std::byte> list[] = {buffer.part(16, 32)};
    auto sg = (*nic)->MapSg(list, kTo);
    REQUIRE(sg.ok());
    REQUIRE(sg->SyncForCpu().ok());
    REQUIRE((*nic)->Unmap(*std::move(sg)).ok());
    auto registers = (*nic)->Map(buffer.part(0, 4), kBoth, {.resource = true});
    REQUIRE(registers.ok());
    REQUIRE(registers->SyncForCpu(0, 4).ok());
    REQUIRE((*nic)->Unmap(*std::move(registers)).ok());
    REQUIRE((*nic)->AllocateCoherent({.size = Bytes(64), .label = "ring"}).ok());
  }
  // "map [..] read-write, snooped" becomes "map snooped", "sync [..] for the CPU" "sync CPU".
  std::vector<std::string> said;
  for (const std::string& line : domain.log()) {
    std::string words = line.substr(0, line.find(' '));
    if (words == "sync" || line.ends_with("snooped")) words += line.substr(line.rfind(' '));
    said.push_back(words == "invalidate" ? said.back() + ", invalidate" : words);
  }
  std::erase(said, "unmap");
  if (coherent) {
    CHECK(said == std::vector<std::string>{"map", "unmap, invalidate", "map", "unmap, invalidate",
                                           "map", "unmap, invalidate", "map", "unmap, invalidate"});
    return;
  }
  CHECK(said == std::vector<std::string>{
                    "map", "sync device",                   // given to the device
                    "sync CPU", "sync device", "sync CPU",  // asked for; the last by address
                    "sync CPU", "unmap, invalidate",        // fetched before the translation goes
                    "map", "sync device", "unmap, invalidate",  // nothing to fetch
                    "map snooped", "unmap, invalidate", "map snooped", "unmap, invalidate"});
}

TEST_CASE("Not coherent and not trusted: through the cache, then through the slot") {
  const Policy policy = GENERATE(Policy::kStrict, Policy::kDeferred);
  DeviceRig r({.coherent = false, .trusted = false, .policy = policy});
  Mapping m = r.Map(r.buffer.part(100, 200), kBoth);
  REQUIRE(r.DeviceWrites(m.iova(), 100, 10));
  REQUIRE(m.SyncForCpu(0, 5).ok());
  CHECK(r.OnlyWritten(100, 5));
  (void)r.DeviceReads(m.iova() + Bytes(50), 10);
  r.buffer.data()[150] = std::byte{0x66};
  REQUIRE(m.SyncForDevice(50, 1).ok());
  CHECK(r.DeviceReads(m.iova() + Bytes(50), 1)[0] == std::byte{0x66});
  r.buffer.data()[150] = Original(150);
  REQUIRE(m.SyncForDevice(50, 1).ok());
  REQUIRE(r.DeviceWrites(m.range().base, 0, 20));  // around
  r.Unmap(std::move(m));
  CHECK(r.OnlyWritten(100, 10));
}

TEST_CASE("The CPU syncs while the device goes on in the same lines") {
  DeviceRig r(NonCoherent());
  Mapping mine = r.Map(r.buffer.part(0, 32), kFrom);
  Mapping its = r.Map(r.buffer.part(32, 32), kFrom);
  const auto port = r.iommu->NewPort("other", {.coherent = false});
  std::jthread device([&] {
    for (int i = 0; i < 500; ++i) {
      if (!port->Write(its.iova(), std::vector<std::byte>(32, std::byte{9}))) return;
    }
  });
  int wrong = 0;
  for (int i = 0; i < 500; ++i) {
    const auto value = static_cast<std::byte>(i % 256);
    wrong += r.port->Write(mine.iova(), std::vector<std::byte>(32, value)) ? 0 : 1;
    wrong += mine.SyncForCpu(0, 32).ok() ? 0 : 1;
    wrong += r.buffer.data()[31] == value ? 0 : 1;
    r.buffer.data()[0] = std::byte{1};
    wrong += mine.SyncForDevice(0, 32).ok() ? 0 : 1;
  }
  device.join();
  CHECK(wrong == 0);
  REQUIRE(its.SyncForCpu(0, 32).ok());
  CHECK(r.buffer.data()[63] == std::byte{9});
}

}  // namespace
}  // namespace dmakit::dma
