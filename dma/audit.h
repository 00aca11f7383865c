// SPDX-License-Identifier: Apache-2.0
//
// The audit: a checker that is attached to devices at run time and reports the mistakes of
// audit_code.h, each with the device, the owner (ring or call site), the mapping concerned, the
// values in words, the last events of that mapping or page, and what to do. It changes nothing that
// the device or the driver sees, except that with `sample_one_in` some unmaps are strict.
//
//   Audit audit({.sink = [](const AuditReport& r) { log(ToText(r)); }});
//   audit.Attach(*nic);
//   ...
//   return audit.errors() == 0 ? 0 : 1;
//
// What it can see: every map, unmap and sync through Device and RawDma, packet pages and their
// recycling, the domain's faults, and what drivers tell of their rings (Device::observer()).
// A buffer that is to-device needs no sync for the CPU: write, then SyncForDevice. One that is
// from-device goes back to the device by SyncForDevice after a SyncForCpu.
//
// Threads: Attach and Detach while no other thread maps, unmaps or syncs on that device; all else
// any thread. The audit outlives its devices or is detached from them before, and ends before their
// domains. The sink is called on the thread that made the mistake, with locks of the domain or the
// address space held: it must not call into them.
#ifndef DMAKIT_DMA_AUDIT_H_
#define DMAKIT_DMA_AUDIT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "dma/audit_code.h"
#include "dma/device.h"
#include "dma/host/clock.h"
#include "dma/host/memory_kind.h"
#include "dma/host/page_guard.h"
#include "dma/observer.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma {

inline constexpr size_t kAuditHistory = 16;

struct AuditEvent {
  enum class What : uint8_t {
    kMapped,
    kImported,  // live before the audit came
    kUnmapped,
    kRetired,  // gone from tables and caches
    kSyncForCpu,
    kSyncForDevice,
    kPosted,
    kCompleted,
    kRecycled,
    kFault,
    kMisuse,
  };
  What what = What::kMapped;
  Nanos at{0};
  Range range{};
};

struct AuditReport {
  AuditCode code{};
  std::string device{};
  std::string owner{};  // of the mapping, or the ring where there is none; may be empty
  Range range{};        // of the mapping; empty if none is concerned
  MappingKind kind = MappingKind::kSingle;
  bool pre_existing = false;  // it was mapped before the audit came
  Nanos at{0};
  std::string what{};  // the mistake, with its values
  // Oldest first, at most kAuditHistory, of the mapping or page.
  std::vector<AuditEvent> history{};

  std::string_view remedy() const { return Remedy(code); }
};

std::string_view Name(MappingKind kind);
std::string_view Name(AuditEvent::What what);
// Several lines, the first of which says it all.
std::string ToText(const AuditReport& report);
std::string ToJson(const AuditReport& report);  // one object, one line

class Audit {
 public:
  struct Options {
    size_t max_reports = 256;  // kept; later ones are only counted (and given to the sink)
    // Mappings that are gone but remembered, per device, to name them when a fault comes late.
    size_t max_retired = 256;
    size_t max_per_line = 8;        // live mappings of a cache line, see kCacheLineMappedOften
    uint64_t sample_one_in = 1000;  // mappings ended strictly under deferred policy too; 0: none
    // Copies what the device only reads and compares it later, fills and checks red zones.
    bool checked = false;
    // Checked mode, for memory with a second view: takes the CPU's view away while a whole page is
    // posted. nullptr: not.
    host::PageGuard* guard = nullptr;
    host::MemoryClassifier* memory = nullptr;  // nullptr: one of its own, on this process
    host::Clock* clock = nullptr;              // nullptr: the system's
    std::function<void(const AuditReport&)> sink{};
  };

  explicit Audit(Options options);
  Audit() : Audit(Options{}) {}
  ~Audit();  // detaches from all
  Audit(const Audit&) = delete;
  Audit& operator=(const Audit&) = delete;

  // Imports what is live. FailedPrecondition if the device has another observer.
  absl::Status Attach(Device& device);
  // Without a leak report: the device goes on, unaudited. Nothing if it is not attached.
  void Detach(Device& device);

  std::vector<AuditReport> reports() const;  // oldest first
  uint64_t total(AuditCode code) const;
  uint64_t errors() const;  // all that are no warnings, also those not kept
  uint64_t warnings() const;
  uint64_t unexplained_faults() const;  // of the domains: at addresses never mapped, or no right
  uint64_t live() const;                // mappings and pages followed now

  std::string Text() const;
  // {"errors": n, "warnings": n, "totals": {"wrong-size": n, ...}, "reports": [...]}
  std::string Json() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_AUDIT_H_
