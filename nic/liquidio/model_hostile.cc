// SPDX-License-Identifier: Apache-2.0

#include "nic/liquidio/model_hostile.h"

#include <algorithm>
#include <vector>

#include "nic/liquidio/descriptors.h"

namespace dmakit::nic::liquidio {
namespace {

constexpr size_t kRemembered = 64;
constexpr uint64_t kShortWhile = 20;  // steps
constexpr uint64_t kLongWhile = 200;
constexpr uint64_t kWildBase = uint64_t{1} << 45;

}  // namespace

std::string_view Name(HostileAct act) {
  constexpr std::string_view kNames[kHostileActs] = {
      "length",     "header", "count more", "count less", "sent lie", "done lie", "control lie",
      "late write", "wild",   "stopped",    "gone",       "stuck",    "dropped"};
  return kNames[static_cast<size_t>(act)];
}

bool Hostile::Does(HostileAct act, uint32_t one_in) {
  if ((kinds_ & Only(act)) == 0 || random_() % one_in != 0) return false;
  ++counts_.acts[static_cast<size_t>(act)];
  return true;
}

// Small numbers, large ones, and those around the edges of a word.
uint64_t Hostile::Nonsense() {
  const uint64_t r = random_();
  switch (r % 4) {
    case 0:
      return r >> 32 & 0xffff;
    case 1:
      return ~(r >> 32 & 0xff);
    case 2:
      return uint64_t{1} << (r >> 32 & 63);
    default:
      return random_();
  }
}

void Hostile::Say(uint64_t& length, uint64_t& header) {
  if (Does(HostileAct::kLength, 300)) length = Nonsense();
  if (!Does(HostileAct::kHeader, 300)) return;
  // Half of them are still frames, with flags and lengths that do not fit.
  constexpr uint64_t kFrame = uint64_t{0xfff} << 52;
  header = random_() % 2 == 0 ? random_() : (header & kFrame) | (random_() & ~kFrame);
}

uint32_t Hostile::Counted(uint32_t) {
  if (Does(HostileAct::kCountLess, 300)) {
    ++owed_;
    return 0;
  }
  uint32_t count = 1 + owed_;
  owed_ = 0;
  if (Does(HostileAct::kCountMore, 400)) count += 1 + static_cast<uint32_t>(random_() % 5);
  return count;
}

void Hostile::Remember(Iova buffer, uint32_t bytes) {
  buffers_.push_back({buffer, bytes});
  if (buffers_.size() > kRemembered) buffers_.pop_front();
}

bool Hostile::Drops() { return Does(HostileAct::kDropped, 500); }

uint64_t Hostile::Answer(uint32_t ring, RingReg reg, uint64_t truth) {
  if (now_ < gone_until_) return kAllOnes64;
  const auto lied = [&](const Lie& lie) { return now_ < lie.until && ring == lie.ring; };
  if (reg == RingReg::kPktCnts && lied(sent_)) return sent_.value;
  if (reg == RingReg::kInDoneCnts && lied(done_)) return done_.value;
  if (reg == RingReg::kInputControl && lied(control_)) return control_.value;
  return truth;
}

void Hostile::Begin(Lie& lie) {
  lie = {now_ + 1 + random_() % kShortWhile, Nonsense(),
         static_cast<uint32_t>(random_() % std::min(registers_.rings(), 3u))};
}

void Hostile::WriteLate() {
  if (buffers_.empty()) return;
  const Buffer& to = buffers_[random_() % buffers_.size()];
  std::vector<std::byte> bytes(1 + random_() % to.bytes, static_cast<std::byte>(random_()));
  if (!port_.Write(to.at, bytes)) ++counts_.late_faults;
}

void Hostile::AccessWild() {
  std::array<std::byte, 64> bytes{};
  const Iova at{kWildBase + random_() % kWildBase};
  const bool done = random_() % 2 == 0 ? port_.Read(at, bytes) : port_.Write(at, bytes);
  if (!done) ++counts_.wild_faults;
}

void Hostile::Step(bool worked) {
  ++now_;
  if (!worked) return;  // it comes to rest where an honest one does
  if (Does(HostileAct::kSentLie, 100)) Begin(sent_);
  if (Does(HostileAct::kDoneLie, 100)) Begin(done_);
  if (Does(HostileAct::kControlLie, 500)) Begin(control_);
  if (Does(HostileAct::kLateWrite, 100)) WriteLate();
  if (Does(HostileAct::kWild, 200)) AccessWild();
  if (Does(HostileAct::kGone, 3000)) gone_until_ = now_ + 1 + random_() % kLongWhile;
  if (Does(HostileAct::kStuck, 3000)) stuck_until_ = now_ + 1 + random_() % (20 * kLongWhile);
  if (!Does(HostileAct::kStopped, 3000)) return;
  RingRegisters& ring = registers_.ring(0);
  if (random_() % 2 == 0) {
    ring.output_control.fetch_and(~kOutputRingEnable, std::memory_order_acq_rel);
  } else {
    ring.input_control.fetch_and(~kInputRingEnable, std::memory_order_acq_rel);
  }
}

void Hostile::Reset() {
  owed_ = 0;
  buffers_.clear();
  gone_until_ = stuck_until_ = 0;
  sent_ = done_ = control_ = {};
}

}  // namespace dmakit::nic::liquidio
