// SPDX-License-Identifier: Apache-2.0
//
// The backend as programs use it: by name, with keys, on real memory with two views, stepped and
// threaded.
#include "nic/enic/backend.h"

#include <string>
#include <vector>

#include "dma/host/clock.h"
#include "dma/host/fence.h"
#include "dma/host/host_memory.h"
#include "nic/wire/generator.h"
#include "nic/wire/memory_wire.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {
namespace {

BackendRegistry Registry() {
  BackendRegistry registry;
  registry.Register(NewBackend());
  return registry;
}

TEST_CASE("the backend is found by its name, others are refused with those there are") {
  const BackendRegistry registry = Registry();
  CHECK((*registry.Find("enic"))->name() == "enic");
  const absl::Status unknown = registry.Find("e1000e").status();
  CHECK(unknown.message() == "backend \"e1000e\": unknown; this program has: enic");
}

TEST_CASE("keys: what is unknown or wrong is refused by name") {
  const auto error = [](std::map<std::string, std::string> keys) {
    return std::string(
        NewBackend()->Create({.name = "enic0", .keys = std::move(keys)}).status().message());
  };
  CHECK(error({}).empty());
  CHECK(error({{"lossless", "1"}}).empty());
  CHECK(error({{"lossless", "0"}}).empty());
  CHECK(error({{"lossless", "yes"}}) == "enic0: key \"lossless=yes\": must be 1 or 0");
  CHECK(
      error({{"speed", "10"}}) ==
      "enic0: key \"speed=10\": enic has no such key; its keys are lossless=1|0 and hostile=SEED");
  CHECK(error({{"hostile", "1"}}).empty());
  CHECK(error({{"hostile", "18446744073709551615"}}).empty());
  for (const char* seed :
       {"", "0", "00", "-1", "+1", " 1", "1 ", "0x7", "yes", "1.5", "18446744073709551616"}) {
    CHECK(error({{"hostile", seed}}) == std::string("enic0: key \"hostile=") + seed +
                                            "\": must be a seed from 1 to 18446744073709551615");
  }
  const auto threaded =
      NewBackend()->Create({.name = "enic0", .keys = {{"hostile", "1"}}, .threaded = true});
  CHECK(
      threaded.status().message() ==
      "enic0: key \"hostile=1\": a hostile device is stepped, it cannot have a thread of its own");
}

struct Machine {
  Machine() {
    memory = dma::host::HostMemory::Create({}).value();
    space = dma::AddressSpace::Create(
                {.memory = memory.get(), .clock = &clock, .threads = &threads, .fence = &fence})
                .value();
  }
  dma::host::SystemClock clock;
  dma::host::SystemThreads threads;
  dma::host::MembarrierFence fence;
  std::unique_ptr<dma::host::HostMemory> memory;
  std::unique_ptr<dma::AddressSpace> space;
};

TEST_CASE("forwarding from one NIC to another, by way of the interfaces only") {
  for (const bool threaded : {false, true}) {
    Machine machine;
    const auto backend = NewBackend();
    auto in = backend->Create({.name = "enic0", .threaded = threaded}).value();
    auto out = backend->Create({.name = "enic1", .threaded = threaded}).value();
    const auto source = Generator::Create({.size = 60, .max_size = 1500, .count = 5000}).value();
    MemorySink sink;
    in->model()->Plug(source.get());
    out->model()->Plug(&sink);
    {
      auto in_port = in->Open(*machine.space, {.tx_queues = 0, .mtu = 1500}).value();
      auto out_port = out->Open(*machine.space, {.rx_queues = 0, .mtu = 1500}).value();
      CHECK(in_port->name() == "enic0");
      CHECK(out_port->max_frame() == 1518);
      out_port->SetTxOwner(0, &in_port->rx_pool(0));
      std::vector<nic::ModelThread> running;
      if (threaded) {
        running.push_back(nic::ModelThread::Start(*in->model(), machine.threads).value());
        running.push_back(nic::ModelThread::Start(*out->model(), machine.threads).value());
      }
      REQUIRE(in_port->Start().ok());
      REQUIRE(out_port->Start().ok());
      std::vector<Packet> packets(32);
      const dma::Nanos begin = machine.clock.Now();
      while (sink.stats().frames_from_nic < 5000 &&
             machine.clock.Now() - begin < dma::Nanos{60'000'000'000}) {
        if (!threaded) in->model()->Step();
        const size_t got = in_port->Receive(0, packets);
        for (size_t sent = 0; sent < got;) {
          sent += out_port->Transmit(0, std::span(packets).subspan(sent, got - sent));
          if (!threaded) out->model()->Step();
        }
        if (!threaded) out->model()->Step();
      }
      CHECK(out_port->Stop().ok());
      CHECK(in_port->Stop().ok());
      running.clear();
    }
    CHECK(sink.stats().frames_from_nic == 5000);
    CHECK(sink.stats().bytes_from_nic == source->stats().bytes_to_nic);
    for (nic::Nic* nic : {in.get(), out.get()}) {
      CHECK(nic->model()->violation_count() == 0);
      CHECK(nic->iommu()->walk_stats().faults == 0);
      CHECK(nic->iommu()->walk_stats().walks > 0);
      CHECK(nic->domain().stats().live_mappings == 0);
      nic->model()->Plug(nullptr);
    }
    machine.space.reset();
  }
}

TEST_CASE("a NIC has one port at a time") {
  Machine machine;
  auto nic = NewBackend()->Create({.name = "enic0"}).value();
  {
    auto first = nic->Open(*machine.space, {}).value();
    const absl::Status second = nic->Open(*machine.space, {}).status();
    CHECK_FALSE(second.ok());
    CHECK(std::string(second.message()).find("enic0") != std::string::npos);
  }
  CHECK(nic->Open(*machine.space, {}).ok());
  machine.space.reset();
}

TEST_CASE("lossless=0 drops what finds no buffer, and the port counts it") {
  Machine machine;
  auto nic = NewBackend()->Create({.name = "enic0", .keys = {{"lossless", "0"}}}).value();
  const auto source = Generator::Create({.count = 200}).value();
  nic->model()->Plug(source.get());
  {
    auto port = nic->Open(*machine.space, {.ring_size = 64, .mtu = 1500}).value();
    REQUIRE(port->Start().ok());
    while (nic->model()->Step()) {
    }
    CHECK(source->exhausted());
    CHECK(port->stats().queues[0].rx.device_no_buffer == 200 - 63);
    CHECK(port->stats().queues[0].rx.dropped == 200 - 63);
    REQUIRE(port->Stop().ok());
    CHECK(port->stats().queues[0].rx.dropped == 200 - 63);
    REQUIRE(port->Start().ok());
    CHECK(port->stats().queues[0].rx.dropped == 200 - 63);  // not counted again
  }
  nic->model()->Plug(nullptr);
  machine.space.reset();
}

}  // namespace
}  // namespace dmakit::nic::enic
