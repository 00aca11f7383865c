// SPDX-License-Identifier: Apache-2.0

#include "nic/e1000e/chip.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace dmakit::nic::e1000e {
namespace {

// Sheet 2.
constexpr dma::Nanos kMasterTime{80'000'000};
constexpr dma::Nanos kSettleTime{10'000'000};
constexpr dma::Nanos kResetTime{1'000'000'000};
constexpr dma::Nanos kPhyTime{25'000'000};
constexpr dma::Nanos kNvmTime{10'000'000};
constexpr dma::Nanos kOwnerTime{20'000'000};

// Any key will do that is not zeros: the usual one, from the RSS specification.
constexpr uint32_t kRssKey[kRssKeyWords] = {0xda565a6d, 0xc20e5b25, 0x3d256741, 0xb08fa343,
                                            0xcb2bcad0, 0xb4307bae, 0xa32dcb77, 0x0cf23080,
                                            0x3bb7426a, 0xfa01acbe};

// In the order of ChipCounters.
constexpr Reg kCounterRegisters[] = {
    Reg::kGoodReceived,   Reg::kGoodSent,        Reg::kMissedPackets, Reg::kNoBuffers,
    Reg::kCrcErrors,      Reg::kAlignmentErrors, Reg::kSymbolErrors,  Reg::kRxErrors,
    Reg::kSequenceErrors, Reg::kCarrierErrors,   Reg::kLengthErrors,  Reg::kUndersize,
    Reg::kFragments,      Reg::kOversize,        Reg::kJabbers,
};
static_assert(std::size(kCounterRegisters) == sizeof(ChipCounters) / sizeof(uint64_t));

void Pause(dma::Waiter& waiter, dma::Nanos time) {
  (void)dma::PollUntil(waiter, time, [] { return false; });
}

absl::Status Gone() {
  return absl::UnavailableError(
      "its registers read all ones: the device is gone, or its memory space is off");
}

// No new DMA, and what is under way has ended.
Halt DisableMaster(const dma::MmioRegion& registers, dma::Waiter& waiter, dma::Nanos timeout) {
  const uint32_t ctrl = registers.Read32(OffsetOf(Reg::kCtrl));
  if (ctrl == kAllOnes) return Halt::kGone;
  registers.Write32(OffsetOf(Reg::kCtrl), ctrl | kCtrlMasterDisable);
  uint32_t status = 0;
  const bool ended = dma::PollUntil(waiter, timeout, [&] {
    status = registers.Read32(OffsetOf(Reg::kStatus));
    return status == kAllOnes || (status & kStatusMasterEnable) == 0;
  });
  if (status == kAllOnes) return Halt::kGone;
  return ended ? Halt::kStopped : Halt::kStillRunning;
}

// Neither direction starts anything new, and interrupts are masked.
void SwitchOff(const dma::MmioRegion& registers) {
  registers.Write32(OffsetOf(Reg::kImc), kAllOnes);
  registers.Write32(OffsetOf(Reg::kRctl), 0);
  registers.Write32(OffsetOf(Reg::kTctl), 0);
  (void)registers.Read32(OffsetOf(Reg::kStatus));  // the writes are there
}

}  // namespace

std::string_view Describe(Halt halt) {
  switch (halt) {
    case Halt::kStopped:
      return "stopped";
    case Halt::kStillRunning:
      return "still doing DMA when the stop deadline passed";
    case Halt::kGone:
      return "the device is gone: its registers read all ones";
  }
  return "?";
}

absl::Status Quiesce(const dma::MmioRegion& registers, dma::Waiter& waiter) {
  SwitchOff(registers);
  switch (DisableMaster(registers, waiter, kMasterTime)) {
    case Halt::kStopped:
      return absl::OkStatus();
    case Halt::kGone:
      return Gone();
    case Halt::kStillRunning:
      break;
  }
  return absl::DeadlineExceededError(
      "does not end its DMA (STATUS bit 19 stays set); reset the device through the system");
}

// --- Reset ---------------------------------------------------------------------------------------

// QEMU 7.2 keeps rings and enables over a reset: nothing is left to it (sheet 2).
absl::Status Chip::Reset() {
  if (Read(Reg::kStatus) == kAllOnes) return Gone();
  SwitchOff(registers_);
  // A device that does not answer this is reset all the same (as the sheet's driver does).
  (void)DisableMaster(registers_, *waiter_, kMasterTime);
  Pause(*waiter_, kSettleTime);
  TakeOwnership();
  Write(Reg::kCtrl, Read(Reg::kCtrl) | kCtrlReset);
  Pause(*waiter_, kSettleTime);
  const bool ended = dma::PollUntil(*waiter_, kResetTime, [&] {
    const uint32_t ctrl = Read(Reg::kCtrl);
    return ctrl == kAllOnes ||
           ((ctrl & kCtrlReset) == 0 && (Read(Reg::kEecd) & kEecdAutoReadDone) != 0);
  });
  if (Read(Reg::kStatus) == kAllOnes) return Gone();
  if (!ended) {
    return absl::DeadlineExceededError(
        "its reset does not end (CTRL bit 26, EECD bit 9); reset the device through the system");
  }
  Write(Reg::kExtcnfCtrl, Read(Reg::kExtcnfCtrl) & ~kExtcnfMdioOwner);
  Pause(*waiter_, kPhyTime);
  SwitchOff(registers_);
  (void)Read(Reg::kIcr);
  ClearSettings();
  for (size_t queue = 0; queue < kMaxQueues; ++queue) {
    ProgramRx(queue, Iova{0}, 0);
    ProgramTx(queue, Iova{0}, 0);
  }
  return absl::OkStatus();
}

// Sheet 2, step 4. Firmware that does not let go is not waited for.
void Chip::TakeOwnership() const {
  (void)dma::PollUntil(*waiter_, kOwnerTime, [&] {
    Write(Reg::kExtcnfCtrl, Read(Reg::kExtcnfCtrl) | kExtcnfMdioOwner);
    return (Read(Reg::kExtcnfCtrl) & kExtcnfMdioOwner) != 0;
  });
}

void Chip::ClearSettings() const {
  for (const Reg reg : {Reg::kRfctl, Reg::kMrqc, Reg::kIvar, Reg::kEiac, Reg::kIam, Reg::kItr}) {
    Write(reg, 0);
  }
  for (size_t i = 0; i < kVectors; ++i) registers_.Write32(OffsetOf(Reg::kEitr) + 4 * i, 0);
  // Pause frames are neither sent nor obeyed: who forwards does not stop others.
  for (const Reg reg : {Reg::kFcal, Reg::kFcah, Reg::kFct, Reg::kFcttv, Reg::kFcrtl, Reg::kFcrth}) {
    Write(reg, 0);
  }
  Write(Reg::kVet, kVetDefault);
  Write(Reg::kPba, kPbaDefault);
  Write(Reg::kTipg, kTipgDefault);
  ClearArray(Reg::kVfta, kVftaWords);
  ClearArray(Reg::kMta, kMtaWords);
}

void Chip::ClearArray(Reg first, size_t words) const {
  for (size_t i = 0; i < words; ++i) registers_.Write32(OffsetOf(first) + 4 * i, 0);
}

// Words 0 to 2, low byte first (sheet 2, step 7).
absl::Status Chip::ReadMacFromNvm() {
  for (uint32_t word = 0; word < 3; ++word) {
    Write(Reg::kEerd, kEerdStart | word << 2);
    uint32_t value = 0;
    const bool read = dma::PollUntil(*waiter_, kNvmTime, [&] {
      value = Read(Reg::kEerd);
      return (value & kEerdDone) != 0;
    });
    if (!read || value == kAllOnes) {
      return absl::NotFoundError("its NVM does not answer, and RAL0 has no address");
    }
    mac_[2 * word] = static_cast<uint8_t>(value >> 16);
    mac_[2 * word + 1] = static_cast<uint8_t>(value >> 24);
  }
  return absl::OkStatus();
}

absl::Status Chip::LoadMac() {
  // The device has loaded it by itself, or somebody has set another one, which a reset undoes.
  const uint32_t low = Read(Reg::kRal);
  const uint32_t high = Read(Reg::kRah);
  for (size_t i = 0; i < 4; ++i) mac_[i] = static_cast<uint8_t>(low >> (8 * i));
  for (size_t i = 0; i < 2; ++i) mac_[4 + i] = static_cast<uint8_t>(high >> (8 * i));
  const auto usable = [this] {
    return (mac_[0] & 1) == 0 && std::any_of(mac_.begin(), mac_.end(), [](auto b) { return b; });
  };
  if ((high & kRahValid) == 0 || !usable()) {
    if (absl::Status s = ReadMacFromNvm(); !s.ok()) return s;
    if (!usable()) return absl::NotFoundError("its NVM has no MAC address that a NIC can have");
  }
  for (size_t i = 1; i < kReceiveAddresses; ++i) {
    registers_.Write32(OffsetOf(Reg::kRal) + 8 * i, 0);
    registers_.Write32(OffsetOf(Reg::kRah) + 8 * i, 0);
  }
  Write(Reg::kRal, mac_[0] | mac_[1] << 8 | mac_[2] << 16 | uint32_t{mac_[3]} << 24);
  Write(Reg::kRah, mac_[4] | mac_[5] << 8 | kRahValid);
  return absl::OkStatus();
}

// --- Set-up --------------------------------------------------------------------------------------

// Sheet 2, "82574 specifics"; TXDCTL is the same in both queues.
void Chip::Errata() const {
  for (size_t queue = 0; queue < kMaxQueues; ++queue) {
    registers_.Write32(OffsetOf(Reg::kTxdctl, queue), kDctlWriteBackEach | kTxdctlBit22);
    registers_.Write32(OffsetOf(Reg::kTarc, queue),
                       kTarcCount | kTarcEnable | (queue == 0 ? kTarcBit26 : 0u));
  }
  constexpr uint32_t kInterruptBits = kCtrlExtIame | kCtrlExtEiame | kCtrlExtPbaClear;
  Write(Reg::kCtrlExt, (Read(Reg::kCtrlExt) & ~(kCtrlExtBit23 | kInterruptBits)) | kCtrlExtBit22);
  Write(Reg::kGcr, Read(Reg::kGcr) | kGcrBit22);
}

void Chip::Configure(const Settings& settings) {
  Errata();
  constexpr uint32_t kOff = kCtrlMasterDisable | kCtrlLinkReset | kCtrlForceSpeed |
                            kCtrlForceDuplex | kCtrlReset | kCtrlRxPause | kCtrlTxPause |
                            kCtrlBit29 | kCtrlVlan | kCtrlPhyReset;
  uint32_t ctrl = Read(Reg::kCtrl) & ~kOff;
  ctrl |= kCtrlSlu | kCtrlAsde;
  // Both ways: it also lets transmit entries have a tag inserted.
  if (settings.vlan_strip) ctrl |= kCtrlVlan;
  Write(Reg::kCtrl, ctrl);
  // Nothing is delayed, or kept back until there is more of it.
  for (size_t queue = 0; queue < kMaxQueues; ++queue) {
    for (const Reg reg : {Reg::kRdtr, Reg::kRadv, Reg::kTidv, Reg::kTadv}) {
      registers_.Write32(OffsetOf(reg, queue), 0);
    }
    registers_.Write32(OffsetOf(Reg::kRxdctl, queue), kDctlWriteBackEach);
  }
  Write(Reg::kRxcsum, kRxcsumIp | kRxcsumL4 | (settings.rx_queues > 1 ? kRxcsumHash : 0u));
  Write(Reg::kRfctl, kRfctlExtended);
  SpreadOverQueues(settings.rx_queues);
  if (settings.interrupts) SetUpInterrupts(settings);
  for (const Reg reg : kCounterRegisters) (void)Read(reg);  // what was before is nobody's
}

void Chip::SpreadOverQueues(uint32_t rx_queues) const {
  if (rx_queues < 2) return Write(Reg::kMrqc, 0);
  for (size_t i = 0; i < kRssKeyWords; ++i) {
    registers_.Write32(OffsetOf(Reg::kRssrk) + 4 * i, kRssKey[i]);
  }
  for (size_t i = 0; i < kRetaWords; ++i) {
    uint32_t word = 0;
    for (uint32_t entry = 0; entry < 4; ++entry) {
      word |= RetaEntry(entry % rx_queues) << (8 * entry);
    }
    registers_.Write32(OffsetOf(Reg::kReta) + 4 * i, word);
  }
  Write(Reg::kMrqc, kMrqcTwoQueues | kMrqcHashes);
}

// MSI-X: receive queue i raises vector i. Delivering clears the cause (EIAC) and masks it, until
// the queue is armed again. What masks is said in both ways: IAM with EIAME, which is the chip's,
// and EIAC without IAME, which is QEMU 7.2's.
void Chip::SetUpInterrupts(const Settings& settings) const {
  constexpr int64_t kUnit = 256;  // nanoseconds
  const int64_t asked = settings.coalescing.count() / kUnit;
  const auto interval = static_cast<uint32_t>(std::clamp<int64_t>(asked, 0, 0xffff));
  uint32_t ivar = 0;
  uint32_t causes = 0;
  for (uint32_t queue = 0; queue < settings.rx_queues; ++queue) {
    ivar |= IvarRx(queue, queue);
    causes |= RxCause(queue);
    registers_.Write32(OffsetOf(Reg::kEitr) + 4 * queue, interval);
  }
  Write(Reg::kIvar, ivar);
  Write(Reg::kEiac, causes);
  Write(Reg::kIam, causes);
  Write(Reg::kCtrlExt, (Read(Reg::kCtrlExt) & ~kCtrlExtIame) | kCtrlExtEiame | kCtrlExtPbaClear);
}

void Chip::ProgramRx(size_t queue, Iova base, uint64_t bytes) const {
  registers_.Write32(OffsetOf(Reg::kRdbal, queue), static_cast<uint32_t>(base.value()));
  registers_.Write32(OffsetOf(Reg::kRdbah, queue), static_cast<uint32_t>(base.value() >> 32));
  registers_.Write32(OffsetOf(Reg::kRdlen, queue), static_cast<uint32_t>(bytes));
  registers_.Write32(OffsetOf(Reg::kRdh, queue), 0);
  registers_.Write32(OffsetOf(Reg::kRdt, queue), 0);
}

void Chip::ProgramTx(size_t queue, Iova base, uint64_t bytes) const {
  registers_.Write32(OffsetOf(Reg::kTdbal, queue), static_cast<uint32_t>(base.value()));
  registers_.Write32(OffsetOf(Reg::kTdbah, queue), static_cast<uint32_t>(base.value() >> 32));
  registers_.Write32(OffsetOf(Reg::kTdlen, queue), static_cast<uint32_t>(bytes));
  registers_.Write32(OffsetOf(Reg::kTdh, queue), 0);
  registers_.Write32(OffsetOf(Reg::kTdt, queue), 0);
}

void Chip::EnableTx() const {
  Write(Reg::kTctl, kTctlEnable | kTctlPadShort | kTctlCollisions | kTctlRetransmitLate);
}

void Chip::EnableRx(const Settings& settings) const {
  Write(Reg::kRctl, kRctlEnable | kRctlUnicastPromiscuous | kRctlMulticastPromiscuous |
                        kRctlBroadcast | kRctlStripCrc | RctlSize(settings.buffer_bytes) |
                        (settings.long_packets ? kRctlLongPackets : 0u));
}

bool Chip::WaitForLink(dma::Nanos limit) const {
  return dma::PollUntil(*waiter_, limit, [this] { return link_up(); });
}

bool Chip::link_up() const {
  const uint32_t status = Read(Reg::kStatus);
  return status != kAllOnes && (status & kStatusLinkUp) != 0;
}

// --- Stop ----------------------------------------------------------------------------------------

void Chip::MaskInterrupts() const {
  Write(Reg::kImc, kAllOnes);
  Write(Reg::kIvar, 0);
}

Halt Chip::Stop(dma::Nanos timeout) const {
  SwitchOff(registers_);
  return DisableMaster(registers_, *waiter_, timeout);
}

ChipCounters Chip::counters(bool read) const {
  for (size_t i = 0; read && i < counts_.size(); ++i) {
    const uint32_t seen = Read(kCounterRegisters[i]);
    if (seen == kAllOnes && Read(Reg::kStatus) == kAllOnes) break;  // gone
    counts_[i].fetch_add(seen, std::memory_order_relaxed);
  }
  std::array<uint64_t, sizeof(ChipCounters) / sizeof(uint64_t)> now;
  for (size_t i = 0; i < now.size(); ++i) now[i] = counts_[i].load(std::memory_order_relaxed);
  return std::bit_cast<ChipCounters>(now);
}

}  // namespace dmakit::nic::e1000e
