// SPDX-License-Identifier: Apache-2.0

#include "nic/enic/model_rx.h"

#include <algorithm>
#include <optional>

namespace dmakit::nic::enic {
namespace {

constexpr size_t kVlanTagAt = 12;
constexpr size_t kVlanTagBytes = 4;
constexpr uint32_t kMaxRxFrame = 16383;  // what bytes_written can say

}  // namespace

// --- One queue -----------------------------------------------------------------------------------

bool ModelReceiveQueue::NextBuffer(RqEnetDesc& descriptor) {
  for (uint32_t available = Available(); available > 0; --available) {
    const std::optional<Words> words = Fetch(0);
    if (!words) return false;
    descriptor = DecodeRq(*words);
    if ((words->high & kRqReservedHigh) != 0) {
      Violate(Rule::kReservedBits, words->high & kRqReservedHigh);
    }
    if (descriptor.type == RqType::kOnlySop) return true;
    if (descriptor.type != RqType::kNotSop) {
      Violate(Rule::kRqType, static_cast<uint64_t>(descriptor.type));
      Stop(QueueError::kDescriptorType);
      return false;
    }
    // A buffer for continuations only: skipped, returned unused (sheet 1.2, 3.2).
    Advance(1);
  }
  return false;
}

ModelReceiveQueue::Outcome ModelReceiveQueue::Receive(const Arrival& arrival) {
  if (!running()) return in_error() ? Outcome::kStopped : Outcome::kNoBuffer;
  RqEnetDesc descriptor;
  if (!NextBuffer(descriptor)) return running() ? Outcome::kNoBuffer : Outcome::kStopped;

  const size_t stripped = arrival.strip_vlan ? kVlanTagBytes : 0;
  const size_t bytes = arrival.frame.size() - stripped;
  CqEnetRqDesc entry;
  if (bytes > std::min(LengthOf(descriptor.length), kMaxRxFrame)) {
    entry.sop = entry.eop = entry.truncated = entry.csum_not_calc = true;
  } else {
    if (!WriteFrame(arrival, descriptor)) {
      Stop(QueueError::kAddressFault);
      return Outcome::kStopped;
    }
    entry = DescribeFrame(arrival);
    entry.bytes_written = static_cast<uint16_t>(bytes);
  }
  entry.completed_index = static_cast<uint16_t>(SlotAt(0));
  entry.q_number = static_cast<uint16_t>(index());
  Advance(1);
  return Complete(Encode(entry), entry.type) ? Outcome::kTaken : Outcome::kStopped;
}

bool ModelReceiveQueue::WriteFrame(const Arrival& arrival, const RqEnetDesc& descriptor) {
  const Iova to{descriptor.address};
  if (!arrival.strip_vlan) return port_.Write(to, arrival.frame);
  return port_.Write(to, arrival.frame.first(kVlanTagAt)) &&
         port_.Write(to + Bytes{kVlanTagAt}, arrival.frame.subspan(kVlanTagAt + kVlanTagBytes));
}

void ModelReceiveQueue::CountDrop() {
  // The read-clear twin is also changed by the trap that clears it.
  block_.Set(RqReg::kDroppedPacketCount, (block_.Get(RqReg::kDroppedPacketCount) + 1) & kAllOnes);
  block_.word(OffsetOf(RqReg::kDroppedPacketCountRc)).fetch_add(1, std::memory_order_acq_rel);
}

// --- Completions (enic sheet 1.5) ----------------------------------------------------------------

CqEnetRqDesc DescribeFrame(const Arrival& arrival) {
  const FrameInfo& info = arrival.info;
  CqEnetRqDesc d;
  d.sop = d.eop = d.fcs_ok = true;
  d.rss_hash = arrival.hash;
  d.rss_type = arrival.hash_type;
  d.vlan_stripped = arrival.strip_vlan;
  if (arrival.strip_vlan) d.vlan = info.tci;
  d.ipv4 = info.ipv4;
  d.ipv6 = info.ipv6;
  d.ipv4_fragment = info.ipv4 && info.fragment;
  d.tcp = info.tcp;
  d.udp = info.udp;
  d.ipv4_csum_ok = Ipv4ChecksumState(arrival.frame, info) == ChecksumState::kGood;
  const ChecksumState l4 = L4ChecksumState(arrival.frame, info);
  d.tcp_udp_csum_ok = l4 == ChecksumState::kGood;
  // Not IP, or a transport without a checksum: then there is nothing to be good or bad.
  d.csum_not_calc = !info.ip() || (info.l4() && l4 == ChecksumState::kNone);
  return d;
}

// --- Which queue ---------------------------------------------------------------------------------

// The type codes know TCP and "IP"; UDP ports that are hashed are reported as the latter.
void Steering::Hash(Arrival& arrival) const {
  if (!config.rss_enable || !arrival.info.ip()) return;
  const FrameInfo& info = arrival.info;
  const bool v4 = info.ipv4;
  const auto wants = [&](RssHashType type) { return (config.rss_hash_type & type) != 0; };
  const bool tcp = info.tcp && wants(v4 ? kHashTcpIpv4 : kHashTcpIpv6);
  const bool udp = info.udp && wants(v4 ? kHashUdpIpv4 : kHashUdpIpv6);
  if (!tcp && !udp && !wants(v4 ? kHashIpv4 : kHashIpv6)) return;
  const HashInput input = HashInputOf(arrival.frame, info);
  const size_t length = tcp || udp ? input.with_ports : input.addresses;
  arrival.hash = ToeplitzHash(key, std::span(input.bytes).first(length));
  if (tcp) {
    arrival.hash_type = v4 ? RssType::kTcpIpv4 : RssType::kTcpIpv6;
  } else {
    arrival.hash_type = v4 ? RssType::kIpv4 : RssType::kIpv6;
  }
}

uint32_t Steering::Queue(const Arrival& arrival) const {
  if (arrival.hash_type == RssType::kNone) return config.rss_default_cpu;
  const uint32_t mask = (1u << config.rss_hash_bits) - 1;
  return config.rss_base_cpu + table[arrival.hash & mask];
}

bool PacketFilter::Accepts(std::span<const std::byte> frame) const {
  if ((bits & kFilterPromiscuous) != 0) return true;
  const std::span<const std::byte> to = frame.first(6);
  const auto is = [](std::byte b) { return b == std::byte{0xff}; };
  if (std::all_of(to.begin(), to.end(), is)) return (bits & kFilterBroadcast) != 0;
  if ((to[0] & std::byte{1}) != std::byte{0}) {
    return (bits & (kFilterMulticast | kFilterAllMulticast)) != 0;
  }
  const auto same = [](std::byte a, uint8_t b) { return std::to_integer<uint8_t>(a) == b; };
  return (bits & kFilterDirected) != 0 && std::equal(to.begin(), to.end(), mac.begin(), same);
}

}  // namespace dmakit::nic::enic
