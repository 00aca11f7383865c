// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/model_devcmd.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "nic/enic/model_interrupt.h"

namespace dmakit::nic::enic {

CommandProcessor::CommandProcessor(Identity identity, dma::DevicePort& port,
                                   RegisterFile& registers, ViolationLog& log)
    : identity_(identity), port_(port), registers_(registers), log_(log) {
  ResetSettings();
}

bool CommandProcessor::TakeReset() { return std::exchange(reset_due_, false); }

void CommandProcessor::ResetSettings() {
  steering_ = {};
  filter_ = {0, identity_.mac};
}

DevcmdError CommandProcessor::Refuse(Rule rule, uint64_t value, DevcmdError error) {
  log_.Record(rule, {Block::kDevcmd, 0}, value);
  return error;
}

// Enic sheet 2.6. The direction says who may look at the arguments.
bool CommandProcessor::Step() {
  if (!registers_.CommandWaits()) return false;
  const DevcmdWord word = registers_.command();
  for (size_t i = 0; i < args_.size(); ++i) {
    args_[i] = (word.direction & kDirWrite) != 0 ? registers_.arg(i) : 0;
  }
  const DevcmdError error = Run(word);
  if (error != DevcmdError::kNone) {
    registers_.set_arg(0, static_cast<uint64_t>(error));
  } else if ((word.direction & kDirRead) != 0) {
    for (size_t i = 0; i < args_.size(); ++i) registers_.set_arg(i, args_[i]);
  }
  registers_.Finish(error != DevcmdError::kNone);
  return true;
}

// The earliest state in which a command makes sense. CLOSE also ends an OPEN that is not done.
CommandProcessor::State CommandProcessor::AllowedFrom(Devcmd command) {
  switch (command) {
    case Devcmd::kOpen:
    case Devcmd::kOpenStatus:
    case Devcmd::kSoftReset:
    case Devcmd::kSoftResetStatus:
      return State::kClosed;
    case Devcmd::kClose:
      return State::kOpening;
    default:
      return State::kOpen;
  }
}

DevcmdError CommandProcessor::Run(const DevcmdWord& word) {
  if (state_ < AllowedFrom(word.command())) {
    return Refuse(Rule::kDevcmdState, word.number, DevcmdError::kState);
  }
  switch (word.command()) {
    case Devcmd::kOpen:
      return Open();
    case Devcmd::kOpenStatus:
      return OpenStatus();
    case Devcmd::kClose:
      return Close();
    case Devcmd::kInit:
      if (state_ != State::kOpen) {
        return Refuse(Rule::kDevcmdState, word.number, DevcmdError::kState);
      }
      state_ = State::kReady;
      return DevcmdError::kNone;
    case Devcmd::kGetMacAddr:
      args_[0] = ArgOfMac(identity_.mac);
      return DevcmdError::kNone;
    case Devcmd::kDevSpec:
      return WriteDevSpec();
    case Devcmd::kNicCfg:
      return SetNicCfg();
    case Devcmd::kRssKey:
      return LoadRssKey();
    case Devcmd::kRssCpu:
      return LoadRssCpu();
    case Devcmd::kPacketFilter:
      filter_.bits = static_cast<uint32_t>(args_[0]);
      return DevcmdError::kNone;
    case Devcmd::kIntrCoalConvert:
      args_[0] = kCoalesceMultiplier;
      args_[1] = kCoalesceDivisor;
      args_[2] = 0xffff * kCoalesceDivisor / kCoalesceMultiplier;
      return DevcmdError::kNone;
    case Devcmd::kEnable:
      return SetEnabled(true);
    case Devcmd::kDisable:
      return SetEnabled(false);
    case Devcmd::kSoftReset:
      state_ = State::kClosed;
      reset_due_ = true;
      ResetSettings();
      return DevcmdError::kNone;
    case Devcmd::kSoftResetStatus:
      args_[0] = 0;
      return DevcmdError::kNone;
    default:
      return Refuse(Rule::kDevcmdUnknown, word.number, DevcmdError::kUnknown);
  }
}

// OPEN takes a while: its status is 1 for two calls.
DevcmdError CommandProcessor::Open() {
  if (state_ != State::kClosed) {
    return Refuse(Rule::kDevcmdState, static_cast<uint64_t>(Devcmd::kOpen), DevcmdError::kState);
  }
  state_ = State::kOpening;
  opening_ = 2;
  ResetSettings();
  return DevcmdError::kNone;
}

DevcmdError CommandProcessor::OpenStatus() {
  if (state_ == State::kOpening && opening_ > 0) {
    --opening_;
    args_[0] = 1;
    return DevcmdError::kNone;
  }
  if (state_ == State::kOpening) state_ = State::kOpen;
  args_[0] = 0;
  return DevcmdError::kNone;
}

DevcmdError CommandProcessor::Close() {
  if (AnyQueueRunning()) {
    return Refuse(Rule::kDevcmdState, static_cast<uint64_t>(Devcmd::kClose), DevcmdError::kState);
  }
  state_ = State::kClosed;
  ResetSettings();
  return DevcmdError::kNone;
}

DevcmdError CommandProcessor::WriteDevSpec() {
  if (args_[1] < kDevSpecBytes) {
    return Refuse(Rule::kDevcmdArgument, args_[1], DevcmdError::kArgument);
  }
  if (!port_.Write(Iova{args_[0]}, Encode(identity_.spec))) return DevcmdError::kFault;
  return DevcmdError::kNone;
}

DevcmdError CommandProcessor::SetNicCfg() {
  steering_.config = DecodeNicCfg(static_cast<uint32_t>(args_[0]));
  return DevcmdError::kNone;
}

DevcmdError CommandProcessor::LoadRssKey() {
  if (args_[1] != kRssKeyBytes) {
    return Refuse(Rule::kDevcmdArgument, args_[1], DevcmdError::kArgument);
  }
  std::array<std::byte, kRssKeyBytes> bytes;
  if (!port_.Read(Iova{args_[0]}, bytes)) return DevcmdError::kFault;
  for (size_t i = 0; i < kRssKeyLength; ++i) steering_.key[i] = bytes[RssKeyOffset(i)];
  return DevcmdError::kNone;
}

DevcmdError CommandProcessor::LoadRssCpu() {
  if (args_[1] != kRssCpuBytes) {
    return Refuse(Rule::kDevcmdArgument, args_[1], DevcmdError::kArgument);
  }
  std::array<std::byte, kRssCpuBytes> bytes;
  if (!port_.Read(Iova{args_[0]}, bytes)) return DevcmdError::kFault;
  std::array<uint8_t, kRssCpuEntries> table{};
  for (size_t i = 0; i < kRssCpuEntries; ++i) {
    table[i] = std::to_integer<uint8_t>(bytes[RssCpuOffset(i)]);
    if (table[i] >= registers_.counts().rqs) {
      return Refuse(Rule::kDevcmdArgument, table[i], DevcmdError::kArgument);
    }
  }
  steering_.table = table;
  return DevcmdError::kNone;
}

DevcmdError CommandProcessor::SetEnabled(bool enable) {
  if (state_ < State::kReady) {
    const Devcmd command = enable ? Devcmd::kEnable : Devcmd::kDisable;
    return Refuse(Rule::kDevcmdState, static_cast<uint64_t>(command), DevcmdError::kState);
  }
  state_ = enable ? State::kEnabled : State::kReady;
  return DevcmdError::kNone;
}

bool CommandProcessor::AnyQueueRunning() {
  const RegisterFile::Counts& counts = registers_.counts();
  for (uint32_t i = 0; i < counts.wqs; ++i) {
    if (registers_.wq(i).Get(WqReg::kRunning) != 0) return true;
  }
  for (uint32_t i = 0; i < counts.rqs; ++i) {
    if (registers_.rq(i).Get(RqReg::kRunning) != 0) return true;
  }
  return false;
}

}  // namespace dmakit::nic::enic
