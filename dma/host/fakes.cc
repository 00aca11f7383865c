// SPDX-License-Identifier: Apache-2.0
//
// FakeMemory takes blocks from the heap, so that the sanitizers see them; with a second view, from
// a memfd mapped twice.
#include "dma/host/fakes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) (static_cast<void>(address))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) (static_cast<void>(address))
#endif

namespace dmakit::dma::host {
namespace {

constexpr Bytes kPage{4096};
constexpr std::byte kPoison{0xdb};
constexpr size_t kHeldBack = size_t{16} << 20;

[[noreturn]] void Die(const char* what, const MemoryView& view) {
  std::fprintf(stderr, "dmakit: FakeMemory: %s: block of %zu bytes at %p\n", what, view.size,
               static_cast<void*>(view.cpu));
  std::abort();
}

std::byte* MapFile(int fd, size_t size, size_t alignment) {
  const size_t room = size + alignment;
  void* reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(reserved);
  auto* base = static_cast<std::byte*>(reserved) + (alignment - start % alignment) % alignment;
  const size_t before = base - static_cast<std::byte*>(reserved);
  if (before != 0) munmap(reserved, before);
  munmap(base + size, room - before - size);
  if (mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    return nullptr;
  }
  return base;
}

MemoryView NewTwoViews(size_t size, size_t alignment) {
  const int fd = memfd_create("dmakit-fake", MFD_CLOEXEC);
  if (fd < 0) return {};
  MemoryView view;
  if (ftruncate(fd, static_cast<off_t>(size)) == 0) {
    view.cpu = MapFile(fd, size, alignment);
    view.device = MapFile(fd, size, alignment);
    view.size = size;
  }
  close(fd);
  return view.cpu != nullptr && view.device != nullptr ? view : MemoryView{};
}

MemoryView NewBlock(size_t size, size_t alignment, bool second_view) {
  if (second_view) return NewTwoViews(size, alignment);
  void* block = nullptr;  // not aligned_alloc, which wants a multiple of the alignment
  if (posix_memalign(&block, alignment, size) != 0) return {};
  auto* memory = static_cast<std::byte*>(block);
  return {memory, memory, size};
}

void DeleteBlock(const MemoryView& view) {
  if (view.cpu == view.device) {
    std::free(view.cpu);
  } else {
    munmap(view.cpu, view.size);
    munmap(view.device, view.size);
  }
}

}  // namespace

void FailPoint::FailAt(uint64_t k, bool forever) {
  calls_.store(0);
  forever_.store(forever);
  at_.store(k);
}

bool FailPoint::Hit() {
  const uint64_t call = calls_.fetch_add(1) + 1;
  const uint64_t at = at_.load();
  return at != 0 && (call == at || (forever_.load() && call > at));
}

uint64_t FailPoint::calls() const { return calls_.load(); }

bool FailPoint::triggered() const { return at_.load() != 0 && calls_.load() >= at_.load(); }

struct FakeMemory::Impl {
  explicit Impl(Options o) : options(o) {}

  const Options options;
  mutable std::mutex mutex;
  Bytes largest = options.largest;
  Bytes in_use;
  std::map<std::byte*, MemoryView> live;
  std::deque<MemoryView> held_back;  // poisoned, oldest first
  size_t held_bytes = 0;
  uint64_t written_after_free = 0;

  bool Intact(const MemoryView& view) const {
    ASAN_UNPOISON_MEMORY_REGION(view.device, view.size);
    // Each byte is like the next, and the first is right.
    return view.device[0] == kPoison &&
           std::memcmp(view.device, view.device + 1, view.size - 1) == 0;
  }
  void ReleaseOldest() {
    const MemoryView view = held_back.front();
    held_back.pop_front();
    held_bytes -= view.size;
    if (!Intact(view)) ++written_after_free;
    ASAN_UNPOISON_MEMORY_REGION(view.cpu, view.size);
    DeleteBlock(view);
  }
};

FakeMemory::FakeMemory(Options options) : impl_(new Impl(options)) {}

FakeMemory::~FakeMemory() {
  if (!impl_->live.empty()) Die("dies before its blocks", impl_->live.begin()->second);
  while (!impl_->held_back.empty()) impl_->ReleaseOldest();
}

absl::StatusOr<Memory> FakeMemory::Allocate(const MemoryRequest& request) {
  const auto error = [&request](absl::StatusCode code, auto... text) {
    return absl::Status(
        code, absl::StrCat("fake memory for \"", std::string(request.label), "\": ", text...));
  };
  if (request.size.value() == 0) return error(absl::StatusCode::kInvalidArgument, "size 0");
  if (!IsPowerOfTwo(request.alignment) || request.alignment > GiB(1)) {
    return error(absl::StatusCode::kInvalidArgument, "alignment ", request.alignment.value(),
                 ": must be a power of two, at most 1 GiB");
  }
  const std::optional<Bytes> size = AlignUp(request.size, kPage);
  if (!size) {
    return error(absl::StatusCode::kInvalidArgument, "size ", request.size.value(),
                 " does not fit into 64 bits of pages");
  }
  const auto full = absl::StatusCode::kResourceExhausted;
  if (impl_->options.fail != nullptr && impl_->options.fail->Hit()) {
    return error(full, "told to fail");
  }
  const std::lock_guard lock(impl_->mutex);
  if (*size > impl_->largest) return error(full, "above the largest block there is");
  if (*size > impl_->options.capacity || impl_->in_use > impl_->options.capacity - *size) {
    return error(full, "the capacity of ", impl_->options.capacity.value(), " bytes is reached");
  }
  const MemoryView view = NewBlock(size->value(), std::max(request.alignment, kPage).value(),
                                   impl_->options.second_view);
  if (view.cpu == nullptr) return error(full, "the system has no memory left");
  std::memset(view.cpu, 0, view.size);
  impl_->in_use += *size;
  impl_->live.emplace(view.cpu, view);
  return Memory(this, view);
}

void FakeMemory::Free(const MemoryView& view) {
  const std::lock_guard lock(impl_->mutex);
  const auto at = impl_->live.find(view.cpu);
  if (at == impl_->live.end()) Die("freed twice, or never allocated", view);
  if (at->second.size != view.size || at->second.device != view.device) {
    Die("freed with another size or device view", view);
  }
  impl_->live.erase(at);
  impl_->in_use -= Bytes(view.size);
  std::memset(view.device, static_cast<int>(kPoison), view.size);
  ASAN_POISON_MEMORY_REGION(view.cpu, view.size);
  ASAN_POISON_MEMORY_REGION(view.device, view.size);
  impl_->held_back.push_back(view);
  impl_->held_bytes += view.size;
  while (impl_->held_bytes > kHeldBack) impl_->ReleaseOldest();
}

Bytes FakeMemory::bytes_in_use() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->in_use;
}

uint64_t FakeMemory::blocks() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->live.size();
}

uint64_t FakeMemory::written_after_free() const {
  const std::lock_guard lock(impl_->mutex);
  uint64_t count = impl_->written_after_free;
  for (const MemoryView& view : impl_->held_back) {
    if (!impl_->Intact(view)) ++count;
    ASAN_POISON_MEMORY_REGION(view.device, view.size);
  }
  return count;
}

void FakeMemory::set_largest(Bytes largest) {
  const std::lock_guard lock(impl_->mutex);
  impl_->largest = largest;
}

absl::StatusOr<std::jthread> FakeThreads::Start(std::string_view name,
                                                std::function<void(std::stop_token)> body) {
  if (fail_ != nullptr && fail_->Hit()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("thread \"", std::string(name), "\": told to fail"));
  }
  return real_.Start(name, std::move(body));
}

}  // namespace dmakit::dma::host
