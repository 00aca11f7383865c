// SPDX-License-Identifier: Apache-2.0

#include "nic/liquidio/model_tx.h"

#include "iova/types.h"
#include "nic/endian.h"
#include "nic/frame_edit.h"
#include "nic/frame_info.h"

namespace dmakit::nic::liquidio {
namespace {

constexpr uint32_t kMaxPlainFrame = 16022;  // sheet 7
constexpr uint32_t kMaxJumboPacket = 60000;

}  // namespace

bool ModelInput::Step(Wire* wire, uint32_t budget) {
  bool worked = false;
  for (; budget > 0 && ring_.input_on(); --budget) {
    if (ring_.doorbell.load(std::memory_order_acquire) == 0) break;
    worked = true;
    Words words{};
    const bool good = Fetch(words) && CheckWords(words) && Gather(words) && Send(words, wire);
    if (!good) ++errors_;
    const uint32_t size = ring_.instr_size.load(std::memory_order_acquire);
    next_ = next_ + 1 >= size ? 0 : next_ + 1;
    ring_.doorbell.fetch_sub(1, std::memory_order_acq_rel);
    // Sheet 4.3: done is fetched, its data with it.
    ring_.in_done.fetch_add(1, std::memory_order_acq_rel);
  }
  return worked;
}

bool ModelInput::Fetch(Words& words) {
  std::array<std::byte, kInstructionBytes> bytes{};
  const uint64_t base = ring_.instr_base.load(std::memory_order_acquire);
  if (!port_.Read(Iova{base + uint64_t{kInstructionBytes} * next_}, bytes)) return false;
  for (size_t i = 0; i < kWords; ++i) words[i] = LoadLe<uint64_t>(bytes, 8 * i);
  return true;
}

// Sheet 2, the words of a data packet without a response.
bool ModelInput::CheckWords(const Words& words) {
  const Ih3 ih = DecodeIh3(words[kIh3]);
  const PkiIh3 pki = DecodePkiIh3(words[kPkiIh3]);
  const Irh irh = DecodeIrh(words[kIrh]);
  if (Encode(ih) != words[kIh3]) return Violate("reserved bits of ih3 set", words[kIh3]);
  if (Encode(pki) != words[kPkiIh3]) return Violate("reserved bits of pki_ih3", words[kPkiIh3]);
  if (Encode(irh) != words[kIrh]) return Violate("reserved bits of irh set", words[kIrh]);
  if (irh.opcode != kOpcodeNic || irh.subcode != kSubcodeData || irh.rflag) {
    return Violate("not a data packet without a response; irh", words[kIrh]);
  }
  if (ih.fsz != kFrontSize) return Violate("front size without a response is 32", ih.fsz);
  if (!pki.w || !pki.raw || !pki.utag || !pki.utt || pki.pm != kParseNothing ||
      pki.sl != kDataSkip || pki.tagtype != 0) {
    return Violate("pki_ih3 is not that of a data packet", words[kPkiIh3]);
  }
  if (pki.tag != (index_ == 0 ? kDataTag : index_)) return Violate("tag of the queue", pki.tag);
  if ((words[kOssp1] | words[kRdp] | words[kRptr]) != 0) {
    return Violate("ossp1, rdp and rptr are 0 without a response",
                   words[kOssp1] | words[kRdp] | words[kRptr]);
  }
  return ih.dlengsz != 0 || Violate("a packet without bytes", 0);
}

bool ModelInput::Read(uint64_t from, uint32_t length) {
  const size_t have = frame_.size();
  if (length == 0) return Violate("a gather element without bytes", have);
  if (have + length > kMaxJumboPacket) return Violate("packet too long", have + length);
  frame_.resize(have + length);
  return port_.Read(Iova{from}, std::span(frame_).subspan(have));
}

// Sheet 3. Nothing behind dlengsz is looked at, not even in the same entry.
bool ModelInput::Gather(const Words& words) {
  frame_.clear();
  const Ih3 ih = DecodeIh3(words[kIh3]);
  if (!ih.gather) return Read(words[kDptr], ih.dlengsz);
  if (words[kDptr] % 8 != 0) return Violate("gather list not aligned", words[kDptr]);
  for (uint32_t done = 0; done < ih.dlengsz; done += 4) {
    const uint32_t here = std::min<uint32_t>(4, ih.dlengsz - done);
    std::array<std::byte, kGatherEntryBytes> entry{};
    const Iova at{words[kDptr] + uint64_t{kGatherEntryBytes} * (done / 4)};
    if (!port_.Read(at, std::span(entry).first(8 + size_t{8} * here))) return false;
    const uint64_t sizes = LoadLe<uint64_t>(entry, 0);
    for (uint32_t i = 0; i < here; ++i) {
      const uint64_t pointer = LoadLe<uint64_t>(entry, 8 + size_t{8} * i);
      if (!Read(pointer, static_cast<uint32_t>(sizes >> (48 - 16 * i) & 0xffff))) return false;
    }
  }
  return true;
}

bool ModelInput::Send(const Words& words, Wire* wire) {
  const Irh irh = DecodeIrh(words[kIrh]);
  const PacketParams params = DecodePacketParams(irh.ossp);
  const TxInfo info = DecodeTxInfo(words[kOssp0]);
  if (Encode(params) != irh.ossp || Encode(info) != words[kOssp0]) {
    return Violate("reserved bits of the packet's parameters", irh.ossp);
  }
  if (params.tnl_csum || params.tsflag || params.ipsec_ops != 0) {
    return Violate("not modelled: tunnels, time stamps, IPsec", irh.ossp);
  }
  if (irh.vlan != 0 && frame_.size() < kEthernetHeader) {
    return Violate("a tag for less than an Ethernet header", frame_.size());
  }
  if (info.gso_size != 0) {
    if (!params.transport_csum) return Violate("segments without their checksums", irh.ossp);
    return Segment(info.gso_size, info.gso_segs, wire, irh);
  }
  if (info.gso_segs != 0) return Violate("segments of no size", info.gso_segs);
  if (frame_.size() > kMaxPlainFrame) return Violate("frame too long", frame_.size());
  if (!Checksums(params)) return false;
  Out(frame_, irh, wire);
  return true;
}

// The device finds the headers; the transport's field holds the pseudo header's sum.
bool ModelInput::Checksums(const PacketParams& params) {
  if (!params.ip_csum && !params.transport_csum) return true;
  const FrameInfo info = ParseFrame(frame_);
  if (params.ip_csum) {
    if (!info.ipv4) return Violate("an IPv4 checksum of a frame that is not", frame_.size());
    WriteIpv4Checksum(frame_, info);
  }
  if (!params.transport_csum) return true;
  if (!info.l4()) return Violate("a checksum of neither TCP nor UDP", frame_.size());
  const uint64_t pseudo = PseudoHeaderSum(frame_, info, info.l3_end - info.l4_offset);
  if (!SameChecksum(LoadBe<uint16_t>(frame_, L4ChecksumAt(info)), pseudo)) {
    return Violate("checksum field without the pseudo header's sum", frame_.size());
  }
  WriteL4Checksum(frame_, info);
  return true;
}

bool ModelInput::Segment(uint16_t size, uint16_t segments, Wire* wire, const Irh& irh) {
  const FrameInfo info = ParseTsoFrame(frame_);
  if (!info.tcp) return Violate("segmentation of a packet that is not TCP", frame_.size());
  const size_t tcp = (std::to_integer<unsigned>(frame_[info.l4_offset + 12u]) >> 4) * 4;
  const size_t header = info.l4_offset + tcp;
  if (tcp < kTcpHeader || header >= frame_.size()) return Violate("nothing to segment", header);
  if (header + size > kMaxPlainFrame) return Violate("segments too long", header + size);
  if (segments != (frame_.size() - header + size - 1) / size) {
    return Violate("gso_segs is not the number of segments", segments);
  }
  if (!SameChecksum(LoadBe<uint16_t>(frame_, L4ChecksumAt(info)),
                    PseudoHeaderSum(frame_, info, 0))) {
    return Violate("checksum field without the pseudo header's sum", frame_.size());
  }
  for (size_t at = header; at < frame_.size(); at += size) {
    CutTcpSegment(frame_, header, size, at, piece_);
    Out(piece_, irh, wire);
  }
  return true;
}

void ModelInput::Out(std::vector<std::byte>& frame, const Irh& irh, Wire* wire) {
  if (irh.vlan != 0) {
    InsertVlanTag(frame, static_cast<uint16_t>(irh.vlan | irh.priority << 13));
  }
  if (wire != nullptr) wire->Accept(frame);
}

}  // namespace dmakit::nic::liquidio
