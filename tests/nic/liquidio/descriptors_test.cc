// SPDX-License-Identifier: Apache-2.0
//
// The layouts of nic/liquidio against vectors.json, both ways: the fields of a vector encode to its
// bytes, and its bytes decode to words that encode to the same. The vectors were made by other code
// than ours; field values are unsigned decimals, bytes are hex. Structures that this backend does
// not use (commands, older instructions) are named in the last test.
#include "nic/liquidio/descriptors.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "nic/endian.h"
#include "nic/liquidio/gather_list.h"
#include "nic/liquidio/registers.h"
#include "nic/liquidio/rings.h"
#include "tests/catch.h"

namespace dmakit::nic::liquidio {
namespace {

using Fields = std::map<std::string, uint64_t>;

struct Vector {
  std::string structure;
  std::string name;
  Fields fields;
  std::vector<std::byte> bytes;

  // A field by name, behind `prefix`; as the type it is put into.
  template <typename T>
  void Into(T& out, const std::string& field) const {
    out = static_cast<T>(fields.at(field));
  }
  uint64_t Le(size_t at = 0) const {
    std::vector<std::byte> padded(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end());
    padded.resize(8);
    return LoadLe<uint64_t>(padded);
  }
  uint64_t Be(size_t at) const { return LoadBe<uint64_t>(bytes, at); }
};

const std::vector<Vector>& All() {
  static const std::vector<Vector> all = [] {
    std::ifstream file("tests/nic/liquidio/vectors.json");
    std::vector<Vector> vectors;
    for (const nlohmann::json& v : nlohmann::json::parse(file)) {
      Vector vector{v["struct"], v["case"], v["fields"].get<Fields>(), {}};
      const std::string hex = v["bytes"];
      for (size_t i = 0; i + 1 < hex.size(); i += 2) {
        vector.bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
      }
      vectors.push_back(std::move(vector));
    }
    return vectors;
  }();
  return all;
}

std::set<std::string>& Seen() {
  static std::set<std::string> seen;
  return seen;
}

template <typename Check>
void ForEach(const std::string& structure, Check&& check) {
  size_t count = 0;
  for (const Vector& v : All()) {
    if (v.structure != structure) continue;
    INFO(v.structure << ": " << v.name);
    check(v);
    ++count;
  }
  CHECK(count > 0);
  Seen().insert(structure);
}

Ih3 Ih3Of(const Vector& v, const std::string& p = "") {
  Ih3 h;
  v.Into(h.gather, p + "gather");
  v.Into(h.dlengsz, p + "dlengsz");
  v.Into(h.fsz, p + "fsz");
  v.Into(h.pkind, p + "pkind");
  return h;
}
PkiIh3 PkiOf(const Vector& v, const std::string& p = "") {
  PkiIh3 h;
  v.Into(h.w, p + "w");
  v.Into(h.raw, p + "raw");
  v.Into(h.utag, p + "utag");
  v.Into(h.uqpg, p + "uqpg");
  v.Into(h.pm, p + "pm");
  v.Into(h.sl, p + "sl");
  v.Into(h.utt, p + "utt");
  v.Into(h.tagtype, p + "tagtype");
  v.Into(h.qpg, p + "qpg");
  v.Into(h.tag, p + "tag");
  return h;
}
Irh IrhOf(const Vector& v, const std::string& p = "") {
  Irh h;
  v.Into(h.opcode, p + "opcode");
  v.Into(h.rflag, p + "rflag");
  v.Into(h.subcode, p + "subcode");
  v.Into(h.vlan, p + "vlan");
  v.Into(h.priority, p + "priority");
  v.Into(h.ossp, p + "ossp");
  return h;
}
RhData RhOf(const Vector& v, const std::string& p = "") {
  RhData h;
  v.Into(h.opcode, p + "opcode");
  v.Into(h.subcode, p + "subcode");
  v.Into(h.len, p + "len");
  v.Into(h.extra, p + "extra");
  v.Into(h.vlan, p + "vlan");
  v.Into(h.priority, p + "priority");
  v.Into(h.csum_verified, p + "csum_verified");
  v.Into(h.has_hwtstamp, p + "has_hwtstamp");
  v.Into(h.encap_on, p + "encap_on");
  v.Into(h.has_hash, p + "has_hash");
  return h;
}

TEST_CASE("words of an instruction") {
  ForEach("ih3", [](const Vector& v) {
    CHECK(Encode(Ih3Of(v)) == v.Le());
    CHECK(Encode(DecodeIh3(v.Le())) == v.Le());
  });
  ForEach("pki_ih3", [](const Vector& v) {
    CHECK(Encode(PkiOf(v)) == v.Le());
    CHECK(Encode(DecodePkiIh3(v.Le())) == v.Le());
  });
  ForEach("irh", [](const Vector& v) {
    CHECK(Encode(IrhOf(v)) == v.Le());
    CHECK(Encode(DecodeIrh(v.Le())) == v.Le());
  });
  ForEach("irh_ossp_packet_params", [](const Vector& v) {
    PacketParams p;
    v.Into(p.ip_csum, "ip_csum");
    v.Into(p.transport_csum, "transport_csum");
    v.Into(p.tnl_csum, "tnl_csum");
    v.Into(p.tsflag, "tsflag");
    v.Into(p.ipsec_ops, "ipsec_ops");
    CHECK(Encode(p) == v.Le());
    CHECK(Encode(DecodePacketParams(static_cast<uint32_t>(v.Le()))) == v.Le());
  });
  ForEach("ossp0_tx_info", [](const Vector& v) {
    TxInfo info;
    v.Into(info.gso_size, "gso_size");
    v.Into(info.gso_segs, "gso_segs");
    CHECK(Encode(info) == v.Le());
    CHECK(Encode(DecodeTxInfo(v.Le())) == v.Le());
  });
}

TEST_CASE("whole instructions lie as the slots do") {
  ForEach("instr3", [](const Vector& v) {
    REQUIRE(v.bytes.size() == kInstructionBytes);
    CHECK(v.Le(offsetof(InstructionSlot, dptr)) == v.fields.at("dptr"));
    CHECK(v.Le(offsetof(InstructionSlot, ih3)) == Encode(Ih3Of(v, "ih3.")));
    CHECK(v.Le(offsetof(InstructionSlot, pki_ih3)) == Encode(PkiOf(v, "pki_ih3.")));
    CHECK(v.Le(offsetof(InstructionSlot, irh)) == Encode(IrhOf(v, "irh.")));
    CHECK(v.Le(offsetof(InstructionSlot, ossp0)) == v.fields.at("ossp0"));
    CHECK(v.Le(offsetof(InstructionSlot, ossp1)) == v.fields.at("ossp1"));
    CHECK(v.Le(offsetof(InstructionSlot, rptr)) == v.fields.at("rptr"));
  });
}

TEST_CASE(
    "what the driver says of a data packet is what Linux's says, but for the firmware's tags") {
  const Vector* linux_packet = nullptr;
  for (const Vector& v : All()) {
    if (v.name == "linux data gather 5 tso vlan q3") linux_packet = &v;
  }
  REQUIRE(linux_packet != nullptr);
  const PacketWords words = WordsOf(3);
  Ih3 ih = DecodeIh3(linux_packet->Le(8));
  PkiIh3 pki = DecodePkiIh3(linux_packet->Le(16));
  ih.pkind = 0;
  pki.uqpg = false;
  pki.qpg = 0;
  CHECK((words.ih3 | LengthBits(true, 5)) == Encode(ih));
  CHECK(words.pki_ih3 == Encode(pki));
  CHECK((words.irh | Encode(Irh{.vlan = 100, .priority = 6, .ossp = 64})) == linux_packet->Le(24));
}

TEST_CASE("gather lists") {
  ForEach("sg_entry", [](const Vector& v) {
    // Only lengths the writer takes; the others are checked by their bytes.
    GatherEntrySlot slot{};
    uint64_t sizes = 0;
    for (int i = 0; i < 4; ++i) {
      sizes |= v.fields.at("size" + std::to_string(i)) << (48 - 16 * i);
      CHECK(v.Le(8 + 8 * static_cast<size_t>(i)) == v.fields.at("ptr" + std::to_string(i)));
    }
    CHECK(v.Le() == sizes);
    GatherWriter writer(&slot);
    for (int i = 0; i < 4; ++i) {
      writer.Add(Iova{v.fields.at("ptr" + std::to_string(i))},
                 static_cast<uint32_t>(v.fields.at("size" + std::to_string(i))));
    }
    CHECK(slot.sizes.Load() == v.Le());
    for (uint32_t i = 0; i < 4; ++i) CHECK(PointerOf(&slot, i) == v.Le(8 + size_t{8} * i));
  });
  CHECK(GatherListBytes(17) == 200);  // Linux
  CHECK(GatherListBytes(12) == 120);  // DPDK
  CHECK(GatherListBytes(18) == 200);
  CHECK(GatherListBytes(1) == 40);
}

TEST_CASE("received packets") {
  ForEach("rh_data", [](const Vector& v) {
    CHECK(Encode(RhOf(v)) == v.Le());
    CHECK(Encode(DecodeRhData(v.Le())) == v.Le());
  });
  ForEach("droq_desc", [](const Vector& v) {
    CHECK(v.Le(offsetof(BufferSlot, buffer)) == v.fields.at("buffer_ptr"));
    CHECK(v.Le(offsetof(BufferSlot, info)) == v.fields.at("info_ptr"));
  });
  ForEach("droq_info_modeA", [](const Vector& v) {
    CHECK(v.Be(offsetof(InfoSlot, header)) == Encode(RhOf(v, "rh.")));
    CHECK(v.Be(offsetof(InfoSlot, length)) == v.fields.at("length"));
  });
  ForEach("droq_info_modeB", [](const Vector& v) {
    CHECK(v.Be(0) == v.fields.at("length"));
    CHECK(v.Be(8) == Encode(RhOf(v, "rh.")));
  });
}

TEST_CASE("registers") {
  ForEach("reg_input_control", [](const Vector& v) {
    CHECK((v.Le() & ~kInputOwnerMask) == (kInputControlValue | kInputIs64B | kInputRingEnable));
    CHECK((v.Le() & kInputOwnerMask) ==
          (v.fields.at("RPVF") << 48 | v.fields.at("PF_NUM") << 45 | v.fields.at("VF_NUM") << 32 |
           v.fields.at("MAC_NUM") << 29));
    CHECK((v.Le() & kInputReserved) == 0);
  });
  ForEach("reg_output_control",
          [](const Vector& v) { CHECK(v.Le() == (kOutputControlValue | kOutputRingEnable)); });
  ForEach("reg_in_done_cnts", [](const Vector& v) {
    CHECK((v.Le() & 0xffffffff) == v.fields.at("count"));
    CHECK((v.Le() & kInDoneKept) == (v.fields.at("WMARK") << 32 | v.fields.at("CINT_ENB") << 48));
    CHECK((v.Le() & kInDoneResend) != 0);
  });
  ForEach("reg_out_size", [](const Vector& v) {
    CHECK(v.Le() == (v.fields.at("bufsize") | v.fields.at("isize") << kOutSizeInfoShift));
  });
  ForEach("reg_offsets_ring5", [](const Vector& v) {
    const std::map<std::string, RingReg> registers = {
        {"INPUT_CONTROL", RingReg::kInputControl}, {"INSTR_BADDR", RingReg::kInstrBaddr},
        {"INSTR_DBELL", RingReg::kInstrDoorbell},  {"INSTR_FIFO_RSIZE", RingReg::kInstrFifoRsize},
        {"IN_DONE_CNTS", RingReg::kInDoneCnts},    {"OUTPUT_CONTROL", RingReg::kOutputControl},
        {"OUT_SIZE", RingReg::kOutSize},           {"SLIST_BADDR", RingReg::kSlistBaddr},
        {"PKTS_CREDIT", RingReg::kSlistDoorbell},  {"SLIST_FIFO_RSIZE", RingReg::kSlistFifoRsize},
        {"INT_LEVELS", RingReg::kIntLevels},       {"PKTS_SENT", RingReg::kPktCnts}};
    for (const auto& [name, reg] : registers) {
      CHECK(OffsetOf(reg) + 5 * uint64_t{kRingStride} == v.fields.at(name));
    }
  });
}

TEST_CASE("every vector is looked at, but for what this backend does not use") {
  const std::set<std::string> unused = {"ih2", "nic_cmd_be", "rdp", "response_status", "txpciq"};
  for (const Vector& v : All()) {
    INFO(v.structure);
    CHECK((unused.count(v.structure) == 1) != (Seen().count(v.structure) == 1));
  }
}

}  // namespace
}  // namespace dmakit::nic::liquidio
