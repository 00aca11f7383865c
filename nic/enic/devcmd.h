// SPDX-License-Identifier: Apache-2.0
//
// How a driver runs a command (enic sheet 2.6): wait until the region is free, write arguments and
// command, wait until it is free again, look at the result. Every wait has a deadline. One control
// thread.
#ifndef DMAKIT_NIC_ENIC_DEVCMD_H_
#define DMAKIT_NIC_ENIC_DEVCMD_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "dma/mmio.h"
#include "dma/poll.h"
#include "nic/enic/commands.h"

namespace dmakit::nic::enic {

// A command as it is written to the register, and its name for messages.
struct Command {
  const char* name = "";
  DevcmdWord word;
};

constexpr Command MakeCommand(const char* name, Devcmd number, uint16_t vtype, uint8_t direction,
                              uint8_t flags = 0) {
  return {name, {static_cast<uint16_t>(number), vtype, flags, direction}};
}

inline constexpr Command kCmdDevSpec =
    MakeCommand("DEV_SPEC", Devcmd::kDevSpec, kVtypeAll, kDirBoth);
inline constexpr Command kCmdPacketFilter =
    MakeCommand("PACKET_FILTER", Devcmd::kPacketFilter, kVtypeEthernet, kDirWrite, kFlagNoWait);
inline constexpr Command kCmdGetMacAddr =
    MakeCommand("GET_MAC_ADDR", Devcmd::kGetMacAddr, 3, kDirRead);
inline constexpr Command kCmdNicCfg = MakeCommand("NIC_CFG", Devcmd::kNicCfg, kVtypeAll, kDirWrite);
inline constexpr Command kCmdRssKey =
    MakeCommand("RSS_KEY", Devcmd::kRssKey, kVtypeEthernet, kDirWrite);
inline constexpr Command kCmdRssCpu =
    MakeCommand("RSS_CPU", Devcmd::kRssCpu, kVtypeEthernet, kDirWrite);
inline constexpr Command kCmdOpen =
    MakeCommand("OPEN", Devcmd::kOpen, kVtypeAll, kDirWrite, kFlagNoWait);
inline constexpr Command kCmdOpenStatus =
    MakeCommand("OPEN_STATUS", Devcmd::kOpenStatus, kVtypeAll, kDirRead);
inline constexpr Command kCmdClose = MakeCommand("CLOSE", Devcmd::kClose, kVtypeAll, kDirNone);
inline constexpr Command kCmdEnable = MakeCommand("ENABLE", Devcmd::kEnable, kVtypeAll, kDirWrite);
inline constexpr Command kCmdDisable =
    MakeCommand("DISABLE", Devcmd::kDisable, kVtypeAll, kDirNone);
inline constexpr Command kCmdIntrCoalConvert =
    MakeCommand("INTR_COAL_CONVERT", Devcmd::kIntrCoalConvert, kVtypeAll, kDirRead);
inline constexpr Command kCmdInit = MakeCommand("INIT", Devcmd::kInit, kVtypeAll, kDirWrite);

class CommandChannel {
 public:
  using Results = std::array<uint64_t, 2>;

  // `waiter` outlives the channel. `device` is its name in messages.
  CommandChannel(dma::MmioRegion region, dma::Waiter& waiter, std::string_view device)
      : region_(region), waiter_(&waiter), device_(device) {}

  // DeadlineExceeded: the device was, or stayed, busy. Unavailable: it is gone. Internal: it
  // refused the command; the message has its code. `results` gets args[0] and args[1].
  absl::Status Run(const Command& command, std::span<const uint64_t> args = {},
                   Results* results = nullptr);

  // A command was given and has not ended: the device may still write where its arguments point to.
  bool unfinished() const { return unfinished_; }

 private:
  absl::Status WaitIdle(const Command& command, std::string_view when);

  dma::MmioRegion region_;
  dma::Waiter* waiter_;
  std::string device_;
  bool unfinished_ = false;
};

}  // namespace dmakit::nic::enic

#endif  // DMAKIT_NIC_ENIC_DEVCMD_H_
