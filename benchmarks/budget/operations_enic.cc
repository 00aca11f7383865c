// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "benchmarks/budget/meter.h"
#include "dma/mmio.h"
#include "tests/catch.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::budget {
namespace {

// The registers of a model, off the meter.
class UncountedBar final : public dma::MmioHandler {
 public:
  UncountedBar(Meter& meter, dma::MmioHandler& real) : meter_(meter), real_(real) {}
  uint64_t MmioRead(uint64_t offset, size_t width) override {
    uint64_t value = 0;
    meter_.Except([&] { value = real_.MmioRead(offset, width); });
    return value;
  }
  void MmioWrite(uint64_t offset, uint64_t value, size_t width) override {
    meter_.Except([&] { real_.MmioWrite(offset, value, width); });
  }

 private:
  Meter& meter_;
  dma::MmioHandler& real_;
};

// 32 frames of 64 bytes arrive, are received, sent again and reaped. The rings have 512 entries and
// are gone round 16 times.
void CountEnic(const std::string& operation) {
  constexpr size_t kBurst = 32;
  Meter meter(operation);
  nic::enic::Rig rig({.port = {.mtu = 1500}});
  UncountedBar bar(meter, rig.bar);
  REQUIRE(rig.MakeSpace().ok());
  auto device = rig.space->Attach({.name = "enic0", .domain = &rig.domain, .waiter = &rig.waiter});
  REQUIRE(device.ok());
  auto port = nic::enic::Port::Create(
      *std::move(device), dma::MmioRegion::OfModel(bar, nic::enic::RegisterFile::kBarBytes),
      rig.options_.port);
  REQUIRE(port.ok());
  (*port)->SetTxOwner(0, &(*port)->rx_pool(0));
  REQUIRE((*port)->Start().ok());
  const nic::Frame frame = nic::testing::MakeFrame({});
  std::array<nic::Packet, kBurst> packets;
  size_t received = 0, sent = 0, reaped = 0;
  CHECK(Measure(meter, 256, 256, [&] {
          for (size_t i = 0; i < kBurst; ++i) rig.wire.Send(frame);
          rig.StepAll();
          meter.Run("enic.receive_32", 1, [&] { received = (*port)->Receive(0, packets); });
          meter.Run("enic.transmit_32", 1, [&] { sent = (*port)->Transmit(0, packets); });
          rig.StepAll();
          meter.Run("enic.reap_32", 1, [&] { reaped = (*port)->Reap(0); });
          REQUIRE((received == kBurst && sent == kBurst && reaped == kBurst));
        }) == 256);
  CHECK((*port)->Stop().ok());
  rig.CheckClean();
}

TEST_CASE("enic: bursts of 32") {
  for (const char* operation : {"enic.receive_32", "enic.transmit_32", "enic.reap_32"}) {
    CountEnic(operation);
  }
}

}  // namespace
}  // namespace dmakit::budget
