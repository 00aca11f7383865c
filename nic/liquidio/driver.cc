// SPDX-License-Identifier: Apache-2.0

#include "nic/liquidio/driver.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "nic/liquidio/registers.h"
#include "nic/rx_pool.h"

namespace dmakit::nic::liquidio {
namespace {

constexpr dma::Nanos kResetTime{1'000'000'000};

absl::Status Between(const char* what, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", value, ": must be between ", least, " and ", most));
}

}  // namespace

absl::Status DriverBase::CheckOptions(const DriverOptions& options, size_t rx_queues,
                                      size_t tx_queues) {
  for (const absl::Status& s :
       {Between("ring size", options.ring_size, kMinRing, kMaxRing),
        Between("mtu", options.mtu, kMinMtu, kMaxMtu),
        options.buffer_bytes == 0
            ? absl::OkStatus()
            : Between("buffer size", options.buffer_bytes, kMinBuffer, kMaxBuffer)}) {
    if (!s.ok()) return s;
  }
  if (options.vlan_strip) {
    return absl::InvalidArgumentError(
        "vlan_strip 1: needs a command to the firmware, which this driver does not send; leave it "
        "off");
  }
  if (rx_queues + tx_queues == 0) {
    return absl::InvalidArgumentError(
        "queues 0: a port needs at least one receive or transmit queue");
  }
  return absl::OkStatus();
}

DriverBase::DriverBase(dma::Device& device, const Function& function)
    : device_(device), name_(device.name()), function_(function) {}

uint32_t DriverBase::ring_count() const {
  const uint64_t in_bar = function_.bar0.size() / kRingStride;
  return static_cast<uint32_t>(std::min<uint64_t>(in_bar, function_.vf ? kVfRings : kPfRings));
}

absl::Status DriverBase::CheckShape(const DriverOptions& options, size_t rx_queues,
                                    size_t tx_queues) const {
  if (absl::Status s = CheckOptions(options, rx_queues, tx_queues); !s.ok()) return s;
  const size_t asked = std::max(rx_queues, tx_queues);
  if (asked <= ring_count()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name(), ": ", rx_queues >= tx_queues ? "receive" : "transmit", " queues ", asked, ": this ",
      function_.vf ? "virtual" : "physical", " function has ", ring_count(), " rings"));
}

void DriverBase::SetShape(const DriverOptions& options, size_t rx_queues, size_t tx_queues) {
  options_ = options;
  rx_count_ = rx_queues;
  tx_count_ = tx_queues;
}

uint32_t DriverBase::max_frame() const { return options_.mtu + kFrameOverhead; }

dma::MmioRegion DriverBase::ring(size_t i) const {
  return function_.bar0.Sub(i * kRingStride, kRingStride);
}

std::string DriverBase::RxLabel(size_t i) const { return absl::StrCat(name(), " oq ", i); }
std::string DriverBase::TxLabel(size_t i) const { return absl::StrCat(name(), " iq ", i); }

OutputSetUp DriverBase::output_set_up() const {
  const bool info = function_.mode == ReceiveMode::kInfo;
  const uint32_t usual = info ? kInfoModeBuffer : kBufferModeBuffer;
  return {.mode = function_.mode,
          .buffer_bytes = options_.buffer_bytes != 0 ? options_.buffer_bytes : usual,
          .counter_start = function_.counter_start,
          .interrupt = options_.interrupts,
          .coalescing = options_.coalescing};
}

absl::Status DriverBase::ResetAll() {
  const size_t rings = std::max(rx_count_, tx_count_);
  for (size_t i = 0; i < rings; ++i) {
    const Halt halt = ResetRing(ring(i), device_.waiter(), kResetTime);
    if (halt == Halt::kStopped) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        name(), " ring ", i, ": could not be taken over: ", std::string(Describe(halt)),
        "; reset the device"));
  }
  if (!function_.vf) {
    function_.bar0.Write64(OffsetOf(GlobalReg::kOqWmark), kOqWatermark);
  }
  for (size_t i = 0; i < rings; ++i) {
    ClearInput(ring(i), function_.counter_start);
    ClearOutput(ring(i), function_.counter_start);
  }
  return absl::OkStatus();
}

uint32_t DriverBase::RxError(size_t i) const {
  if (!running_.load(std::memory_order_relaxed) || i >= rx_count_) return 0;
  return OutputError(ring(i));
}

uint32_t DriverBase::TxError(size_t i) const {
  if (!running_.load(std::memory_order_relaxed) || i >= tx_count_) return 0;
  return InputError(ring(i));
}

template class Driver<FragSource, PageAddressing>;

}  // namespace dmakit::nic::liquidio
