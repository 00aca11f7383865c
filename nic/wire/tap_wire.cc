// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/tap_wire.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/wire/spec.h"

namespace dmakit::nic {
namespace {

constexpr const char* kDevice = "/dev/net/tun";
constexpr size_t kMaxName = IFNAMSIZ - 1;

// Frames that one Peek may refuse, so that a flood of bad ones cannot hold the NIC.
constexpr int kMostRefused = 64;

class RealTapCalls final : public TapCalls {
 public:
  int Open() override {
    const int fd = open(kDevice, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    return fd >= 0 ? fd : -errno;
  }
  int Attach(int fd, const std::string& name) override {
    ifreq request = {};
    name.copy(request.ifr_name, kMaxName);
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    return ioctl(fd, TUNSETIFF, &request) == 0 ? 0 : -errno;
  }
  std::ptrdiff_t Read(int fd, std::span<std::byte> to) override {
    const ssize_t n = read(fd, to.data(), to.size());
    return n >= 0 ? n : -errno;
  }
  std::ptrdiff_t Write(int fd, std::span<const std::byte> frame) override {
    const ssize_t n = write(fd, frame.data(), frame.size());
    return n >= 0 ? n : -errno;
  }
  void Close(int fd) override { close(fd); }
};

std::string Words(int error_number) { return std::generic_category().message(error_number); }

absl::Status CannotOpen(std::string_view name, int error_number) {
  const std::string head = absl::StrCat("wire tap: ", Quote(name), ": ", kDevice, " ");
  switch (error_number) {
    case ENOENT:
    case ENODEV:
    case ENXIO:
      return absl::FailedPreconditionError(
          absl::StrCat(head, "is not there (", Words(error_number),
                       "); load the kernel's module tun, or give the container this device"));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(
          absl::StrCat(head, "may not be opened (", Words(error_number), "); run as root"));
    default:
      return absl::ResourceExhaustedError(
          absl::StrCat(head, "cannot be opened (", Words(error_number),
                       "); raise the limit of open files (ulimit -n), or free some memory"));
  }
}

absl::Status CannotAttach(std::string_view name, int error_number) {
  const std::string head = absl::StrCat("wire tap: interface ", Quote(name), " ");
  switch (error_number) {
    case EPERM:
    case EACCES:
      return absl::PermissionDeniedError(absl::StrCat(
          head, "may not be used (", Words(error_number),
          "); run with CAP_NET_ADMIN, or have it made for you: ip tuntap add dev NAME mode tap "
          "user YOU"));
    case EBUSY:
      return absl::FailedPreconditionError(
          absl::StrCat(head, "is in use by a program, or by the other port (", Words(error_number),
                       "); end that program, or give another name"));
    case EINVAL:
      return absl::InvalidArgumentError(
          absl::StrCat(head, "is there already and no TAP of one queue (", Words(error_number),
                       "); give another name, or delete it: the wire makes its own"));
    default:
      return absl::FailedPreconditionError(
          absl::StrCat(head, "cannot be attached (", Words(error_number), "); try another name"));
  }
}

// The descriptor leads nowhere any more; all else concerns one frame only.
bool Gone(int error_number) {
  return error_number == EBADFD || error_number == EBADF || error_number == ENODEV;
}

}  // namespace

TapCalls& SystemTapCalls() {
  static RealTapCalls calls;
  return calls;
}

absl::Status TapWire::CheckName(std::string_view name) {
  const auto error = [&](std::string_view rule) {
    return absl::InvalidArgumentError(
        absl::StrCat("wire tap: ", Quote(name), " ", std::string(rule)));
  };
  if (name.empty()) {
    return absl::InvalidArgumentError(
        "wire \"tap:\": an interface must follow, as in tap:tap0; it is made if it does not exist");
  }
  if (name.size() > kMaxName) {
    return error(absl::StrCat("has ", name.size(), " characters; an interface's name has at most ",
                              kMaxName, ", give a shorter one"));
  }
  // The kernel's rules, and '%', which it would replace by a number of its own choice.
  const bool bad = std::any_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == ':' || c == '%' || (c >= 0 && c <= ' ') || c == '\x7f';
  });
  if (bad || name == "." || name == "..") {
    return error(
        "is no interface's name: it must not contain '/', ':', '%' or blanks; give one as tap0");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TapWire>> TapWire::Open(std::string_view name, TapCalls& calls) {
  if (absl::Status s = CheckName(name); !s.ok()) return s;
  const int fd = calls.Open();
  if (fd < 0) return CannotOpen(name, -fd);
  std::unique_ptr<TapWire> wire(new TapWire(std::string(name), calls, fd));
  if (const int result = calls.Attach(fd, wire->name_); result < 0) {
    return CannotAttach(name, -result);
  }
  return wire;
}

// One byte more than the longest frame, so that a longer one shows.
TapWire::TapWire(std::string name, TapCalls& calls, int fd)
    : name_(std::move(name)), calls_(calls), fd_(fd), buffer_(kMaxFrame + 1) {}

TapWire::~TapWire() { Close().IgnoreError(); }

std::optional<std::span<const std::byte>> TapWire::Peek() {
  for (int refused = 0; waiting_ == 0 && refused < kMostRefused; ++refused) {
    if (exhausted()) return std::nullopt;
    const std::ptrdiff_t n = calls_.Read(fd_, buffer_);
    if (n < 0) {
      if (Gone(static_cast<int>(-n))) Fail(static_cast<int>(-n));
      return std::nullopt;
    }
    const size_t bytes = static_cast<size_t>(n);
    if (bytes < kMinFrame) {
      counters_.RefusedShort(bytes);
    } else if (bytes > kMaxFrame) {
      counters_.RefusedCut(bytes);
    } else {
      waiting_ = bytes;
    }
  }
  if (waiting_ == 0) return std::nullopt;
  return std::span<const std::byte>(buffer_).first(waiting_);
}

void TapWire::Pop() {
  if (waiting_ == 0) return;
  counters_.ToNic(waiting_);
  waiting_ = 0;
}

void TapWire::Accept(std::span<const std::byte> frame) {
  counters_.FromNic(frame.size());
  if (!exhausted()) {
    const std::ptrdiff_t n = calls_.Write(fd_, frame);
    if (n == static_cast<std::ptrdiff_t>(frame.size())) return;
    if (n < 0 && Gone(static_cast<int>(-n))) Fail(static_cast<int>(-n));
  }
  counters_.Lost(1, frame.size());
}

void TapWire::Fail(int error_number) {
  error_ = absl::UnavailableError(absl::StrCat("wire tap: interface ", Quote(name_), " has gone (",
                                               Words(error_number),
                                               "); leave it there for as long as the run"));
  ended_.store(true, std::memory_order_relaxed);
}

absl::Status TapWire::Close() {
  ended_.store(true, std::memory_order_relaxed);
  waiting_ = 0;
  if (fd_ >= 0) calls_.Close(std::exchange(fd_, -1));
  return error_;
}

}  // namespace dmakit::nic
