// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/pcap_source.h"

#include <pcap/pcap.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/wire/spec.h"

namespace dmakit::nic {
namespace {

// Records looked at in one Peek: refused frames are passed over in bounded pieces.
constexpr int kRecordsPerPeek = 256;

constexpr std::string_view kFormats = "pcap or pcapng, as tcpdump -w writes them";

absl::Status Bad(std::string_view name, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("capture ", Quote(name), ": ", std::string(what)));
}

std::string Reason(const char* libpcap_text) { return absl::StrCat("(", libpcap_text, ")"); }

// Takes ownership of `file`, also on failure.
absl::StatusOr<pcap_t*> OpenCapture(std::FILE* file, std::string_view name) {
  std::array<char, PCAP_ERRBUF_SIZE> error{};
  pcap_t* const capture =
      pcap_fopen_offline_with_tstamp_precision(file, PCAP_TSTAMP_PRECISION_NANO, error.data());
  if (capture == nullptr) {
    std::fclose(file);
    return Bad(name, absl::StrCat("is no readable capture ", Reason(error.data()),
                                  "; give a file in the format ", std::string(kFormats)));
  }
  const int link = pcap_datalink(capture);
  if (link != DLT_EN10MB) {
    const char* const link_name = pcap_datalink_val_to_name(link);
    pcap_close(capture);
    return Bad(name, absl::StrCat("link type ", link_name != nullptr ? link_name : "?", " (", link,
                                  ") must be EN10MB (Ethernet); record on one Ethernet interface, "
                                  "not on \"any\""));
  }
  return capture;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PcapSource>> PcapSource::Open(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rbe");
  struct stat info = {};
  if (file == nullptr || fstat(fileno(file), &info) != 0) {
    const int error = errno;
    if (file != nullptr) std::fclose(file);
    return Bad(path, absl::StrCat("cannot be opened (", std::generic_category().message(error),
                                  "); give the path of a readable capture file"));
  }
  if (S_ISDIR(info.st_mode) || (S_ISREG(info.st_mode) && info.st_size == 0)) {
    std::fclose(file);
    return Bad(path, absl::StrCat(S_ISDIR(info.st_mode) ? "is a directory" : "is empty",
                                  "; give a file in the format ", std::string(kFormats)));
  }
  auto capture = OpenCapture(file, path);
  if (!capture.ok()) return capture.status();
  return Start(*capture, path);
}

absl::StatusOr<std::unique_ptr<PcapSource>> PcapSource::FromMemory(
    std::span<const std::byte> capture, std::string name) {
  if (capture.empty()) return Bad(name, "is empty");
  // Read only: fmemopen does not write through the pointer in mode "r".
  std::FILE* const file = fmemopen(const_cast<std::byte*>(capture.data()), capture.size(), "rb");
  if (file == nullptr) return Bad(name, std::generic_category().message(errno));
  auto opened = OpenCapture(file, name);
  if (!opened.ok()) return opened.status();
  return Start(*opened, std::move(name));
}

absl::StatusOr<std::unique_ptr<PcapSource>> PcapSource::Start(pcap* capture, std::string name) {
  std::unique_ptr<PcapSource> source(new PcapSource(capture, std::move(name)));
  source->ReadNext();
  if (!source->error_.ok()) return source->error_;
  if (source->records_ == 0) {
    return Bad(source->name_, "has no frames; record some, or check that the recording was ended");
  }
  return source;
}

PcapSource::PcapSource(pcap* capture, std::string name)
    : capture_(capture), name_(std::move(name)) {}

PcapSource::~PcapSource() { pcap_close(capture_); }

std::optional<std::span<const std::byte>> PcapSource::Peek() {
  for (int i = 0; !have_frame_ && !exhausted() && i < kRecordsPerPeek; ++i) ReadNext();
  if (!have_frame_) return std::nullopt;
  return frame_;
}

void PcapSource::Pop() {
  if (!have_frame_) return;
  counters_.ToNic(frame_.size());
  have_frame_ = false;
}

// Reads one record: it becomes the frame to show, or is refused, or is the end.
void PcapSource::ReadNext() {
  pcap_pkthdr* header = nullptr;
  const u_char* data = nullptr;
  const int result = pcap_next_ex(capture_, &header, &data);
  if (result == PCAP_ERROR_BREAK) return End(absl::OkStatus());
  if (result != 1) {
    return End(Bad(name_, absl::StrCat("is truncated or corrupt after ", records_, " frames ",
                                       Reason(pcap_geterr(capture_)),
                                       "; record it anew, or keep its good part with editcap")));
  }
  ++records_;
  if (header->caplen != header->len) return counters_.RefusedCut(header->len);
  if (header->caplen < kMinFrame) return counters_.RefusedShort(header->caplen);
  frame_ = {reinterpret_cast<const std::byte*>(data), header->caplen};
  // With nanosecond precision asked for, tv_usec holds nanoseconds.
  timestamp_ = int64_t{header->ts.tv_sec} * 1'000'000'000 + header->ts.tv_usec;
  have_frame_ = true;
}

void PcapSource::End(absl::Status why) {
  error_ = std::move(why);
  done_.store(true, std::memory_order_relaxed);
}

void PcapSource::Accept(std::span<const std::byte> frame) {
  counters_.FromNic(frame.size());
  counters_.Lost(1, frame.size());
}

absl::Status PcapSource::Close() {
  have_frame_ = false;
  done_.store(true, std::memory_order_relaxed);
  return error_;
}

}  // namespace dmakit::nic
