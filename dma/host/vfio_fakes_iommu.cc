// SPDX-License-Identifier: Apache-2.0
//
// Containers and groups of the fake kernel: the checks of Type1 v2, in the kernel's order.
#include <sys/mman.h>

#include <cerrno>
#include <iterator>

#include "dma/host/pci.h"
#include "dma/host/vfio_fakes_impl.h"

namespace dmakit::dma::host {
namespace {

using fake_vfio::Container, fake_vfio::CopyIn, fake_vfio::File, fake_vfio::Function,
    fake_vfio::kPage, fake_vfio::OpenGroup;

}  // namespace

// --- The container: Type1 v2 --------------------------------------------------------------------

int FakeVfioKernel::Impl::ContainerIoctl(File& file, unsigned long request, void* argument) {
  Container& container = *file.container;
  const auto number = reinterpret_cast<unsigned long>(argument);
  switch (request) {
    case VFIO_GET_API_VERSION:
      return options.api_version;
    case VFIO_CHECK_EXTENSION:
      return number == VFIO_TYPE1_IOMMU || (number == VFIO_TYPE1v2_IOMMU && options.type1v2);
    case VFIO_SET_IOMMU:
      return SetIommu(container, number);
    default:
      break;
  }
  if (!container.iommu) return -EINVAL;
  switch (request) {
    case VFIO_IOMMU_GET_INFO:
      return IommuInfo(container, argument);
    case VFIO_IOMMU_MAP_DMA:
      return MapDma(container, argument);
    case VFIO_IOMMU_UNMAP_DMA:
      return UnmapDma(container, argument);
    default:
      return -ENOTTY;
  }
}

int FakeVfioKernel::Impl::SetIommu(Container& container, unsigned long type) {
  if (container.groups.empty() || container.iommu) return -EINVAL;
  if (type != VFIO_TYPE1v2_IOMMU || !options.type1v2) return -ENODEV;
  if (!options.intremap && !options.allow_unsafe_interrupts) return -EPERM;
  container.iommu = true;
  Log("iommu set");
  return 0;
}

// What is neither above the width nor reserved, ascending.
std::vector<Interval> FakeVfioKernel::Impl::Usable() const {
  std::vector<Interval> holes = options.reserved;
  std::sort(holes.begin(), holes.end());
  std::vector<Interval> usable;
  uint64_t from = 0;
  const uint64_t last = options.width.ToMask().value();
  for (const Interval& hole : holes) {
    if (hole.first.value() > last) break;
    if (hole.first.value() > from) usable.push_back({Iova(from), hole.first - Bytes(1)});
    from = std::max(from, hole.last.value() + 1);
  }
  if (from <= last) usable.push_back({Iova(from), Iova(last)});
  return usable;
}

int FakeVfioKernel::Impl::IommuInfo(const Container& container, void* argument) const {
  vfio_iommu_type1_info info{};
  const size_t least = offsetof(vfio_iommu_type1_info, cap_offset);
  if (!CopyIn(argument, &info, least)) return -EINVAL;
  const uint32_t room = info.argsz;
  info.flags = options.tells_sizes ? VFIO_IOMMU_INFO_PGSIZES : 0u;
  info.iova_pgsizes = options.tells_sizes ? options.page_sizes : 0;
  info.cap_offset = 0;
  std::vector<std::byte> chain;
  const auto append = [&chain](const auto& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    chain.insert(chain.end(), bytes, bytes + sizeof(value));
  };
  if (options.tells_avail) {
    vfio_iommu_type1_info_dma_avail avail{};
    avail.header = {VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, 1, 0};
    avail.avail = options.max_mappings - static_cast<uint32_t>(container.live.size());
    if (options.tells_ranges) {
      avail.header.next = static_cast<uint32_t>(sizeof(info) + sizeof(avail));
    }
    append(avail);
  }
  if (options.tells_ranges) {
    vfio_iommu_type1_info_cap_iova_range ranges{};
    const std::vector<Interval> usable = Usable();
    ranges.header = {VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, 1, 0};
    ranges.nr_iovas = static_cast<uint32_t>(usable.size());
    append(ranges);
    for (const Interval& i : usable) append(vfio_iova_range{i.first.value(), i.last.value()});
  }
  if (!chain.empty()) {
    info.flags |= VFIO_IOMMU_INFO_CAPS;
    if (room < sizeof(info) + chain.size()) {
      info.argsz = static_cast<uint32_t>(sizeof(info) + chain.size());
    } else {
      info.cap_offset = sizeof(info);
      std::memcpy(static_cast<std::byte*>(argument) + sizeof(info), chain.data(), chain.size());
    }
  }
  std::memcpy(argument, &info, std::min<size_t>(room, sizeof(info)));
  return 0;
}

uint64_t FakeVfioKernel::Impl::Pinned() const {
  uint64_t bytes = 0;
  for (const auto& weak : containers) {
    const auto container = weak.lock();
    if (container == nullptr) continue;
    for (const auto& [iova, mapping] : container->live) bytes += mapping.range.size.value();
  }
  return bytes;
}

int FakeVfioKernel::Impl::MapDma(Container& container, const void* argument) {
  vfio_iommu_type1_dma_map map{};
  if (!CopyIn(argument, &map)) return -EINVAL;
  const uint32_t rights = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
  if ((map.flags & ~rights) != 0 || (map.flags & rights) == 0) return -EINVAL;
  if (map.size == 0 || ((map.size | map.iova | map.vaddr) & (Granule() - 1)) != 0) return -EINVAL;
  if (map.iova + map.size - 1 < map.iova || map.vaddr + map.size - 1 < map.vaddr) return -EINVAL;
  const Range range{Iova(map.iova), Bytes(map.size)};
  const auto behind = container.live.upper_bound(range.last().value());
  if (behind != container.live.begin() && std::prev(behind)->second.range.Overlaps(range)) {
    return -EEXIST;
  }
  if (container.live.size() >= options.max_mappings) return -ENOSPC;
  const std::vector<Interval> usable = Usable();
  if (std::none_of(usable.begin(), usable.end(),
                   [&](const Interval& i) { return i.Contains(range); })) {
    return -EINVAL;
  }
  auto* const memory = reinterpret_cast<std::byte*>(map.vaddr);
  if (msync(memory, map.size, MS_ASYNC) != 0) return -EFAULT;
  if (!options.root && options.memlock_limit) {
    const uint64_t locked = options.locked.value() + Pinned();
    const uint64_t limit = options.memlock_limit->value();
    if (locked > limit || map.size > limit - locked) return -ENOMEM;
  }
  const Access access =
      ((map.flags & VFIO_DMA_MAP_FLAG_READ) != 0 ? Access::kRead : Access::kNone) |
      ((map.flags & VFIO_DMA_MAP_FLAG_WRITE) != 0 ? Access::kWrite : Access::kNone);
  container.live.emplace(map.iova, Mapping{range, memory, access});
  return 0;
}

int FakeVfioKernel::Impl::UnmapDma(Container& container, void* argument) {
  vfio_iommu_type1_dma_unmap unmap{};
  const size_t least = offsetof(vfio_iommu_type1_dma_unmap, data);
  if (!CopyIn(argument, &unmap, least) || unmap.flags != 0) return -EINVAL;
  if (unmap.size == 0 || ((unmap.size | unmap.iova) & (Granule() - 1)) != 0 ||
      unmap.iova + unmap.size - 1 < unmap.iova) {
    return -EINVAL;
  }
  const Range range{Iova(unmap.iova), Bytes(unmap.size)};
  std::vector<uint64_t> inside;
  auto at = container.live.upper_bound(unmap.iova);
  if (at != container.live.begin()) --at;
  for (; at != container.live.end() && at->first <= range.last().value(); ++at) {
    const Range& mapped = at->second.range;
    if (!mapped.Overlaps(range)) continue;
    if (!range.Contains(mapped)) return -EINVAL;  // cut
    inside.push_back(at->first);
  }
  const bool falls_short = options.short_unmap != nullptr && options.short_unmap->Hit();
  uint64_t removed = 0;
  for (const uint64_t iova : inside) {
    Mapping& mapping = container.live.at(iova);
    const uint64_t size = mapping.range.size.value();
    if (falls_short && iova == inside.back()) {
      removed += size - kPage;
      const Mapping rest{{mapping.range.last() - Bytes(kPage - 1), Bytes(kPage)},
                         mapping.memory + size - kPage,
                         mapping.access};
      container.live.erase(iova);
      container.live.emplace(rest.range.base.value(), rest);
    } else {
      removed += size;
      container.live.erase(iova);
    }
  }
  unmap.size = removed;
  std::memcpy(argument, &unmap, least);
  return 0;
}

// --- Groups -------------------------------------------------------------------------------------

bool FakeVfioKernel::Impl::Viable(uint32_t number) const {
  return std::all_of(functions.begin(), functions.end(), [&](const auto& entry) {
    const FakeVfioFunction& f = entry.second.shape;
    return f.group != number || IommuGroupMember{f.address, f.driver, false}.harmless();
  });
}

int FakeVfioKernel::Impl::GroupIoctl(File& file, unsigned long request, void* argument) {
  OpenGroup& group = *file.group;
  switch (request) {
    case VFIO_GROUP_GET_STATUS: {
      vfio_group_status status{};
      if (!CopyIn(argument, &status)) return -EINVAL;
      status.flags = (Viable(group.number) ? VFIO_GROUP_FLAGS_VIABLE : 0u) |
                     (group.container != nullptr ? VFIO_GROUP_FLAGS_CONTAINER_SET : 0u);
      std::memcpy(argument, &status, sizeof(status));
      return 0;
    }
    case VFIO_GROUP_SET_CONTAINER:
      return JoinContainer(group, argument);
    case VFIO_GROUP_UNSET_CONTAINER:
      if (group.container == nullptr) return -EINVAL;
      if (group.devices != 0) return -EBUSY;
      group.Leave();
      return 0;
    case VFIO_GROUP_GET_DEVICE_FD:
      return OpenDeviceFile(file.group, static_cast<const char*>(argument));
    default:
      return -ENOTTY;
  }
}

int FakeVfioKernel::Impl::JoinContainer(OpenGroup& group, const void* argument) {
  int32_t fd = -1;
  std::memcpy(&fd, argument, sizeof(fd));
  if (group.container != nullptr) return -EINVAL;
  const File* const file = Find(fd);
  if (file == nullptr) return -EBADF;
  if (file->container == nullptr) return -EINVAL;
  if (!Viable(group.number)) return -EPERM;
  Container& container = *file->container;
  if (container.iommu) {
    if (!options.intremap && !options.allow_unsafe_interrupts) return -EPERM;
    // What is mapped must suit the newcomer.
    const std::vector<Interval> usable = Usable();
    for (const auto& [iova, mapping] : container.live) {
      if (std::none_of(usable.begin(), usable.end(),
                       [&m = mapping](const Interval& i) { return i.Contains(m.range); })) {
        return -EINVAL;
      }
    }
  }
  container.groups.insert(group.number);
  group.container = file->container;
  return 0;
}

int FakeVfioKernel::Impl::OpenDeviceFile(const std::shared_ptr<OpenGroup>& group,
                                         const char* name) {
  if (group->container == nullptr || !group->container->iommu) return -EINVAL;
  const auto at = functions.find(name);
  if (at == functions.end() || at->second.shape.group != group->number ||
      !IsVfioDriver(at->second.shape.driver)) {
    return -ENODEV;
  }
  Function& device = at->second;
  if (device.opens++ == 0) {
    SetCommand(device, static_cast<uint16_t>(device.command() & ~PCI_COMMAND_MASTER));
  }
  ++group->devices;
  return NewFile({.group = group, .device = &device});
}

}  // namespace dmakit::dma::host
