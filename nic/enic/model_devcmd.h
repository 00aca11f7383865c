// SPDX-License-Identifier: Apache-2.0
//
// The command processor of the enic model: runs the command latched in the devcmd region and keeps
// what commands set. Used by the stepping thread only.
#ifndef DMAKIT_NIC_ENIC_MODEL_DEVCMD_H_
#define DMAKIT_NIC_ENIC_MODEL_DEVCMD_H_

#include <array>
#include <cstdint>

#include "dma/device_port.h"
#include "nic/enic/commands.h"
#include "nic/enic/model_registers.h"
#include "nic/enic/model_rx.h"
#include "nic/enic/model_violations.h"

namespace dmakit::nic::enic {

// Codes in args[0] after an error. The sheet leaves them open.
enum class DevcmdError : uint64_t {
  kNone = 0,
  kArgument = 1,
  kFault = 2,
  kUnknown = 5,
  kState = 6,
};

class CommandProcessor {
 public:
  struct Identity {
    std::array<uint8_t, 6> mac{};
    DevSpec spec;
  };

  CommandProcessor(Identity identity, dma::DevicePort& port, RegisterFile& registers,
                   ViolationLog& log);

  // Runs the waiting command. False: there is none.
  bool Step();

  bool enabled() const { return state_ == State::kEnabled; }
  const Steering& steering() const { return steering_; }
  const PacketFilter& filter() const { return filter_; }
  // Whether a reset of the queues is due; asking clears it.
  bool TakeReset();

 private:
  enum class State : uint8_t { kClosed, kOpening, kOpen, kReady, kEnabled };

  static State AllowedFrom(Devcmd command);
  DevcmdError Run(const DevcmdWord& word);
  DevcmdError Open();
  DevcmdError OpenStatus();
  DevcmdError Close();
  DevcmdError WriteDevSpec();
  DevcmdError SetNicCfg();
  DevcmdError LoadRssKey();
  DevcmdError LoadRssCpu();
  DevcmdError SetEnabled(bool enable);
  bool AnyQueueRunning();
  void ResetSettings();
  DevcmdError Refuse(Rule rule, uint64_t value, DevcmdError error);

  const Identity identity_;
  dma::DevicePort& port_;
  RegisterFile& registers_;
  ViolationLog& log_;

  State state_ = State::kClosed;
  uint32_t opening_ = 0;  // OPEN_STATUS calls until OPEN is done
  bool reset_due_ = false;
  Steering steering_;
  PacketFilter filter_;

  // The command being run: what the device sees of the arguments, and its results.
  std::array<uint64_t, kDevcmdArgCount> args_{};
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_MODEL_DEVCMD_H_
