// SPDX-License-Identifier: Apache-2.0
//
// What kind of memory an address belongs to: the question a checker asks before a device is let at
// it. MemoryClassifier is the interface (the fake is in fakes.h), ProcessMemory the real one. It
// answers from what the kernel said last, so it may be late in noticing that memory went away, but
// it calls nothing "unmapped" without looking again. Any thread.
#ifndef DMAKIT_DMA_HOST_MEMORY_KIND_H_
#define DMAKIT_DMA_HOST_MEMORY_KIND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace dmakit::dma::host {

enum class MemoryKind : uint8_t {
  kOrdinary,  // heap, anonymous or shared memory, writable data of a program
  kStack,     // of the calling thread, or of the main thread
  kProgram,   // text or read-only data of an executable or library
  kUnmapped,  // nothing is there
};

std::string_view Name(MemoryKind kind);

class MemoryClassifier {
 public:
  virtual ~MemoryClassifier() = default;
  MemoryClassifier(const MemoryClassifier&) = delete;
  MemoryClassifier& operator=(const MemoryClassifier&) = delete;

  // The worst of what the first and the last byte are. Ordinary for an empty span.
  virtual MemoryKind Classify(std::span<const std::byte> memory) = 0;

 protected:
  MemoryClassifier() = default;
};

// From /proc/self/maps, read at first use, whenever an address is not found, and every `refresh`
// questions.
class ProcessMemory final : public MemoryClassifier {
 public:
  struct Options {
    uint64_t refresh = 65'536;  // questions; 1: each reads anew
  };
  explicit ProcessMemory(Options options);
  ProcessMemory() : ProcessMemory(Options{}) {}
  ~ProcessMemory() override;

  MemoryKind Classify(std::span<const std::byte> memory) override;
  uint64_t reads() const;  // of the kernel's table, so far

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_MEMORY_KIND_H_
