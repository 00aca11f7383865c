// SPDX-License-Identifier: Apache-2.0
//
// Internal: the audit of one device. Follows its mappings in a table of its own, and compares. One
// lock per device, which is held while no one else is called; reports go to the AuditLog after it.
//
//   audit_device.cc   maps, unmaps, the end of the device
//   audit_sync.cc     who owns which bytes
//   audit_rings.cc    posted buffers, red zones, recycled pages
//   audit_faults.cc   the domain's faults, refused calls
#ifndef DMAKIT_DMA_AUDIT_DEVICE_H_
#define DMAKIT_DMA_AUDIT_DEVICE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "dma/audit.h"
#include "dma/audit_lines.h"
#include "dma/audit_log.h"
#include "dma/domain.h"
#include "dma/observer.h"

namespace dmakit::dma::internal {

// A mapping or page, live or gone.
struct AuditRecord {
  MappingKind kind = MappingKind::kSingle;
  Direction direction = Direction::kBidirectional;
  bool pre_existing = false;
  bool sampled = false;
  bool apart = false;    // all bounced: only the CPU ever writes to the pieces
  bool fetched = false;  // synced for the CPU, in part at least
  Range range;
  Range used;
  MemoryView memory;
  size_t entries = 1;
  RedZones red_zones;
  std::string owner;
  absl::InlinedVector<std::span<std::byte>, 1> pieces;  // streaming only: what the caller gave
  std::vector<std::byte> copy;                          // of the pieces, checked mode
  std::vector<Interval> cpu_owned;
  Nanos unmapped_at{0};
  uint64_t events = 0;
  std::array<AuditEvent, kAuditHistory> history;  // the event with number n is at n % size

  void Note(AuditEvent::What what, Nanos at, Range where) {
    history[events++ % kAuditHistory] = {what, at, where};
  }
  bool streaming() const {
    return kind == MappingKind::kSingle || kind == MappingKind::kScatterGather;
  }
};

// What all devices of one Audit share. Constant.
struct AuditContext {
  Audit::Options options;
  AuditLog* log = nullptr;
  host::MemoryClassifier* memory = nullptr;
  host::Clock* clock = nullptr;
};

class DeviceAudit final : public Observer, public FaultListener {
 public:
  DeviceAudit(const AuditContext& context, Device& device);

  void Start();  // becomes the observer, imports what is live
  void Stop();   // nothing is heard any more; not with the device's end, after which it may be late
  const Device* device() const;  // nullptr: it has ended
  uint64_t live() const;
  uint64_t unexplained_faults() const;

  void OnMap(const Device& device, const MappingEvent& event) override;
  void OnBeforeUnmap(const Device& device, const MappingEvent& event) override;
  void OnRetired(const Device& device, Range range) override;
  void OnSync(const Device& device, Range range, Direction direction, bool for_cpu) override;
  void OnDetach(const Device& device, size_t live_mappings) override;
  void OnMapFailed(const Device& device, const MappingEvent& event) override;
  void OnMisuse(const Device& device, const Misuse& misuse) override;
  bool WantsStrict(const Device& device, Range range) override;
  void OnPosted(const Device& device, const PostEvent& event) override;
  void OnCompleted(const Device& device, Iova base, Bytes written) override;
  void OnRecycled(const Device& device, Range page, std::string_view owner) override;
  void OnFault(const DomainFault& fault) override;

 private:
  using Reports = std::vector<AuditReport>;
  struct Post {
    Range range;
    Direction direction = Direction::kFromDevice;
    std::string ring;
    RedZones red_zones;            // checked mode: filled
    std::byte* cpu = nullptr;      // of range.base; nullptr: not known
    std::span<std::byte> guarded;  // pages taken from the CPU
  };
  using Posts = absl::btree_map<uint64_t, Post>;

  // A callback: takes the lock and the time, delivers the reports at its end.
  class Call {
   public:
    explicit Call(DeviceAudit& audit)
        : now(audit.context_.clock->Now()), audit_(audit), lock_(audit.mutex_) {}
    ~Call() {
      lock_.unlock();
      if (!reports.empty()) audit_.context_.log->Deliver(std::move(reports));
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    const Nanos now;
    Reports reports;

   private:
    DeviceAudit& audit_;
    std::unique_lock<std::mutex> lock_;
  };

  AuditReport& Report(Call& call, AuditCode code, const AuditRecord* record, std::string what);
  static std::string Describe(const AuditRecord& record);
  AuditRecord* FindAt(Iova base);
  AuditRecord* FindContaining(Iova address);
  AuditRecord* FindRetired(Iova address);

  void Import(const MappingEvent& event);
  AuditRecord& Add(const MappingEvent& event);
  void CheckMemory(Call& call, const AuditRecord& record, host::MemoryKind kind, bool reachable);
  void CheckLines(Call& call, AuditRecord& record);
  void CheckBudget(Call& call, const AuditRecord& record);
  void Retire(AuditRecord& record);
  CacheLines& LinesOf(const AuditRecord& record) {
    return record.direction == Direction::kToDevice ? read_lines_ : written_lines_;
  }

  // Unmapped without a sync.
  void CheckSkip(Call& call, const AuditRecord& record);
  void OnPageSync(Call& call, AuditRecord& record, Range range);
  void TakeCopy(AuditRecord& record);
  void RefreshCopy(AuditRecord& record, Range range);
  void CheckCopy(Call& call, AuditRecord& record, bool skip_sync);

  void FillZones(std::byte* cpu, size_t size, RedZones zones);
  // Reports what was written, and fills it again.
  void CheckZones(Call& call, const AuditRecord* record, std::string_view ring, Range range,
                  std::byte* cpu, RedZones zones);
  void CheckPost(Call& call, const AuditRecord* record, const PostEvent& event);
  void Guard(const AuditRecord& record, Post& post);
  // Gives the CPU its view back, and reports if it was there in the meantime.
  void Unguard(Call& call, const Post& post);
  // Takes back what of `range` is posted: a mistake, reported.
  void TakeBack(Call& call, const AuditRecord* record, Range range, const char* how);
  Posts::iterator FirstPostIn(Range range);

  const AuditContext& context_;
  const std::string name_;
  Domain& domain_;
  const Bytes max_segment_;
  const Bytes boundary_;
  const uint64_t max_mappings_;

  mutable std::mutex mutex_;
  Device* device_;
  bool listening_ = false;  // for faults
  bool importing_ = false;
  absl::flat_hash_set<uint64_t> gone_;                            // unmapped while importing
  absl::btree_map<uint64_t, std::unique_ptr<AuditRecord>> live_;  // by range.base
  std::deque<std::unique_ptr<AuditRecord>> retired_;              // oldest first
  std::vector<std::unique_ptr<AuditRecord>> spare_;
  CacheLines read_lines_;     // of live streaming mappings that the device only reads
  CacheLines written_lines_;  // of all others
  Posts posts_;               // by range.base
  uint64_t maps_ = 0;
  std::atomic<uint64_t> sampled_live_{0};  // written with the lock
  uint64_t unexplained_faults_ = 0;
  bool budget_warned_ = false;
};

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_AUDIT_DEVICE_H_
