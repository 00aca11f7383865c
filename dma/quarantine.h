// SPDX-License-Identifier: Apache-2.0
//
// What a device may still write is not reused: it is held aside here, counted, and released only by
// an explicit call that states that the device was reset. Things come here when a deadline passed
// at stop, an unmap removed less than it was asked to, or an invalidation failed. Owned by an
// AddressSpace. Any thread.
#ifndef DMAKIT_DMA_QUARANTINE_H_
#define DMAKIT_DMA_QUARANTINE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma {

class Quarantine {
 public:
  struct Item {
    // Whose reset makes it safe. Several, separated by commas: all of them must be reset. Empty:
    // only a release for all devices lets it go.
    std::string device{};
    std::string owner{};  // ring, pool or call site
    std::string reason{};
    Range range{};
    Bytes bytes{0};  // memory held
    // Completes the release after the reset (unmap again, invalidate, give back IOVA and memory);
    // on failure the item stays. Destroying the item without calling it leaks nothing but also must
    // not give anything back to a pool.
    std::function<absl::Status()> release{};
  };

  Quarantine();
  ~Quarantine();
  Quarantine(const Quarantine&) = delete;
  Quarantine& operator=(const Quarantine&) = delete;

  void Hold(Item item);
  // Everything held for `device` (empty: for all). What also waits for another device's reset goes
  // on waiting. OK when all the rest was released; else the first failure.
  absl::Status ReleaseAfterReset(std::string_view device);

  size_t count() const;
  Bytes bytes() const;
  uint64_t total_held() const;  // ever
  std::vector<std::string> Describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dmakit::dma

#endif  // DMAKIT_DMA_QUARANTINE_H_
