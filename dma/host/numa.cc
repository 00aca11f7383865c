// SPDX-License-Identifier: Apache-2.0
//
// mbind(2) on the segment's mapping; for a shared file the kernel keeps the policy with the file,
// so the pages that fallocate makes later follow it.
#include "dma/host/numa.h"

#include <numa.h>
#include <numaif.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace dmakit::dma::host {
namespace {

bool Exists(int node) {
  return node >= 0 && numa_bitmask_isbitset(numa_all_nodes_ptr, static_cast<unsigned>(node)) != 0;
}

absl::Status Bind(std::span<std::byte> memory, int mode, int node) {
  struct bitmask* nodes = numa_allocate_nodemask();
  numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
  // The kernel reads one bit less than it is told.
  const long result = mbind(memory.data(), memory.size(), mode, nodes->maskp, nodes->size + 1, 0);
  const int error = errno;
  numa_bitmask_free(nodes);
  if (result == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "NUMA node ", node, ": mbind of ", memory.size(), " bytes: ", std::strerror(error),
      "; check the allowed nodes (cpuset) or use another mode"));
}

}  // namespace

int SystemNuma::nodes() { return numa_available() < 0 ? 0 : numa_num_configured_nodes(); }

absl::Status SystemNuma::Place(std::span<std::byte> memory, const NumaPolicy& policy) {
  if (policy.mode == NumaPolicy::Mode::kAny) return absl::OkStatus();
  const int node = policy.node.id();
  const bool enforce = policy.mode == NumaPolicy::Mode::kEnforce;
  const bool known = numa_available() >= 0;
  if (known ? !Exists(node) : node != 0) {
    if (!enforce) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("NUMA node ", node,
                                                   " does not exist: there are ", nodes(),
                                                   "; enforce an existing one or prefer"));
  }
  if (!known) return absl::OkStatus();
  if (!enforce) {
    // A machine that refuses a preference still has memory.
    static_cast<void>(Bind(memory, MPOL_PREFERRED, node));
    return absl::OkStatus();
  }
  long long free_bytes = 0;
  numa_node_size64(node, &free_bytes);
  if (free_bytes < static_cast<long long>(memory.size())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("NUMA node ", node, " has ", free_bytes, " bytes free of the ", memory.size(),
                     " asked for; free some, use smaller segments, or prefer"));
  }
  return Bind(memory, MPOL_BIND, node);
}

}  // namespace dmakit::dma::host
