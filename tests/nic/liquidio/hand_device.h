// SPDX-License-Identifier: Apache-2.0
//
// HandDevice: a CN23XX played by a test, written from the sheet's numbers and from nothing that the
// driver is made of. It moves frames as the device does, when stepped, and says whatever a test
// wants: headers and counts that are right, or not. It checks less than the model, and is for what
// the model would never do.
//
// Stepped in one thread, registers included.
#ifndef DMAKIT_TESTS_NIC_LIQUIDIO_HAND_DEVICE_H_
#define DMAKIT_TESTS_NIC_LIQUIDIO_HAND_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dma/device_port.h"
#include "dma/mmio.h"
#include "nic/model.h"
#include "nic/notifier.h"
#include "nic/wire/wire.h"

namespace dmakit::nic::liquidio {

// What a frame is delivered with. Unset: as the device would say it.
struct Said {
  std::optional<uint64_t> length{};
  std::optional<uint64_t> header{};
  uint32_t count = 1;      // added to the counter of packets
  bool hashed = false;     // with hash 0x89abcdef
  bool stamped = false;    // with a time stamp; buffer mode
  uint16_t vlan = 0;       // a tag that was taken out: 3 bits of priority, 12 of identifier
  unsigned checksums = 0;  // csum_verified
  unsigned extra = 0;      // words beyond those; buffer mode
};

// One instruction, as the device reads it.
struct Fetched {
  std::array<uint64_t, 8> words{};
  bool gather = false;
  uint32_t length = 0;           // of ih3: bytes or pointers
  std::vector<uint32_t> pieces;  // lengths of what it points to
  std::vector<std::byte> bytes;
  bool faulted = false;
};

struct HandOptions {
  uint32_t steps = 32;  // packets per ring and direction that a step moves
};

class HandDevice final : public nic::Model, public dma::MmioHandler, public InterruptSource {
 public:
  static constexpr uint32_t kRings = 64;
  static constexpr uint64_t kStride = 0x20000;
  static constexpr uint64_t kBarBytes = kRings * kStride;

  struct Ring {
    uint64_t input_control = 0;
    uint64_t iq_base = 0;
    uint32_t iq_size = 0, iq_index = 0, iq_doorbell = 0;
    uint64_t in_done = 0;
    uint32_t output_control = 0, out_size = 0;
    uint64_t oq_base = 0;
    uint32_t oq_size = 0, oq_index = 0, credits = 0;
    uint64_t sent = 0;
    uint64_t int_levels = 0;
    std::vector<uint32_t> doorbells{};  // values written
    std::vector<uint32_t> credit_writes{};
    bool iq_on() const { return (input_control >> 22 & 1) != 0; }
    bool oq_on() const { return (output_control & 1) != 0; }
    uint32_t buffer_bytes() const { return out_size & 0xffff; }
    bool info_mode() const { return (output_control >> 11 & 1) != 0; }
  };

  explicit HandDevice(std::unique_ptr<dma::DevicePort> port, const HandOptions& options = {})
      : port_(std::move(port)), options_(options), rings_(kRings) {}

  dma::MmioRegion bar0() { return dma::MmioRegion::OfModel(*this, kBarBytes); }
  bool Step() override;
  void Plug(Wire* wire) override { wire_ = wire; }
  std::vector<std::string> violations() const override { return violations_; }
  uint64_t violation_count() const override { return violations_.size(); }
  uint32_t vectors() const override { return kRings; }
  absl::Status Connect(uint32_t vector, Notifier* notifier) override;

  uint64_t MmioRead(uint64_t offset, size_t width) override;
  void MmioWrite(uint64_t offset, uint64_t value, size_t width) override;

  // Sheet 5.2. False: too few credits, or a fault.
  bool Deliver(uint32_t ring, std::span<const std::byte> frame, const Said& said = {});
  // The next instruction, done. One must be there.
  Fetched Fetch(uint32_t ring);

  Ring& ring(uint32_t i) { return rings_[i]; }

  bool stuck = false;  // a reset is never over
  bool gone = false;   // registers read all ones
  std::vector<uint64_t> resets = std::vector<uint64_t>(kRings);

 private:
  void Complain(std::string words) { violations_.push_back(std::move(words)); }
  uint64_t ReadRing(const Ring& ring, uint64_t offset) const;
  void WriteRing(Ring& ring, uint64_t offset, uint64_t value, size_t width);
  void WriteInputControl(Ring& ring, uint64_t value);
  void Subtract(uint64_t& counter, uint64_t value, size_t width, uint64_t kept);
  std::vector<std::byte> Image(const Ring& ring, std::span<const std::byte> frame, const Said& said,
                               uint64_t& length, uint64_t& header) const;
  bool Take(uint32_t ring);
  uint32_t RingFor(std::span<const std::byte> frame) const;
  void Raise(uint32_t ring);

  std::unique_ptr<dma::DevicePort> port_;
  const HandOptions options_;
  Wire* wire_ = nullptr;
  std::vector<Ring> rings_;
  std::vector<Notifier*> notifiers_ = std::vector<Notifier*>(kRings);
  std::vector<std::string> violations_;
};

}  // namespace dmakit::nic::liquidio

#endif  // DMAKIT_TESTS_NIC_LIQUIDIO_HAND_DEVICE_H_
