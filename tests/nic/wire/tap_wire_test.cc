// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/tap_wire.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <string>

#include "absl/strings/match.h"
#include "nic/wire/memory_wire.h"
#include "tests/catch.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic {
namespace {

using absl::StrContains;
using testing::MakeFrame;

// The kernel's side of a TAP interface. Descriptors must be open, and are closed once.
class FakeTap final : public TapCalls {
 public:
  int Open() override {
    if (open_error != 0) return -open_error;
    REQUIRE_FALSE(is_open);
    is_open = true;
    return kFd;
  }
  int Attach(int fd, const std::string& name) override {
    Check(fd);
    attached = name;
    return -attach_error;
  }
  std::ptrdiff_t Read(int fd, std::span<std::byte> to) override {
    Check(fd);
    ++reads;
    if (gone) return -EBADFD;
    if (to_nic.empty()) return -EAGAIN;
    const Frame frame = to_nic.front();
    to_nic.pop_front();
    const size_t n = std::min(frame.size(), to.size());
    std::copy_n(frame.begin(), n, to.begin());
    return static_cast<std::ptrdiff_t>(n);
  }
  std::ptrdiff_t Write(int fd, std::span<const std::byte> frame) override {
    Check(fd);
    if (gone) return -EBADFD;
    if (write_error != 0) return -write_error;
    if (short_write) return static_cast<std::ptrdiff_t>(frame.size() - 1);
    from_nic.emplace_back(frame.begin(), frame.end());
    return static_cast<std::ptrdiff_t>(frame.size());
  }
  void Close(int fd) override {
    Check(fd);
    is_open = false;
  }

  int open_error = 0;
  int attach_error = 0;
  int write_error = 0;
  bool short_write = false;
  bool gone = false;
  bool is_open = false;
  int reads = 0;
  std::string attached;
  std::deque<Frame> to_nic;
  std::vector<Frame> from_nic;

 private:
  static constexpr int kFd = 1000;
  void Check(int fd) const { REQUIRE((is_open && fd == kFd)); }
};

std::unique_ptr<TapWire> Open(FakeTap& tap) {
  auto wire = TapWire::Open("tap0", tap);
  REQUIRE(wire.ok());
  return *std::move(wire);
}

TEST_CASE("a TAP wire carries frames both ways") {
  FakeTap tap;
  auto wire = Open(tap);
  CHECK(tap.attached == "tap0");
  CHECK_FALSE(wire->Peek().has_value());
  CHECK_FALSE(wire->exhausted());  // more may come

  tap.to_nic = {MakeFrame(60, 1), MakeFrame(1514, 2)};
  REQUIRE(wire->Peek().has_value());
  const auto shown = *wire->Peek();  // the same one until it is taken
  CHECK(Frame(shown.begin(), shown.end()) == MakeFrame(60, 1));
  wire->Pop();
  wire->Pop();  // shows nothing: takes nothing
  CHECK(wire->Peek()->size() == 1514);
  wire->Accept(MakeFrame(100, 3));  // does not disturb the frame that waits
  CHECK(wire->Peek()->size() == 1514);
  wire->Pop();
  CHECK_FALSE(wire->Peek().has_value());

  CHECK(tap.from_nic == std::vector<Frame>{MakeFrame(100, 3)});
  const WireStats stats = wire->stats();
  CHECK(stats.frames_to_nic == 2);
  CHECK(stats.bytes_to_nic == 1574);
  CHECK(stats.frames_from_nic == 1);
  CHECK(stats.bytes_from_nic == 100);
  CHECK(stats.lost == 0);
  CHECK(stats.refused == 0);
}

TEST_CASE("frames that are too short or too long are refused, and cannot hold the reader") {
  FakeTap tap;
  auto wire = Open(tap);
  tap.to_nic = {MakeFrame(13, 1), MakeFrame(0, 2), MakeFrame(TapWire::kMaxFrame + 1, 3),
                MakeFrame(100'000, 4), MakeFrame(TapWire::kMaxFrame, 5)};
  REQUIRE(wire->Peek().has_value());
  CHECK(wire->Peek()->size() == TapWire::kMaxFrame);
  CHECK(wire->stats().refused_short == 2);
  CHECK(wire->stats().refused_cut == 2);
  CHECK(wire->stats().refused == 4);
  wire->Pop();

  tap.to_nic.assign(1000, MakeFrame(10, 1));
  tap.reads = 0;
  CHECK_FALSE(wire->Peek().has_value());
  CHECK(tap.reads == 64);
  while (!tap.to_nic.empty()) CHECK_FALSE(wire->Peek().has_value());
  CHECK(wire->stats().refused_short == 1002);
}

TEST_CASE("what the kernel does not take is lost, counted, and no error") {
  FakeTap tap;
  auto wire = Open(tap);
  for (const int error : {EAGAIN, EIO, EINVAL, ENOBUFS}) {
    tap.write_error = error;
    wire->Accept(MakeFrame(60, 1));
  }
  tap.write_error = 0;
  tap.short_write = true;
  wire->Accept(MakeFrame(60, 2));
  tap.short_write = false;
  wire->Accept(MakeFrame(60, 3));
  CHECK(tap.from_nic.size() == 1);
  CHECK(wire->stats().frames_from_nic == 6);
  CHECK(wire->stats().lost == 5);
  CHECK(wire->stats().lost_bytes == 300);
  CHECK_FALSE(wire->exhausted());
  CHECK(wire->Close().ok());
}

TEST_CASE("an interface that goes away ends the wire with an error") {
  for (const bool by_reading : {true, false}) {
    FakeTap tap;
    auto wire = Open(tap);
    tap.gone = true;
    if (by_reading) {
      CHECK_FALSE(wire->Peek().has_value());
    } else {
      wire->Accept(MakeFrame(60, 1));
    }
    CHECK(wire->exhausted());
    tap.gone = false;
    wire->Accept(MakeFrame(60, 2));  // once gone, it stays so
    CHECK(tap.from_nic.empty());
    CHECK(wire->stats().lost == (by_reading ? 1 : 2));
    CHECK(wire->Close().code() == absl::StatusCode::kUnavailable);
    CHECK(StrContains(wire->Close().message(), "wire tap: interface \"tap0\" has gone ("));
  }
}

TEST_CASE("closing a TAP wire ends it, once") {
  FakeTap tap;
  auto wire = Open(tap);
  tap.to_nic = {MakeFrame(60, 1)};
  CHECK(wire->Peek().has_value());
  CHECK(wire->Close().ok());
  CHECK(wire->Close().ok());
  CHECK_FALSE(tap.is_open);
  CHECK(wire->exhausted());
  CHECK_FALSE(wire->Peek().has_value());
  wire->Accept(MakeFrame(60, 1));
  CHECK(wire->stats().lost == 1);
  wire.reset();
}

TEST_CASE("why a TAP cannot be opened is said with a remedy, and nothing stays open") {
  struct Case {
    int open_error;
    int attach_error;
    const char* part;
    const char* remedy;
  };
  const Case cases[] = {
      {ENOENT, 0, "\"tap0\": /dev/net/tun is not there", "module tun"},
      {ENODEV, 0, "/dev/net/tun is not there", "module tun"},
      {EACCES, 0, "/dev/net/tun may not be opened (Permission denied)", "run as root"},
      {EMFILE, 0, "/dev/net/tun cannot be opened", "ulimit -n"},
      {0, EPERM, "interface \"tap0\" may not be used", "CAP_NET_ADMIN"},
      {0, EBUSY, "interface \"tap0\" is in use", "give another name"},
      {0, EINVAL, "interface \"tap0\" is there already and no TAP", "give another name"},
      {0, ENOMEM, "interface \"tap0\" cannot be attached", "try another name"},
  };
  for (const Case& c : cases) {
    FakeTap tap;
    tap.open_error = c.open_error;
    tap.attach_error = c.attach_error;
    const auto wire = TapWire::Open("tap0", tap);
    REQUIRE_FALSE(wire.ok());
    INFO(wire.status().message());
    CHECK(absl::StartsWith(wire.status().message(), "wire tap: "));
    CHECK(StrContains(wire.status().message(), c.part));
    CHECK(StrContains(wire.status().message(), c.remedy));
    CHECK_FALSE(tap.is_open);
  }
}

TEST_CASE("names that no interface can have are refused before the system is asked") {
  for (const std::string& name :
       {std::string("tap0"), std::string("a"), std::string("x.y-z_1,2=3"), std::string(15, 'n')}) {
    CHECK(TapWire::CheckName(name).ok());
  }
  struct Case {
    std::string name;
    const char* part;
  };
  const Case cases[] = {
      {"", "an interface must follow, as in tap:tap0"},
      {"sixteen-letters-", "has 16 characters; an interface's name has at most 15"},
      {"net/tap0", "\"net/tap0\" is no interface's name: it must not contain '/'"},
      {"tap:0", "must not contain"},
      {"tap%d", "must not contain"},
      {"tap 0", "must not contain"},
      {std::string("t\0p", 3), "must not contain"},
      {".", "is no interface's name"},
      {"..", "is no interface's name"},
  };
  for (const Case& c : cases) {
    FakeTap tap;
    tap.open_error = EIO;  // would be another error
    const auto wire = TapWire::Open(c.name, tap);
    REQUIRE_FALSE(wire.ok());
    INFO(wire.status().message());
    CHECK(StrContains(wire.status().message(), c.part));
    CHECK(wire.status() == TapWire::CheckName(c.name));
  }
}

}  // namespace
}  // namespace dmakit::nic
