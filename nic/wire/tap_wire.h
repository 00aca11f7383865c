// SPDX-License-Identifier: Apache-2.0
//
// TapWire: a cable to the running kernel. What the kernel's stack sends on a TAP interface comes to
// the NIC, what the NIC sends the kernel receives there; both directions at once. The interface is
// made if it does not exist, and then ends with the wire; its link state, addresses and namespace
// are the user's (it may be moved while the wire is open).
//
// Nothing here blocks. What the kernel does not take (interface down, no memory, too long for it)
// is lost and counted, as on a cable nobody listens to; it is no error of the wire. That the
// interface has gone is one.
#ifndef DMAKIT_NIC_WIRE_TAP_WIRE_H_
#define DMAKIT_NIC_WIRE_TAP_WIRE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nic/wire/counters.h"
#include "nic/wire/wire.h"

namespace dmakit::nic {

// The system calls of a TapWire. Whatever fails returns the negative errno.
class TapCalls {
 public:
  virtual ~TapCalls() = default;
  // A descriptor of /dev/net/tun that never blocks.
  virtual int Open() = 0;
  // Makes `fd` the other end of TAP interface `name`; frames without a packet information header.
  virtual int Attach(int fd, const std::string& name) = 0;
  // One frame; one longer than the buffer is cut.
  virtual std::ptrdiff_t Read(int fd, std::span<std::byte> to) = 0;
  virtual std::ptrdiff_t Write(int fd, std::span<const std::byte> frame) = 0;
  virtual void Close(int fd) = 0;
};

// The real ones. Stateless.
TapCalls& SystemTapCalls();

class TapWire final : public Wire {
 public:
  // An interface's largest MTU, an Ethernet header and a VLAN tag.
  static constexpr size_t kMaxFrame = 65'535 + 14 + 4;

  // Errors name the value, the rule and the remedy. `calls` outlives the wire.
  static absl::StatusOr<std::unique_ptr<TapWire>> Open(std::string_view name,
                                                       TapCalls& calls = SystemTapCalls());
  // What Open checks before it touches the system.
  static absl::Status CheckName(std::string_view name);
  ~TapWire() override;

  // A frame longer than kMaxFrame is refused as cut.
  std::optional<std::span<const std::byte>> Peek() override;
  void Pop() override;
  // True once the interface has gone, or the wire is closed.
  bool exhausted() const override { return ended_.load(std::memory_order_relaxed); }
  void Accept(std::span<const std::byte> frame) override;
  absl::Status Close() override;
  WireStats stats() const override { return counters_.Get(); }

 private:
  TapWire(std::string name, TapCalls& calls, int fd);
  void Fail(int error_number);

  const std::string name_;
  TapCalls& calls_;
  int fd_;  // -1: closed
  std::vector<std::byte> buffer_;
  size_t waiting_ = 0;  // bytes of the frame in the buffer; 0: there is none
  std::atomic<bool> ended_{false};
  absl::Status error_;
  internal::WireCounters counters_;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_WIRE_TAP_WIRE_H_
