// SPDX-License-Identifier: Apache-2.0
//
// Frames from the wire through receive, driver and transmit back to the wire: the same bytes, in
// order, none lost, under every policy, with the maps and unmaps that the policy allows.
#include <set>
#include <string>

#include "nic/wire/generator.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {
namespace {

using testing::FrameSpec;
using testing::MakeFrame;
using testing::NumberedFrame;

TEST_CASE("frames of every size come back the same, in order") {
  Rig rig;
  rig.Start();
  std::vector<Frame> sent;
  for (uint32_t size = 60; size <= 9018; size += 97) sent.push_back(NumberedFrame(size, size));
  sent.push_back(NumberedFrame(1, 9018));
  for (const Frame& frame : sent) rig.wire.Send(frame);
  CHECK(Loop(rig) == sent.size());
  CHECK(rig.wire.from_nic == sent);
  REQUIRE(rig.port->Stop().ok());
  CHECK(rig.rx().frames == sent.size());
  CHECK(rig.tx().frames == sent.size());
  CHECK(rig.rx().dropped + rig.tx().dropped == 0);
  rig.CheckClean();
}

}  // namespace
}  // namespace dmakit::nic::enic
