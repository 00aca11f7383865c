// SPDX-License-Identifier: Apache-2.0
//
// AddressSpace: one iova::Space and the domains of one or more devices. An IOVA is unique across
// the space, so a packet page has one IOVA on every NIC of it, and forwarding a packet from one to
// another needs no translation.
//
// Lifetime: memory source, clock, threads, fence and domains outlive the space; the space outlives
// its devices, pools and mappings. One that dies earlier reports who is still alive (see
// Options::report), makes the handles dead and unmaps. Any thread.
#ifndef DMAKIT_DMA_ADDRESS_SPACE_H_
#define DMAKIT_DMA_ADDRESS_SPACE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/device.h"
#include "dma/flush_queue.h"
#include "dma/host/clock.h"
#include "dma/host/memory.h"
#include "dma/quarantine.h"
#include "dma/types.h"
#include "iova/cache.h"
#include "iova/fence.h"
#include "iova/space.h"

namespace dmakit::dma {

namespace internal {
struct SpaceState;
struct SharedRecord;
}  // namespace internal

// An IOVA range that stands for the same memory in every domain of the space: what a packet page
// is. The IOVA belongs to the handle for its whole life; the memory behind it comes and goes with
// Map and Unmap. Move-only, one thread at a time.
class SharedRange {
 public:
  SharedRange() = default;
  SharedRange(SharedRange&& other) noexcept;
  SharedRange& operator=(SharedRange&& other) noexcept;
  // A mapped range is unmapped and invalidated (strict); if that fails it is quarantined, with its
  // IOVA.
  ~SharedRange();

  bool empty() const { return record_ == nullptr; }
  bool mapped() const;
  // A Map or Unmap could not be undone or completed: the memory must follow by Quarantine().
  bool quarantined() const;
  Iova iova() const;
  Bytes size() const;

  // In all domains or in none. Each domain gets the access its device was attached with.
  absl::Status Map(MemoryView memory);
  // kStrict and kPersistent: one unmap and one invalidation per domain before it returns.
  // kDeferred: the ticket says when memory *and* range may be used again. A failure quarantines:
  // the range stays unusable, keep the memory (see below). `local`: as for Device::Unmap.
  absl::StatusOr<FlushTicket> Unmap(Policy policy, const Local& local = {});
  // Gives the range and its memory to the quarantine, because a device may still write there: the
  // one named, or (empty) any that is attached. It stays mapped until its release.
  void Quarantine(host::Memory memory, std::string_view reason, std::string_view device = {}) &&;

 private:
  friend class AddressSpace;
  void Release();
  void HoldRecord(std::string_view reason);
  absl::Status Withdraw();
  FlushTicket DeferFlush(const Local& local);

  std::shared_ptr<internal::SpaceState> space_;
  std::shared_ptr<internal::SharedRecord> record_;
};

class AddressSpace {
 public:
  struct Options {
    std::string name = "dma";
    host::MemorySource* memory = nullptr;    // required
    host::Clock* clock = nullptr;            // nullptr: the system's
    host::ThreadStarter* threads = nullptr;  // runs the deferred queue's thread; nullptr: no thread
    iova::AsymmetricFence* fence =
        nullptr;  // nullptr or not available: IOVA caches lock (see iova::Cache::mode)
    Policy policy = Policy::kStrict;  // of streaming unmaps; kPersistent means kStrict for them
    DeferredLimits deferred{};
    // Addresses are taken with at most this many bits while there are such, at the cost of one
    // bounded search when there are none. 64: no preference; they come from the top, which leaves
    // the low ones to the devices whose mask reaches no others. 32: for a narrow device that
    // attaches after pages were made, or descriptors with short fields.
    AddressBits prefer{64};
    // Called with one line per live owner when something dies with live mappings. Empty: written to
    // stderr.
    std::function<void(std::string_view)> report{};
    // Called at the end of each Attach with the new device, on its thread with no lock held, so
    // that a checker sees all of a device that a driver attaches for itself. An error detaches the
    // device and is what Attach returns.
    std::function<absl::Status(Device&)> on_attach{};
  };

  struct Stats {
    uint64_t maps = 0;  // translations made, summed over domains
    uint64_t unmaps = 0;
    uint64_t invalidations = 0;
    uint64_t live_mappings = 0;
    uint64_t quarantined = 0;
    // The policy in force. Differs from the one asked for when the deferred queue could not be set
    // up; `fallback` says why.
    Policy policy = Policy::kStrict;
    std::string fallback{};
  };

  static absl::StatusOr<std::unique_ptr<AddressSpace>> Create(Options options);
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // Adds a device and replays the packet pages that are mapped now in its domain (once per domain:
  // devices may share one). Fails by name, with nothing changed, if a live range lies outside the
  // domain's aperture, the device's mask or the domain's budget. The first attach makes the
  // iova::Space, of what that domain translates; what a later domain does not translate below its
  // top is not handed out any more, also after that device has gone.
  absl::StatusOr<std::unique_ptr<Device>> Attach(DeviceOptions options);

  // Takes an IOVA range for a page, within reach of every device attached now. `size` is a multiple
  // of granule(). `cache` is the calling thread's own, or nullptr.
  absl::StatusOr<SharedRange> Reserve(Bytes size, Bytes alignment, std::string_view owner,
                                      iova::Cache* cache = nullptr);

  // A cache for one owner, within the limits of all devices attached so far.
  absl::StatusOr<std::unique_ptr<iova::Cache>> NewCache(std::string_view owner);
  // A lane of the deferred queue for one owner, to be passed with its cache as a Local: its unmaps
  // then take no lock that others take. Under strict the empty lane, which is as good.
  absl::StatusOr<FlushLane> NewFlushLane(std::string_view owner);

  host::MemorySource& memory() const;
  iova::Space& iova_space();  // exists from the first Attach on
  bool has_devices() const;
  // Whether a device has an observer; what a pool asks before it makes up something to tell.
  bool watched() const { return watchers_->load(std::memory_order_relaxed) != 0; }
  // To the observers of all devices. Any thread that holds no lock of the space.
  void TellRecycled(Range page, std::string_view owner) const;
  void TellMisuse(const Misuse& misuse) const;
  // Of page ranges, in size and memory address: the coarsest of the devices' domains.
  Bytes granule() const;
  FlushQueue* flush_queue();  // nullptr under strict
  class Quarantine& quarantine();
  Stats stats() const;
  // Of the devices attached now, by name.
  std::vector<std::pair<std::string, DeviceStats>> device_stats() const;

 private:
  explicit AddressSpace(std::shared_ptr<internal::SpaceState> state);
  std::shared_ptr<internal::SpaceState> state_;
  const std::atomic<size_t>* watchers_;  // in state_
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_ADDRESS_SPACE_H_
