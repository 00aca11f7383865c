// SPDX-License-Identifier: Apache-2.0
//
// Placement by libnuma, as far as the machine has nodes: node 0 is everywhere, node 900 nowhere.
#include "dma/host/numa.h"

#include <cstring>
#include <string>
#include <utility>

#include "dma/host/host_memory.h"
#include "tests/catch.h"

namespace dmakit::dma::host {
namespace {

constexpr NumaPolicy Prefer(int node) { return {NumaPolicy::Mode::kPrefer, NumaNode(node)}; }
constexpr NumaPolicy Enforce(int node) { return {NumaPolicy::Mode::kEnforce, NumaNode(node)}; }

TEST_CASE("numa: modes any, prefer, enforce on nodes that exist and do not") {
  SystemNuma numa;
  auto source = HostMemory::Create({.segment = MiB(2), .numa = &numa});
  REQUIRE(source.ok());
  for (const NumaPolicy& policy : {NumaPolicy{}, Prefer(0), Prefer(900), Prefer(-1), Enforce(0)}) {
    INFO("mode " << static_cast<int>(policy.mode) << " node " << policy.node.id());
    auto memory = (*source)->Allocate({.size = MiB(1), .numa = policy, .label = "numa"});
    REQUIRE(memory.ok());
    std::memset(memory->data(), 1, memory->size());
  }
  for (const int node : {900, -1}) {
    const auto memory =
        (*source)->Allocate({.size = MiB(1), .numa = Enforce(node), .label = "tx3"});
    CHECK(memory.status().code() == absl::StatusCode::kInvalidArgument);
    const std::string message(memory.status().message());
    CHECK(message.find("tx3") != std::string::npos);
    CHECK(message.find("node " + std::to_string(node)) != std::string::npos);
  }
}

TEST_CASE("numa: a node is not overcommitted by enforcement") {
  if (SystemNuma::nodes() == 0) return;
  SystemNuma numa;
  // Address space alone: the check is made before the first page exists.
  std::byte* const nowhere = nullptr;
  const absl::Status status = numa.Place({nowhere, size_t{1} << 44}, Enforce(0));
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(numa.Place({nowhere, size_t{1} << 44}, Prefer(0)).ok());
}

}  // namespace
}  // namespace dmakit::dma::host
