// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/pcap_sink.h"

#include <fcntl.h>
#include <pcap/pcap.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/wire/spec.h"

namespace dmakit::nic {
namespace {

// Frames are handed to the system, and are then known to be kept, after this many bytes.
constexpr uint64_t kFlushBytes = 1 << 20;
constexpr size_t kBufferBytes = 256 << 10;

int64_t SystemNanos() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

absl::Status Unwritable(std::string_view path, int error_number, std::string_view remedy) {
  return absl::InvalidArgumentError(absl::StrCat("capture ", Quote(path), ": cannot be written (",
                                                 std::generic_category().message(error_number),
                                                 "); ", std::string(remedy)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PcapSink>> PcapSink::Open(const std::string& path, Clock clock) {
  std::unique_ptr<PcapSink> sink(new PcapSink(path, clock ? std::move(clock) : Clock(SystemNanos)));
  if (absl::Status s = sink->Start(); !s.ok()) return s;
  return sink;
}

PcapSink::PcapSink(std::string path, Clock clock)
    : path_(std::move(path)), clock_(std::move(clock)) {}

PcapSink::~PcapSink() { Close().IgnoreError(); }

absl::Status PcapSink::Start() {
  const std::string_view remedy = "give a path in a directory that exists and is yours to write";
  const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return Unwritable(path_, errno, remedy);
  std::FILE* const file = fdopen(fd, "wb");
  if (file == nullptr) {
    const int error = errno;
    close(fd);
    return Unwritable(path_, error, remedy);
  }
  buffer_.resize(kBufferBytes);
  std::setvbuf(file, buffer_.data(), _IOFBF, buffer_.size());
  handle_ = pcap_open_dead_with_tstamp_precision(DLT_EN10MB, kMaxFrame, PCAP_TSTAMP_PRECISION_NANO);
  if (handle_ != nullptr) dumper_ = pcap_dump_fopen(handle_, file);
  if (dumper_ == nullptr) {  // out of memory: nothing else can go wrong before the first write
    std::fclose(file);
    return Unwritable(path_, ENOMEM, "free some memory");
  }
  errno = 0;
  if (pcap_dump_flush(dumper_) != 0) {
    return Unwritable(path_, errno, "free some space, or give another path");
  }
  return absl::OkStatus();
}

void PcapSink::Accept(std::span<const std::byte> frame) {
  counters_.FromNic(frame.size());
  if (frame.size() > kMaxFrame) {
    // The file stays good: only this frame is missing from it.
    counters_.Lost(1, frame.size());
    if (!error_.ok()) return;
    error_ = absl::OutOfRangeError(absl::StrCat("capture ", Quote(path_), ": a frame of ",
                                                frame.size(), " bytes is longer than the ",
                                                kMaxFrame, " that a capture can hold"));
    return;
  }
  if (dumper_ == nullptr || std::ferror(pcap_dump_file(dumper_)) != 0) {
    counters_.Lost(1, frame.size());
    return;
  }
  last_time_ = std::max(last_time_, clock_());
  pcap_pkthdr header = {};
  header.ts.tv_sec = last_time_ / 1'000'000'000;
  header.ts.tv_usec = last_time_ % 1'000'000'000;  // nanoseconds, as the handle says
  header.caplen = header.len = static_cast<bpf_u_int32>(frame.size());
  errno = 0;
  pcap_dump(reinterpret_cast<u_char*>(dumper_), &header,
            reinterpret_cast<const u_char*>(frame.data()));
  ++unflushed_frames_;
  unflushed_bytes_ += frame.size();
  if (std::ferror(pcap_dump_file(dumper_)) != 0) {
    Fail(errno);
  } else if (unflushed_bytes_ >= kFlushBytes) {
    Flush();
  }
}

void PcapSink::Flush() {
  errno = 0;
  if (pcap_dump_flush(dumper_) != 0) return Fail(errno);
  unflushed_frames_ = 0;
  unflushed_bytes_ = 0;
}

// What was not flushed may be in the file, in part or not at all: it is not promised.
void PcapSink::Fail(int error_number) {
  counters_.Lost(unflushed_frames_, unflushed_bytes_);
  unflushed_frames_ = 0;
  unflushed_bytes_ = 0;
  if (!error_.ok()) return;
  error_ = absl::ResourceExhaustedError(absl::StrCat(
      "capture ", Quote(path_), ": frames were lost, the file is incomplete: writing failed (",
      std::generic_category().message(error_number), "); free some space, or give another path"));
}

absl::Status PcapSink::Close() {
  if (dumper_ != nullptr) {
    if (std::ferror(pcap_dump_file(dumper_)) == 0) Flush();
    pcap_dump_close(dumper_);
    dumper_ = nullptr;
  }
  if (handle_ != nullptr) {
    pcap_close(handle_);
    handle_ = nullptr;
  }
  return error_;
}

}  // namespace dmakit::nic
