// SPDX-License-Identifier: Apache-2.0
//
// What the tests of enic start from: the rig of tests/nic/nic_rig.h with an enic in it.
#ifndef DMAKIT_TESTS_NIC_ENIC_TESTING_H_
#define DMAKIT_TESTS_NIC_ENIC_TESTING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dma/mmio.h"
#include "nic/enic/descriptors.h"
#include "nic/enic/model.h"
#include "nic/enic/port.h"
#include "nic/enic/registers.h"
#include "nic/frame_info.h"
#include "nic/rx_pool.h"
#include "tests/catch.h"
#include "tests/nic/nic_rig.h"

namespace dmakit::nic::enic {

// --- Registers ----------------------------------------------------------------------------------

// Where this model keeps its blocks, as its resource table says.
inline uint64_t BlockAt(const dma::MmioRegion& bar, ResourceType type, uint32_t index) {
  for (size_t at = kResourceHeaderBytes;; at += kResourceEntryBytes) {
    const Resource r = DecodeResource({bar.Read32(at), bar.Read32(at + 4), bar.Read32(at + 8)});
    REQUIRE(r.type != ResourceType::kEnd);
    if (r.type == type) return r.bar_offset + index * kBlockBytes;
  }
}

// --- One NIC -------------------------------------------------------------------------------------

struct Kit {
  using Model = enic::Model;
  using ModelOptions = enic::ModelOptions;
  using Port = enic::Port;
  struct Extra {};
  static constexpr const char* kName = "enic0";
  static constexpr size_t kBarBytes = RegisterFile::kBarBytes;
  static dma::MmioRegion Registers(const dma::MmioRegion& bar, const Extra&) { return bar; }
};
using RigOptions = NicRigOptions<Kit>;

class Rig : public NicRig<Kit> {
 public:
  using NicRig<Kit>::NicRig;

  // Registers, past the listener.
  template <typename Reg>
  uint64_t ReadReg(ResourceType type, uint32_t index, Reg reg, size_t width = 4) {
    const dma::MmioRegion region = model.bar0();
    const uint64_t at = BlockAt(region, type, index) + OffsetOf(reg);
    return width == 8 ? region.Read64(at) : region.Read32(at);
  }
};

// Small enough for a thousand of them.
inline RigOptions Small(dma::Policy policy = dma::Policy::kPersistent) {
  RigOptions options;
  options.port = {.rx_queues = 2,
                  .tx_queues = 2,
                  .ring_size = 64,
                  .mtu = 9000,
                  .policy = policy,
                  .stop_deadline = dma::Nanos{2'000'000}};
  return options;
}

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_TESTS_NIC_ENIC_TESTING_H_
