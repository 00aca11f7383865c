// SPDX-License-Identifier: Apache-2.0
//
// Takes away the CPU's view of pages and notices when the CPU goes there all the same. PageGuard is
// the interface, FaultGuard the real one: it protects the pages and handles the access fault by
// noting it and letting the access go on, unprotected. Only for pages that a device reaches through
// another view. For checkers; every call is a system call.
//
// FaultGuard owns the process's SIGSEGV handler from its first object to the end of the last one;
// faults that are not its own go to the handler before. Any thread.
#ifndef DMAKIT_DMA_HOST_PAGE_GUARD_H_
#define DMAKIT_DMA_HOST_PAGE_GUARD_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dmakit::dma::host {

class PageGuard {
 public:
  virtual ~PageGuard() = default;
  PageGuard(const PageGuard&) = delete;
  PageGuard& operator=(const PageGuard&) = delete;

  // Whole pages, of `page_size()`. Overlapping nothing that is protected.
  virtual absl::Status Protect(std::span<std::byte> pages) = 0;
  // Gives them back; `pages` as protected. The address that the CPU went to first, or nullptr.
  virtual const std::byte* Restore(std::span<std::byte> pages) = 0;
  virtual size_t page_size() const = 0;

 protected:
  PageGuard() = default;
};

class FaultGuard final : public PageGuard {
 public:
  static constexpr size_t kMaxRegions = 4096;  // protected at a time, by all guards together

  FaultGuard();
  ~FaultGuard() override;

  absl::Status Protect(std::span<std::byte> pages) override;
  const std::byte* Restore(std::span<std::byte> pages) override;
  size_t page_size() const override;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_PAGE_GUARD_H_
