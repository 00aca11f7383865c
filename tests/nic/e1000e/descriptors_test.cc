// SPDX-License-Identifier: Apache-2.0
//
// Every layout of nic/e1000e against vectors.json, both ways.
#include "nic/e1000e/descriptors.h"

#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/nic/vectors.h"

namespace dmakit::nic::e1000e {

constexpr char kPath[] = "tests/nic/e1000e/vectors.json";

template <typename Visitor>
void Visit(RxLegacy& d, Visitor& visit) {
  visit("addr", d.address);
  visit("length", d.length);
  visit("checksum", d.checksum);
  visit("status", d.status);
  visit("errors", d.errors);
  visit("special", d.special);
}

template <typename Visitor>
void Visit(RxRead& d, Visitor& visit) {
  visit("addr", d.address);
  visit("reserved", d.reserved);
}

// "mrq" is the first word whole: type and queue, and nothing else.
template <typename Visitor>
void Visit(RxWriteBack& d, Visitor& visit) {
  uint32_t mrq = static_cast<uint32_t>(d.rss_type | d.queue << 8);
  visit("mrq", mrq);
  visit("rss_type", d.rss_type);
  visit("queue", d.queue);
  visit("rss_hash", d.rss_hash);
  visit("ip_id", d.ip_id);
  visit("checksum", d.checksum);
  visit("status_error", d.status_error);
  visit("length", d.length);
  visit("vlan", d.vlan);
}

template <typename Visitor>
void Visit(TxLegacy& d, Visitor& visit) {
  visit("addr", d.address);
  visit("length", d.length);
  visit("cso", d.cso);
  visit("cmd", d.cmd);
  visit("status", d.status);
  visit("css", d.css);
  visit("special", d.special);
}

template <typename Visitor>
void Visit(TxContext& d, Visitor& visit) {
  visit("ipcss", d.ipcss);
  visit("ipcso", d.ipcso);
  visit("ipcse", d.ipcse);
  visit("tucss", d.tucss);
  visit("tucso", d.tucso);
  visit("tucse", d.tucse);
  visit("paylen", d.payload_length);
  visit("dtyp", d.type);
  visit("tcp", d.tcp);
  visit("ip", d.ip);
  visit("tse", d.tse);
  visit("rs", d.rs);
  visit("dext", d.dext);
  visit("ide", d.ide);
  visit("status", d.status);
  visit("hdr_len", d.header_length);
  visit("mss", d.mss);
}

template <typename Visitor>
void Visit(TxData& d, Visitor& visit) {
  visit("addr", d.address);
  visit("length", d.length);
  visit("dtyp", d.type);
  visit("eop", d.eop);
  visit("ifcs", d.ifcs);
  visit("tse", d.tse);
  visit("rs", d.rs);
  visit("dext", d.dext);
  visit("vle", d.vle);
  visit("ide", d.ide);
  visit("dd", d.dd);
  visit("ixsm", d.ixsm);
  visit("txsm", d.txsm);
  visit("special", d.special);
}

namespace {

TEST_CASE("e1000e ring entries match the vectors both ways") {
  for (const Vector& v : VectorsOf(kPath, "rx_legacy")) CheckRingEntry<RxLegacy>(v, DecodeRxLegacy);
  for (const Vector& v : VectorsOf(kPath, "rx_extended_read")) {
    CheckRingEntry<RxRead>(v, DecodeRxRead);
  }
  for (const Vector& v : VectorsOf(kPath, "tx_legacy")) CheckRingEntry<TxLegacy>(v, DecodeTxLegacy);
  for (const Vector& v : VectorsOf(kPath, "tx_context")) {
    CheckRingEntry<TxContext>(v, DecodeTxContext);
  }
  for (const Vector& v : VectorsOf(kPath, "tx_data")) CheckRingEntry<TxData>(v, DecodeTxData);
}

TEST_CASE("e1000e receive write-backs match the vectors in the form that PCSD chooses") {
  std::set<RxForm> seen;
  for (const Vector& v : VectorsOf(kPath, "rx_extended_wb")) {
    const RxForm form = v.name.find("PCSD=1") != std::string::npos ? RxForm::kHash : RxForm::kIpId;
    seen.insert(form);
    CheckBothWays<RxWriteBack>(
        v,
        [&](const RxWriteBack& value) {
          const auto bytes = ToBytes(Encode(value, form));
          return Image(bytes.begin(), bytes.end());
        },
        [&](const Image& image) {
          return DecodeRxWriteBack(FromBytes(std::span<const std::byte, 16>(image.data(), 16)),
                                   form);
        });
  }
  CHECK(seen.size() == 2);
}

TEST_CASE("no vector of the e1000e is left out") {
  std::set<std::string> structures;
  for (const Vector& v : AllVectors(kPath)) structures.insert(v.structure);
  CHECK(structures == std::set<std::string>{"rx_extended_read", "rx_extended_wb", "rx_legacy",
                                            "tx_context", "tx_data", "tx_legacy"});
}

TEST_CASE("the write-back of an extended entry lies over its address and its zeros") {
  const Words posted = Encode(RxRead{.address = 0x1122'3344'5566'7788});
  CHECK((posted.high & kRxDone) == 0);
  const Words done =
      Encode(RxWriteBack{.status_error = kRxDone | kRxEndOfPacket, .length = 60, .vlan = 7},
             RxForm::kIpId);
  CHECK(done.low == 0);
  CHECK((done.high & kRxDone) != 0);
  CHECK(DecodeRxRead(done).address != 0x1122'3344'5566'7788);
}

TEST_CASE("an e1000e ring has 64 to 4096 entries, in eights") {
  CHECK(IsRingSize(64));
  CHECK(IsRingSize(72));
  CHECK(IsRingSize(4096));
  CHECK_FALSE(IsRingSize(0));
  CHECK_FALSE(IsRingSize(56));
  CHECK_FALSE(IsRingSize(65));
  CHECK_FALSE(IsRingSize(4104));
}

}  // namespace
}  // namespace dmakit::nic::e1000e
