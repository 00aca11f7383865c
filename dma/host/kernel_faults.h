// SPDX-License-Identifier: Apache-2.0
//
// The kernel tells of DMA that its IOMMU refused in its log, and nowhere else. KernelFaultLog reads
// that log from now on and makes values of the lines of Intel's and AMD's drivers, old and new.
// The kernel limits how many lines it writes, so that this is evidence, and no count.
//
// /dev/kmsg can be opened by root, or by a user with CAP_SYSLOG who may read the file; where
// kernel.dmesg_restrict is 0 the file's mode alone decides. Lines that programs wrote into the log
// are passed over: their record says so.
//
// One thread at a time. Never blocks.
#ifndef DMAKIT_DMA_HOST_KERNEL_FAULTS_H_
#define DMAKIT_DMA_HOST_KERNEL_FAULTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma::host {

struct KernelFault {
  std::string device{};  // "0000:02:00.0", or "02:00.0" where the kernel leaves out the domain
  Iova iova{0};
  Access access = Access::kNone;  // what was tried
  std::string reason{};           // the driver's words; printable, at most 160 characters

  // Whether it is this device, given in full. Without a domain it may be that of any domain.
  bool IsOf(std::string_view address) const;
};

enum class FaultLine : uint8_t {
  kFault,
  kOther,  // of something else
  kBad,    // begins like a fault and cannot be understood: cut, or made up
};

// A message as the kernel wrote it, without the log's own prefix. `fault` is set for kFault only.
FaultLine ParseFaultLine(std::string_view message, KernelFault* fault);

class KernelFaultLog {
 public:
  struct Stats {
    uint64_t lines = 0;     // read, of any kind
    uint64_t faults = 0;    // of those
    uint64_t bad = 0;       // cut, hostile or longer than a record can be; skipped
    uint64_t overruns = 0;  // times that the kernel had overwritten what was not read yet
    uint64_t errors = 0;    // reads that failed for another reason
  };

  // From the end of the log on. PermissionDenied and NotFound name the file and what is needed.
  static absl::StatusOr<std::unique_ptr<KernelFaultLog>> Open(
      const std::string& path = "/dev/kmsg");
  // From anything that reads like /dev/kmsg: the next bytes, whole records or not; 0 or -EAGAIN
  // when there is no more now; -EPIPE when something is lost.
  using Reader = std::function<int64_t(std::span<char>)>;
  explicit KernelFaultLog(Reader reader) : reader_(std::move(reader)) {}
  KernelFaultLog(const KernelFaultLog&) = delete;
  KernelFaultLog& operator=(const KernelFaultLog&) = delete;

  // Hands over each fault that came since the last call, at most 65,536 lines at a time. Returns
  // how many there were.
  size_t Poll(const std::function<void(const KernelFault&)>& visit);
  const Stats& stats() const { return stats_; }

 private:
  bool Fill();
  size_t TakeLines(const std::function<void(const KernelFault&)>& visit);
  bool TakeRecord(std::string_view record, const std::function<void(const KernelFault&)>& visit);

  const Reader reader_;
  std::string pending_{};  // read, and no whole line yet
  bool skipping_ = false;  // until the end of a line that is too long
  Stats stats_{};
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_KERNEL_FAULTS_H_
