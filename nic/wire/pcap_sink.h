// SPDX-License-Identifier: Apache-2.0
//
// PcapSink: a capture file that takes what a NIC sends: pcap with nanoseconds, Ethernet. Each frame
// carries the time at which the wire got it; times never go back.
//
// A frame counts as kept only when the system took its bytes. After the first failed write
// everything not known to be in the file, and everything later, counts as lost; Close() returns the
// reason.
#ifndef DMAKIT_NIC_WIRE_PCAP_SINK_H_
#define DMAKIT_NIC_WIRE_PCAP_SINK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nic/wire/counters.h"
#include "nic/wire/wire.h"

struct pcap;         // libpcap's pcap_t
struct pcap_dumper;  // libpcap's pcap_dumper_t

namespace dmakit::nic {

class PcapSink final : public Wire {
 public:
  static constexpr size_t kMaxFrame = 262'144;  // the largest record that libpcap reads back

  // Nanoseconds since 1970.
  using Clock = std::function<int64_t()>;

  // Creates `path`, or empties it, and writes the header, so that a path which cannot be written
  // is an error here. `clock`: empty for the system's.
  static absl::StatusOr<std::unique_ptr<PcapSink>> Open(const std::string& path, Clock clock = {});
  ~PcapSink() override;

  std::optional<std::span<const std::byte>> Peek() override { return std::nullopt; }
  void Pop() override {}
  bool exhausted() const override { return true; }
  void Accept(std::span<const std::byte> frame) override;
  absl::Status Close() override;
  WireStats stats() const override { return counters_.Get(); }

 private:
  PcapSink(std::string path, Clock clock);
  absl::Status Start();
  void Flush();
  void Fail(int error_number);

  const std::string path_;
  const Clock clock_;
  std::vector<char> buffer_;  // of the file
  pcap* handle_ = nullptr;
  pcap_dumper* dumper_ = nullptr;
  int64_t last_time_ = 0;
  uint64_t unflushed_frames_ = 0;
  uint64_t unflushed_bytes_ = 0;
  absl::Status error_;
  internal::WireCounters counters_;
};

}  // namespace dmakit::nic

#endif  // DMAKIT_NIC_WIRE_PCAP_SINK_H_
