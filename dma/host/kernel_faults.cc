// SPDX-License-Identifier: Apache-2.0
//
// Everything in the log is taken to be made up until it has parsed: lengths are bounded, numbers
// range-checked, and text is passed on only if it can be printed.
#include "dma/host/kernel_faults.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/host/pci.h"
#include "dma/host/vfio_error.h"

namespace dmakit::dma::host {
namespace {

constexpr size_t kLongestRecord = 8192;  // the kernel's own limit
constexpr size_t kMostLines = 65'536;
constexpr size_t kLongestReason = 160;

bool Eat(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Takes the text before `end`, and `end`.
std::optional<std::string_view> EatTo(std::string_view& text, char end) {
  const size_t at = text.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = text.substr(0, at);
  text.remove_prefix(at + 1);
  return before;
}

// "02:00.0", with or without a domain before it.
bool IsDevice(std::string_view text) {
  return IsPciAddress(text) || IsPciAddress(absl::StrCat("0000:", std::string(text)));
}

// All of it, with or without 0x.
std::optional<uint64_t> Hex(std::string_view text) {
  Eat(text, "0x");
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
  if (text.empty() || error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

std::string Printable(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  std::string result(text.substr(0, kLongestReason));
  for (char& c : result) {
    if (!std::isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return result;
}

// Behind "DMAR:". Forms, by age:
//   [DMA Read] Request device [04:00.0] fault addr 7f1000 \x0aDMAR:[fault reason 06] TEXT
//   [DMA Write] Request device [04:00.0] PASID ffffffff fault addr 7f1000 [fault reason 05] TEXT
//   [DMA Write NO_PASID] Request device [00:04.0] fault addr 0xfffff000 [fault reason 0x05] TEXT
FaultLine ParseIntel(std::string_view text, KernelFault* fault) {
  Eat(text, " ");
  Access access = Access::kNone;
  if (Eat(text, "[DMA Read")) {
    access = Access::kRead;
  } else if (Eat(text, "[DMA Write")) {
    access = Access::kWrite;
  } else {
    return text.starts_with("[DMA") ? FaultLine::kBad : FaultLine::kOther;
  }
  const auto pasid = EatTo(text, ']');
  if (!pasid || !(pasid->empty() || *pasid == " NO_PASID" || pasid->starts_with(" PASID "))) {
    return FaultLine::kBad;
  }
  if (!Eat(text, " Request device [")) return FaultLine::kBad;
  const auto device = EatTo(text, ']');
  if (!device || !IsDevice(*device)) return FaultLine::kBad;
  if (Eat(text, " PASID ") && !Hex(EatTo(text, ' ').value_or(""))) return FaultLine::kBad;
  Eat(text, " ");
  if (!Eat(text, "fault addr ")) return FaultLine::kBad;
  // An address that ends the line may have been cut.
  const auto address = Hex(EatTo(text, ' ').value_or(""));
  constexpr std::string_view kReason = "[fault reason ";
  const size_t at = text.find(kReason);
  if (!address || at == std::string_view::npos) return FaultLine::kBad;
  text.remove_prefix(at + kReason.size());
  const auto code = EatTo(text, ']');
  if (!code || !Hex(*code)) return FaultLine::kBad;
  std::string reason = Printable(text);
  if (reason.empty()) reason = absl::StrCat("fault reason ", std::string(*code));
  *fault = {std::string(*device), Iova(*address), access, std::move(reason)};
  return FaultLine::kFault;
}

// Forms:
//   AMD-Vi: Event logged [IO_PAGE_FAULT device=02:00.0 domain=0x0000 address=0xfd00 flags=0x0020]
//   vfio-pci 0000:02:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0000 address=... flags=...]
// `before` is what stands before "AMD-Vi:", `text` what stands behind IO_PAGE_FAULT.
FaultLine ParseAmd(std::string_view before, std::string_view text, KernelFault* fault) {
  constexpr uint64_t kWriteFlag = 0x20;
  const auto body = EatTo(text, ']');
  if (!body) return FaultLine::kBad;
  std::string_view device;
  if (const size_t space = before.find(' '); space != std::string_view::npos) {
    device = before.substr(space + 1);
    if (!device.ends_with(": ")) return FaultLine::kBad;
    device.remove_suffix(2);
  }
  std::optional<uint64_t> address, flags;
  for (std::string_view rest = *body; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (Eat(word, "device=")) {
      device = word;
    } else if (Eat(word, "address=")) {
      address = Hex(word);
    } else if (Eat(word, "flags=")) {
      flags = Hex(word);
    }
  }
  if (!IsDevice(device) || !address || !flags) return FaultLine::kBad;
  *fault = {std::string(device), Iova(*address),
            (*flags & kWriteFlag) != 0 ? Access::kWrite : Access::kRead,
            absl::StrCat("IO_PAGE_FAULT flags=0x", absl::Hex(*flags))};
  return FaultLine::kFault;
}

}  // namespace

bool KernelFault::IsOf(std::string_view address) const {
  if (device == address) return true;
  return !device.empty() && address.size() > device.size() && address.ends_with(device) &&
         address[address.size() - device.size() - 1] == ':';
}

FaultLine ParseFaultLine(std::string_view message, KernelFault* fault) {
  constexpr std::string_view kAmd = "AMD-Vi: Event logged [IO_PAGE_FAULT ";
  if (Eat(message, "DMAR:")) return ParseIntel(message, fault);
  const size_t amd = message.find(kAmd);
  // What stands before it is a driver's name and an address.
  if (amd > 64) return FaultLine::kOther;
  return ParseAmd(message.substr(0, amd), message.substr(amd + kAmd.size()), fault);
}

absl::StatusOr<std::unique_ptr<KernelFaultLog>> KernelFaultLog::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    const bool denied = error == EACCES || error == EPERM;
    return VfioError(denied ? VfioProblem::kPermission : VfioProblem::kKernel,
                     absl::StrCat("kernel log ", path, ": ", ErrnoText(error),
                                  denied ? "; run as root or with CAP_SYSLOG, or set "
                                           "kernel.dmesg_restrict=0 and let the user read it"
                                         : "; check that it is there, or do without a fault log"));
  }
  lseek(fd, 0, SEEK_END);  // a pipe has no end to go to
  const std::shared_ptr<void> owned(nullptr, [fd](void*) { close(fd); });
  return std::make_unique<KernelFaultLog>([fd, owned](std::span<char> to) -> int64_t {
    const ssize_t n = read(fd, to.data(), to.size());
    return n >= 0 ? n : -errno;
  });
}

// More of the log into `pending_`. False: there is no more now.
bool KernelFaultLog::Fill() {
  char buffer[2 * kLongestRecord];
  for (uint64_t overruns = 0;; ++overruns) {
    const int64_t n = reader_(buffer);
    if (n > 0) {
      pending_.append(buffer, static_cast<size_t>(n));
      return true;
    }
    if (n == 0 || n == -EAGAIN) return false;
    if (n == -EPIPE && overruns < kMostLines) {
      ++stats_.overruns;  // the next read goes on with the oldest there is
    } else if (n != -EINTR) {
      ++stats_.errors;
      return false;
    }
  }
}

// A record of /dev/kmsg: "priority,sequence,time,flags;message". Whether it is a line at all: those
// that begin with a space belong to the record before.
bool KernelFaultLog::TakeRecord(std::string_view record,
                                const std::function<void(const KernelFault&)>& visit) {
  if (record.empty() || record.front() == ' ') return false;
  ++stats_.lines;
  const std::optional<std::string_view> prefix = EatTo(record, ';');
  unsigned priority = 0;
  if (!prefix || std::from_chars(prefix->data(), prefix->data() + prefix->size(), priority).ec !=
                     std::errc{}) {
    ++stats_.bad;
    return false;
  }
  // Above the three bits of the level stands who wrote it: 0 is the kernel, and nobody else can.
  if (priority >> 3 != 0) return false;
  KernelFault fault;
  const FaultLine line = ParseFaultLine(record, &fault);
  if (line == FaultLine::kBad) ++stats_.bad;
  if (line != FaultLine::kFault) return false;
  ++stats_.faults;
  visit(fault);
  return true;
}

// The whole lines of `pending_`. How many faults.
size_t KernelFaultLog::TakeLines(const std::function<void(const KernelFault&)>& visit) {
  size_t faults = 0;
  size_t begin = 0;
  for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = std::string_view(pending_).substr(begin, end - begin);
    if (std::exchange(skipping_, false)) continue;
    if (line.size() > kLongestRecord) {
      ++stats_.lines;
      ++stats_.bad;
    } else if (TakeRecord(line, visit)) {
      ++faults;
    }
  }
  pending_.erase(0, begin);
  if (pending_.size() > kLongestRecord) {
    if (!skipping_) {
      ++stats_.lines;
      ++stats_.bad;
    }
    skipping_ = true;
    pending_.clear();
  }
  return faults;
}

size_t KernelFaultLog::Poll(const std::function<void(const KernelFault&)>& visit) {
  size_t faults = 0;
  const uint64_t before = stats_.lines;
  while (stats_.lines - before < kMostLines && Fill()) faults += TakeLines(visit);
  return faults;
}

}  // namespace dmakit::dma::host
