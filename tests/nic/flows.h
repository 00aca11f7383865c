// SPDX-License-Identifier: Apache-2.0
//
// Many flows through one port with several queues: each comes back in order, all of them do, and
// they are spread.
#ifndef DMAKIT_TESTS_NIC_FLOWS_H_
#define DMAKIT_TESTS_NIC_FLOWS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "nic/endian.h"
#include "nic/frame_info.h"
#include "tests/nic/nic_rig.h"

namespace dmakit::nic {

// `rig` is started, with as many queues in both directions. Flows are of all four kinds of IP with
// ports.
template <typename Rig>
void CheckFlows(Rig& rig, uint32_t queues) {
  constexpr uint32_t kFlows = 256, kPerFlow = 8;
  std::map<uint16_t, std::vector<Frame>> sent;
  for (uint32_t n = 0; n < kPerFlow; ++n) {
    for (uint16_t flow = 0; flow < kFlows; ++flow) {
      Frame frame = testing::MakeFrame({.size = 100,
                                        .ipv6 = flow % 4 == 1,
                                        .tcp = flow % 4 >= 2,
                                        .source_port = flow,
                                        .serial = n});
      sent[flow].push_back(frame);
      rig.wire.Send(std::move(frame));
    }
  }
  CHECK(Loop(rig, queues) == kFlows * kPerFlow);
  std::map<uint16_t, std::vector<Frame>> got;
  for (const Frame& frame : rig.wire.from_nic) {
    got[LoadBe<uint16_t>(frame, ParseFrame(frame).l4_offset)].push_back(frame);
  }
  CHECK(got == sent);
  uint32_t used = 0;
  for (uint32_t q = 0; q < queues; ++q) used += rig.rx(q).frames > 0;
  CHECK(used > (queues == 64 ? 32 : queues - 1));
}

}  // namespace dmakit::nic

#endif  // DMAKIT_TESTS_NIC_FLOWS_H_
