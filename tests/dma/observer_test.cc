// SPDX-License-Identifier: Apache-2.0
//
// The seam a checker is attached to: what it is told, when, and what it can ask.
#include "dma/observer.h"

#include "dma/ring_pool.h"
#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Buffer;
using testing::Fixture;

// Writes down what it is told; `domain` lets it see whether the translation is still there.
class Notes final : public Observer {
 public:
  explicit Notes(FakeDomain& domain) : domain_(domain) {}
  void OnMap(const Device& device, const MappingEvent& event) override {
    Add("map", device, event);
  }
  void OnBeforeUnmap(const Device& device, const MappingEvent& event) override {
    Add("before unmap", device, event);
    live_before_unmap += domain_.live().size();
  }
  void OnRetired(const Device&, Range range) override {
    lines.push_back("retired " + ToString(range));
    stale_at_retired += domain_.stale().size();
  }
  void OnSync(const Device&, Range range, Direction, bool for_cpu) override {
    lines.push_back((for_cpu ? "sync cpu " : "sync device ") + ToString(range));
  }
  void OnDetach(const Device&, size_t live) override {
    lines.push_back("detach " + std::to_string(live));
  }

  std::vector<std::string> lines;
  size_t live_before_unmap = 0;
  size_t stale_at_retired = 0;

 private:
  void Add(const char* what, const Device& device, const MappingEvent& event) {
    static constexpr const char* kKinds[] = {"single", "list", "coherent", "page"};
    (void)device.stats();  // asking is allowed
    lines.push_back(std::string(what) + " " + std::string(device.name()) + " " +
                    kKinds[static_cast<int>(event.kind)] + " " + std::string(event.owner) + " x" +
                    std::to_string(event.entries) + "/" + std::to_string(event.list.size()));
  }
  FakeDomain& domain_;
};

TEST_CASE("An observer is told of each kind of mapping, before its unmap, and when it is gone") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain();
  Notes notes(domain);
  auto nic = f.Attach("nic0", domain);
  nic->set_observer(&notes);
  CHECK(nic->observer() == &notes);
  Buffer buffer(8 * 4096);
  {
    auto m = nic->Map(buffer.part(8, 100), Direction::kFromDevice, {.owner = "rx0"});
    REQUIRE(m.ok());
    REQUIRE(m->SyncForCpu(0, 10).ok());
    const std::string part = ToString(Range{m->iova(), Bytes(10)});
    const std::string whole = ToString(m->range());
    REQUIRE(nic->Unmap(*std::move(m)).ok());
    CHECK(notes.lines == std::vector<std::string>{"map nic0 single rx0 x1/0", "sync cpu " + part,
                                                  "before unmap nic0 single rx0 x1/0",
                                                  "retired " + whole});
  }
  notes.lines.clear();
  const std::span<std::byte> list[] = {buffer.part(0, 4096), buffer.part(4096, 4096)};
  REQUIRE(nic->Unmap(*nic->MapSg(list, Direction::kToDevice, {.owner = "tx0"})).ok());
  { auto ring = RingPool<uint64_t>::Create(*nic, {.count = 8, .label = "ring"}); }
  auto range = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
  REQUIRE(range->Map(buffer.view(0, 4096)).ok());
  REQUIRE(range->Unmap(Policy::kStrict).ok());
  std::vector<std::string> told;
  for (const std::string& line : notes.lines) {
    if (line.rfind("retired", 0) != 0) told.push_back(line);
  }
  CHECK(told == std::vector<std::string>{
                    "map nic0 list tx0 x2/2", "before unmap nic0 list tx0 x2/2",
                    "map nic0 coherent ring x1/0", "before unmap nic0 coherent ring x1/0",
                    "map nic0 page pool x1/0", "before unmap nic0 page pool x1/0"});
  CHECK(notes.lines.size() == 9);
  CHECK(notes.live_before_unmap == 4);  // each still translated when told
  CHECK(notes.stale_at_retired == 0);   // each gone from tables and caches
}

TEST_CASE("Deferred: told that it is gone when the flush is done, not before") {
  Fixture f;
  AddressSpace::Options options = f.Options();
  options.policy = Policy::kDeferred;
  f.NewSpace(std::move(options));
  FakeDomain& domain = f.NewDomain();
  Notes notes(domain);
  auto nic = f.Attach("nic0", domain);
  nic->set_observer(&notes);
  Buffer buffer(8 * 4096);
  REQUIRE(nic->Unmap(*nic->Map(buffer.all(), Direction::kToDevice)).ok());
  auto range = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
  REQUIRE(range->Map(buffer.view(0, 4096)).ok());
  REQUIRE(range->Unmap(Policy::kDeferred).ok());
  CHECK(notes.lines.size() == 4);
  REQUIRE(f.space->flush_queue()->Flush().ok());
  CHECK(notes.lines.size() == 6);
  CHECK(notes.stale_at_retired == 0);
}

TEST_CASE("A failed unmap is not told as gone; a detach tells how much was live") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain();
  Notes notes(domain);
  auto nic = f.Attach("nic0", domain);
  nic->set_observer(&notes);
  Buffer buffer(8 * 4096);
  auto a = nic->Map(buffer.part(0, 10), Direction::kToDevice);
  auto b = nic->Map(buffer.part(4096, 10), Direction::kToDevice);
  f.faults.unmap.FailAt(1);
  CHECK_FALSE(nic->Unmap(*std::move(a)).ok());
  notes.lines.clear();
  nic.reset();
  REQUIRE(notes.lines.size() == 3);
  CHECK(notes.lines[0] == "detach 1");
  CHECK(notes.lines[1].rfind("before unmap", 0) == 0);
  CHECK(notes.lines[2].rfind("retired", 0) == 0);
}

TEST_CASE("An observer that comes late can list what is live; one that left hears nothing") {
  Fixture f;
  f.NewSpace();
  FakeDomain& domain = f.NewDomain();
  Notes notes(domain);
  auto nic = f.Attach("nic0", domain);
  auto other = f.Attach("nic1", f.NewDomain());
  Buffer buffer(8 * 4096);
  auto m = nic->Map(buffer.part(0, 10), Direction::kToDevice, {.owner = "tx0"});
  auto foreign = other->Map(buffer.part(0, 10), Direction::kToDevice, {.owner = "other"});
  auto ring = RingPool<uint64_t>::Create(*nic, {.count = 8, .label = "ring"});
  auto range = f.space->Reserve(Bytes(4096), Bytes(0), "pool");
  REQUIRE(range->Map(buffer.view(0, 4096)).ok());
  std::vector<std::string> owners;
  nic->ForEachLive([&](const MappingEvent& e) { owners.emplace_back(e.owner); });
  std::sort(owners.begin(), owners.end());
  CHECK(owners == std::vector<std::string>{"pool", "ring", "tx0"});
  nic->set_observer(&notes);
  nic->set_observer(nullptr);
  REQUIRE(nic->Unmap(*std::move(m)).ok());
  CHECK(notes.lines.empty());
}

}  // namespace
}  // namespace dmakit::dma
