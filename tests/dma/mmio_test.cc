// SPDX-License-Identifier: Apache-2.0
//
// MmioRegion on a device (here: plain memory) and on a model.
#include "dma/mmio.h"

#include <cstring>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace dmakit::dma {
namespace {

struct Call {
  char what;
  uint64_t offset, value;
  size_t width;
  friend bool operator==(const Call&, const Call&) = default;
};

class Recorder final : public MmioHandler {
 public:
  uint64_t MmioRead(uint64_t offset, size_t width) override {
    calls.push_back({'r', offset, 0, width});
    return answer;
  }
  void MmioWrite(uint64_t offset, uint64_t value, size_t width) override {
    calls.push_back({'w', offset, value, width});
  }
  std::vector<Call> calls;
  uint64_t answer = 0;
};

TEST_CASE("mmio: a device register is one access of its width at its offset") {
  alignas(8) unsigned char registers[32] = {};
  const MmioRegion region = MmioRegion::OfDevice(registers, sizeof(registers));
  CHECK(region.size() == 32);
  CHECK_FALSE(region.empty());
  region.Write32(4, 0xa1b2c3d4);
  region.Write64(16, 0x1122334455667788);
  uint32_t word = 0;
  std::memcpy(&word, registers + 4, sizeof(word));
  CHECK(word == 0xa1b2c3d4);
  for (const size_t i : {0, 1, 2, 3, 8, 9, 10, 11, 15, 24, 31}) CHECK(registers[i] == 0);
  CHECK(region.Read32(4) == 0xa1b2c3d4);
  CHECK(region.Read64(16) == 0x1122334455667788);
  CHECK(region.Read32(20) == 0x11223344);
}

TEST_CASE("mmio: a model gets offset, value and width, and answers") {
  Recorder model;
  const MmioRegion region = MmioRegion::OfModel(model, 4096);
  CHECK(region.size() == 4096);
  region.Write32(0x10, 0xffffffff);
  region.Write64(0x18, ~uint64_t{0});
  model.answer = 0x1122334455667788;
  CHECK(region.Read32(0xffc) == 0x55667788);
  CHECK(region.Read64(0) == 0x1122334455667788);
  CHECK(model.calls == std::vector<Call>{{'w', 0x10, 0xffffffff, 4},
                                         {'w', 0x18, ~uint64_t{0}, 8},
                                         {'r', 0xffc, 0, 4},
                                         {'r', 0, 0, 8}});
}

TEST_CASE("mmio: a part counts from its own start, a part of a part too") {
  Recorder model;
  const MmioRegion part = MmioRegion::OfModel(model, 4096).Sub(256, 512);
  CHECK(part.size() == 512);
  part.Write32(4, 1);
  part.Sub(128, 64).Write32(8, 2);
  CHECK(model.calls == std::vector<Call>{{'w', 260, 1, 4}, {'w', 392, 2, 4}});

  alignas(8) unsigned char registers[64] = {};
  const MmioRegion whole = MmioRegion::OfDevice(registers, sizeof(registers));
  whole.Sub(16, 32).Sub(8, 8).Write32(4, 7);
  CHECK(registers[28] == 7);
  CHECK(whole.Sub(64, 0).empty());
}

TEST_CASE("mmio: a region that was never set is empty") {
  const MmioRegion region;
  CHECK(region.empty());
  CHECK(region.size() == 0);
}

}  // namespace
}  // namespace dmakit::dma
