// SPDX-License-Identifier: Apache-2.0
//
// PcapSource: a capture file as the far end of a cable. Reads what libpcap reads (pcap with micro-
// or nanoseconds, in either byte order, and pcapng), Ethernet only. As fast as the NIC takes
// frames; timestamps pace nothing.
//
// Frames shorter than kMinFrame, and frames of which the capture holds only a part (snap length),
// are refused and counted. A file that turns out damaged half-way delivers the frames before the
// damage; Close() then returns the error.
#ifndef DMAKIT_NIC_WIRE_PCAP_SOURCE_H_
#define DMAKIT_NIC_WIRE_PCAP_SOURCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nic/wire/counters.h"
#include "nic/wire/wire.h"

struct pcap;  // libpcap's pcap_t

namespace dmakit::nic {

class PcapSource final : public Wire {
 public:
  // Reads up to the first frame, so that a file which is missing, empty, no capture, cut at once or
  // of another link type is an error here. It names the file, what is wrong and what to do.
  static absl::StatusOr<std::unique_ptr<PcapSource>> Open(const std::string& path);
  // A capture that is in memory, for example in the program itself. `capture` must outlive the
  // wire; `name` is for errors.
  static absl::StatusOr<std::unique_ptr<PcapSource>> FromMemory(std::span<const std::byte> capture,
                                                                std::string name);
  ~PcapSource() override;

  std::optional<std::span<const std::byte>> Peek() override;
  void Pop() override;
  bool exhausted() const override { return done_.load(std::memory_order_relaxed); }
  // Nobody takes it: counts as lost.
  void Accept(std::span<const std::byte> frame) override;
  absl::Status Close() override;
  WireStats stats() const override { return counters_.Get(); }

  // Nanoseconds since 1970 of the frame that Peek shows.
  int64_t timestamp() const { return timestamp_; }

 private:
  PcapSource(pcap* capture, std::string name);
  static absl::StatusOr<std::unique_ptr<PcapSource>> Start(pcap* capture, std::string name);
  void ReadNext();
  void End(absl::Status why);

  pcap* capture_;
  const std::string name_;
  std::span<const std::byte> frame_;
  int64_t timestamp_ = 0;
  bool have_frame_ = false;
  uint64_t records_ = 0;  // read so far, for errors
  absl::Status error_;
  std::atomic<bool> done_{false};
  internal::WireCounters counters_;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_WIRE_PCAP_SOURCE_H_
