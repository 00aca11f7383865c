// SPDX-License-Identifier: Apache-2.0
//
// Internal: where the reports of all devices of one Audit come together. Bounded; counts go on
// beyond. Any thread; the sink is called without a lock of the audit held.
#ifndef DMAKIT_DMA_AUDIT_LOG_H_
#define DMAKIT_DMA_AUDIT_LOG_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "dma/audit.h"

namespace dmakit::dma::internal {

class AuditLog {
 public:
  using Totals = std::array<uint64_t, kAuditCodes + 1>;  // by code

  AuditLog(size_t max_reports, std::function<void(const AuditReport&)> sink)
      : max_reports_(max_reports), sink_(std::move(sink)) {}

  void Deliver(std::vector<AuditReport> reports);
  std::vector<AuditReport> reports() const;
  Totals totals() const;

 private:
  const size_t max_reports_;
  const std::function<void(const AuditReport&)> sink_;
  mutable std::mutex mutex_;
  std::vector<AuditReport> reports_;
  Totals totals_{};
};

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_AUDIT_LOG_H_
