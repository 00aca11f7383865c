// SPDX-License-Identifier: Apache-2.0
//
// VfioDomain is the kernel's IOMMU as a dma::Domain: Linux's VFIO, Type1 version 2, over a
// container's descriptor. It maps memory of this process, which the kernel pins for as long. One
// Map is one ioctl however large; what the kernel would refuse is refused before, with a message
// that says why, and the kernel's own refusal is translated all the same. Made by VfioContainer.
//
// What a Map may rely on is asked of the kernel once (VFIO_IOMMU_GET_INFO). Where an old kernel
// does not say: IOVAs of 39 bits, the least any IOMMU of these has, without x86's interrupt window
// 0xfee00000-0xfeefffff (before Linux 5.4); 65,535 mappings (before 5.10); pages of 4 KiB.
//
// The process must not map through the same container by other ways. Memory is pinned through
// MemoryView::device, so that a checker may protect the CPU's view. A domain that ends unmaps what
// is left, which is what the kernel does when the container closes.
//
// Any thread. PollFaults is for one thread at a time.
#ifndef DMAKIT_DMA_HOST_VFIO_DOMAIN_H_
#define DMAKIT_DMA_HOST_VFIO_DOMAIN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/domain.h"
#include "dma/host/kernel_faults.h"
#include "dma/host/vfio_kernel.h"

namespace dmakit::dma::host {

class VfioDomain final : public Domain {
 public:
  struct Options {
    std::string name = "vfio";
    // Told once, in one line, when 90 % of the mappings that the kernel allows are live. Empty:
    // written to stderr. On the thread of that Map, with a lock of the domain held.
    std::function<void(std::string_view)> report{};
    // nullptr: the domain hears of no faults.
    std::unique_ptr<KernelFaultLog> faults{};
  };

  // `container` stays the caller's and outlives the domain; its IOMMU has been set. `options` are
  // taken only on success.
  static absl::StatusOr<std::unique_ptr<VfioDomain>> Create(VfioKernel& kernel, int container,
                                                            Options&& options);
  ~VfioDomain() override;

  // What the kernel says of a container now.
  static absl::StatusOr<DomainFacts> ReadFacts(VfioKernel& kernel, int container);

  std::string_view name() const override { return options_.name; }
  const DomainFacts& facts() const override { return facts_; }
  // Errors carry a VfioProblem (vfio_error.h). Beyond the contract: ResourceExhausted (kMemlock)
  // when the pages may not be locked, FailedPrecondition (kMemory) when they are not there.
  absl::Status Map(Range range, MemoryView memory, Access access) override;
  // One ioctl, none if nothing is mapped there. When the kernel removed less than was mapped, that
  // is what is returned, and what it left, taken from the range's upper end, counts as mapped.
  absl::StatusOr<Bytes> Unmap(Range range) override;
  // Nothing to do: the kernel invalidates before an unmap returns. The shape is checked, the call
  // counted.
  absl::Status Invalidate(Range range) override;
  absl::Status InvalidateAll() override;
  DomainStats stats() const override;

  bool AddFaultListener(FaultListener* listener) override;
  void RemoveFaultListener(FaultListener* listener) override;
  // Reads what the log has of late and tells the listeners of faults of this domain's devices; how
  // many there were. The kernel does not call: call this now and then. 0 without a log.
  size_t PollFaults();
  // nullopt without a log.
  std::optional<KernelFaultLog::Stats> fault_log_stats() const;

  // The devices behind this domain by PCI address, for PollFaults. Done by VfioDevice.
  void AddDevice(std::string_view address);
  void RemoveDevice(std::string_view address);

 private:
  struct Live {
    uint64_t size = 0;
    uint64_t left = 0;  // less than the size after an unmap that fell short
  };
  using Table = std::map<uint64_t, Live>;  // by IOVA

  VfioDomain(VfioKernel& kernel, int container, DomainFacts facts, Options&& options);
  absl::Status Check(const Range& range, const MemoryView& memory, Access access) const;
  absl::Status CheckPlace(const Range& range) const;
  absl::Status CheckBudget(const Range& range) const;
  absl::Status CheckMemlock(const Range& range);
  absl::Status MapFailed(const Range& range, const MemoryView& memory, int error);
  absl::Status MemlockError(const Range& range, Bytes locked, Bytes limit) const;
  absl::Status CheckShape(const char* what, const Range& range) const;
  Table::const_iterator FirstFrom(uint64_t address) const;
  void Forget(const Range& range, uint64_t bytes);
  void WarnOfBudget();

  VfioKernel& kernel_;
  const int container_;
  const DomainFacts facts_;
  const Options options_;
  const bool unlimited_;  // no limit of locked memory held when this was made

  mutable std::mutex mutex_;  // of all below
  Table live_{};
  DomainStats stats_{};
  Bytes locked_{};  // of the process, as far as this domain knows; the kernel knows better
  bool warned_ = false;

  mutable std::mutex listeners_mutex_;  // of the log and all below; never together with the other
  std::vector<FaultListener*> listeners_{};
  std::vector<std::string> devices_{};
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_VFIO_DOMAIN_H_
