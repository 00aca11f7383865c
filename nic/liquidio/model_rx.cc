// SPDX-License-Identifier: Apache-2.0

#include "nic/liquidio/model_rx.h"

#include <algorithm>
#include <array>

#include "nic/endian.h"
#include "nic/liquidio/model_hostile.h"

namespace dmakit::nic::liquidio {

// Sheet 5.2. The two modes differ in where and in which order length and header stand, what the
// length covers, and on which half of its word the hash is looked for: it is on both.
void ModelOutput::Build(const Arrival& arrival, Hostile* hostile) {
  const bool info = ring_.info_mode();
  RhData rh{.opcode = kOpcodeNic, .subcode = kSubcodeData};
  rh.len = arrival.hashed ? 1 : 0;
  rh.has_hash = arrival.hashed;
  const bool ip_good = Ipv4ChecksumState(arrival.frame, arrival.info) == ChecksumState::kGood;
  const bool l4_good = L4ChecksumState(arrival.frame, arrival.info) == ChecksumState::kGood;
  rh.csum_verified = static_cast<uint8_t>((ip_good ? kCsumIpOk : 0) | (l4_good ? kCsumL4Ok : 0));
  delivery_.length = 8 + 8u * rh.len + arrival.frame.size();
  delivery_.header = Encode(rh);
  if (hostile != nullptr) hostile->Say(delivery_.length, delivery_.header);
  std::vector<std::byte>& image = delivery_.image;
  image.assign(info ? 0 : 16, std::byte{0});
  if (!info) {
    StoreBe<uint64_t>(image, 0, delivery_.length);
    StoreBe<uint64_t>(image, 8, delivery_.header);
  }
  if (arrival.hashed) {
    image.resize(image.size() + 8);
    StoreBe<uint64_t>(image, image.size() - 8, uint64_t{arrival.hash} << 32 | arrival.hash);
  }
  image.insert(image.end(), arrival.frame.begin(), arrival.frame.end());
}

bool ModelOutput::Receive(const Arrival& arrival, Hostile* hostile) {
  const uint32_t size = ring_.buffer_bytes();
  if (!ring_.output_on() || size == 0) return false;
  // Asked first: a frame that waits is asked again.
  const size_t front = (ring_.info_mode() ? 0 : 16) + (arrival.hashed ? 8 : 0);
  const uint64_t bytes = front + arrival.frame.size();
  const uint32_t buffers = static_cast<uint32_t>((bytes + size - 1) / size);
  if (ring_.credits.load(std::memory_order_acquire) < buffers) return false;
  Build(arrival, hostile);
  if (!Write(buffers, hostile)) ++errors_;
  ring_.credits.fetch_sub(buffers, std::memory_order_acq_rel);
  const uint32_t packets = hostile != nullptr ? hostile->Counted(index_) : 1;
  if (packets == 0) return true;
  // After the data: who reads the counter sees them.
  if (ring_.sent.fetch_add(packets, std::memory_order_acq_rel) == 0) first_ = clock_.Now();
  return true;
}

bool ModelOutput::Write(uint32_t buffers, Hostile* hostile) {
  const uint32_t size = ring_.buffer_bytes();
  const uint32_t slots = ring_.list_size.load(std::memory_order_acquire);
  const uint64_t base = ring_.list_base.load(std::memory_order_acquire);
  bool good = true;
  for (uint32_t i = 0; i < buffers; ++i) {
    std::array<std::byte, kDroqDescriptorBytes> slot{};
    const bool read = port_.Read(Iova{base + uint64_t{kDroqDescriptorBytes} * next_}, slot);
    next_ = next_ + 1 >= slots ? 0 : next_ + 1;
    const uint64_t buffer = LoadLe<uint64_t>(slot, 0);
    const uint64_t info = LoadLe<uint64_t>(slot, 8);
    if (!read) {
      good = false;
      continue;
    }
    if (buffer == 0) good = Violate("a buffer at address 0", next_);
    const size_t from = size_t{i} * size;
    const size_t here = std::min<size_t>(size, delivery_.image.size() - from);
    good &= port_.Write(Iova{buffer}, std::span(delivery_.image).subspan(from, here));
    if (hostile != nullptr) hostile->Remember(Iova{buffer}, size);
    if (!ring_.info_mode()) {
      if (info != 0) good = Violate("an info pointer in buffer mode", info);
    } else if (i == 0) {
      good &= WriteInfo(Iova{info});
    }
  }
  return good;
}

bool ModelOutput::WriteInfo(Iova at) {
  if (at.value() == 0 || at.value() % 8 != 0) return Violate("an info pointer", at.value());
  std::array<std::byte, kInfoBytes> info{};
  if (!port_.Read(at, info)) return false;
  if (LoadBe<uint64_t>(info, 8) != 0) Violate("an info length is not 0", LoadBe<uint64_t>(info, 8));
  StoreBe<uint64_t>(info, 0, delivery_.header);
  StoreBe<uint64_t>(info, 8, delivery_.length);
  return port_.Write(at, info);
}

// --- Interrupt -----------------------------------------------------------------------------------

void ModelOutput::Connect(Notifier* notifier) {
  std::lock_guard<std::mutex> lock(mutex_);
  notifier_ = notifier;
}

// Once raised it is raised again only after RESEND (sheet 5.4).
bool ModelOutput::StepInterrupt() {
  const uint32_t control = ring_.output_control.load(std::memory_order_acquire);
  if (!ring_.output_on() || (control & (kOutputCountInterrupt | kOutputTimeInterrupt)) == 0) {
    return false;
  }
  const uint32_t waiting = ring_.sent.load(std::memory_order_acquire);
  if (waiting == 0 || ring_.interrupt_raised.load(std::memory_order_acquire)) return false;
  const uint64_t levels = ring_.int_levels.load(std::memory_order_acquire);
  const bool many =
      (control & kOutputCountInterrupt) != 0 && waiting > static_cast<uint32_t>(levels);
  const auto ticks = dma::Nanos{
      static_cast<int64_t>((levels >> kIntLevelsTimeShift & kIntLevelsTimeMax) * kNanosPerTick)};
  const bool late = (control & kOutputTimeInterrupt) != 0 && clock_.Now() - first_ >= ticks;
  if (!many && !late) return false;
  // Before the notification: a RESEND that comes in between finds it on its way.
  ring_.interrupt_raised.store(true, std::memory_order_release);
  first_ = clock_.Now();
  std::lock_guard<std::mutex> lock(mutex_);
  if (notifier_ != nullptr) notifier_->Notify();
  return true;
}

}  // namespace dmakit::nic::liquidio
