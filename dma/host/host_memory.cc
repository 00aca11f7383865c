// SPDX-License-Identifier: Apache-2.0
//
// A segment is one memfd with its one or two views; an iova::Space over the addresses of the
// program's view says which parts are in use. Ordinary segments start as holes: allocating a block
// makes the kernel fill its part of the file (fallocate), so that "no memory" is an error value
// here and not a signal later, and freeing punches the hole again. The lock covers the books, never
// the filling.
#include "dma/host/host_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/host/available_memory.h"
#include "iova/space.h"

namespace dmakit::dma::host {
namespace {

constexpr Bytes kPage{4096};
constexpr Bytes kHugePage = MiB(2);
constexpr Bytes kMaxAlignment = GiB(1);
constexpr Bytes kCheckEvery = MiB(2);

absl::Status OutOf(std::string_view call, Bytes size, std::string_view remedy) {
  const int error = errno;
  return absl::ResourceExhaustedError(absl::StrCat(std::string(call), " of ", size.value(),
                                                   " bytes: ", std::strerror(error), "; ",
                                                   std::string(remedy)));
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

// One mapping of a file, aligned, excluded from fork.
class View {
 public:
  View() = default;
  View(View&& other) noexcept : base_(std::exchange(other.base_, nullptr)), size_(other.size_) {}
  View& operator=(View&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~View() {
    if (base_ != nullptr) munmap(base_, size_);
  }

  static absl::StatusOr<View> Of(int fd, Bytes size, Bytes alignment) {
    View view;
    view.size_ = size.value();
    for (int attempt = 0; attempt < kAttempts && view.base_ == nullptr; ++attempt) {
      absl::StatusOr<std::byte*> place = FindPlace(size, alignment);
      if (!place.ok()) return place.status();
      // Not MAP_FIXED over a reservation: where that fails (no huge pages), the kernel may have
      // dropped the reservation already, and to unmap it then is to unmap another thread's memory.
      void* got =
          mmap(*place, view.size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
      if (got == *place) {
        view.base_ = *place;
      } else if (got != MAP_FAILED) {
        munmap(got, view.size_);  // a kernel that takes the address as a hint
      } else if (errno != EEXIST) {
        return OutOf("mmap", size, "free memory or huge pages, or use smaller segments");
      }
    }
    if (view.base_ == nullptr) {
      errno = EEXIST;
      return OutOf("mmap", size, "other threads took the addresses each time; try again");
    }
    if (madvise(view.base_, view.size_, MADV_DONTFORK) != 0) {
      return OutOf("madvise", size, "the mapping cannot be excluded from fork");
    }
    return view;
  }

  std::byte* base() const { return base_; }

 private:
  static constexpr int kAttempts = 16;

  // An aligned address with `size` bytes free behind it, just now.
  static absl::StatusOr<std::byte*> FindPlace(Bytes size, Bytes alignment) {
    const size_t room = size.value() + alignment.value();
    void* start =
        mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
      return OutOf("mmap", size,
                   "the address space limit (ulimit -v) or vm.max_map_count is reached");
    }
    munmap(start, room);
    const size_t past = reinterpret_cast<uintptr_t>(start) % alignment.value();
    return static_cast<std::byte*>(start) + (alignment.value() - past) % alignment.value();
  }

  std::byte* base_ = nullptr;
  size_t size_ = 0;
};

struct Segment {
  Segment(File f, Bytes s) : file(std::move(f)), size(s) {}

  File file;
  Bytes size;
  Bytes alignment;  // of both views
  bool huge = false;
  NumaPolicy numa;
  View cpu;
  View device;                         // empty: the same as cpu
  std::unique_ptr<iova::Space> space;  // over the addresses of `cpu`
  uint64_t blocks = 0;

  std::byte* device_base() const { return device.base() != nullptr ? device.base() : cpu.base(); }
  off_t OffsetOf(const std::byte* address) const { return address - cpu.base(); }
};

bool Same(const NumaPolicy& a, const NumaPolicy& b) {
  return a.mode == b.mode && (a.mode == NumaPolicy::Mode::kAny || a.node == b.node);
}

int Fallocate(int fd, int mode, off_t offset, size_t size) {
  int result;
  do {
    result = fallocate(fd, mode, offset, static_cast<off_t>(size));
  } while (result != 0 && errno == EINTR);
  return result;
}

absl::StatusOr<std::unique_ptr<iova::Space>> SpaceOver(const View& view, Bytes size) {
  const auto base = reinterpret_cast<uintptr_t>(view.base());
  iova::Space::Options options;
  options.usable = {{Iova(base), Iova(base + size.value() - 1)}};
  options.granule = kPage;
  options.name = "host memory";
  options.max_cached = PageCount(0);
  return iova::Space::Create(std::move(options));
}

bool Punch(const Segment& segment, const MemoryView& view) {
  constexpr int kMode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  return Fallocate(segment.file.fd(), kMode, segment.OffsetOf(view.cpu), view.size) == 0;
}

// Makes every page of a block exist and hold zeros. Freeing has punched it already, but a device
// that was not told may have written since.
bool Fill(const Segment& segment, const MemoryView& view) {
  const bool hole = !segment.huge && Punch(segment, view);
  if (!segment.huge &&
      Fallocate(segment.file.fd(), 0, segment.OffsetOf(view.cpu), view.size) != 0) {
    return false;
  }
  if (!hole) std::memset(view.device, 0, view.size);
  return true;
}

[[noreturn]] void DieOf(const MemoryView& view) {
  std::fprintf(stderr, "dmakit: host memory got back %zu bytes at %p, which is no block in use\n",
               view.size, static_cast<void*>(view.cpu));
  std::abort();
}

}  // namespace

struct HostMemory::Impl {
  Options options;
  const pid_t owner = getpid();

  std::mutex mutex;
  std::map<const std::byte*, std::unique_ptr<Segment>> segments;  // by the program's address
  Bytes segment_bytes;
  Bytes filling;    // blocks that threads are filling now
  Bytes unchecked;  // taken since the last look at what is available
  Stats counts;

  absl::Status CheckAvailable(Bytes size);
  absl::StatusOr<Memory> Take(HostMemory* source, const MemoryRequest& request, Bytes size);
  std::optional<std::pair<Segment*, MemoryView>> Find(const MemoryRequest& request, Bytes size);
  absl::Status AddSegment(const MemoryRequest& request, Bytes size);
  absl::StatusOr<std::unique_ptr<Segment>> NewSegment(const MemoryRequest& request, Bytes size,
                                                      bool huge) const;
  void DropEmptySegments();
  void GiveBack(const MemoryView& view);
  void Return(Segment& segment, const MemoryView& view);
  Segment& Owner(const MemoryView& view);
};

absl::StatusOr<std::unique_ptr<Segment>> HostMemory::Impl::NewSegment(const MemoryRequest& request,
                                                                      Bytes size, bool huge) const {
  const unsigned flags = MFD_CLOEXEC | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
  File file(memfd_create("dmakit", flags));
  if (file.fd() < 0)
    return OutOf("memfd_create", size, "raise the limit of open files (ulimit -n)");
  if (ftruncate(file.fd(), static_cast<off_t>(size.value())) != 0) {
    return OutOf("ftruncate", size, "free memory or use smaller segments");
  }
  auto segment = std::make_unique<Segment>(std::move(file), size);
  segment->alignment = std::max(request.alignment, kHugePage);
  segment->huge = huge;
  segment->numa = request.numa;
  const int fd = segment->file.fd();

  absl::StatusOr<View> cpu = View::Of(fd, size, segment->alignment);
  if (!cpu.ok()) return cpu.status();
  segment->cpu = *std::move(cpu);
  if (options.second_view) {
    absl::StatusOr<View> device = View::Of(fd, size, segment->alignment);
    if (!device.ok()) return device.status();
    segment->device = *std::move(device);
  }
  if (options.numa != nullptr && request.numa.mode != NumaPolicy::Mode::kAny) {
    const std::span<std::byte> memory(segment->cpu.base(), size.value());
    if (absl::Status status = options.numa->Place(memory, request.numa); !status.ok())
      return status;
  }
  if (huge && Fallocate(fd, 0, 0, size.value()) != 0) {
    return OutOf("huge pages", size, "reserve more (vm.nr_hugepages) or allow ordinary pages");
  }
  auto space = SpaceOver(segment->cpu, size);
  if (!space.ok()) return space.status();
  segment->space = *std::move(space);
  return segment;
}

// Of the usual size, or where that cannot be had just large enough; huge pages before ordinary
// ones.
absl::Status HostMemory::Impl::AddSegment(const MemoryRequest& request, Bytes size) {
  const Bytes least = *AlignUp(size, kHugePage);
  const Bytes usual = std::max(
      least, std::min(*AlignUp(options.segment, kHugePage), *AlignUp(options.capacity, kHugePage)));
  if (segment_bytes + usual > options.capacity) DropEmptySegments();

  absl::Status status;
  for (const bool huge : {true, false}) {
    if (huge ? options.huge_pages == HugePages::kNever
             : options.huge_pages == HugePages::kRequire) {
      continue;
    }
    if (!huge) {
      if (absl::Status check = CheckAvailable(size); !check.ok()) return check;
    }
    for (const Bytes wanted : {usual, least}) {
      auto segment = NewSegment(request, wanted, huge);
      if (segment.ok()) {
        counts.segments += 1;
        counts.huge_segments += huge ? 1 : 0;
        counts.huge_fallbacks += !huge && options.huge_pages != HugePages::kNever ? 1 : 0;
        segment_bytes += wanted;
        const std::byte* base = (*segment)->cpu.base();
        segments.emplace(base, *std::move(segment));
        return absl::OkStatus();
      }
      status = segment.status();
    }
  }
  return status;
}

void HostMemory::Impl::DropEmptySegments() {
  std::erase_if(segments, [this](const auto& entry) {
    const Segment& segment = *entry.second;
    if (segment.blocks != 0) return false;
    segment_bytes -= segment.size;
    counts.segments -= 1;
    counts.huge_segments -= segment.huge ? 1 : 0;
    return true;
  });
}

std::optional<std::pair<Segment*, MemoryView>> HostMemory::Impl::Find(const MemoryRequest& request,
                                                                      Bytes size) {
  for (auto& [base, segment] : segments) {
    if (segment->alignment < request.alignment || !Same(segment->numa, request.numa)) continue;
    const auto range = segment->space->Allocate({.size = size, .alignment = request.alignment});
    if (!range.ok()) continue;
    segment->blocks += 1;
    std::byte* cpu = reinterpret_cast<std::byte*>(range->base.value());
    return std::pair(segment.get(), MemoryView{cpu, segment->device_base() + segment->OffsetOf(cpu),
                                               range->size.value()});
  }
  return std::nullopt;
}

absl::Status HostMemory::Impl::CheckAvailable(Bytes size) {
  const Bytes since = unchecked + size;
  if (since < kCheckEvery) {
    unchecked = since;
    return absl::OkStatus();
  }
  const Bytes available = options.available ? options.available() : AvailableMemory();
  const Bytes usable = available - Bytes(available.value() / 16);
  if (size <= usable && filling <= usable - size) {
    unchecked = Bytes(0);
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(size.value(), " bytes asked for, ", usable.value(),
                   " can be filled (MemAvailable and memory limits, less one part in "
                   "16); free memory, raise the limit or ask for less"));
}

absl::StatusOr<Memory> HostMemory::Impl::Take(HostMemory* source, const MemoryRequest& request,
                                              Bytes size) {
  std::optional<std::pair<Segment*, MemoryView>> found;
  {
    const std::lock_guard lock(mutex);
    if (size > options.capacity || Bytes(counts.bytes_in_use) > options.capacity - size) {
      return absl::ResourceExhaustedError(absl::StrCat("the capacity of ", options.capacity.value(),
                                                       " bytes is reached (", counts.bytes_in_use,
                                                       " in use); raise it or free memory"));
    }
    found = Find(request, size);
    if (!found) {
      if (absl::Status status = AddSegment(request, size); !status.ok()) return status;
      found = Find(request, size);
    } else if (!found->first->huge) {
      if (absl::Status status = CheckAvailable(size); !status.ok()) {
        Return(*found->first, found->second);
        return status;
      }
    }
    if (!found) return absl::InternalError("a new segment has no room for its first block");
    counts.bytes_in_use += size.value();
    filling += size;
  }
  const auto& [segment, view] = *found;
  const bool filled = Fill(*segment, view);
  const absl::Status status =
      filled ? absl::OkStatus()
             : OutOf("fallocate", size, "free memory, or raise the memory limit");
  {
    const std::lock_guard lock(mutex);
    filling -= size;
  }
  if (!filled) {
    GiveBack(view);
    return status;
  }
  return Memory(source, view);
}

Segment& HostMemory::Impl::Owner(const MemoryView& view) {
  const auto after = segments.upper_bound(view.cpu);
  if (after == segments.begin()) DieOf(view);
  Segment& segment = *std::prev(after)->second;
  if (segment.OffsetOf(view.cpu) >= static_cast<off_t>(segment.size.value())) DieOf(view);
  return segment;
}

void HostMemory::Impl::GiveBack(const MemoryView& view) {
  Segment& segment = [&]() -> Segment& {
    const std::lock_guard lock(mutex);
    return Owner(view);
  }();
  // Still this block's: nobody else gets it before the Space has it back, nor does the segment go.
  if (!segment.huge) Punch(segment, view);
  const std::lock_guard lock(mutex);
  Return(segment, view);
  counts.bytes_in_use -= view.size;
}

void HostMemory::Impl::Return(Segment& segment, const MemoryView& view) {
  const Iova base(reinterpret_cast<uintptr_t>(view.cpu));
  if (!segment.space->Free({base, Bytes(view.size)}).ok()) DieOf(view);
  segment.blocks -= 1;
}

absl::StatusOr<std::unique_ptr<HostMemory>> HostMemory::Create(Options options) {
  if (options.capacity < kPage || options.capacity.value() > uint64_t{1} << 46) {
    return absl::InvalidArgumentError(absl::StrCat(
        "host memory: capacity ", options.capacity.value(), " bytes: must be 4096 to 2^46"));
  }
  if (options.segment < kPage || options.segment.value() > uint64_t{1} << 46) {
    return absl::InvalidArgumentError(absl::StrCat("host memory: segment ", options.segment.value(),
                                                   " bytes: must be 4096 to 2^46"));
  }
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  return std::unique_ptr<HostMemory>(new HostMemory(std::move(impl)));
}

HostMemory::HostMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HostMemory::~HostMemory() {
  // In a forked child the views are not mapped; unmapping would hit what the child put there.
  if (getpid() != impl_->owner) static_cast<void>(impl_.release());
}

absl::StatusOr<Memory> HostMemory::Allocate(const MemoryRequest& request) {
  const auto error = [&request](absl::StatusCode code, auto... text) {
    return absl::Status(code,
                        absl::StrCat("memory for \"", std::string(request.label), "\": ", text...));
  };
  const auto bad = absl::StatusCode::kInvalidArgument;
  if (request.size.value() == 0) return error(bad, "size 0: ask for at least one byte");
  if (!IsPowerOfTwo(request.alignment) || request.alignment > kMaxAlignment) {
    return error(bad, "alignment ", request.alignment.value(),
                 ": must be a power of two, at most 1 GiB");
  }
  if (request.numa.mode == NumaPolicy::Mode::kEnforce && impl_->options.numa == nullptr) {
    return error(bad, "NUMA node ", request.numa.node.id(),
                 " enforced without a placer: set Options::numa (//dma/host:numa) or only prefer");
  }
  if (getpid() != impl_->owner) {
    return error(absl::StatusCode::kFailedPrecondition,
                 "this process was forked from the owner; create a HostMemory of its own");
  }
  const std::optional<Bytes> size = AlignUp(request.size, kPage);
  if (!size)
    return error(bad, "size ", request.size.value(), " does not fit into 64 bits of pages");
  absl::StatusOr<Memory> memory = impl_->Take(this, request, *size);
  if (!memory.ok()) return error(memory.status().code(), std::string(memory.status().message()));
  return memory;
}

void HostMemory::Free(const MemoryView& view) {
  if (getpid() == impl_->owner) impl_->GiveBack(view);
}

Bytes HostMemory::page_size() const { return kPage; }

Bytes HostMemory::bytes_in_use() const { return Bytes(stats().bytes_in_use); }

HostMemory::Stats HostMemory::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counts;
}

}  // namespace dmakit::dma::host
