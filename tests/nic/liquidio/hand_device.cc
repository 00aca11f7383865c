// SPDX-License-Identifier: Apache-2.0

#include "tests/nic/liquidio/hand_device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "iova/types.h"
#include "nic/endian.h"

namespace dmakit::nic::liquidio {
namespace {

constexpr uint64_t kReset = uint64_t{1} << 23;

using Bytes8 = std::array<std::byte, 8>;

}  // namespace

// --- Registers -----------------------------------------------------------------------------------

uint64_t HandDevice::MmioRead(uint64_t offset, size_t) {
  if (gone) return ~uint64_t{0};
  const uint64_t ring = offset / kStride;
  if (ring >= kRings) return 0;
  return ReadRing(rings_[ring], offset % kStride);
}

uint64_t HandDevice::ReadRing(const Ring& ring, uint64_t offset) const {
  switch (offset) {
    case 0x10000:
      return ring.input_control;
    case 0x10010:
      return ring.iq_base;
    case 0x10020:
      return ring.iq_doorbell;
    case 0x10030:
      return ring.iq_size;
    case 0x10040:
      return ring.in_done;
    case 0x10050:
      return ring.output_control;
    case 0x10060:
      return ring.out_size;
    case 0x10070:
      return ring.oq_base;
    case 0x10080:
      return ring.credits;
    case 0x10090:
      return ring.oq_size;
    case 0x100a0:
      return ring.int_levels;
    case 0x100b0:
      return ring.sent;
    default:
      return 0;
  }
}

void HandDevice::MmioWrite(uint64_t offset, uint64_t value, size_t width) {
  const uint64_t ring = offset / kStride;
  if (gone || ring >= kRings) return;
  WriteRing(rings_[ring], offset % kStride, value, width);
}

// A write subtracts from the low half; a wide one also writes the bits of the upper one in `kept`.
void HandDevice::Subtract(uint64_t& counter, uint64_t value, size_t width, uint64_t kept) {
  const uint32_t low = static_cast<uint32_t>(counter) - static_cast<uint32_t>(value);
  const uint64_t upper = width == 8 ? value & kept : counter & ~uint64_t{0xffffffff};
  counter = upper | low;
}

void HandDevice::WriteInputControl(Ring& ring, uint64_t value) {
  const bool was_on = ring.iq_on();
  ring.input_control = value;
  if ((value & kReset) != 0) return;
  if (was_on && !ring.iq_on()) Complain("RING_ENB cleared without a reset");
  if (!was_on && ring.iq_on() && (value >> 24 & 1) == 0) Complain("enabled without IS_64B");
}

void HandDevice::WriteRing(Ring& ring, uint64_t offset, uint64_t value, size_t width) {
  const uint32_t low = static_cast<uint32_t>(value);
  const auto add = [&](uint32_t& count, uint32_t most, const char* what) {
    if (low == 0xffffffff) {
      count = 0;
      return;
    }
    count += low;
    if (count > most) Complain(absl::StrCat(what, " ", count, " of a ring of ", most));
  };
  switch (offset) {
    case 0x10000:
      return WriteInputControl(ring, value);
    case 0x10010:
      ring.iq_base = value;
      return;
    case 0x10020:
      if (low != 0xffffffff) ring.doorbells.push_back(low);
      return add(ring.iq_doorbell, ring.iq_size, "doorbell count");
    case 0x10030:
      ring.iq_size = low;
      return;
    case 0x10040:
      return Subtract(ring.in_done, value, width, uint64_t{0x1ffff} << 32);
    case 0x10050:
      ring.output_control = low;
      return;
    case 0x10060:
      ring.out_size = low;
      return;
    case 0x10070:
      ring.oq_base = value;
      return;
    case 0x10080:
      if (low != 0xffffffff) {
        ring.credit_writes.push_back(low);
        if (!ring.oq_on()) Complain("credits before the ring is enabled");
      }
      return add(ring.credits, ring.oq_size, "credits");
    case 0x10090:
      ring.oq_size = low;
      return;
    case 0x100a0:
      ring.int_levels = value;
      return;
    case 0x100b0:
      return Subtract(ring.sent, value, width, 0);
    default:
      return;
  }
}

absl::Status HandDevice::Connect(uint32_t vector, Notifier* notifier) {
  notifiers_[vector] = notifier;
  return absl::OkStatus();
}

void HandDevice::Raise(uint32_t ring) {
  if (notifiers_[ring] != nullptr && (rings_[ring].output_control >> 12 & 3) != 0) {
    notifiers_[ring]->Notify();
  }
}

// --- Work ----------------------------------------------------------------------------------------

bool HandDevice::Step() {
  bool busy = false;
  for (uint32_t i = 0; i < kRings; ++i) {
    Ring& ring = rings_[i];
    if ((ring.input_control & kReset) != 0 && !stuck) {
      // What a driver has to clear is not clear.
      ring = Ring{.iq_doorbell = 3, .in_done = uint64_t{5} << 32 | 7, .credits = 9, .sent = 11};
      ++resets[i];
      busy = true;
    }
    if ((ring.input_control & kReset) != 0) continue;
    for (uint32_t n = 0; n < options_.steps && ring.iq_on() && ring.iq_doorbell > 0; ++n) {
      const Fetched fetched = Fetch(i);
      if (wire_ != nullptr && !fetched.faulted) wire_->Accept(fetched.bytes);
      busy = true;
    }
  }
  for (uint32_t n = 0; n < options_.steps && wire_ != nullptr; ++n) {
    const auto frame = wire_->Peek();
    if (!frame || !Take(RingFor(*frame))) break;
    busy = true;
  }
  return busy;
}

bool HandDevice::Take(uint32_t ring) {
  if (ring >= kRings) return false;
  const auto frame = wire_->Peek();
  const std::vector<std::byte> copy(frame->begin(), frame->end());
  if (!Deliver(ring, copy)) return false;
  wire_->Pop();
  return true;
}

// By a byte of an IPv4 frame's source port, over the rings that are on.
uint32_t HandDevice::RingFor(std::span<const std::byte> frame) const {
  std::vector<uint32_t> on;
  for (uint32_t i = 0; i < kRings; ++i) {
    if (rings_[i].oq_on()) on.push_back(i);
  }
  if (on.empty()) return kRings;
  return on[(frame.size() > 35 ? std::to_integer<size_t>(frame[35]) : 0) % on.size()];
}

Fetched HandDevice::Fetch(uint32_t index) {
  Ring& ring = rings_[index];
  Fetched fetched;
  std::array<std::byte, 64> bytes{};
  fetched.faulted = !port_->Read(Iova{ring.iq_base + uint64_t{64} * ring.iq_index}, bytes);
  for (size_t i = 0; i < 8; ++i) fetched.words[i] = LoadLe<uint64_t>(bytes, 8 * i);
  ring.iq_index = (ring.iq_index + 1) % ring.iq_size;
  --ring.iq_doorbell;
  const uint64_t at = fetched.words[0];
  fetched.gather = (fetched.words[1] >> 62 & 1) != 0;
  fetched.length = fetched.words[1] >> 48 & 0x3fff;
  const auto read = [&](uint64_t from, uint32_t length) {
    std::vector<std::byte> piece(length);
    fetched.faulted |= length == 0 || !port_->Read(Iova{from}, piece);
    fetched.pieces.push_back(length);
    fetched.bytes.insert(fetched.bytes.end(), piece.begin(), piece.end());
  };
  if (!fetched.gather) {
    read(at, fetched.length);
  } else {
    for (uint32_t i = 0; i < fetched.length; ++i) {
      Bytes8 sizes{}, pointer{};
      const uint64_t entry = at + uint64_t{40} * (i / 4);
      fetched.faulted |= !port_->Read(Iova{entry}, sizes);
      fetched.faulted |= !port_->Read(Iova{entry + 8 + 8 * (i % 4)}, pointer);
      read(LoadLe<uint64_t>(pointer), LoadLe<uint64_t>(sizes) >> (48 - 16 * (i % 4)) & 0xffff);
    }
  }
  ring.in_done = (ring.in_done & ~uint64_t{0xffffffff}) | static_cast<uint32_t>(ring.in_done + 1);
  return fetched;
}

// What stands in the buffers, and what is said of it.
std::vector<std::byte> HandDevice::Image(const Ring& ring, std::span<const std::byte> frame,
                                         const Said& said, uint64_t& length,
                                         uint64_t& header) const {
  constexpr uint64_t kHash = 0x89abcdef;
  const uint64_t words =
      ring.info_mode() ? said.hashed : said.extra + said.hashed + (said.stamped ? 1 : 0);
  header = uint64_t{1} << 60 | uint64_t{2} << 52 | words << 49 | uint64_t{said.vlan & 0xfffu} << 9 |
           uint64_t{said.vlan >> 13 & 7u} << 6 | uint64_t{said.checksums} << 3 |
           uint64_t{said.stamped} << 2 | uint64_t{said.hashed};
  if (said.header) header = *said.header;
  length = 8 + 8 * words + frame.size();
  if (said.length) length = *said.length;
  std::vector<std::byte> image;
  if (!ring.info_mode()) {
    image.resize(16 + 8 * said.extra);
    StoreBe<uint64_t>(image, 0, length);
    StoreBe<uint64_t>(image, 8, header);
  }
  // The mode says which half of its word is looked at; the other one is somebody else's.
  const auto word = [&](uint64_t value) {
    image.resize(image.size() + 8);
    StoreBe<uint64_t>(image, image.size() - 8, value);
  };
  if (said.hashed) word(ring.info_mode() ? kHash | 0xdeadull << 32 : kHash << 32 | 0xdead);
  if (said.stamped && !ring.info_mode()) word(0x0123456789abcdef);
  image.insert(image.end(), frame.begin(), frame.end());
  return image;
}

bool HandDevice::Deliver(uint32_t index, std::span<const std::byte> frame, const Said& said) {
  Ring& ring = rings_[index];
  uint64_t length = 0, header = 0;
  const std::vector<std::byte> image = Image(ring, frame, said, length, header);
  const uint32_t size = ring.buffer_bytes();
  if (!ring.oq_on() || size == 0) return false;
  const uint32_t buffers = static_cast<uint32_t>((image.size() + size - 1) / size);
  if (ring.credits < buffers) return false;
  bool good = true;
  for (uint32_t i = 0; i < buffers; ++i) {
    std::array<std::byte, 16> slot{};
    good &= port_->Read(Iova{ring.oq_base + uint64_t{16} * ring.oq_index}, slot);
    const size_t from = size_t{i} * size;
    const size_t here = std::min<size_t>(size, image.size() - from);
    good &= port_->Write(Iova{LoadLe<uint64_t>(slot)}, std::span(image).subspan(from, here));
    if (i == 0 && ring.info_mode()) {
      std::array<std::byte, 16> info{};
      const Iova at{LoadLe<uint64_t>(slot, 8)};
      good &= port_->Read(at, info);
      if (LoadBe<uint64_t>(info, 8) != 0) Complain("an info length is not 0 when it is posted");
      StoreBe<uint64_t>(info, 0, header);
      StoreBe<uint64_t>(info, 8, length);
      good &= port_->Write(at, info);
    }
    ring.oq_index = (ring.oq_index + 1) % ring.oq_size;
  }
  ring.credits -= buffers;
  const uint32_t sent = static_cast<uint32_t>(ring.sent) + said.count;
  ring.sent = (ring.sent & ~uint64_t{0xffffffff}) | sent;
  if (!good) Complain("a delivery faulted");
  Raise(index);
  return true;
}

}  // namespace dmakit::nic::liquidio
