// SPDX-License-Identifier: Apache-2.0
//
// Every layout of nic/enic against vectors.json, both ways: the fields of a vector encode to its
// bytes, and its bytes decode to its fields. The vectors were made by other code than ours; field
// values are unsigned decimals, bytes are hex.
#include "nic/enic/descriptors.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "nic/enic/commands.h"
#include "nic/enic/registers.h"
#include "nic/enic/ring_slots.h"
#include "tests/catch.h"
#include "tests/nic/vectors.h"

namespace dmakit::nic::enic {

std::vector<Vector> Of(const std::string& structure) {
  return VectorsOf("tests/nic/enic/vectors.json", structure);
}

template <typename Visitor>
void Visit(WqEnetDesc& d, Visitor& visit) {
  visit("address", d.address);
  visit("length", d.length);
  visit("mss", d.mss);
  visit("loopback", d.loopback);
  visit("header_length", d.header_length);
  visit("offload_mode", d.offload_mode);
  visit("eop", d.eop);
  visit("cq_entry", d.cq_entry);
  visit("fcoe_encap", d.fcoe_encap);
  visit("vlan_tag_insert", d.vlan_tag_insert);
  visit("vlan_tag", d.vlan_tag);
}

template <typename Visitor>
void Visit(RqEnetDesc& d, Visitor& visit) {
  visit("address", d.address);
  visit("length", d.length);
  visit("type", d.type);
}

template <typename Visitor>
void Visit(CqEnetWqDesc& d, Visitor& visit) {
  visit("type", d.type);
  visit("color", d.color);
  visit("q_number", d.q_number);
  visit("completed_index", d.completed_index);
}

template <typename Visitor>
void Visit(CqEnetRqDesc& d, Visitor& visit) {
  visit("type", d.type);
  visit("color", d.color);
  visit("q_number", d.q_number);
  visit("completed_index", d.completed_index);
  visit("ingress_port", d.ingress_port);
  visit("fcoe", d.fcoe);
  visit("eop", d.eop);
  visit("sop", d.sop);
  visit("rss_type", d.rss_type);
  visit("csum_not_calc", d.csum_not_calc);
  visit("rss_hash", d.rss_hash);
  visit("bytes_written", d.bytes_written);
  visit("truncated", d.truncated);
  visit("vlan_stripped", d.vlan_stripped);
  visit("vlan", d.vlan);
  visit("checksum_fcoe", d.checksum_fcoe);
  visit("tcp_udp_csum_ok", d.tcp_udp_csum_ok);
  visit("udp", d.udp);
  visit("tcp", d.tcp);
  visit("ipv4_csum_ok", d.ipv4_csum_ok);
  visit("ipv6", d.ipv6);
  visit("ipv4", d.ipv4);
  visit("ipv4_fragment", d.ipv4_fragment);
  visit("fcs_ok", d.fcs_ok);
}

template <typename Visitor>
void Visit(DevcmdWord& d, Visitor& visit) {
  visit("number", d.number);
  visit("vtype", d.vtype);
  visit("flags", d.flags);
  visit("dir", d.direction);
}

template <typename Visitor>
void Visit(NicCfg& d, Visitor& visit) {
  visit("rss_default_cpu", d.rss_default_cpu);
  visit("rss_hash_type", d.rss_hash_type);
  visit("rss_hash_bits", d.rss_hash_bits);
  visit("rss_base_cpu", d.rss_base_cpu);
  visit("rss_enable", d.rss_enable);
  visit("tso_ipid_split_en", d.tso_ipid_split);
  visit("ig_vlan_strip_en", d.vlan_strip);
}

template <typename T, typename DecodeFn>
void CheckRingEntries(const std::string& structure, DecodeFn decode) {
  for (const Vector& v : Of(structure)) CheckRingEntry<T>(v, decode);
}

template <typename T, typename DecodeFn>
void CheckWords(const std::string& structure, DecodeFn decode) {
  for (const Vector& v : Of(structure)) {
    CheckBothWays<T>(
        v,
        [](const T& value) {
          Image image(4);
          StoreLe<uint32_t>(image, 0, Encode(value));
          return image;
        },
        [&](const Image& image) { return decode(LoadLe<uint32_t>(image)); });
  }
}

namespace {

TEST_CASE("ring entries match the vectors both ways") {
  CheckRingEntries<WqEnetDesc>("wq_enet_desc", DecodeWq);
  CheckRingEntries<RqEnetDesc>("rq_enet_desc", DecodeRq);
  CheckRingEntries<CqEnetWqDesc>("cq_enet_wq_desc", DecodeCqWq);
  CheckRingEntries<CqEnetRqDesc>("cq_enet_rq_desc", DecodeCqRq);
}

TEST_CASE("the 64-byte completion matches its vector both ways") {
  for (const Vector& v : Of("cq_enet_rq_desc_64")) {
    INFO(v.name);
    CqEnetRqDesc d;
    d.type = CqType::kRqEnet;
    d.sop = d.eop = true;
    d.color = v.fields.at("color") != 0;
    d.q_number = static_cast<uint16_t>(v.fields.at("q_number"));
    d.completed_index = static_cast<uint16_t>(v.fields.at("completed_index"));
    d.bytes_written = static_cast<uint16_t>(v.fields.at("bytes_written"));
    const auto bytes = Encode64(d);
    CHECK(Image(bytes.begin(), bytes.end()) == v.bytes);

    const CqEnetRqDesc back = DecodeCqRq64(std::span<const std::byte, 64>(v.bytes.data(), 64));
    CHECK(back.completed_index == d.completed_index);
    CHECK(back.bytes_written == d.bytes_written);
    CHECK(back.q_number == d.q_number);
    CHECK(back.color == d.color);
    CHECK(back.type == CqType::kRqEnet);
    CHECK((back.sop && back.eop));
  }
}

TEST_CASE("the words a ring holds are the bytes of its entries") {
  for (const Vector& v : Of("wq_enet_desc")) {
    DescriptorSlot slot;
    slot.Store(FromBytes(std::span<const std::byte, 16>(v.bytes.data(), 16)));
    CHECK(std::memcmp(&slot, v.bytes.data(), sizeof(slot)) == 0);
  }
  for (const Vector& v : Of("cq_enet_rq_desc")) {
    CqSlot slot;
    std::memcpy(static_cast<void*>(&slot), v.bytes.data(), sizeof(slot));
    const Words words = slot.LoadRest(slot.type_color.LoadAcquire());
    CHECK(words == FromBytes(std::span<const std::byte, 16>(v.bytes.data(), 16)));
  }
}

template <size_t N>
void CheckRegisters(const std::string& structure, const RegisterField (&table)[N]) {
  for (const Vector& v : Of(structure)) {
    INFO(structure << " " << v.name);
    Image image(v.bytes.size());
    REQUIRE(table[N - 1].offset + 8u == v.bytes.size());
    REQUIRE(v.fields.size() == N);
    for (const RegisterField& field : table) {
      INFO(field.name);
      const uint64_t value = v.fields.at(std::string(field.name));
      if (field.width == 8) {
        StoreLe<uint64_t>(image, field.offset, value);
        CHECK(LoadLe<uint64_t>(v.bytes, field.offset) == value);
      } else {
        StoreLe<uint32_t>(image, field.offset, static_cast<uint32_t>(value));
        CHECK(LoadLe<uint32_t>(v.bytes, field.offset) == value);
      }
    }
    CHECK(image == v.bytes);
  }
}

TEST_CASE("control blocks match the vectors") {
  CheckRegisters("wq_ctrl_registers", kWqFields);
  CheckRegisters("rq_ctrl_registers", kRqFields);
  CheckRegisters("cq_ctrl_registers", kCqFields);
}

TEST_CASE("the interrupt block matches its vector, credit return included") {
  for (const Vector& v : Of("intr_ctrl_registers")) {
    Image image(v.bytes.size());
    for (const RegisterField& field : kIntrFields) {
      uint32_t value = 0;
      if (field.offset == OffsetOf(IntrReg::kIntCreditReturn)) {
        const IntCreditReturn credit{
            static_cast<uint16_t>(v.fields.at("int_credit_return.credits")),
            v.fields.at("int_credit_return.unmask") != 0,
            v.fields.at("int_credit_return.reset_timer") != 0};
        value = Encode(credit);
        const IntCreditReturn back = DecodeIntCreditReturn(LoadLe<uint32_t>(v.bytes, field.offset));
        CHECK(back.credits == credit.credits);
        CHECK(back.unmask == credit.unmask);
        CHECK(back.reset_timer == credit.reset_timer);
      } else {
        value = static_cast<uint32_t>(v.fields.at(std::string(field.name)));
        CHECK(LoadLe<uint32_t>(v.bytes, field.offset) == value);
      }
      StoreLe<uint32_t>(image, field.offset, value);
    }
    CHECK(image == v.bytes);
  }
}

template <typename Reg, size_t N>
void CheckEnumerators(const RegisterField (&table)[N], std::initializer_list<Reg> in_order) {
  REQUIRE(in_order.size() == N);
  size_t i = 0;
  for (const Reg reg : in_order) {
    INFO(table[i].name);
    CHECK(table[i++].offset == OffsetOf(reg));
  }
}

TEST_CASE("the names driver and model use are the offsets of the tables") {
  CheckEnumerators(
      kWqFields, {WqReg::kRingBase, WqReg::kRingSize, WqReg::kPostedIndex, WqReg::kCqIndex,
                  WqReg::kEnable, WqReg::kRunning, WqReg::kFetchIndex, WqReg::kDcaValue,
                  WqReg::kErrorInterruptEnable, WqReg::kErrorInterruptOffset, WqReg::kErrorStatus});
  CheckEnumerators(
      kRqFields, {RqReg::kRingBase, RqReg::kRingSize, RqReg::kPostedIndex, RqReg::kCqIndex,
                  RqReg::kEnable, RqReg::kRunning, RqReg::kFetchIndex, RqReg::kErrorInterruptEnable,
                  RqReg::kErrorInterruptOffset, RqReg::kErrorStatus, RqReg::kDroppedPacketCount,
                  RqReg::kDroppedPacketCountRc});
  CheckEnumerators(kCqFields, {CqReg::kRingBase, CqReg::kRingSize, CqReg::kFlowControlEnable,
                               CqReg::kColorEnable, CqReg::kHead, CqReg::kTail, CqReg::kTailColor,
                               CqReg::kInterruptEnable, CqReg::kEntryEnable, CqReg::kMessageEnable,
                               CqReg::kInterruptOffset, CqReg::kMessageAddr});
  CheckEnumerators(kIntrFields, {IntrReg::kCoalescingTimer, IntrReg::kCoalescingValue,
                                 IntrReg::kCoalescingType, IntrReg::kMaskOnAssertion,
                                 IntrReg::kMask, IntrReg::kIntCredits, IntrReg::kIntCreditReturn});
}

TEST_CASE("the resource table matches its vector both ways") {
  for (const Vector& v : Of("resource_table")) {
    CHECK(v.fields.at("magic") == kResourceMagic);
    CHECK(v.fields.at("version") == kResourceVersion);
    Image image(v.bytes.size());
    StoreLe<uint32_t>(image, 0, kResourceMagic);
    StoreLe<uint32_t>(image, 4, kResourceVersion);
    for (size_t i = 0, at = kResourceHeaderBytes; at < v.bytes.size();
         ++i, at += kResourceEntryBytes) {
      const std::string prefix = "r" + std::to_string(i) + ".";
      const auto field = [&](const char* name) -> uint64_t {
        const auto found = v.fields.find(prefix + name);
        return found == v.fields.end() ? 0 : found->second;
      };
      const Resource resource{
          static_cast<ResourceType>(field("type")), static_cast<uint8_t>(field("bar")),
          static_cast<uint32_t>(field("bar_offset")), static_cast<uint32_t>(field("count"))};
      std::array<uint32_t, 3> words{};
      for (size_t w = 0; w < 3; ++w) {
        StoreLe<uint32_t>(image, at + 4 * w, Encode(resource)[w]);
        words[w] = LoadLe<uint32_t>(v.bytes, at + 4 * w);
      }
      const Resource back = DecodeResource(words);
      CHECK(back.type == resource.type);
      CHECK(back.bar == resource.bar);
      CHECK(back.bar_offset == resource.bar_offset);
      CHECK(back.count == resource.count);
    }
    CHECK(image == v.bytes);
  }
}

TEST_CASE("the devcmd region matches its vector") {
  for (const Vector& v : Of("devcmd_region")) {
    REQUIRE(v.bytes.size() == kDevcmdBytes);
    Image image(kDevcmdBytes);
    StoreLe<uint32_t>(image, kDevcmdStatus, static_cast<uint32_t>(v.fields.at("status")));
    StoreLe<uint32_t>(image, kDevcmdCmd, static_cast<uint32_t>(v.fields.at("cmd")));
    for (const size_t i : {0, 1, 14}) {
      StoreLe<uint64_t>(image, kDevcmdArgs + 8 * i, v.fields.at("arg" + std::to_string(i)));
    }
    CHECK(image == v.bytes);
    CHECK(LoadLe<uint32_t>(v.bytes, kDevcmdStatus) == (kDevcmdBusy | kDevcmdError));
    CHECK(DecodeDevcmd(LoadLe<uint32_t>(v.bytes, kDevcmdCmd)).command() == Devcmd::kDevSpec);
  }
}

TEST_CASE("command words and NIC_CFG match the vectors both ways") {
  CheckWords<DevcmdWord>("devcmd_cmd", DecodeDevcmd);
  CheckWords<NicCfg>("nic_cfg", DecodeNicCfg);
  const std::map<std::string, Devcmd> names = {{"OPEN", Devcmd::kOpen},
                                               {"DEV_SPEC", Devcmd::kDevSpec},
                                               {"GET_MAC_ADDR", Devcmd::kGetMacAddr},
                                               {"PACKET_FILTER", Devcmd::kPacketFilter}};
  for (const Vector& v : Of("devcmd_cmd")) {
    CHECK(static_cast<uint64_t>(names.at(v.name)) == v.fields.at("number"));
  }
}

TEST_CASE("no vector is left out") {
  const std::set<std::string> covered = {"wq_enet_desc",
                                         "rq_enet_desc",
                                         "cq_enet_wq_desc",
                                         "cq_enet_rq_desc",
                                         "cq_enet_rq_desc_64",
                                         "wq_ctrl_registers",
                                         "rq_ctrl_registers",
                                         "cq_ctrl_registers",
                                         "resource_table",
                                         "devcmd_region",
                                         "intr_ctrl_registers",
                                         "devcmd_cmd",
                                         "nic_cfg"};
  std::set<std::string> there;
  for (const Vector& v : AllVectors("tests/nic/enic/vectors.json")) there.insert(v.structure);
  CHECK(there == covered);
  CHECK(AllVectors("tests/nic/enic/vectors.json").size() == 36);
}

TEST_CASE("16384 bytes encode as length 0") {
  CHECK(LengthField(kMaxPiece) == 0);
  CHECK(LengthOf(0) == kMaxPiece);
  for (const uint32_t bytes : {1u, 60u, 9208u, 16383u})
    CHECK(LengthOf(LengthField(bytes)) == bytes);
}

TEST_CASE("reserved bits are where no field is") {
  WqEnetDesc all;
  all.length = 0x3fff;
  all.mss = 0x3fff;
  all.loopback = all.eop = all.cq_entry = all.fcoe_encap = all.vlan_tag_insert = true;
  all.header_length = 0x3ff;
  all.offload_mode = OffloadMode::kTso;
  all.vlan_tag = 0xffff;
  CHECK(Encode(all).high == ~kWqReservedHigh);
  CHECK(Encode(RqEnetDesc{0, 0x3fff, RqType::kReserved3}).high == ~kRqReservedHigh);
}

TEST_CASE("DEV_SPEC, the MAC argument and the RSS tables keep what they hold") {
  const DevSpec spec{1, 4096, 2048, 9000};
  const auto bytes = Encode(spec);
  const DevSpec back = DecodeDevSpec(bytes);
  CHECK(back.wq_descriptors == 4096);
  CHECK(back.rq_descriptors == 2048);
  CHECK(back.mtu == 9000);
  CHECK(LoadLe<uint16_t>(bytes, 12) == 9000);

  const std::array<uint8_t, 6> mac = {2, 0x11, 0x22, 0x33, 0x44, 0x55};
  CHECK(MacOfArg(ArgOfMac(mac)) == mac);
  CHECK((ArgOfMac(mac) & 0xff) == 2);

  std::set<size_t> places;
  for (size_t i = 0; i < kRssKeyLength; ++i) places.insert(RssKeyOffset(i));
  CHECK(places.size() == kRssKeyLength);
  places.clear();
  for (size_t i = 0; i < kRssCpuEntries; ++i) places.insert(RssCpuOffset(i));
  CHECK(places.size() == kRssCpuEntries);
}

}  // namespace
}  // namespace dmakit::nic::enic
