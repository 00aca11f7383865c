// SPDX-License-Identifier: Apache-2.0
//
// The backend as programs use it: by name and keys.
#include "nic/liquidio/backend.h"

#include <map>
#include <string>

#include "nic/wire/generator.h"
#include "nic/wire/memory_wire.h"
#include "tests/nic/liquidio/testing.h"

namespace dmakit::nic::liquidio {
namespace {

TEST_CASE("keys: what is unknown or wrong is refused by name, rule and value") {
  const auto error = [](std::map<std::string, std::string> keys, bool threaded = false) {
    return std::string(
        NewBackend()
            ->Create({.name = "liquidio0", .keys = std::move(keys), .threaded = threaded})
            .status()
            .message());
  };
  CHECK(error({}).empty());
  for (const auto& [key, value] : std::map<std::string, std::string>{{"lossless", "0"},
                                                                     {"hostile", "7"},
                                                                     {"mode", "buffer"},
                                                                     {"function", "vf"},
                                                                     {"counters", "4294967295"}}) {
    CHECK(error({{key, value}}).empty());
  }
  CHECK(error({{"lossless", "yes"}}) == "liquidio0: key \"lossless=yes\": must be 1 or 0");
  CHECK(error({{"mode", "both"}}) == "liquidio0: key \"mode=both\": must be info or buffer");
  CHECK(error({{"function", ""}}) == "liquidio0: key \"function=\": must be pf or vf");
  for (const char* value : {"", "-1", "4294967296", "0x1"}) {
    CHECK(error({{"counters", value}}).find("must be between 0 and 4294967295") !=
          std::string::npos);
  }
  CHECK(error({{"hostile", "0"}}).find("must be a seed") != std::string::npos);
  CHECK(error({{"hostile", "1"}}, true).find("it cannot have a thread") != std::string::npos);
  CHECK(error({{"speed", "10"}}).find("its keys are function=pf|vf, mode=info|buffer, lossless") !=
        std::string::npos);
}

TEST_CASE("what keys say is what the port is: rings of the function, mode, counters") {
  for (const bool vf : {false, true}) {
    dma::host::FakeMemory memory{{.capacity = Bytes{uint64_t{1} << 30}}};
    dma::host::FakeClock clock;
    auto space = dma::AddressSpace::Create({.memory = &memory, .clock = &clock}).value();
    auto nic = NewBackend()
                   ->Create({.name = "liquidio0",
                             .keys = {{"function", vf ? "vf" : "pf"},
                                      {"mode", "buffer"},
                                      {"counters", "4294967290"}}})
                   .value();
    const auto source = Generator::Create({.size = 60, .max_size = 9018, .count = 500}).value();
    MemorySink sink;
    {
      const uint32_t most = vf ? 8 : 64;
      CHECK_FALSE(nic->Open(*space, {.rx_queues = most + 1, .ring_size = 128}).ok());
      auto port = nic->Open(*space, {.ring_size = 128}).value();
      nic->model()->Plug(source.get());
      REQUIRE(port->Start().ok());
      std::vector<Packet> packets(32);
      uint64_t got = 0;
      while (got < 500) {
        nic->model()->Step();
        const size_t have = port->Receive(0, packets);
        Release(std::span(packets).first(have), nullptr);
        got += have;
      }
      CHECK(port->stats().queues[0].rx.info_maps == 0);
      REQUIRE(port->Stop().ok());
      nic->model()->Plug(nullptr);
    }
    CHECK(nic->model()->violation_count() == 0);
    CHECK(nic->domain().stats().live_mappings == 0);
    space.reset();
  }
}

}  // namespace
}  // namespace dmakit::nic::liquidio
