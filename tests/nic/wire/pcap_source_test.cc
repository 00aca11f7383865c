// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/pcap_source.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/catch.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic {
namespace {

using testing::kMicroMagic;
using testing::kNanoMagic;
using testing::MakeFrame;
using testing::PcapHeader;
using testing::PcapNg;
using testing::PcapRecord;
using testing::Record;
using testing::TempPath;
using testing::WriteFile;

struct Seen {
  Frame frame;
  int64_t time;
  bool operator==(const Seen&) const = default;
};

std::vector<Seen> Drain(PcapSource& source) {
  std::vector<Seen> seen;
  // A Peek may pass over a bounded number of refused frames and show nothing.
  for (int dry = 0; !source.exhausted() && dry < 1000; ++dry) {
    while (auto frame = source.Peek()) {
      seen.push_back({Frame(frame->begin(), frame->end()), source.timestamp()});
      source.Pop();
    }
  }
  return seen;
}

std::unique_ptr<PcapSource> OpenBytes(const std::string& bytes) {
  WriteFile(TempPath("in.pcap"), bytes);
  auto source = PcapSource::Open(TempPath("in.pcap"));
  INFO(source.status().message());
  REQUIRE(source.ok());
  return *std::move(source);
}

// The error of opening a file with these bytes; checks that it names the file and is one line.
std::string OpenError(const std::string& bytes) {
  WriteFile(TempPath("bad.pcap"), bytes);
  const auto source = PcapSource::Open(TempPath("bad.pcap"));
  REQUIRE_FALSE(source.ok());
  const std::string message(source.status().message());
  INFO(message);
  CHECK(absl::StartsWith(message, "capture \"" + TempPath("bad.pcap") + "\": "));
  CHECK_FALSE(absl::StrContains(message, "\n"));
  CHECK(absl::StrContains(message, "; "));  // what is wrong; what to do
  return message;
}

TEST_CASE("micro- and nanosecond captures in both byte orders, and pcapng") {
  const std::vector<Record> records = {{MakeFrame(60, 1), 1'700'000'000, 7},
                                       {MakeFrame(9000, 2), 1'700'000'001, 999'999}};
  for (const uint32_t magic : {kMicroMagic, kNanoMagic}) {
    for (const bool big : {false, true}) {
      std::string bytes = PcapHeader(magic, 1, big);
      std::vector<Seen> want;
      for (const Record& r : records) {
        bytes += PcapRecord(r, big);
        const int64_t unit = magic == kMicroMagic ? 1000 : 1;
        want.push_back({r.frame, int64_t{r.seconds} * 1'000'000'000 + r.fraction * unit});
      }
      const auto source = OpenBytes(bytes);
      CHECK(Drain(*source) == want);
      CHECK(source->Close().ok());
      CHECK(source->stats().frames_to_nic == 2);
      CHECK(source->stats().bytes_to_nic == 9060);
    }
  }
  const auto source = OpenBytes(PcapNg(records));
  CHECK(Drain(*source) == std::vector<Seen>{{records[0].frame, 1'700'000'000'000'000'007},
                                            {records[1].frame, 1'700'000'001'000'999'999}});
}

TEST_CASE("a capture in memory") {
  const std::string bytes = PcapHeader() + PcapRecord({MakeFrame(64, 1)});
  const auto source = PcapSource::FromMemory(std::as_bytes(std::span(bytes)), "built in");
  REQUIRE(source.ok());
  CHECK(Drain(**source).size() == 1);
  CHECK_FALSE(PcapSource::FromMemory({}, "built in").ok());
  const auto broken = PcapSource::FromMemory(std::as_bytes(std::span(bytes).first(20)), "built in");
  CHECK(absl::StrContains(broken.status().message(), "built in"));
}

TEST_CASE("frames that are too short or cut by the snap length are refused and counted") {
  Record cut{MakeFrame(100, 2)};
  cut.length = 1500;
  Record longer_than_itself{MakeFrame(100, 2)};
  longer_than_itself.length = 50;
  const auto source = OpenBytes(PcapHeader() + PcapRecord({MakeFrame(13, 1)}) + PcapRecord(cut) +
                                PcapRecord({MakeFrame(14, 3)}) + PcapRecord({Frame{}}) +
                                PcapRecord(longer_than_itself) + PcapRecord({MakeFrame(60, 4)}));
  const auto seen = Drain(*source);
  REQUIRE(seen.size() == 2);
  CHECK(seen[0].frame == MakeFrame(14, 3));
  CHECK(seen[1].frame == MakeFrame(60, 4));
  const WireStats stats = source->stats();
  CHECK(stats.refused == 4);
  CHECK(stats.refused_short == 2);
  CHECK(stats.refused_cut == 2);
  CHECK(stats.refused_bytes == 13 + 1500 + 50);
  CHECK(source->Close().ok());
}

TEST_CASE("a snap length in the header cuts what is longer") {
  const auto source =
      OpenBytes(PcapHeader(kNanoMagic, 1, false, 64) + PcapRecord({MakeFrame(65, 1)}));
  CHECK(Drain(*source).empty());
  CHECK(source->stats().refused_cut == 1);
}

TEST_CASE("many refused frames in a row are passed over in bounded pieces") {
  std::string bytes = PcapHeader();
  for (int i = 0; i < 2000; ++i) bytes += PcapRecord({MakeFrame(5, i)});
  const auto source = OpenBytes(bytes + PcapRecord({MakeFrame(60, 7)}));
  CHECK_FALSE(source->Peek().has_value());
  CHECK_FALSE(source->exhausted());
  CHECK(Drain(*source).size() == 1);
  CHECK(source->stats().refused_short == 2000);
}

TEST_CASE("frames beyond 65,535 bytes are offered as they are") {
  const auto source =
      OpenBytes(PcapHeader() + PcapRecord({MakeFrame(65535, 1)}) +
                PcapRecord({MakeFrame(70000, 2)}) + PcapRecord({MakeFrame(262144, 3)}));
  const auto seen = Drain(*source);
  REQUIRE(seen.size() == 3);
  CHECK(seen[1].frame.size() == 70000);
  CHECK(seen[2].frame == MakeFrame(262144, 3));
}

TEST_CASE("files that cannot be used say why at once") {
  const std::string good = PcapHeader() + PcapRecord({MakeFrame(60, 1)});
  CHECK(absl::StrContains(OpenError(""), "is empty"));
  CHECK(absl::StrContains(OpenError(PcapHeader()), "has no frames"));
  CHECK(absl::StrContains(OpenError(good.substr(0, 3)), "no readable capture"));
  CHECK(absl::StrContains(OpenError(good.substr(0, 20)), "no readable capture"));
  CHECK(
      absl::StrContains(OpenError("this is a text, not a capture at all"), "no readable capture"));
  CHECK(absl::StrContains(OpenError(good.substr(0, 30)), "truncated or corrupt after 0 frames"));
  CHECK(absl::StrContains(OpenError(good.substr(0, good.size() - 1)),
                          "truncated or corrupt after 0 frames"));
  const std::string cooked = OpenError(PcapHeader(kNanoMagic, 113));
  CHECK(absl::StrContains(cooked, "link type LINUX_SLL (113) must be EN10MB"));
  CHECK(absl::StrContains(OpenError(PcapHeader(kNanoMagic, 9999)), "link type ? (9999)"));

  const auto missing = PcapSource::Open(TempPath("no/such.pcap"));
  CHECK(absl::StrContains(missing.status().message(), "No such file or directory"));
  const auto directory = PcapSource::Open(TempPath(""));
  CHECK(absl::StrContains(directory.status().message(), "is a directory"));
}

TEST_CASE("a file cut or damaged half-way delivers what comes before and reports at Close") {
  const std::string good = PcapHeader() + PcapRecord({MakeFrame(60, 1)}) +
                           PcapRecord({MakeFrame(61, 2)}) + PcapRecord({MakeFrame(62, 3)});
  std::string corrupt = good;
  for (size_t i = 0; i < 4; ++i) corrupt[24 + 16 + 60 + 16 + 61 + 8 + i] = '\x7f';  // its caplen
  for (const std::string& bytes :
       {good.substr(0, good.size() - 1), good.substr(0, good.size() - 62), corrupt,
        good.substr(0, good.size() - 62 - 5)}) {
    const auto source = OpenBytes(bytes);
    const auto seen = Drain(*source);
    REQUIRE(seen.size() == 2);
    CHECK(seen[1].frame == MakeFrame(61, 2));
    CHECK(source->exhausted());
    const absl::Status status = source->Close();
    INFO(status.message());
    CHECK(absl::StrContains(status.message(), "truncated or corrupt after 2 frames"));
    CHECK(source->Close() == status);
  }
}

TEST_CASE("a pcapng file cut half-way is reported too") {
  const std::string bytes = PcapNg({{MakeFrame(60, 1)}, {MakeFrame(60, 2)}});
  const auto source = OpenBytes(bytes.substr(0, bytes.size() - 10));
  CHECK(Drain(*source).size() == 1);
  CHECK_FALSE(source->Close().ok());
}

TEST_CASE("a closed source gives nothing more") {
  const auto source = OpenBytes(PcapHeader() + PcapRecord({MakeFrame(60, 1)}));
  CHECK(source->Close().ok());
  CHECK(source->exhausted());
  CHECK_FALSE(source->Peek().has_value());
}

}  // namespace
}  // namespace dmakit::nic
