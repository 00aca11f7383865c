// SPDX-License-Identifier: Apache-2.0
//
// Host memory for devices: where pools and rings get their bytes. MemorySource is the interface
// (the fake is in fakes.h), HostMemory the real one (host_memory.h). Set-up path only: nothing here
// is called per packet.
#ifndef DMAKIT_DMA_HOST_MEMORY_H_
#define DMAKIT_DMA_HOST_MEMORY_H_

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dma/types.h"
#include "iova/types.h"

namespace dmakit::dma::host {

struct NumaPolicy {
  enum class Mode : uint8_t { kAny, kPrefer, kEnforce };
  Mode mode = Mode::kAny;
  NumaNode node{0};
};

struct MemoryRequest {
  Bytes size{0};          // rounded up to the source's page size
  Bytes alignment{4096};  // of both views; power of two, at most 1 GiB
  NumaPolicy numa{};
  std::string_view label{};  // who it is for, in error messages
};

class MemorySource;

// One block, move-only; gives itself back to its source when it dies, so the source must outlive
// it. The bytes of a new block are zero. Whoever let a device use it unmaps (and invalidates)
// first.
class Memory {
 public:
  Memory() = default;
  Memory(MemorySource* source, MemoryView view) : source_(source), view_(view) {}
  Memory(Memory&& other) noexcept
      : source_(std::exchange(other.source_, nullptr)), view_(std::exchange(other.view_, {})) {}
  Memory& operator=(Memory&& other) noexcept;
  ~Memory() { Release(); }

  bool empty() const { return source_ == nullptr; }
  const MemoryView& view() const { return view_; }
  std::byte* data() const { return view_.cpu; }
  size_t size() const { return view_.size; }

 private:
  void Release();

  MemorySource* source_ = nullptr;
  MemoryView view_;
};

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;

  // Zeroed, aligned memory that is really there: an out-of-memory condition shows here as
  // ResourceExhausted, never later as SIGBUS. Any thread.
  virtual absl::StatusOr<Memory> Allocate(const MemoryRequest& request) = 0;
  virtual Bytes page_size() const = 0;
  // What blocks in use add up to now.
  virtual Bytes bytes_in_use() const = 0;

 protected:
  friend class Memory;
  MemorySource() = default;
  virtual void Free(const MemoryView& view) = 0;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_MEMORY_H_
