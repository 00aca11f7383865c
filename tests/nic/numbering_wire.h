// SPDX-License-Identifier: Apache-2.0
//
// A wire that offers numbered frames of several flows and checks what comes back, and the loop that
// forwards them on one queue: for models on threads of their own.
#ifndef DMAKIT_TESTS_NIC_NUMBERING_WIRE_H_
#define DMAKIT_TESTS_NIC_NUMBERING_WIRE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "nic/endian.h"
#include "nic/packet.h"
#include "nic/port.h"
#include "nic/wire/wire.h"
#include "tests/nic/frames.h"

namespace dmakit::nic {

// Offers `count` numbered frames of several flows and checks what comes back, flow by flow. On the
// model's thread; the counters are read by others.
class NumberingWire final : public Wire {
 public:
  NumberingWire(uint64_t count, uint32_t flows) : count_(count), flows_(flows), next_(flows) {}

  std::optional<std::span<const std::byte>> Peek() override {
    if (sent_ == count_) return std::nullopt;
    if (frame_.empty()) {
      const uint16_t flow = static_cast<uint16_t>(sent_ % flows_);
      frame_ = testing::MakeFrame({.size = 64 + sent_ % 200, .source_port = flow});
      StoreBe<uint64_t>(frame_, frame_.size() - 8, sent_ / flows_);
    }
    return std::span<const std::byte>(frame_);
  }
  void Pop() override {
    ++sent_;
    frame_.clear();
  }
  bool exhausted() const override { return false; }
  void Accept(std::span<const std::byte> frame) override {
    const uint16_t flow = LoadBe<uint16_t>(frame, 34);
    const uint64_t number = LoadBe<uint64_t>(frame, frame.size() - 8);
    if (flow >= flows_ || number != next_[flow]++) wrong_.fetch_add(1);
    received_.fetch_add(1);
  }
  absl::Status Close() override { return absl::OkStatus(); }
  WireStats stats() const override { return {}; }

  uint64_t received() const { return received_.load(); }
  uint64_t wrong() const { return wrong_.load(); }

 private:
  const uint64_t count_;
  const uint32_t flows_;
  uint64_t sent_ = 0;
  Frame frame_;
  std::vector<uint64_t> next_;
  std::atomic<uint64_t> received_{0};
  std::atomic<uint64_t> wrong_{0};
};

// One queue's loop, until `done`.
inline void ForwardUntil(Port& port, uint32_t queue, const std::function<bool()>& done) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kPatience{120};
  std::vector<Packet> packets(32);
  const auto deadline = Clock::now() + kPatience;
  while (!done() && Clock::now() < deadline) {
    const size_t got = port.Receive(queue, packets);
    for (size_t sent = 0; sent < got && Clock::now() < deadline;) {
      sent += port.Transmit(queue, std::span(packets).subspan(sent, got - sent));
    }
    if (port.Reap(queue) == 0 && got == 0) std::this_thread::yield();
  }
}

}  // namespace dmakit::nic

#endif  // DMAKIT_TESTS_NIC_NUMBERING_WIRE_H_
