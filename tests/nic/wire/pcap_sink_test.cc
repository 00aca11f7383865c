// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/pcap_sink.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <ctime>

#include "absl/strings/match.h"
#include "tests/catch.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic {
namespace {

using testing::MakeFrame;
using testing::ReadCapture;
using testing::ReadFile;
using testing::TempPath;

// Writes beyond `bytes` of a file fail with EFBIG while this lives: a disk that runs full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  void (*handler_)(int);
};

TEST_CASE("frames are written with nanoseconds, byte for byte, and read back") {
  const std::string path = TempPath("out.pcap");
  int64_t now = 1'700'000'000'123'456'789;
  auto sink = PcapSink::Open(path, [&] { return now; });
  REQUIRE(sink.ok());
  (*sink)->Accept(MakeFrame(14, 1));
  now += 1'000'000'001;
  (*sink)->Accept(MakeFrame(9000, 2));
  now -= 5;  // the system's clock may be set back
  (*sink)->Accept(MakeFrame(262144, 3));
  REQUIRE((*sink)->Close().ok());

  const auto records = ReadCapture(path);
  REQUIRE(records.has_value());
  REQUIRE(records->size() == 3);
  CHECK((*records)[0].frame == MakeFrame(14, 1));
  CHECK((*records)[0].seconds == 1'700'000'000);
  CHECK((*records)[0].fraction == 123'456'789);
  CHECK((*records)[1].frame == MakeFrame(9000, 2));
  CHECK((*records)[1].seconds == 1'700'000'001);
  CHECK((*records)[1].fraction == 123'456'790);
  CHECK((*records)[2].frame == MakeFrame(262144, 3));
  CHECK((*records)[2].fraction == 123'456'790);
  CHECK((*sink)->stats().frames_from_nic == 3);
  CHECK((*sink)->stats().bytes_from_nic == 14 + 9000 + 262144);
  CHECK((*sink)->stats().lost == 0);
}

TEST_CASE("the system's clock is used when none is given") {
  const std::string path = TempPath("out.pcap");
  const std::time_t before = std::time(nullptr);
  auto sink = PcapSink::Open(path);
  REQUIRE(sink.ok());
  (*sink)->Accept(MakeFrame(60, 1));
  REQUIRE((*sink)->Close().ok());
  const auto records = ReadCapture(path);
  REQUIRE(records.has_value());
  CHECK(records->at(0).seconds >= before - 1);
  CHECK(records->at(0).seconds <= std::time(nullptr) + 1);
}

TEST_CASE("an output without frames is still a capture") {
  auto sink = PcapSink::Open(TempPath("none.pcap"));
  REQUIRE(sink.ok());
  CHECK((*sink)->Close().ok());
  CHECK(ReadFile(TempPath("none.pcap")) == testing::PcapHeader());
}

TEST_CASE("a path that cannot be written is an error at open") {
  for (const std::string& path : {TempPath("no/such/dir/out.pcap"), TempPath(""),
                                  std::string("/dev/full"), std::string("/proc/version")}) {
    const auto sink = PcapSink::Open(path);
    INFO(path);
    REQUIRE_FALSE(sink.ok());
    INFO(sink.status().message());
    CHECK(absl::StartsWith(sink.status().message(), "capture \"" + path + "\": cannot be written"));
  }
}

TEST_CASE("a disk that runs full loses frames, and says so") {
  const std::string path = TempPath("full.pcap");
  for (const size_t frames : {size_t{10}, size_t{2000}}) {  // the buffer is flushed at the end, or
    const FileSizeLimit limit(5000);                        // while frames come in
    auto sink = PcapSink::Open(path);
    REQUIRE(sink.ok());
    for (size_t i = 0; i < frames; ++i) (*sink)->Accept(MakeFrame(1000, i));
    const absl::Status status = (*sink)->Close();
    REQUIRE_FALSE(status.ok());
    INFO(status.message());
    CHECK(absl::StrContains(status.message(), "frames were lost"));
    CHECK(absl::StrContains(status.message(), "File too large"));
    CHECK((*sink)->stats().frames_from_nic == frames);
    CHECK((*sink)->stats().lost == frames);  // none was known to be kept before the failure
    CHECK((*sink)->stats().lost_bytes == frames * 1000);
    CHECK((*sink)->Close() == status);
  }
}

TEST_CASE("frames known to be kept before the disk ran full are not lost") {
  const FileSizeLimit limit(1'500'000);
  auto sink = PcapSink::Open(TempPath("full.pcap"));
  REQUIRE(sink.ok());
  for (int i = 0; i < 3000; ++i) (*sink)->Accept(MakeFrame(1000, i));
  CHECK_FALSE((*sink)->Close().ok());
  const uint64_t kept = 3000 - (*sink)->stats().lost;
  CHECK(kept >= 1000);
  CHECK(kept < 1500);
}

TEST_CASE("a frame that no capture can hold is lost alone") {
  const std::string path = TempPath("out.pcap");
  auto sink = PcapSink::Open(path);
  REQUIRE(sink.ok());
  (*sink)->Accept(MakeFrame(60, 1));
  (*sink)->Accept(MakeFrame(262145, 2));
  (*sink)->Accept(MakeFrame(300000, 2));
  (*sink)->Accept(MakeFrame(60, 3));
  const absl::Status status = (*sink)->Close();
  CHECK(absl::StrContains(status.message(), "262145"));
  CHECK((*sink)->stats().lost == 2);
  CHECK(ReadCapture(path)->size() == 2);
}

}  // namespace
}  // namespace dmakit::nic
