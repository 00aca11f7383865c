// SPDX-License-Identifier: Apache-2.0
//
// The driver's view of the device before any packet: the resource table and the command region of a
// device that may be broken, hostile, slow or gone.
#include <map>
#include <string>
#include <vector>

#include "nic/enic/devcmd.h"
#include "nic/enic/resources.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {
namespace {

// A BAR that is what a test says.
class FakeBar final : public dma::MmioHandler {
 public:
  uint64_t MmioRead(uint64_t offset, size_t width) override {
    ++reads;
    uint64_t value = 0;
    for (size_t i = width; i-- > 0;) {
      const auto found = bytes.find(offset + i);
      value = value << 8 | (found == bytes.end() ? 0 : found->second);
    }
    return value;
  }
  void MmioWrite(uint64_t offset, uint64_t value, size_t width) override {
    if (on_write) on_write(offset, value);
    Put(offset, value, width);
  }
  void Put(uint64_t offset, uint64_t value, size_t width = 4) {
    for (size_t i = 0; i < width; ++i) {
      bytes[offset + i] = static_cast<uint8_t>(value >> (8 * i));
    }
  }
  void PutTable(const std::vector<Resource>& resources) {
    Put(0, kResourceMagic);
    uint64_t at = kResourceHeaderBytes;
    for (const Resource& r : resources) {
      for (const uint32_t word : Encode(r)) {
        Put(at, word);
        at += 4;
      }
    }
  }
  dma::MmioRegion region(size_t size = 0x10000) { return dma::MmioRegion::OfModel(*this, size); }

  std::map<uint64_t, uint8_t> bytes;
  std::function<void(uint64_t, uint64_t)> on_write;
  uint64_t reads = 0;
};

const std::vector<Resource> kGood = {
    {ResourceType::kWq, 0, 0x2000, 4},     {ResourceType::kRq, 0, 0x4000, 4},
    {ResourceType::kCq, 0, 0x8000, 8},     {ResourceType::kIntrCtrl, 0, 0xc000, 2},
    {ResourceType::kNicCfg, 3, ~0u, ~0u},  // not used: ignored
    {ResourceType::kDevcmd, 0, 0x1000, 1}, {ResourceType::kEnd, 0, 0, 0}};

std::string ErrorOf(const std::vector<Resource>& table, size_t bar_size = 0x10000) {
  FakeBar bar;
  bar.PutTable(table);
  return std::string(ReadResources(bar.region(bar_size), "enic0").status().message());
}

std::vector<Resource> With(size_t index, const Resource& resource) {
  std::vector<Resource> table = kGood;
  table[index] = resource;
  return table;
}

TEST_CASE("a good resource table is read") {
  FakeBar bar;
  bar.PutTable(kGood);
  const ResourceMap map = ReadResources(bar.region(), "enic0").value();
  CHECK(map.wq.offset == 0x2000);
  CHECK(map.wq.count == 4);
  CHECK(map.rq.offset == 0x4000);
  CHECK(map.cq.count == 8);
  CHECK(map.intr.count == 2);
  CHECK(map.devcmd.offset == 0x1000);
}

TEST_CASE("a hostile resource table is refused by name") {
  const auto says = [](const std::string& error, const std::string& words) {
    INFO(error);
    CHECK(error.find(words) != std::string::npos);
  };
  using R = ResourceType;
  says(ErrorOf(With(0, {R::kWq, 0, 0x2000, 0})), "WQ count 0: must be between 1 and 1024");
  says(ErrorOf(With(0, {R::kWq, 0, 0x2000, 1025})), "WQ count 1025");
  says(ErrorOf(With(1, {R::kRq, 0, 0xffffff80, 1024})), "RQ at offset 4294967168");
  says(ErrorOf(With(1, {R::kRq, 0, 0xff81, 1})), "RQ at offset");
  says(ErrorOf(With(2, {R::kCq, 0, 0xff80, 2})), "must be a multiple of 8 and end within");
  says(ErrorOf(With(2, {R::kCq, 2, 0x8000, 8})), "CQ is in BAR 2");
  says(ErrorOf(With(3, {R::kCq, 0, 0x9000, 8})), "CQ is listed twice");
  says(ErrorOf(With(5, {R::kNicCfg, 0, 0, 1})), "DEVCMD is missing");
  says(ErrorOf(With(5, {R::kDevcmd, 0, 0xff88, 1})), "DEVCMD at offset");
  CHECK(ErrorOf(With(2, {R::kCq, 0, 0xff80, 1})).empty());

  std::vector<Resource> endless(10000, Resource{R::kNicCfg, 0, 0, 1});
  says(ErrorOf(endless), "has no end");
  says(ErrorOf(kGood, 19), "too few for a table");
  FakeBar other;
  says(std::string(ReadResources(other.region(), "enic0").status().message()), "not an enic");
  for (uint64_t i = 0; i < 8; ++i) other.Put(i, 0xff, 1);
  says(std::string(ReadResources(other.region(), "enic0").status().message()), "does not answer");
}

// A device that answers commands at once, after a while, with an error, or not at all.
struct Commands {
  Commands() : channel(bar.region(kDevcmdBytes), waiter, "enic0") {}
  struct StepWaiter final : dma::Waiter {
    dma::Nanos Now() override { return now; }
    void Pause() override {
      now += dma::Nanos{100'000};
      if (on_pause) on_pause();
    }
    dma::Nanos now{0};
    std::function<void()> on_pause;
  };
  FakeBar bar;
  StepWaiter waiter;
  CommandChannel channel;
};

TEST_CASE("a command: arguments before the command word, results after it is done") {
  Commands c;
  std::vector<uint64_t> order;
  c.bar.on_write = [&](uint64_t offset, uint64_t) {
    order.push_back(offset);
    if (offset == kDevcmdCmd) c.bar.Put(kDevcmdStatus, kDevcmdBusy);
  };
  int pauses = 0;
  c.waiter.on_pause = [&] {
    if (++pauses == 3) {
      c.bar.Put(kDevcmdStatus, 0);
      c.bar.Put(kDevcmdArgs, 42, 8);
    }
  };
  CommandChannel::Results results{};
  const std::array<uint64_t, 2> args = {7, 8};
  REQUIRE(c.channel.Run(kCmdDevSpec, args, &results).ok());
  CHECK(order == std::vector<uint64_t>{kDevcmdArgs, kDevcmdArgs + 8, kDevcmdCmd});
  CHECK(results[0] == 42);
  CHECK(results[1] == 8);
  CHECK(pauses == 3);
  CHECK_FALSE(c.channel.unfinished());
}

TEST_CASE("a command that fails says so, with the device's code") {
  Commands c;
  c.bar.on_write = [&](uint64_t offset, uint64_t) {
    if (offset != kDevcmdCmd) return;
    c.bar.Put(kDevcmdStatus, kDevcmdError);
    c.bar.Put(kDevcmdArgs, 5, 8);
  };
  const absl::Status status = c.channel.Run(kCmdEnable);
  CHECK(status.code() == absl::StatusCode::kInternal);
  CHECK(status.message() == "enic0: devcmd ENABLE: refused by the device with code 5");
}

TEST_CASE("a device that stays busy, before or after, is a deadline") {
  Commands c;
  c.bar.Put(kDevcmdStatus, kDevcmdBusy);
  absl::Status status = c.channel.Run(kCmdOpen);
  CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(status.message()).find("with an earlier command") != std::string::npos);
  CHECK(c.bar.bytes.count(kDevcmdCmd) == 0);  // nothing was written over the running command
  CHECK(c.waiter.now >= dma::Nanos{2'000'000'000});

  c.bar.Put(kDevcmdStatus, 0);
  c.bar.on_write = [&](uint64_t offset, uint64_t) {
    if (offset == kDevcmdCmd) c.bar.Put(kDevcmdStatus, kDevcmdBusy);
  };
  status = c.channel.Run(kCmdOpen);
  CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(c.channel.unfinished());
}

TEST_CASE("a device that is gone is not waited for") {
  Commands c;
  c.bar.Put(kDevcmdStatus, kAllOnes);
  const absl::Status status = c.channel.Run(kCmdOpen);
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK(c.waiter.now == dma::Nanos{0});
}

TEST_CASE("options are refused with value, rule and remedy") {
  const auto message = [](const PortOptions& options) {
    Rig rig({.port = options});
    REQUIRE(rig.MakeSpace().ok());
    const absl::Status status = rig.Open();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  CHECK(message({.ring_size = 48}) == "ring size 48: must be a multiple of 32 between 64 and 4096");
  CHECK(message({.ring_size = 32}).find("ring size 32") == 0);
  CHECK(message({.ring_size = 4128}).find("ring size 4128") == 0);
  CHECK(message({.ring_size = 0}).find("ring size 0") == 0);
  CHECK(message({.mtu = 67}) == "mtu 67: must be between 68 and 9000");
  CHECK(message({.mtu = 9001}) == "mtu 9001: must be between 68 and 9000");
  CHECK(message({.rx_queues = 0, .tx_queues = 0}).find("queues 0") == 0);
  CHECK(message({.rx_queues = 65}) == "enic0: receive queues 65: this device has 64");
  CHECK(message({.tx_queues = 65}) == "enic0: transmit queues 65: this device has 64");
  CHECK(message({.page_order = 30}).find("page order 30") == 0);
}

TEST_CASE("what DEV_SPEC forbids is refused at Start, and nothing is left") {
  for (const bool ring : {true, false}) {
    RigOptions options;
    options.port.ring_size = 512;
    options.port.mtu = 9000;
    options.model.max_ring = ring ? 256 : 4096;
    options.model.max_mtu = ring ? 9000 : 1500;
    Rig rig(options);
    REQUIRE(rig.MakeSpace().ok());
    REQUIRE(rig.Open().ok());
    const absl::Status status = rig.port->Start();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(status.message() == (ring ? "enic0: ring size 512: this device allows at most 256"
                                    : "enic0: mtu 9000: this device allows at most 1500"));
    CHECK(rig.iommu->stats().live_mappings == 0);
    rig.CheckClean();
  }
}

TEST_CASE("1, 63 and 64 queues can be opened, and Start sets the device up as the sheet says") {
  for (const uint32_t queues : {1u, 63u, 64u}) {
    RigOptions options;
    options.port = {.rx_queues = queues, .tx_queues = queues, .ring_size = 64, .mtu = 1500};
    Rig rig(options);
    rig.Start();
    for (uint32_t q = 0; q < queues; ++q) {
      CHECK(rig.ReadReg(ResourceType::kRq, q, RqReg::kRunning) == 1);
      CHECK(rig.ReadReg(ResourceType::kWq, q, WqReg::kRunning) == 1);
      CHECK(rig.ReadReg(ResourceType::kRq, q, RqReg::kCqIndex) == q);
      CHECK(rig.ReadReg(ResourceType::kWq, q, WqReg::kCqIndex) == queues + q);
      CHECK(rig.ReadReg(ResourceType::kRq, q, RqReg::kPostedIndex) == 63);
      CHECK(rig.ReadReg(ResourceType::kRq, q, RqReg::kRingBase, 8) % 512 == 0);
    }
    CHECK(rig.ReadReg(ResourceType::kIntrCtrl, 0, IntrReg::kMask) == 1);
    REQUIRE(rig.port->Stop().ok());
    rig.CheckClean();
  }
}

TEST_CASE("rings are poisoned before the device sees them, completion rings are zero") {
  RigOptions options;
  options.port.ring_size = 64;
  Rig rig(options);
  rig.Start();
  const auto port = rig.iommu->NewPort("looker");
  const auto read = [&](ResourceType type, uint32_t i, auto reg, uint64_t at) {
    std::array<std::byte, 16> bytes{};
    REQUIRE(port->Read(Iova{rig.ReadReg(type, i, reg, 8)} + Bytes{16 * at}, bytes));
    return FromBytes(bytes);
  };
  const Words poison{~uint64_t{0}, ~uint64_t{0}};
  CHECK(read(ResourceType::kRq, 0, RqReg::kRingBase, 63) == poison);  // the unused slot
  CHECK_FALSE(read(ResourceType::kRq, 0, RqReg::kRingBase, 62) == poison);
  CHECK(read(ResourceType::kWq, 0, WqReg::kRingBase, 0) == poison);
  for (uint64_t i = 0; i < 64; ++i) {
    REQUIRE(read(ResourceType::kCq, 0, CqReg::kRingBase, i) == Words{});
    REQUIRE(read(ResourceType::kCq, 1, CqReg::kRingBase, i) == Words{});
  }
}

TEST_CASE("the queue is enabled before anything is posted, and everything is posted") {
  RigOptions options;
  options.port.ring_size = 64;
  Rig rig(options);
  rig.bar.logging = true;
  rig.Start();
  const uint64_t rq = BlockAt(rig.model.bar0(), ResourceType::kRq, 0);
  std::vector<std::pair<uint64_t, uint64_t>> rq_writes;
  for (const ListeningBar::Write& w : rig.bar.writes) {
    if (w.offset == rq + OffsetOf(RqReg::kEnable) ||
        w.offset == rq + OffsetOf(RqReg::kPostedIndex)) {
      rq_writes.push_back({w.offset - rq, w.value});
    }
  }
  const uint64_t enable = OffsetOf(RqReg::kEnable), posted = OffsetOf(RqReg::kPostedIndex);
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {
      {enable, 0}, {posted, 0}, {enable, 1}, {posted, 63}};
  CHECK(rq_writes == expected);
  rig.CheckClean();
}

}  // namespace
}  // namespace dmakit::nic::enic
