// SPDX-License-Identifier: Apache-2.0

#include "tests/nic/e1000e/fake_nic.h"

#include <algorithm>
#include <utility>

#include "nic/endian.h"
#include "nic/frame_edit.h"
#include "nic/frame_info.h"

namespace dmakit::nic::e1000e {
namespace {

constexpr size_t kMostWords = 100;
constexpr size_t kEntriesKept = 4096;
constexpr std::array<uint8_t, 6> kMac = {0x52, 0x54, 0, 0, 0, 1};

bool IsRingRegister(size_t offset, Reg reg) {
  return offset == OffsetOf(reg) || offset == OffsetOf(reg, 1);
}

}  // namespace

FakeNic::FakeNic(std::unique_ptr<dma::DevicePort> port, const FakeNicOptions& options)
    : port_(std::move(port)), options_(options), random_(options.hostile), cells_(kBarBytes / 4) {
  Set(Reg::kStatus, kStatusLinkUp);
  Set(Reg::kEecd, kEecdAutoReadDone);
  Set(Reg::kRal, kMac[0] | kMac[1] << 8 | kMac[2] << 16 | uint32_t{kMac[3]} << 24);
  Set(Reg::kRah, kMac[4] | kMac[5] << 8 | kRahValid);
  for (size_t q = 0; q < kMaxQueues; ++q) Set(Reg::kTarc, kTarcEnable, q);
}

void FakeNic::Violate(std::string what) {
  ++violation_count_;
  std::lock_guard<std::mutex> lock(mutex_);
  if (violations_.size() < kMostWords) violations_.push_back(std::move(what));
}

std::vector<std::string> FakeNic::violations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return violations_;
}

// --- Registers -----------------------------------------------------------------------------------

uint64_t FakeNic::MmioRead(uint64_t offset, size_t width) {
  if (width != 4 || offset + 4 > kBarBytes) {
    Violate("read that is not one register");
    return kAllOnes;
  }
  switch (static_cast<Reg>(offset)) {
    case Reg::kStatus: {
      const bool off = (Get(Reg::kCtrl) & kCtrlMasterDisable) != 0 && !stepping_ && !stuck;
      return Get(Reg::kStatus) | (off ? 0 : kStatusMasterEnable);
    }
    case Reg::kIcr:
      return Cell(offset).exchange(0);
    case Reg::kEerd: {
      const uint32_t word = Get(Reg::kEerd) >> 2 & 0x3fff;
      if (word >= 3) return kEerdDone;
      return kEerdDone | uint32_t{kMac[2 * word]} << 16 | uint32_t{kMac[2 * word + 1]} << 24;
    }
    default:
      // Statistics start anew.
      return offset >= 0x4000 && offset < 0x4200 ? Cell(offset).exchange(0) : Cell(offset).load();
  }
}

void FakeNic::WriteHead(size_t offset, uint32_t value) {
  const bool rx = IsRingRegister(offset, Reg::kRdh);
  const bool on = rx ? (Get(Reg::kRctl) & kRctlEnable) != 0 : (Get(Reg::kTctl) & kTctlEnable) != 0;
  if (on) Violate("head written while its direction is enabled");
  Cell(offset) = value;
}

void FakeNic::MmioWrite(uint64_t offset, uint64_t value, size_t width) {
  if (width != 4 || offset + 4 > kBarBytes) return Violate("write that is not one register");
  const auto v = static_cast<uint32_t>(value);
  if (IsRingRegister(offset, Reg::kRdh) || IsRingRegister(offset, Reg::kTdh)) {
    return WriteHead(offset, v);
  }
  if ((IsRingRegister(offset, Reg::kRdlen) || IsRingRegister(offset, Reg::kTdlen)) &&
      v % (8 * kRingUnit) != 0) {
    Violate("ring length that is no multiple of 128");
  }
  for (const auto& [tail, length] :
       {std::pair(Reg::kRdt, Reg::kRdlen), std::pair(Reg::kTdt, Reg::kTdlen)}) {
    if (!IsRingRegister(offset, tail)) continue;
    const size_t queue = offset == OffsetOf(tail) ? 0 : 1;
    if (v != 0 && v >= Entries(length, queue)) Violate("tail outside of its ring");
  }
  switch (static_cast<Reg>(offset)) {
    case Reg::kCtrl:
      // Rings, RCTL and TCTL stay as they are.
      Cell(offset) = v & ~kCtrlReset;
      return;
    case Reg::kIcr:
      Cell(offset).fetch_and(~v);
      return;
    case Reg::kIms:
      Cell(offset).fetch_or(v);
      return;
    case Reg::kImc:
      Cell(OffsetOf(Reg::kIms)).fetch_and(~v);
      return;
    default:
      Cell(offset) = v;
  }
}

absl::Status FakeNic::Connect(uint32_t vector, Notifier* notifier) {
  if (vector >= kVectors) return absl::InvalidArgumentError("no such vector");
  std::lock_guard<std::mutex> lock(mutex_);
  notifiers_[vector] = notifier;
  return absl::OkStatus();
}

// Causes that are set and unmasked go out, which clears (EIAC) and masks them (EIAME, IAM).
void FakeNic::Raise(size_t queue) {
  if (queue < kMaxQueues) Cell(OffsetOf(Reg::kIcr)).fetch_or(RxCause(queue));
  const uint32_t pending = Get(Reg::kIcr) & Get(Reg::kIms);
  for (size_t q = 0; q < kMaxQueues; ++q) {
    const uint32_t entry = Get(Reg::kIvar) >> (4 * q) & 0xf;
    if ((pending & RxCause(q)) == 0 || (entry & 8) == 0) continue;
    const bool masks = (Get(Reg::kCtrlExt) & kCtrlExtEiame) != 0;
    Cell(OffsetOf(Reg::kIcr)).fetch_and(~(Get(Reg::kEiac) & RxCause(q)));
    if (masks) Cell(OffsetOf(Reg::kIms)).fetch_and(~(Get(Reg::kIam) & RxCause(q)));
    std::lock_guard<std::mutex> lock(mutex_);
    if (Notifier* const notifier = notifiers_[entry & 7]) notifier->Notify();
  }
}

Iova FakeNic::EntryAt(Reg low, Reg high, size_t queue, uint32_t index) const {
  const uint64_t base = Get(low, queue) | uint64_t{Get(high, queue)} << 32;
  return Iova{(base & ~uint64_t{15}) + uint64_t{index} * kDescriptorBytes};
}

bool FakeNic::Step() {
  bool worked = false;
  // Before the look at CTRL: who disables the master sees it on the bus until the step is over.
  stepping_ = true;
  if ((Get(Reg::kCtrl) & kCtrlMasterDisable) == 0) {
    for (size_t q = 0; q < kMaxQueues; ++q) worked |= StepTx(q);
    worked |= StepRx();
  }
  stepping_ = false;
  Raise(kMaxQueues);  // what was unmasked since
  return worked;
}

// --- Transmit ------------------------------------------------------------------------------------

bool FakeNic::StepTx(size_t queue) {
  const uint32_t entries = Entries(Reg::kTdlen, queue);
  const uint32_t head = Get(Reg::kTdh, queue);
  const uint32_t tail = Get(Reg::kTdt, queue);
  const bool on =
      (Get(Reg::kTctl) & kTctlEnable) != 0 && (Get(Reg::kTarc, queue) & kTarcEnable) != 0;
  if (!on || sends_nothing || head == tail || tail >= entries) return false;
  const Iova at = EntryAt(Reg::kTdbal, Reg::kTdbah, queue, head);
  std::array<std::byte, kDescriptorBytes> bytes;
  Set(Reg::kTdh, head + 1 == entries ? 0 : head + 1, queue);
  if (!port_->Read(at, bytes)) return true;
  const Words entry = FromBytes(bytes);
  if (sent_entries_.size() < kEntriesKept) sent_entries_.push_back(entry);
  const TxData data = DecodeTxData(entry);
  if (!data.dext) Violate("legacy transmit entry");
  if (data.dd) Violate("transmit entry posted with DD set");
  if (data.type == kTxTypeContext) {
    context_ = DecodeTxContext(entry);
  } else {
    Take(entry, gathered_[queue]);
    if (data.eop) Finish(queue, data);
  }
  if (!data.rs) return true;
  if (options_.hostile != 0 && Random(64) == 0) return true;  // never done
  Iova status = at + Bytes{12};
  if (options_.hostile != 0 && Random(16) == 0) {
    status = EntryAt(Reg::kTdbal, Reg::kTdbah, queue, Random(entries)) + Bytes{12};
  }
  (void)port_->Publish(status, (entry.high >> 32) | kTxDone, 4);
  return true;
}

void FakeNic::Take(const Words& entry, std::vector<std::byte>& frame) {
  const TxData data = DecodeTxData(entry);
  if (data.address == 0) Violate("transmit entry without an address");
  if (data.length == 0 || data.length > 16384) Violate("transmit entry of an odd length");
  if ((data.ixsm || data.txsm || data.tse) && !context_) Violate("offload without a context");
  const size_t before = frame.size();
  frame.resize(before + data.length);
  (void)port_->Read(Iova{data.address}, std::span(frame).subspan(before));
}

// Checksums and segments are QEMU's to judge; a tag is put in here.
void FakeNic::Finish(size_t queue, const TxData& last) {
  std::vector<std::byte> frame = std::move(gathered_[queue]);
  gathered_[queue].clear();
  if (frame.size() < 17) return Violate("frame too short for a device that pads");
  if (last.vle) {
    if ((Get(Reg::kCtrl) & kCtrlVlan) == 0) Violate("tag asked for with CTRL.VME off");
    InsertVlanTag(frame, last.special);
  }
  if (wire_ != nullptr) wire_->Accept(frame);
  Cell(OffsetOf(Reg::kGoodSent)).fetch_add(1);
}

// --- Receive -------------------------------------------------------------------------------------

uint32_t FakeNic::Free(size_t queue) const {
  const uint32_t entries = Entries(Reg::kRdlen, queue);
  const uint32_t head = Get(Reg::kRdh, queue);
  const uint32_t tail = Get(Reg::kRdt, queue);
  if (entries == 0 || tail >= entries || head >= entries) return 0;
  return tail >= head ? tail - head : tail + entries - head;
}

size_t FakeNic::QueueOf(std::span<const std::byte> frame) const {
  if ((Get(Reg::kMrqc) & kMrqcTwoQueues) == 0) return 0;
  const HashInput input = HashInputOf(frame, ParseFrame(frame));
  if (input.addresses == 0) return 0;
  std::array<std::byte, 4 * kRssKeyWords> key;
  for (size_t i = 0; i < kRssKeyWords; ++i) {
    StoreLe<uint32_t>(key, 4 * i, Cell(OffsetOf(Reg::kRssrk) + 4 * i).load());
  }
  const size_t length = input.with_ports != 0 ? input.with_ports : input.addresses;
  const uint32_t hash = ToeplitzHash(key, std::span(input.bytes).first(length));
  const uint32_t word = Cell(OffsetOf(Reg::kReta) + (hash & 0x7f & ~3u)).load();
  return word >> (8 * (hash & 3)) >> 7 & 1;
}

bool FakeNic::StepRx() {
  if ((Get(Reg::kRctl) & kRctlEnable) == 0 || wire_ == nullptr) return false;
  if ((Get(Reg::kRfctl) & kRfctlExtended) == 0) Violate("receive enabled without extended entries");
  const auto frame = wire_->Peek();
  if (!frame) return false;
  const size_t queue = QueueOf(*frame);
  const size_t most = (Get(Reg::kRctl) & kRctlLongPackets) != 0 ? 16384 : kLongestStandard;
  const bool fits =
      uint64_t{Free(queue)} * RctlBufferBytes(Get(Reg::kRctl)) >= frame->size() + kCrcBytes;
  if (!fits && options_.lossless) return false;
  if (frame->size() + kCrcBytes > most || !fits) {
    if (!fits) Cell(OffsetOf(Reg::kMissedPackets)).fetch_add(1);
    wire_->Pop();
    return true;
  }
  const bool delivered = Deliver(queue, *frame);
  wire_->Pop();
  if (delivered) Raise(queue);
  return true;
}

bool FakeNic::Deliver(size_t queue, std::span<const std::byte> frame) {
  const FrameInfo info = ParseFrame(frame);
  std::vector<std::byte> bytes(frame.begin(), frame.end());
  RxWriteBack done;
  done.queue = static_cast<uint8_t>(queue);
  if (info.vlan && (Get(Reg::kCtrl) & kCtrlVlan) != 0) {
    bytes.erase(bytes.begin() + 12, bytes.begin() + 16);
    done.vlan = info.tci;
    done.status_error |= kRxVlan;
  }
  if (Ipv4ChecksumState(frame, info) != ChecksumState::kNone) done.status_error |= kRxIpChecksum;
  if (Ipv4ChecksumState(frame, info) == ChecksumState::kBad)
    done.status_error |= kRxErrorIpChecksum;
  if (L4ChecksumState(frame, info) != ChecksumState::kNone) done.status_error |= kRxTcpChecksum;
  if (L4ChecksumState(frame, info) == ChecksumState::kBad) done.status_error |= kRxErrorL4Checksum;
  done.status_error |= std::exchange(rx_errors, 0);
  const uint32_t entries = Entries(Reg::kRdlen, queue);
  for (size_t at = 0; at < bytes.size();) {
    const uint32_t head = Get(Reg::kRdh, queue);
    const Iova entry = EntryAt(Reg::kRdbal, Reg::kRdbah, queue, head);
    std::array<std::byte, kDescriptorBytes> image;
    if (!port_->Read(entry, image)) return false;
    const RxRead posted = DecodeRxRead(FromBytes(image));
    if ((posted.reserved & kRxDone) != 0) Violate("receive entry posted with DD set");
    const size_t part = std::min<size_t>(bytes.size() - at, RctlBufferBytes(Get(Reg::kRctl)));
    (void)port_->Write(Iova{posted.address}, std::span(bytes).subspan(at, part));
    at += part;
    RxWriteBack piece;
    piece.length = static_cast<uint16_t>(part);
    piece.status_error = kRxDone;
    if (at == bytes.size()) {
      piece.vlan = done.vlan;
      piece.status_error |= done.status_error | kRxEndOfPacket;
    }
    Set(Reg::kRdh, head + 1 == entries ? 0 : head + 1, queue);
    WriteBack(queue, head, piece);
  }
  Cell(OffsetOf(Reg::kGoodReceived)).fetch_add(1);
  return true;
}

// All but the status, then the status with DD.
void FakeNic::WriteBack(size_t queue, uint32_t at, const RxWriteBack& done) {
  RxWriteBack written = done;
  if (options_.hostile != 0) {
    if (Random(200) == 0) at = Random(Entries(Reg::kRdlen, queue));  // stale, early or twice
    Corrupt(written);
  }
  const auto bytes = ToBytes(Encode(written, RxForm::kIpId));
  const Iova entry = EntryAt(Reg::kRdbal, Reg::kRdbah, queue, at);
  (void)port_->Write(entry, std::span(bytes).first(8));
  (void)port_->Write(entry + Bytes{12}, std::span(bytes).subspan(12));
  (void)port_->Publish(entry + Bytes{8}, written.status_error, 4);
}

void FakeNic::Corrupt(RxWriteBack& done) {
  switch (Random(24)) {
    case 0:
      done.length = 0;
      return;
    case 1:
      done.length = static_cast<uint16_t>(Random(65536));
      return;
    case 2:
      done.status_error ^= kRxEndOfPacket;
      return;
    case 3:
      done.status_error |= Random(256) << 24;
      return;
    case 4:
      done.status_error = static_cast<uint32_t>(random_()) | kRxDone;
      return;
    case 5:
      done.vlan = static_cast<uint16_t>(Random(65536));
      return;
    default:
      return;
  }
}

}  // namespace dmakit::nic::e1000e
