// SPDX-License-Identifier: Apache-2.0
//
// What fails on the way down, and time that cannot be trusted: for all k, from Open to the end of
// the port. Whatever a device may still reach is in quarantine, and after a reset all is as it was.
#include <string>

#include "dma/quarantine.h"
#include "nic/enic/commands.h"
#include "tests/nic/enic/testing.h"

namespace dmakit::nic::enic {
namespace {

// One port's life: opened, started, frames moved, stopped, closed. The first thing that failed.
absl::Status Live(Rig& rig) {
  absl::Status first = rig.Open();
  if (first.ok()) first = rig.port->Start();
  if (first.ok()) {
    for (uint32_t i = 0; i < 20; ++i) rig.wire.Send(testing::NumberedFrame(i, 2000));
    CHECK(Loop(rig, 2) == 20);
  }
  if (rig.port != nullptr) first.Update(rig.port->Stop());
  rig.port.reset();
  while (rig.wire.Peek()) rig.wire.Pop();
  return first;
}

// A command given past the driver.
void Command(Rig& rig, Devcmd number) {
  const dma::MmioRegion bar = rig.model.bar0();
  const uint64_t at = BlockAt(bar, ResourceType::kDevcmd, 0);
  bar.Write32(at + kDevcmdCmd,
              Encode(DevcmdWord{static_cast<uint16_t>(number), kVtypeAll, 0, kDirBoth}));
  rig.StepAll();
  REQUIRE(bar.Read32(at + kDevcmdStatus) == 0);
}

// Nobody reached what is gone, and after the reset nothing is left of the port.
void CheckAfterReset(Rig& rig, const Footprint& closed) {
  rig.StepAll();
  Command(rig, Devcmd::kSoftReset);
  Command(rig, Devcmd::kSoftResetStatus);
  REQUIRE(rig.space->quarantine().ReleaseAfterReset("").ok());
  REQUIRE(rig.space->quarantine().count() == 0);
  REQUIRE(Measure(rig) == closed);
  REQUIRE(rig.iommu->walk_stats().faults == 0);
  REQUIRE(rig.iommu->walk_stats().stale_uses == 0);
  REQUIRE(rig.memory.written_after_free() == 0);
}

TEST_CASE("the k-th unmap or invalidation fails, for all k: quarantined until the reset") {
  for (const bool invalidate : {false, true}) {
    for (const dma::Policy policy :
         {dma::Policy::kPersistent, dma::Policy::kStrict, dma::Policy::kDeferred}) {
      INFO(dma::Name(policy) << (invalidate ? ", invalidations" : ", unmaps"));
      uint64_t k = 1;
      for (bool triggered = true; triggered; ++k) {
        INFO("k = " << k);
        FailPoint fail;
        RigOptions options = Small(policy);
        (invalidate ? options.fail_invalidate : options.fail_unmap) = &fail;
        Rig rig(options);
        REQUIRE(rig.MakeSpace().ok());
        REQUIRE(Live(rig).ok());
        const Footprint closed = Measure(rig);
        fail.FailAt(k);
        const absl::Status lived = Live(rig);
        triggered = fail.triggered();
        fail.FailAt(0);
        INFO(lived);
        REQUIRE((lived.ok() || !lived.message().empty()));
        // One flush may have been for many ranges.
        const uint64_t held = rig.space->quarantine().count();
        REQUIRE((held > 0) == triggered);
        if (policy != dma::Policy::kDeferred) REQUIRE(held <= 1);
        if (triggered) {
          REQUIRE(rig.space->quarantine().Describe()[0].find("enic0") != std::string::npos);
        }
        REQUIRE(Live(rig).ok());  // also while that is held
        CheckAfterReset(rig, closed);
      }
      CHECK(k > 10);
    }
  }
}

// Waits end: none is longer than its deadline, whatever the clock does. A wait that ends early may
// leave the device at work; then what it may write to is kept.
TEST_CASE("time jumps at the k-th look, for all k: every wait ends, nothing is reused early") {
  for (const int64_t jump : {int64_t{3'600'000'000'000}, int64_t{-3'600'000'000'000},
                             int64_t{1'000'000}, int64_t{-1'000'000}}) {
    INFO("jump " << jump);
    uint64_t k = 1;
    for (bool triggered = true; triggered; ++k) {
      INFO("k = " << k);
      FailPoint fail;
      RigOptions options = Small(dma::Policy::kStrict);
      options.fail_time = &fail;
      options.time_jump = dma::Nanos{jump};
      Rig rig(options);
      REQUIRE(rig.MakeSpace().ok());
      REQUIRE(Live(rig).ok());
      const Footprint closed = Measure(rig);
      const uint64_t pauses = rig.unsteady.pauses;
      fail.FailAt(k);
      const absl::Status lived = Live(rig);
      triggered = fail.triggered();
      INFO(lived);
      REQUIRE(rig.unsteady.pauses - pauses <= pauses + 1000);  // 200 take a stop deadline
      if (jump < 0) REQUIRE(lived.ok());                       // nothing is cut short
      fail.FailAt(0);
      if (lived.ok()) REQUIRE(rig.space->quarantine().count() == 0);
      // What is quarantined then is still mapped when its device goes.
      if (!lived.ok()) rig.audit.Expect(dma::AuditCode::kLeaked);
      CheckAfterReset(rig, closed);
      REQUIRE(Live(rig).ok());
      CheckAfterReset(rig, closed);
    }
    CHECK(k > 10);
  }
}

}  // namespace
}  // namespace dmakit::nic::enic
