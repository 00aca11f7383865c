// SPDX-License-Identifier: Apache-2.0
//
// Scatter-gather layout. Every sum that input can make overflow is checked.
#include "dma/sg_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace dmakit::dma::internal {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

uint64_t AddressOf(const std::byte* p) { return reinterpret_cast<uintptr_t>(p); }

// Places entries one after the other; `end_` is the offset behind the last byte placed.
class Layout {
 public:
  explicit Layout(uint64_t granule) : granule_(granule) {}

  // False: the range would have 2^64 bytes or more.
  bool Add(std::span<std::byte> entry, const Covered& covered) {
    const bool follows = !plan_.starts.empty() && entry.data() == memory_end_;
    const bool meets = !plan_.starts.empty() && end_ % granule_ == 0 && covered.offset == 0;
    uint64_t start = end_;
    if (!follows && !meets) {
      if (plan_.size > kMax - covered.offset) return false;
      start = plan_.size + covered.offset;
    }
    if (entry.size() > kMax - (granule_ - 1) - start) return false;
    const uint64_t end = start + entry.size();
    const uint64_t size = (end + granule_ - 1) & ~(granule_ - 1);
    if (size > plan_.size) {
      // What the previous entry's last granule has of this one is mapped already.
      const uint64_t skip = follows ? plan_.size - end_ + covered.offset : 0;
      AddRun(plan_.size, covered.memory + (follows ? skip : 0), size - plan_.size);
    }
    plan_.starts.push_back(start);
    plan_.size = size;
    end_ = end;
    memory_end_ = entry.data() + entry.size();
    return true;
  }
  SgPlan Take() { return std::move(plan_); }

 private:
  void AddRun(uint64_t offset, std::byte* memory, uint64_t size) {
    if (!plan_.runs.empty()) {
      SgRun& last = plan_.runs.back();
      if (last.memory + last.size == memory) {
        last.size += size;
        return;
      }
    }
    plan_.runs.push_back({offset, memory, size});
  }

  const uint64_t granule_;
  SgPlan plan_;
  uint64_t end_ = 0;
  const std::byte* memory_end_ = nullptr;
};

}  // namespace

absl::StatusOr<Covered> Cover(std::span<std::byte> memory, Bytes granule) {
  if (memory.data() == nullptr || memory.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(memory.size(), " bytes at ", memory.data() == nullptr ? "null" : "an address",
                     ": must be at least 1 byte of memory; do not map what has no bytes"));
  }
  const uint64_t first = AddressOf(memory.data());
  const uint64_t low = granule.value() - 1;
  if (memory.size() > kMax - low - first) {
    return absl::InvalidArgumentError(
        absl::StrCat(memory.size(), " bytes at 0x", absl::Hex(first),
                     ": must end below 2^64, rounded up to granules of ", granule.value(),
                     " bytes; check the length"));
  }
  const uint64_t offset = first & low;
  return Covered{memory.data() - offset, (offset + memory.size() + low) & ~low, offset};
}

absl::StatusOr<SgPlan> PlanSg(std::span<const std::span<std::byte>> entries, Bytes granule) {
  if (entries.empty()) {
    return absl::InvalidArgumentError("a list of 0 entries: must have at least 1");
  }
  Layout layout(granule.value());
  for (size_t i = 0; i < entries.size(); ++i) {
    absl::StatusOr<Covered> covered = Cover(entries[i], granule);
    if (!covered.ok()) {
      return absl::Status(covered.status().code(),
                          absl::StrCat("entry ", i, ": ", covered.status().message()));
    }
    if (!layout.Add(entries[i], *covered)) {
      return absl::InvalidArgumentError(
          absl::StrCat("entry ", i, ", ", entries[i].size(),
                       " bytes: the list must have fewer than 2^64 bytes; check the lengths"));
    }
  }
  return layout.Take();
}

std::vector<SgSegment> CutSegments(std::span<const std::span<std::byte>> entries,
                                   const SgPlan& plan, Iova base, Bytes max_segment,
                                   Bytes boundary) {
  // How much fits from `at` on without crossing a multiple of the boundary.
  auto to_boundary = [boundary](Iova at) {
    return boundary.value() == 0 ? kMax : boundary.value() - at.value() % boundary.value();
  };
  std::vector<SgSegment> segments;
  for (size_t i = 0; i < entries.size(); ++i) {
    Iova at = base + Bytes(plan.starts[i]);
    uint64_t left = entries[i].size();
    if (!segments.empty()) {
      SgSegment& last = segments.back();
      const uint64_t room =
          std::min(max_segment - last.length, Bytes(to_boundary(last.iova)) - last.length).value();
      if (last.iova + last.length == at && left <= room) {
        last.length += Bytes(left);
        continue;
      }
    }
    while (left != 0) {
      const uint64_t length = std::min({left, max_segment.value(), to_boundary(at)});
      segments.push_back({at, Bytes(length)});
      at += Bytes(length);
      left -= length;
    }
  }
  return segments;
}

}  // namespace dmakit::dma::internal
