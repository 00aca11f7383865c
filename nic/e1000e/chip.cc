// SPDX-License-Identifier: Apache-2.0

#include "nic/e1000e/chip.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "dma/poll.h"

namespace dmakit::nic::e1000e {
namespace {

constexpr dma::Nanos kMillisecond{1'000'000};
constexpr dma::Nanos kMasterTime = 80 * kMillisecond;  // sheet 2.1
constexpr dma::Nanos kQuietTime = 10 * kMillisecond;   // sheet 2.3
constexpr dma::Nanos kOwnerTime = 20 * kMillisecond;
constexpr dma::Nanos kResetTime = 100 * kMillisecond;
constexpr dma::Nanos kPhyTime = 25 * kMillisecond;  // sheet 2.5
constexpr dma::Nanos kNvmTime = 10 * kMillisecond;

// In the order of DeviceCounters.
constexpr Reg kCounterRegisters[] = {
    Reg::kGprc,     Reg::kGptc,    Reg::kMpc,    Reg::kRnbc, Reg::kCrcErrs,
    Reg::kAlgnErrC, Reg::kSymErrs, Reg::kRxErrC, Reg::kSec,  Reg::kCexterr,
    Reg::kRlec,     Reg::kRuc,     Reg::kRfc,    Reg::kRoc,  Reg::kRjc,
};
static_assert(std::size(kCounterRegisters) == sizeof(DeviceCounters) / sizeof(uint64_t));

// Receive-side scaling needs any key that spreads; this one is fixed, so that runs can be repeated.
constexpr uint32_t kHashKey[kKeyWords] = {0xda56'5a6d, 0xc20e'5b25, 0x3d25'6741, 0xb08f'a343,
                                          0xcb2b'cad0, 0xb430'7bae, 0xa32d'cb77, 0x0cf2'3080,
                                          0x3bb7'426a, 0xfa01'acbe};

constexpr uint32_t kLongestShortFrame = 1518;  // without LPE, FCS not counted: one VLAN tag fits

bool IsStationAddress(const std::array<uint8_t, 6>& mac) {
  const bool zero = std::all_of(mac.begin(), mac.end(), [](uint8_t b) { return b == 0; });
  return !zero && (mac[0] & 1) == 0;
}

}  // namespace

std::string_view Describe(Halt halt) {
  switch (halt) {
    case Halt::kStopped:
      return "stopped";
    case Halt::kStillRunning:
      return "still mastering the bus when the stop deadline passed";
    case Halt::kGone:
      return "the device is gone: its registers read all ones";
  }
  return "?";
}

Chip::Chip(dma::Device& device, const dma::MmioRegion& bar0)
    : device_(&device),
      bar_(bar0),
      name_(device.name()),
      counts_(std::make_unique<std::array<std::atomic<uint64_t>, kCounters>>()) {}

absl::StatusOr<Chip> Chip::Probe(dma::Device& device, const dma::MmioRegion& bar0) {
  const std::string name(device.name());
  if (bar0.size() < kBar0Bytes) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": BAR 0 of ", bar0.size(),
                                                      " bytes: an 82574L has ", kBar0Bytes,
                                                      "; check the device's identity"));
  }
  Chip chip(device, bar0);
  if (chip.gone()) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, ": ", std::string(Describe(Halt::kGone)), "; is its memory space enabled?"));
  }
  return chip;
}

void Chip::Sleep(dma::Nanos time) const {
  (void)dma::PollUntil(device_->waiter(), time, [] { return false; });
}

// --- Reset ---------------------------------------------------------------------------------------

// Sheet 2, 1 to 3. Receive and transmit go first: what is then on its way ends by itself.
Halt Chip::Stop(dma::Nanos timeout) const {
  const uint32_t control = Read(Reg::kCtrl);
  if (control == kAllOnes && gone()) return Halt::kGone;
  Write(Reg::kImc, kAllOnes);
  Write(Reg::kRctl, 0);
  Write(Reg::kTctl, 0);
  Write(Reg::kCtrl, control | ctrl::kMasterDisable);
  uint32_t value = 0;
  const bool answered = dma::PollUntil(device_->waiter(), timeout, [&] {
    value = Read(Reg::kStatus);
    return value == kAllOnes || (value & status::kMasterEnable) == 0;
  });
  if (value == kAllOnes) return Halt::kGone;
  return answered ? Halt::kStopped : Halt::kStillRunning;
}

absl::Status Chip::Reset() {
  const Halt halt = Stop(kMasterTime);
  if (halt != Halt::kStopped) {
    return absl::FailedPreconditionError(
        absl::StrCat(name_, ": in use before it was set up: ", std::string(Describe(halt)),
                     "; reset it from outside, or power it off and on"));
  }
  Sleep(kQuietTime);
  if (absl::Status s = ResetMac(); !s.ok()) return s;
  // A reset need not clear these, nor those of the rings (sheet 2): all are written again.
  Write(Reg::kImc, kAllOnes);
  Write(Reg::kRctl, 0);
  Write(Reg::kTctl, 0);
  Write(Reg::kRfctl, 0);
  (void)Read(Reg::kIcr);  // nothing is unmasked: this clears it
  return ReadAddress();
}

// Sheet 2, 4 and 5. Firmware that owns the PHY is waited for, but not for ever.
absl::Status Chip::ResetMac() const {
  (void)dma::PollUntil(device_->waiter(), kOwnerTime, [&] {
    const uint32_t owner = Read(Reg::kExtcnfCtrl);
    if (owner == kAllOnes) return true;
    Write(Reg::kExtcnfCtrl, owner | kExtcnfMdioOwner);
    return (Read(Reg::kExtcnfCtrl) & kExtcnfMdioOwner) != 0;
  });
  Write(Reg::kCtrl, Read(Reg::kCtrl) | ctrl::kReset);
  Sleep(kMillisecond);  // it does not answer at first
  uint32_t control = 0;
  uint32_t nvm = 0;
  const bool done = dma::PollUntil(device_->waiter(), kResetTime, [&] {
    control = Read(Reg::kCtrl);
    nvm = Read(Reg::kEecd);
    return control != kAllOnes && (control & ctrl::kReset) == 0 && (nvm & kEecdAutoRead) != 0;
  });
  if (!done) {
    const bool reset = control != kAllOnes && (control & ctrl::kReset) == 0;
    return absl::UnavailableError(
        absl::StrCat(name_, ": ", reset ? "its NVM was not read" : "its reset did not end",
                     " within ", kResetTime / kMillisecond, " ms (CTRL ", absl::Hex(control),
                     ", EECD ", absl::Hex(nvm), "); try again, or power it off and on"));
  }
  Write(Reg::kExtcnfCtrl, Read(Reg::kExtcnfCtrl) & ~kExtcnfMdioOwner);
  Sleep(kPhyTime);
  return absl::OkStatus();
}

// Sheet 2.7. What the registers hold may be an earlier driver's, so the NVM is asked first.
absl::Status Chip::ReadAddress() {
  bool known = true;
  for (uint32_t word = 0; word < 3 && known; ++word) {
    uint16_t value = 0;
    known = ReadNvm(word, value);
    mac_[word * 2] = static_cast<uint8_t>(value);
    mac_[word * 2 + 1] = static_cast<uint8_t>(value >> 8);
  }
  if (known && IsStationAddress(mac_)) return absl::OkStatus();
  const uint32_t low = Read(Reg::kRal);
  const uint32_t high = Read(Reg::kRah);
  for (unsigned i = 0; i < 6; ++i) {
    mac_[i] = static_cast<uint8_t>(i < 4 ? low >> (8 * i) : high >> (8 * (i - 4)));
  }
  if (low != kAllOnes && (high & kRahValid) != 0 && IsStationAddress(mac_)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(name_, ": no station address, neither in the NVM nor in RAL0 ", absl::Hex(low),
                   " and RAH0 ", absl::Hex(high), "; its NVM must be programmed"));
}

bool Chip::ReadNvm(uint32_t word, uint16_t& value) const {
  Write(Reg::kEerd, word << eerd::kAddressAt | eerd::kStart);
  uint32_t answer = 0;
  const bool done = dma::PollUntil(device_->waiter(), kNvmTime, [&] {
    answer = Read(Reg::kEerd);
    return (answer & eerd::kDone) != 0;
  });
  value = static_cast<uint16_t>(answer >> eerd::kDataAt);
  return done && answer != kAllOnes;
}

// --- Set-up --------------------------------------------------------------------------------------

void Chip::Configure(const ChipSettings& settings) {
  // Sheet 2, 82574 specifics.
  Write(Reg::kGcr, Read(Reg::kGcr) | kGcrErratum22);
  // Pause frames are neither sent nor obeyed: a port that forwards must not stop others.
  for (const Reg reg : {Reg::kFcal, Reg::kFcah, Reg::kFct, Reg::kFcttv, Reg::kFcrtl, Reg::kFcrth}) {
    Write(reg, 0);
  }
  Write(Reg::kVet, kVlanEtherType);
  Write(Reg::kPba, kRxPacketBuffer);
  ClearFilters();
  SetUpSpreading(settings);
  SetUpInterrupts(settings);
  Write(Reg::kTipg, kTipgValue);
  uint32_t control = Read(Reg::kCtrl);
  control &= ~(ctrl::kMasterDisable | ctrl::kLinkReset | ctrl::kForceSpeed | ctrl::kForceDuplex |
               ctrl::kReset | ctrl::kRxPause | ctrl::kTxPause | ctrl::kErratum29 | ctrl::kVlanMode |
               ctrl::kPhyReset);
  control |= ctrl::kFullDuplex | ctrl::kSetLinkUp | ctrl::kAutoSpeed;
  if (settings.vlan) control |= ctrl::kVlanMode;
  Write(Reg::kCtrl, control);
  // What was counted so far was not for us.
  for (const Reg reg : kCounterRegisters) (void)Read(reg);
}

void Chip::ClearFilters() const {
  for (uint32_t i = 1; i < kAddresses; ++i) {
    bar_.Write32(OffsetOf(Reg::kRah, i, 8), 0);
    bar_.Write32(OffsetOf(Reg::kRal, i, 8), 0);
  }
  for (uint32_t i = 0; i < kFilterWords; ++i) Write(Reg::kMta, i, 0);
  for (uint32_t i = 0; i < kFilterWords; ++i) Write(Reg::kVfta, i, 0);
  Write(Reg::kRal, uint32_t{mac_[0]} | uint32_t{mac_[1]} << 8 | uint32_t{mac_[2]} << 16 |
                       uint32_t{mac_[3]} << 24);
  Write(Reg::kRah, uint32_t{mac_[4]} | uint32_t{mac_[5]} << 8 | kRahValid);
}

// With two receive queues a hash chooses, and takes the place of IP id and checksum in a
// write-back.
void Chip::SetUpSpreading(const ChipSettings& settings) const {
  const bool spread = settings.rx_queues > 1;
  Write(Reg::kMrqc, 0);
  for (uint32_t i = 0; i < kKeyWords; ++i) Write(Reg::kRssrk, i, kHashKey[i]);
  // Every other entry is queue 1's.
  for (uint32_t i = 0; i < kRetaWords; ++i) {
    Write(Reg::kReta, i, spread ? uint32_t{kRetaQueue1} << 8 | uint32_t{kRetaQueue1} << 24 : 0);
  }
  Write(Reg::kRxcsum, rxcsum::kIp | rxcsum::kTcpUdp | (spread ? rxcsum::kHashForm : 0));
  Write(Reg::kRfctl, rfctl::kExtended | rfctl::kAckDisable);
  if (spread) {
    Write(Reg::kMrqc, mrqc::kHash | mrqc::kTcpIpv4 | mrqc::kIpv4 | mrqc::kTcpIpv6 | mrqc::kIpv6);
  }
}

// Vector i is receive queue i's. Its message clears its cause (EIAC) and masks it (EIAME, IAM).
void Chip::SetUpInterrupts(const ChipSettings& settings) const {
  uint32_t extended = Read(Reg::kCtrlExt);
  extended &= ~(ctrl_ext::kErratum23 | ctrl_ext::kEiame | ctrl_ext::kIame | ctrl_ext::kPbaClear);
  extended |= ctrl_ext::kErratum22;
  uint32_t causes = 0;
  uint32_t vectors = 0;
  uint32_t interval = 0;
  if (settings.interrupts) {
    extended |= ctrl_ext::kEiame | ctrl_ext::kPbaClear;
    interval = static_cast<uint32_t>(std::min<uint64_t>(
        static_cast<uint64_t>(settings.coalescing.count()) / kEitrNanos, kMaxEitr));
    for (uint32_t i = 0; i < settings.rx_queues; ++i) {
      causes |= icr::RxQueue(i);
      vectors |= ivar::RxVector(i, i);
    }
  }
  Write(Reg::kCtrlExt, extended);
  Write(Reg::kItr, 0);
  for (uint32_t i = 0; i < kVectors; ++i) Write(Reg::kEitr, i, interval);
  Write(Reg::kIvar, vectors);
  Write(Reg::kIam, causes);
  Write(Reg::kEiac, causes);
}

void Chip::Enable(const ChipSettings& settings) {
  if (settings.tx_queues != 0) {
    Write(Reg::kTctl, tctl::kEnable | tctl::kPadShort | tctl::kCollisions | tctl::kDistance |
                          tctl::kRetransmit);
  }
  if (settings.rx_queues == 0) return;
  uint32_t control =
      rctl::kEnable | rctl::kBroadcast | rctl::kStripCrc | BufferSizeBits(settings.buffer_size);
  if (settings.promiscuous) control |= rctl::kAllUnicast | rctl::kAllMulticast;
  if (settings.max_frame > kLongestShortFrame) control |= rctl::kLongPackets;
  Write(Reg::kRctl, control);
}

// --- Link and statistics -------------------------------------------------------------------------

bool Chip::link_up() const {
  const uint32_t value = Read(Reg::kStatus);
  return value != kAllOnes && (value & status::kLinkUp) != 0;
}

bool Chip::WaitForLink(dma::Nanos timeout) const {
  return dma::PollUntil(device_->waiter(), timeout, [&] { return link_up() || gone(); }) &&
         link_up();
}

void Chip::Collect() const {
  for (size_t i = 0; i < kCounters; ++i) {
    const uint32_t seen = Read(kCounterRegisters[i]);
    if (seen == 0) continue;
    if (seen == kAllOnes && gone()) return;
    (*counts_)[i].fetch_add(seen, std::memory_order_relaxed);
  }
}

DeviceCounters Chip::counters() const {
  Collect();
  const auto at = [&](size_t i) { return (*counts_)[i].load(std::memory_order_relaxed); };
  return {at(0), at(1), at(2),  at(3),  at(4),  at(5),  at(6), at(7),
          at(8), at(9), at(10), at(11), at(12), at(13), at(14)};
}

}  // namespace dmakit::nic::e1000e
