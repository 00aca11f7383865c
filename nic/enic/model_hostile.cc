// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/model_hostile.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace dmakit::nic::enic {
namespace {

// How often, so that most frames still come through between two acts.
constexpr uint32_t kSpoilOneIn = 24;      // completions
constexpr uint32_t kMisbehaveOneIn = 16;  // completions, too
constexpr uint32_t kBreakOneIn = 128;     // of those acts, for each that ends a queue's work
constexpr uint32_t kDropOneIn = 64;       // frames
constexpr uint32_t kForeverOneIn = 4;     // lies about `running`

constexpr uint32_t kMostFuel = 256;
constexpr uint32_t kAftermath = 64;  // steps
constexpr uint32_t kAftermathOneIn = 4;
constexpr uint32_t kSpare = 16;  // entries of a completion ring
constexpr size_t kBuffersKept = 64;
constexpr uint32_t kMostHeld = 8;
constexpr uint32_t kMostDelay = 200;  // steps
constexpr uint32_t kMostGone = 60;
constexpr uint32_t kMostLie = 400;
constexpr uint64_t kForever = std::numeric_limits<uint64_t>::max();
// Flipping it leads out of everything that anybody maps, also beyond the tables' width.
constexpr uint64_t kFarBit = uint64_t{1} << 46;

constexpr HostileAct kSpoilRx[] = {
    HostileAct::kPermuted, HostileAct::kDuplicated, HostileAct::kDelayed,  HostileAct::kLost,
    HostileAct::kForged,   HostileAct::kImpossible, HostileAct::kUnposted, HostileAct::kTorn};
constexpr HostileAct kSpoilTx[] = {
    HostileAct::kPermuted, HostileAct::kDuplicated, HostileAct::kDelayed,  HostileAct::kLost,
    HostileAct::kForged,   HostileAct::kImpossible, HostileAct::kUnposted, HostileAct::kTorn,
    HostileAct::kJumped,   HostileAct::kMiddle};

constexpr uint32_t kIndexes = 4096;  // what 12 bits can name
constexpr uint32_t kQueueNumbers = 1024;
constexpr uint32_t kTypes = 16;

uint32_t IndexOf(const Words& words) { return DecodeCqWq(words).completed_index; }
// Index and queue are at one place in both kinds of entry.
Words WithIndex(Words words, uint32_t index) {
  words.low = (words.low & ~uint64_t{0xfff}) | (index & 0xfff);
  return words;
}
Words WithQueue(Words words, uint32_t queue) {
  words.low = (words.low & ~(uint64_t{0x3ff} << 16)) | uint64_t{queue & 0x3ff} << 16;
  return words;
}

CqType TypeFor(const ModelQueue& queue) {
  return queue.place().block == Block::kWq ? CqType::kWqEnet : CqType::kRqEnet;
}

RegisterBlock& BlockOf(RegisterFile& registers, const ModelQueue& queue) {
  return queue.place().block == Block::kWq ? registers.wq(queue.index())
                                           : registers.rq(queue.index());
}

bool Same(Place a, Place b) { return a.block == b.block && a.index == b.index; }

}  // namespace

std::string_view Name(HostileAct act) {
  constexpr std::string_view kNames[] = {
      "permuted", "duplicated",  "delayed", "lost",        "forged",     "impossible",
      "unposted", "torn",        "jumped",  "middle",      "late write", "wild access",
      "reread",   "queue error", "gone",    "running lie", "fetch lie",  "dropped"};
  static_assert(std::size(kNames) == kHostileActs);
  return kNames[static_cast<size_t>(act)];
}

uint64_t HostileCounts::total() const {
  uint64_t sum = 0;
  for (const uint64_t n : acts) sum += n;
  return sum;
}

Hostile::Hostile(uint64_t seed, dma::DevicePort& port, RegisterFile& registers)
    : port_(port), registers_(registers), random_(seed) {}

void Hostile::Reset() {
  fuel_ = hold_ = aftermath_ = 0;
  targets_.clear();
  buffers_.clear();
  held_.clear();
  delayed_.clear();
  bodies_.clear();
  gone_until_ = 0;
  running_ = fetch_ = {};
}

// --- Completions ---------------------------------------------------------------------------------

bool Hostile::Complete(CompletionWriter& cq, ModelQueue& queue, Words words, CqType type) {
  fuel_ = std::min(fuel_ + 1, kMostFuel);
  aftermath_ = kAftermath;
  const Entry honest{{&cq, &queue}, words, type};
  Know(honest.target);
  if (queue.place().block == Block::kRq) Remember(queue, words);
  if (hold_ > 0) {
    Count(HostileAct::kPermuted);
    held_.push_back(honest);
    if (--hold_ == 0) WriteHeld();
    return true;
  }
  if (!OneIn(kSpoilOneIn)) return Emit(honest);
  const std::span<const HostileAct> acts = queue.place().block == Block::kWq
                                               ? std::span<const HostileAct>(kSpoilTx)
                                               : std::span<const HostileAct>(kSpoilRx);
  const HostileAct act = acts[Below(static_cast<uint32_t>(acts.size()))];
  return May(act) ? Spoil(act, honest) : Emit(honest);
}

bool Hostile::Spoil(HostileAct act, Entry honest) {
  const ModelQueue& queue = *honest.target.queue;
  if (act != HostileAct::kDuplicated) Count(act);
  switch (act) {
    case HostileAct::kPermuted:
      hold_ = 1 + Below(kMostHeld - 1);
      held_until_ = now_ + kMostDelay;
      held_.push_back(honest);
      return true;
    case HostileAct::kDuplicated:
      return Duplicate(honest);
    case HostileAct::kDelayed:
      honest.due = now_ + 1 + Below(kMostDelay);
      delayed_.push_back(honest);
      return true;
    case HostileAct::kLost:
      return true;
    case HostileAct::kForged:
      return Emit(Forge(honest.target)) && (OneIn(4) || Emit(honest));
    case HostileAct::kImpossible:
      return Emit(Impossible(honest.target)) && Emit(honest);
    case HostileAct::kUnposted:
      return Emit(Unposted(honest)) && Emit(honest);
    case HostileAct::kTorn:
      return Tear(honest);
    case HostileAct::kJumped: {
      const uint64_t posted = BlockOf(registers_, queue).Get(WqReg::kPostedIndex);
      const uint32_t last = static_cast<uint32_t>(posted + queue.size() - 1) % queue.size();
      honest.words = WithIndex(honest.words, last);
      return Emit(honest);
    }
    case HostileAct::kMiddle: {
      const uint32_t back = 1 + Below(3);
      const uint32_t index = (IndexOf(honest.words) + queue.size() - back) % queue.size();
      Entry middle = honest;
      middle.words = WithIndex(honest.words, index);
      return Emit(middle) && Emit(honest);
    }
    default:
      return Emit(honest);
  }
}

bool Hostile::Emit(const Entry& entry) {
  const ModelQueue& queue = *entry.target.queue;
  const CqEnetWqDesc done = DecodeCqWq(entry.words);
  ++counts_.entries;
  ++Know(entry.target).written;
  if (entry.type != TypeFor(queue) || done.q_number != queue.index() ||
      done.completed_index >= queue.size()) {
    ++counts_.impossible;
  }
  return entry.target.cq->Append(entry.words, entry.type);
}

bool Hostile::Duplicate(const Entry& entry) {
  bool written = Emit(entry);
  for (uint32_t more = 1 + Below(2); more > 0 && written; --more) {
    Count(HostileAct::kDuplicated);
    written = Emit(entry);
  }
  return written;
}

// The body that is there when the color appears is what the slot held a lap ago.
bool Hostile::Tear(const Entry& entry) {
  ++counts_.entries;
  const CompletionWriter::Slot slot = entry.target.cq->Claim();
  bodies_.push_back({slot.at, entry.words, now_ + 1 + Below(4)});
  return port_.Publish(slot.at + Bytes{kColorByte}, TypeColor(entry.type, slot.color), 1);
}

Hostile::Entry Hostile::Forge(const Target& target) {
  const ModelQueue& queue = *target.queue;
  Entry entry{target, {random_(), random_()}, TypeFor(queue)};
  entry.words = WithIndex(WithQueue(entry.words, queue.index()), Below(queue.size()));
  if (queue.place().block == Block::kWq) return entry;
  // Lengths at the edges of what is possible, any combination of flags.
  const uint32_t capacity = buffers_.empty() ? 1518 : buffers_.back().capacity;
  const uint32_t lengths[] = {0, 1, 60, capacity, capacity + 1, 0x3fff, Below(0x4000)};
  CqEnetRqDesc d = DecodeCqRq(entry.words);
  d.bytes_written = static_cast<uint16_t>(lengths[Below(std::size(lengths))] & 0x3fff);
  // Half of them with the framing of a good one, so that the rest of the entry is looked at.
  if (OneIn(2)) {
    d.sop = d.eop = true;
    d.truncated = false;
  }
  entry.words = Encode(d);
  return entry;
}

Hostile::Entry Hostile::Impossible(const Target& target) {
  const ModelQueue& queue = *target.queue;
  Entry entry = Forge(target);
  const uint32_t how = Below(3);
  if (how == 0) {
    const uint32_t type = static_cast<uint32_t>(entry.type);
    entry.type = static_cast<CqType>((type + 1 + Below(kTypes - 1)) % kTypes);
  } else if (how == 1 || queue.size() == kIndexes) {
    const uint32_t other = (queue.index() + 1 + Below(kQueueNumbers - 1)) % kQueueNumbers;
    entry.words = WithQueue(entry.words, other);
  } else {
    const uint32_t beyond = queue.size() + Below(kIndexes - queue.size());
    entry.words = WithIndex(entry.words, beyond);
  }
  return entry;
}

// From posted_index on, over the unused slot and what was completed already.
Hostile::Entry Hostile::Unposted(Entry honest) {
  const ModelQueue& queue = *honest.target.queue;
  const RegisterBlock& block = BlockOf(registers_, queue);
  const uint64_t size = queue.size();
  const uint64_t posted = block.Get(RqReg::kPostedIndex) % size;
  const uint64_t held = (posted + size - block.Get(RqReg::kFetchIndex) % size) % size;
  const uint64_t index = (posted + Below(static_cast<uint32_t>(size - held))) % size;
  honest.words = WithIndex(honest.words, static_cast<uint32_t>(index));
  return honest;
}

void Hostile::WriteHeld() {
  hold_ = 0;
  std::shuffle(held_.begin(), held_.end(), random_);
  for (const Entry& entry : std::exchange(held_, {})) {
    if (!Emit(entry)) return;
  }
}

// --- In between ----------------------------------------------------------------------------------

bool Hostile::Step(bool worked) {
  ++now_;
  worked |= WriteDue();
  for (; fuel_ > 0; --fuel_) {
    if (!targets_.empty() && OneIn(kMisbehaveOneIn)) Misbehave();
    worked = true;
  }
  if (worked || !held_.empty() || !delayed_.empty() || !bodies_.empty()) return true;
  for (Target& target : targets_) target.written = 0;
  if (aftermath_ > 0) {
    --aftermath_;
    if (!targets_.empty() && OneIn(kAftermathOneIn)) Misbehave();
  }
  return false;
}

// What cannot be written, because the ring is gone, is forgotten.
bool Hostile::WriteDue() {
  bool wrote = false;
  if (!held_.empty() && now_ >= held_until_) {
    WriteHeld();
    wrote = true;
  }
  for (size_t i = 0; i < delayed_.size();) {
    if (delayed_[i].due > now_) {
      ++i;
      continue;
    }
    wrote |= Emit(delayed_[i]);
    delayed_.erase(delayed_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (size_t i = 0; i < bodies_.size();) {
    if (bodies_[i].due > now_) {
      ++i;
      continue;
    }
    const std::array<std::byte, kDescriptorBytes> bytes = ToBytes(bodies_[i].words);
    wrote |= port_.Write(bodies_[i].at, std::span(bytes).first(kColorByte));
    bodies_.erase(bodies_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return wrote;
}

void Hostile::Misbehave() {
  const Target target = targets_[Below(static_cast<uint32_t>(targets_.size()))];
  ModelQueue& queue = *target.queue;
  constexpr HostileAct kActs[] = {
      HostileAct::kLateWrite, HostileAct::kWild,       HostileAct::kReread,
      HostileAct::kForged,    HostileAct::kImpossible, HostileAct::kError,
      HostileAct::kGone,      HostileAct::kRunningLie, HostileAct::kFetchLie};
  const HostileAct act = kActs[Below(std::size(kActs))];
  if (!May(act)) return;
  // Memory it knows of it may use at any time, also when it was told to stop.
  const bool memory = act == HostileAct::kLateWrite || act == HostileAct::kWild;
  if (!memory && !queue.running()) return;
  if (act >= HostileAct::kError && !OneIn(kBreakOneIn / 8)) return;
  if (act == HostileAct::kLateWrite && buffers_.empty()) return;
  Count(act);
  switch (act) {
    case HostileAct::kLateWrite:
      return WriteLate();
    case HostileAct::kWild:
      return AccessWild();
    case HostileAct::kReread:
      return Reread(queue);
    case HostileAct::kForged:
    case HostileAct::kImpossible:
      if (!Emit(act == HostileAct::kForged ? Forge(target) : Impossible(target))) {
        queue.Stop(QueueError::kAddressFault);
      }
      return;
    case HostileAct::kError:
      return queue.Stop(QueueError::kInternal);
    case HostileAct::kGone:
      gone_until_ = now_ + 1 + Below(kMostGone);
      return;
    case HostileAct::kRunningLie:
      return LieAboutRunning(queue);
    case HostileAct::kFetchLie:
      return LieAboutFetch(queue);
    default:
      return;
  }
}

bool Hostile::Drops() {
  if (!May(HostileAct::kDropped) || !OneIn(kDropOneIn)) return false;
  Count(HostileAct::kDropped);
  return true;
}

Hostile::Target& Hostile::Know(const Target& target) {
  for (Target& known : targets_) {
    if (known.queue == target.queue && known.cq == target.cq) return known;
  }
  targets_.push_back(target);
  targets_.back().posted = BlockOf(registers_, *target.queue).Get(RqReg::kPostedIndex);
  return targets_.back();
}

// A driver that has posted, or had time to, is taken to have read everything before.
uint32_t Hostile::Room(const ModelQueue& queue) {
  for (Target& known : targets_) {
    if (known.queue != &queue) continue;
    const uint64_t posted = BlockOf(registers_, queue).Get(RqReg::kPostedIndex);
    if (std::exchange(known.posted, posted) != posted) known.written = 0;
    const uint32_t most = queue.size() - kSpare;
    return known.written < most ? most - known.written : 0;
  }
  return queue.size();
}

// --- Memory --------------------------------------------------------------------------------------

// Where the completed buffer is, as its descriptor still says.
void Hostile::Remember(const ModelQueue& queue, const Words& words) {
  std::array<std::byte, kDescriptorBytes> bytes;
  const Iova ring{BlockOf(registers_, queue).Get(RqReg::kRingBase)};
  if (!port_.Read(ring + Bytes{uint64_t{IndexOf(words)} * kDescriptorBytes}, bytes)) return;
  const RqEnetDesc d = DecodeRq(FromBytes(bytes));
  if (buffers_.size() == kBuffersKept) buffers_.pop_front();
  buffers_.push_back({Iova{d.address}, LengthOf(d.length)});
}

void Hostile::WriteLate() {
  const Buffer& buffer = buffers_[Below(static_cast<uint32_t>(buffers_.size()))];
  const uint32_t at = Below(buffer.capacity);
  const uint32_t length = std::min(1 + Below(256), buffer.capacity - at);
  std::array<std::byte, 256> bytes;
  bytes.fill(static_cast<std::byte>(random_()));
  if (!port_.Write(buffer.at + Bytes{at}, std::span(bytes).first(length))) ++counts_.late_faults;
}

void Hostile::AccessWild() {
  const uint64_t near = buffers_.empty() ? random_() >> 17 : buffers_.back().at.value();
  const Iova far{(near ^ kFarBit) & ~uint64_t{63}};
  std::array<std::byte, 64> bytes{};
  const bool done = OneIn(2) ? port_.Write(far, bytes) : port_.Read(far, bytes);
  if (!done) ++counts_.wild_faults;
}

void Hostile::Reread(const ModelQueue& queue) {
  std::array<std::byte, kDescriptorBytes> bytes;
  const Iova ring{BlockOf(registers_, queue).Get(RqReg::kRingBase)};
  const uint32_t slot = Below(queue.size());
  if (!port_.Read(ring + Bytes{uint64_t{slot} * kDescriptorBytes}, bytes)) return;
}

// --- Registers -----------------------------------------------------------------------------------

void Hostile::LieAboutRunning(const ModelQueue& queue) {
  const uint64_t until = OneIn(kForeverOneIn) ? kForever : now_ + 1 + Below(kMostLie);
  running_ = {queue.place(), OneIn(4) ? 0u : 1u, until};
}

void Hostile::LieAboutFetch(const ModelQueue& queue) {
  const uint64_t size = queue.size();
  const uint64_t values[] = {size, size + Below(100'000), kAllOnes, Below(queue.size())};
  fetch_ = {queue.place(), values[Below(std::size(values))], now_ + 1 + Below(kMostLie)};
}

uint64_t Hostile::Answer(Place place, uint64_t offset, uint64_t truth) {
  if (now_ < gone_until_) return ~uint64_t{0};
  if (place.block != Block::kWq && place.block != Block::kRq) return truth;
  static_assert(OffsetOf(RqReg::kRunning) == OffsetOf(WqReg::kRunning));
  static_assert(OffsetOf(RqReg::kFetchIndex) == OffsetOf(WqReg::kFetchIndex));
  const auto lies = [&](const Lie& lie) { return now_ < lie.until && Same(lie.place, place); };
  if (offset == OffsetOf(RqReg::kRunning) && lies(running_)) return running_.value;
  if (offset == OffsetOf(RqReg::kFetchIndex) && lies(fetch_)) return fetch_.value;
  return truth;
}

}  // namespace dmakit::nic::enic
