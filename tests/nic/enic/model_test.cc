// SPDX-License-Identifier: Apache-2.0
//
// The model's registers and commands: what it forbids, each provoked and each with the nearest
// correct thing that it lets pass. Frames are in model_frames_test.cc.
#include "nic/enic/model.h"

#include <array>
#include <string>
#include <vector>

#include "tests/nic/enic/model_bench.h"

namespace dmakit::nic::enic {
namespace {

TEST_CASE("reset values and read-only registers") {
  Bench b;
  for (const ResourceType type : {ResourceType::kRq, ResourceType::kWq}) {
    CHECK(b.Get(type, 0, RqReg::kEnable) == 0);
    CHECK(b.Get(type, 0, RqReg::kRunning) == 0);
  }
  CHECK(b.Get(ResourceType::kIntrCtrl, 0, IntrReg::kMask) == 1);
  b.SetRq(RqReg::kRunning, 1);
  CHECK_ONE_VIOLATION(b, "rq 0: read-only register written; offset: 40");
  CHECK(b.Get(ResourceType::kRq, 0, RqReg::kRunning) == 0);
}

TEST_CASE("accesses that hit no register, or part of one") {
  Bench b;
  CHECK(b.bar.Read32(0x7000) == kAllOnes);
  CHECK_ONE_VIOLATION(b, "no register there; offset: 28672");
  Bench width;
  width.bar.Write64(BlockAt(width.bar, ResourceType::kRq, 0) + OffsetOf(RqReg::kEnable), 1);
  CHECK_ONE_VIOLATION(width, "rq 0: access of another width");
  // A 64-bit register may be written by halves, low word first.
  Bench halves;
  const uint64_t base = BlockAt(halves.bar, ResourceType::kRq, 0);
  halves.bar.Write32(base, 0x00010000);
  halves.bar.Write32(base + 4, 7);
  CHECK(halves.bar.Read64(base) == 0x7'0001'0000);
  CHECK(halves.model.violation_count() == 0);
}

TEST_CASE("posting before enable is forbidden, an empty ring is not a posting") {
  Bench b;
  b.BringUp();
  b.SetUpQueues();
  b.SetRq(RqReg::kFetchIndex, 5);
  b.SetRq(RqReg::kPostedIndex, 5);
  CHECK(b.model.violation_count() == 0);
  b.SetRq(RqReg::kPostedIndex, 6);
  CHECK_ONE_VIOLATION(b, "rq 0: posted_index written before enable: 6");
  CHECK(b.Get(ResourceType::kRq, 0, RqReg::kPostedIndex) == 5);
}

TEST_CASE("posted_index: in range, and one slot stays unused") {
  Bench range;
  range.Run();
  range.SetWq(WqReg::kPostedIndex, kRing);
  CHECK_ONE_VIOLATION(range, "wq 0: posted_index must be below ring_size: 64 (limit 64)");
  range.Step();
  CHECK(range.Get(ResourceType::kWq, 0, WqReg::kErrorStatus) ==
        static_cast<uint64_t>(QueueError::kPostedIndex));
  CHECK(range.Get(ResourceType::kWq, 0, WqReg::kRunning) == 0);

  Bench full;
  full.Run();
  full.SetRq(RqReg::kPostedIndex, kRing - 1);
  CHECK(full.model.violation_count() == 0);
  full.SetRq(RqReg::kPostedIndex, 0);
  CHECK_ONE_VIOLATION(full, "rq 0: posted_index overtakes fetch_index");
}

TEST_CASE("a full post from an empty ring looks empty: nothing is received") {
  Bench b;
  b.Run();
  for (uint32_t i = 0; i < kRing; ++i) b.PutRx(i, b.kData, 2048);
  b.SetRq(RqReg::kPostedIndex, 0);
  b.wire.Send(testing::NumberedFrame(1, 60));
  b.Step();
  CHECK(b.wire.waiting() == 1);
}

TEST_CASE("nothing but posted_index and enable is written while a queue is enabled") {
  for (const RqReg reg : {RqReg::kRingBase, RqReg::kRingSize, RqReg::kCqIndex, RqReg::kFetchIndex,
                          RqReg::kErrorStatus}) {
    Bench b;
    b.Run();
    const uint64_t before = b.Get(ResourceType::kRq, 0, reg);
    b.SetRq(reg, 512);
    CHECK_ONE_VIOLATION(b, "rq 0: only posted_index and enable may be written");
    CHECK(b.Get(ResourceType::kRq, 0, reg) == before);
    b.SetRq(RqReg::kEnable, 0);
    b.Step();
    b.SetRq(reg, 0);
    CHECK(b.model.violation_count() == 1);
  }
  Bench cq;
  cq.Run();
  cq.Set(ResourceType::kCq, 0, CqReg::kTail, 0);
  CHECK_ONE_VIOLATION(cq, "cq 0: completion queue register written while a queue completes");
  cq.Set(ResourceType::kCq, 2, CqReg::kTail, 0);  // nobody's
  CHECK(cq.model.violation_count() == 1);
}

TEST_CASE("a queue whose set-up is impossible does not run, and says why") {
  struct Case {
    void (*spoil)(Bench&);
    const char* words;
  };
  const Case cases[] = {
      {[](Bench& b) { b.SetRq(RqReg::kRingBase, b.kRq + 256); },
       "rq 0: ring_base must be a multiple of 512"},
      {[](Bench& b) { b.SetRq(RqReg::kRingSize, 48); }, "rq 0: ring_size must be a multiple"},
      {[](Bench& b) { b.SetRq(RqReg::kRingSize, 32); }, "rq 0: ring_size must be a multiple"},
      {[](Bench& b) { b.SetRq(RqReg::kRingSize, 4128); }, "rq 0: ring_size must be a multiple"},
      {[](Bench& b) { b.SetRq(RqReg::kFetchIndex, 64); }, "rq 0: fetch_index must be below"},
      {[](Bench& b) { b.SetRq(RqReg::kCqIndex, 128); }, "rq 0: cq_index names no completion"},
      {[](Bench& b) { b.Set(ResourceType::kCq, 0, CqReg::kRingBase, b.kRqCq + 16); },
       "cq 0: ring_base"},
      {[](Bench& b) { b.Set(ResourceType::kCq, 0, CqReg::kRingSize, 65); }, "cq 0: ring_size"},
      {[](Bench& b) { b.Set(ResourceType::kCq, 0, CqReg::kColorEnable, 0); },
       "cq 0: completion queue needs color"},
      {[](Bench& b) { b.Set(ResourceType::kCq, 0, CqReg::kMessageEnable, 1); },
       "cq 0: completion queue needs color"},
  };
  for (const Case& c : cases) {
    Bench b;
    b.BringUp();
    b.SetUpQueues();
    c.spoil(b);
    b.SetRq(RqReg::kEnable, 1);
    b.Step();
    CHECK_ONE_VIOLATION(b, c.words);
    CHECK(b.Get(ResourceType::kRq, 0, RqReg::kRunning) == 0);
    CHECK(b.Get(ResourceType::kRq, 0, RqReg::kErrorStatus) ==
          static_cast<uint64_t>(QueueError::kSetup));
  }
  // 0 stands for 4096.
  Bench b;
  b.BringUp();
  b.SetUpQueues();
  b.SetRq(RqReg::kRingSize, 0);
  b.SetRq(RqReg::kEnable, 1);
  b.Step();
  CHECK(b.Get(ResourceType::kRq, 0, RqReg::kRunning) == 1);
  b.SetRq(RqReg::kPostedIndex, 4095);
  CHECK(b.model.violation_count() == 0);
}

TEST_CASE("a receive queue is disabled twice before it runs again") {
  for (const int disables : {1, 2, 3}) {
    Bench b;
    b.Run();
    for (int i = 0; i < disables; ++i) {
      b.SetRq(RqReg::kEnable, 0);
      b.Step();
    }
    b.SetRq(RqReg::kEnable, 1);
    b.Step();
    CHECK(b.model.violation_count() == (disables == 1 ? 1 : 0));
  }
  Bench b;
  b.Run();
  b.SetWq(WqReg::kEnable, 0);
  b.SetWq(WqReg::kEnable, 1);
  CHECK_ONE_VIOLATION(b, "wq 0: enabled again before running was 0");
}

// --- Commands ------------------------------------------------------------------------------------

TEST_CASE("commands in the wrong state, unknown, or over a running one are refused") {
  Bench early;
  CHECK(early.Command(Devcmd::kInit) == kDevcmdError);
  CHECK(early.result == static_cast<uint64_t>(DevcmdError::kState));
  CHECK_ONE_VIOLATION(early, "devcmd: command not allowed in this state: 35");

  Bench unknown;
  unknown.BringUp();
  CHECK(unknown.Command(static_cast<Devcmd>(99)) == kDevcmdError);
  CHECK_ONE_VIOLATION(unknown, "devcmd: command unknown: 99");

  Bench busy;
  const uint64_t at = BlockAt(busy.bar, ResourceType::kDevcmd, 0);
  const uint32_t open = Encode(DevcmdWord{static_cast<uint16_t>(Devcmd::kOpen), kVtypeAll, 0, 1});
  busy.bar.Write32(at + kDevcmdCmd, open);
  busy.bar.Write64(at + kDevcmdArgs, 1);
  CHECK_ONE_VIOLATION(busy, "devcmd: written while a command is running; offset: 8");
  busy.bar.Write32(at + kDevcmdCmd, open);
  CHECK(busy.model.violation_count() == 2);

  Bench close;
  close.Run();
  CHECK(close.Command(Devcmd::kClose) == kDevcmdError);
  CHECK_ONE_VIOLATION(close, "devcmd: command not allowed in this state: 25");

  Bench fault;
  fault.BringUp();
  CHECK(fault.Command(Devcmd::kDevSpec, {0x10000000, kDevSpecBytes}) == kDevcmdError);
  CHECK(fault.result == static_cast<uint64_t>(DevcmdError::kFault));
}

TEST_CASE("the direction of a command says who sees its arguments") {
  Bench b;
  b.BringUp();
  CHECK(b.Command(Devcmd::kGetMacAddr, {0x1234}, kDirWrite) == 0);
  CHECK(b.result == 0x1234);  // nothing was written back
  CHECK(b.Command(Devcmd::kGetMacAddr, {}, kDirRead) == 0);
  CHECK(MacOfArg(b.result) == std::array<uint8_t, 6>{2, 0, 0, 0, 0, 1});
  CHECK(b.Command(Devcmd::kPacketFilter, {kFilterPromiscuous}, kDirRead) == 0);  // sees 0
  b.SetUpQueues();
  b.SetRq(RqReg::kEnable, 1);
  b.model.Step();
  b.PutRx(0, b.kData, 2048);
  b.SetRq(RqReg::kPostedIndex, 1);
  b.wire.Send(testing::NumberedFrame(1, 60));
  b.Step();
  CHECK(b.RxDone(0).bytes_written == 0);
}

TEST_CASE("a reset stops everything") {
  Bench b;
  b.Run();
  CHECK(b.Command(Devcmd::kSoftReset) == 0);
  CHECK(b.Command(Devcmd::kSoftResetStatus) == 0);
  CHECK(b.Get(ResourceType::kRq, 0, RqReg::kRunning) == 0);
  CHECK(b.Get(ResourceType::kRq, 0, RqReg::kRingSize) == 0);
  b.Run();
  CHECK(b.model.violation_count() == 0);
}

}  // namespace
}  // namespace dmakit::nic::enic
