// SPDX-License-Identifier: Apache-2.0
//
// HostMemory: DMA memory from anonymous memfd segments, never a named file. Each segment is mapped
// once for the program and, if asked, a second time as the view of software devices. Segments are
// added as needed and kept until the source ends, or until a new one would take their sum above
// `capacity` while they are empty. Freed blocks give their pages back to the kernel, except those
// of a huge segment. Blocks are zeroed when they are handed out, so that what a stray device wrote
// to a freed one is not seen by its next owner.
//
// Huge pages are used for a segment when the kernel has some free and `huge_pages` allows it;
// otherwise ordinary pages, counted in stats(). Every page of a block exists before Allocate
// returns, and a block that would leave the system without memory is refused before it is filled
// (available_memory.h says why). Blocks are excluded from fork: in a child they are not mapped,
// Allocate fails, and giving back a block or destroying the source changes nothing (a child never
// writes into a device's memory). All methods: any thread.
#ifndef DMAKIT_DMA_HOST_HOST_MEMORY_H_
#define DMAKIT_DMA_HOST_HOST_MEMORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "dma/host/memory.h"

namespace dmakit::dma::host {

// Places memory on a NUMA node; the real one (libnuma) is //dma/host:numa, so that the library
// itself needs no libnuma.
class NumaPlacer {
 public:
  virtual ~NumaPlacer() = default;
  // Called on fresh address space, before the first page of it exists. kPrefer never fails for
  // lack of room on the node; kEnforce does. Not called for kAny.
  virtual absl::Status Place(std::span<std::byte> memory, const NumaPolicy& policy) = 0;
};

class HostMemory : public MemorySource {
 public:
  enum class HugePages : uint8_t { kNever, kIfAvailable, kRequire };

#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer follows addresses: with two views it would miss every race between driver and
  // device.
  static constexpr bool kDefaultSecondView = false;
#else
  static constexpr bool kDefaultSecondView = true;
#endif

  struct Options {
    Bytes capacity{
        uint64_t{64} << 30};  // address space, not memory: the most all blocks may add up to
    Bytes segment{uint64_t{64} << 20};  // how much is added at a time (more for a larger block)
    HugePages huge_pages = HugePages::kNever;
    bool second_view = kDefaultSecondView;
    // How much memory can still be filled; empty: AvailableMemory(). Asked for every 2 MiB taken,
    // and one part in 16 of the answer is left alone.
    std::function<Bytes()> available{};
    NumaPlacer* numa = nullptr;  // nullptr: kAny and kPrefer are accepted, kEnforce is an error
  };

  struct Stats {
    uint64_t segments = 0;
    uint64_t huge_segments = 0;
    uint64_t huge_fallbacks = 0;  // segments that wanted huge pages and got ordinary ones
    uint64_t bytes_in_use = 0;
  };

  static absl::StatusOr<std::unique_ptr<HostMemory>> Create(Options options);
  ~HostMemory() override;

  absl::StatusOr<Memory> Allocate(const MemoryRequest& request) override;
  Bytes page_size() const override;
  Bytes bytes_in_use() const override;
  Stats stats() const;

 protected:
  void Free(const MemoryView& view) override;

 private:
  struct Impl;
  explicit HostMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_HOST_MEMORY_H_
