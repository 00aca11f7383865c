// SPDX-License-Identifier: Apache-2.0
//
// Internal: what stands behind AddressSpace, Device, SharedRange and the mapping handles. Handles
// hold a shared_ptr to their state, so one that outlives its device or space is dead, not dangling.
//
// Locks, outermost first. A lock may be taken while holding those above it, never the other way:
//
//   1. SpaceState::topology   shared by Reserve and by Map/Unmap of shared ranges; exclusive for
//                             attach, detach and releases from quarantine
//   2. the locks of iova::Space
//   3. a running flush (FlushQueue), then a lane of it: releasers take only the leaves below and
//      Space::Free or Cache::Free
//   4. leaves: DeviceState::mutex, SpaceState::records_mutex, SharedRecord::mutex and that of the
//      Quarantine; nothing is called with one held
//
// An allocation from the iova::Space may run a flush on the allocating thread, so it happens with
// at most `topology` held, which no flush needs.
#ifndef DMAKIT_DMA_DEVICE_STATE_H_
#define DMAKIT_DMA_DEVICE_STATE_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/address_space.h"
#include "dma/bounce.h"
#include "dma/device.h"
#include "dma/host/clock.h"
#include "dma/host/memory.h"
#include "dma/quarantine.h"
#include "dma/translation.h"

namespace dmakit::dma::internal {

// A std::shared_mutex whose waiting writer goes before new readers, so that attach does not starve.
class TopologyMutex {
 public:
  void lock() {
    std::lock_guard<std::mutex> turn(gate_);
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }
  void lock_shared() {
    std::lock_guard<std::mutex> turn(gate_);
    mutex_.lock_shared();
  }
  void unlock_shared() { mutex_.unlock_shared(); }

 private:
  std::mutex gate_;
  std::shared_mutex mutex_;
};

struct SpaceState;

// One streaming or coherent mapping, as the device's table knows it.
struct LiveMapping {
  MappingKind kind = MappingKind::kSingle;
  Range range{};  // whole granules, mapped
  Range iova{};   // as the iova::Space handed it out: may be larger
  Direction direction = Direction::kBidirectional;
  MemoryView memory{};
  size_t entries = 1;
  std::string owner{};
  std::shared_ptr<host::Memory> block{};  // coherent only: kept until the translation is gone
  Range used{};                           // the bytes asked for
  RedZones red_zones{};
  std::shared_ptr<const Bounce> bounce{};  // kept until the translation is gone; mostly null

  // Through the caches of a device that is not coherent.
  bool cached() const { return kind != MappingKind::kCoherent && kind != MappingKind::kResource; }
};

// How a mapping ends.
struct Ending {
  bool may_defer = false;
  UnmapOptions unmap{};  // `cache`: none, or one whose ceiling is not above the device's
  std::span<const std::span<std::byte>> list{};
};

struct DeviceState : std::enable_shared_from_this<DeviceState>, Releaser {
  DeviceState(std::shared_ptr<SpaceState> space_in, DeviceOptions options_in);

  // Constant after attach.
  const std::shared_ptr<SpaceState> space;
  const DeviceOptions options;
  iova::Space* iova = nullptr;
  Iova ceiling;             // no byte of a mapping of this device lies above it
  Bytes granule{0};         // of its mappings: the coarser of the domain's and the space's
  const bool fixed_memory;  // the domain is asked whether it can reach what is mapped
  const bool may_bounce;
  const std::shared_ptr<BouncePool> slots;

  Device* self = nullptr;  // for the observer; null once detached, guarded by topology
  // Changes with topology exclusive, for the sake of the packet pages' maps and unmaps, and while
  // nothing else uses the device.
  std::atomic<Observer*> observer{nullptr};

  mutable std::mutex mutex;
  std::condition_variable quiet;                    // busy has reached 0
  size_t busy = 0;                                  // calls in progress; detach waits for them
  std::atomic<bool> detached{false};                // written under mutex
  absl::flat_hash_map<uint64_t, LiveMapping> live;  // by range.base
  DeviceStats stats;
  // Addresses that an observer wanted out of use for a while, oldest first; they go back when there
  // are more than kMaxParked, when addresses run out, and at detach.
  static constexpr size_t kMaxParked = 64;
  std::deque<Range> parked;

  Domain& domain() const { return *options.domain; }

  // A call in progress. False: the device is detached, and Leave must not be called.
  bool Enter();
  void Leave();
  // Takes a live mapping out of the table for its caller to tear down, and enters.
  std::optional<LiveMapping> Claim(Iova base);
  // Null, mostly: then there is nothing to tell.
  Observer* watcher() const { return observer.load(std::memory_order_relaxed); }
  void Insert(LiveMapping mapping);
  DeviceStats Stats() const;
  void CountFailure();

  // `cache`: none, or one whose ceiling is not above the device's.
  absl::StatusOr<Range> AllocateIova(Bytes size, Bytes alignment, iova::Cache* cache);
  void FreeIova(const Range& range, iova::Cache* cache);
  void Park(const Range& range);
  bool FreeParked();  // false: there were none

  // device_bounce.cc. For a device that may bounce: the filled slot of the entries that need it, or
  // null. Entries were checked to have bytes.
  absl::StatusOr<std::shared_ptr<const Bounce>> NewBounce(
      std::span<const std::span<std::byte>> entries);
  absl::StatusOr<BounceSlot> TakeSlot(Bytes size);
  bool NeedsBounce(std::span<std::byte> entry, bool alone) const;
  // A sync, of a mapping that is bounced or of a device that is not coherent.
  void Move(Iova base, const Range& part, bool for_cpu);
  // Before an unmap, for a device that is not coherent: what it wrote and still has to itself.
  void WriteBack(const LiveMapping& mapping, const UnmapOptions& how) const;
  // After it, for a mapping that is bounced.
  void CopyBack(const LiveMapping& mapping, const UnmapOptions& how);

  // Ends one mapping, whatever its kind. Strict unless `may_defer` and the space has a flush queue.
  absl::StatusOr<FlushTicket> Retire(Iova base, const Ending& how);
  FlushTicket Defer(LiveMapping mapping, const Local& local);
  void Release(const Retired& retired, const absl::Status& flushed, iova::Cache* cache) override;
  // Puts what could not be taken down into quarantine; returns the error that says so.
  absl::Status Hold(const LiveMapping& mapping, Translation translation, const absl::Status& why);
  void NotifyRetired(const Range& range);  // may come late: enters first
  MappingEvent Event(const LiveMapping& mapping, std::span<const std::span<std::byte>> list) const;

  // Idempotent. Everything of the device's own goes, then the space forgets it.
  void Detach();
  void DropLive(std::vector<LiveMapping> mappings);
};

// What a SharedRange stands for.
struct SharedRecord : Releaser {
  SharedRecord(SpaceState* space_in, Range range_in, Range iova_in, std::string owner_in)
      : space(space_in),
        range(range_in),
        iova(iova_in),
        owner(std::move(owner_in)),
        translation(range_in) {}

  void Release(const Retired& retired, const absl::Status& flushed, iova::Cache* cache) override;

  SpaceState* const space;  // outlives its queue, which alone calls Release
  const Range range;
  const Range iova;
  const std::string owner;

  // Written by the handle's thread with topology shared, or by anyone with it exclusive.
  std::atomic<bool> mapped{false};
  MemoryView memory;
  Translation translation;

  // Written before an unmap is deferred, read by its release.
  std::string reaching;  // names of the devices, should the flush fail
  std::vector<std::shared_ptr<DeviceState>> observed;

  std::mutex mutex;
  FlushTicket ticket;                  // of the last deferred unmap
  size_t releases = 0;                 // deferred unmaps that the queue has not released yet
  std::shared_ptr<SharedRecord> self;  // while there are any
  bool held = false;                   // it has an item in the quarantine
  bool orphaned = false;  // the handle is gone: who clears the last of the two frees the range
  host::Memory kept;
};

// A domain that one of the space's devices uses or has used.
struct DomainUse {
  Domain* domain = nullptr;
  size_t devices = 0;
  Access page_access = Access::kReadWrite;
};

struct SpaceState : std::enable_shared_from_this<SpaceState> {
  explicit SpaceState(AddressSpace::Options options_in);

  const AddressSpace::Options options;
  host::SystemClock system_clock;
  AddressSpace* self = nullptr;
  Policy policy = Policy::kStrict;  // in force; constant after creation
  std::string fallback;
  std::unique_ptr<dma::Quarantine> quarantine;

  mutable TopologyMutex topology;
  // Guarded by topology.
  bool dead = false;
  std::unique_ptr<iova::Space> iova;  // from the first attach on
  std::vector<Interval> usable;       // what `iova` was made from
  std::vector<Interval> excluded;     // taken out of `iova` for later domains
  std::vector<std::shared_ptr<DeviceState>> devices;
  std::vector<DomainUse> domains;
  Iova ceiling = Iova::Max();  // of shared ranges: the lowest of all devices
  Bytes granule{4096};         // of shared ranges: the coarsest of all domains

  mutable std::mutex records_mutex;
  std::map<uint64_t, std::shared_ptr<SharedRecord>> records;  // by range.base

  // Destroyed first: its last flush still uses all of the above.
  std::unique_ptr<FlushQueue> queue;

  std::optional<Iova> preferred() const {
    if (options.prefer.value() == 64) return std::nullopt;
    return options.prefer.ToMask().highest();
  }
  host::Clock& clock() { return options.clock != nullptr ? *options.clock : system_clock; }
  std::atomic<size_t> watchers{0};  // devices with an observer
  void CountWatchers();             // with topology exclusive
  bool FreeParked() const;          // of all devices; with topology held

  void Report(std::string_view line) const;
  DomainUse* FindUse(const Domain* domain);
  // Devices of the domains that still translate `translation` (all devices if it is null), as a
  // Quarantine::Item wants them.
  std::string DeviceNames(const Translation* translation) const;
  void NameDevices(const Translation* translation, std::string* names) const;
  std::vector<std::shared_ptr<SharedRecord>> Records() const;

  // attach.cc. All with topology exclusive.
  absl::Status Admit(DeviceState& device);
  absl::Status SetLimits(DeviceState& device) const;
  absl::Status CheckRecords(const DeviceState& device, bool new_domain);
  absl::Status Replay(const DeviceState& device);
  // Takes what `facts` cannot translate below its top out of the space; the pieces taken now are
  // added to `taken`.
  absl::Status CreateIova(const DeviceState& device);
  absl::Status Exclude(const DeviceState& device, std::vector<Interval>* taken);
  absl::Status ExcludeOne(const DeviceState& device, const Interval& hole,
                          std::vector<Interval>* taken);
  absl::Status Withdraw(Domain& domain, const std::vector<std::shared_ptr<SharedRecord>>& list);
  std::string OwnerOf(const Range& range) const;
  // Lines to report are appended.
  void Remove(DeviceState& device, std::vector<std::string>* lines);
  void RecomputeLimits();

  // shared_range.cc
  void Hold(const std::shared_ptr<SharedRecord>& record, std::string devices,
            std::string_view reason);
  absl::Status ReleaseHeld(const std::shared_ptr<SharedRecord>& record);
  void Forget(const SharedRecord& record, iova::Cache* cache = nullptr);
  void Close();
};

}  // namespace dmakit::dma::internal

#endif  // DMAKIT_DMA_DEVICE_STATE_H_
