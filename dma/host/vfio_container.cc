// SPDX-License-Identifier: Apache-2.0
//
// The order of set-up that VFIO demands: container, group, viable, joined, IOMMU set; and what each
// refusal of the kernel means there.
#include "dma/host/vfio_container.h"

#include <linux/vfio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dma/host/pci.h"
#include "dma/host/vfio_error.h"

namespace dmakit::dma::host {
namespace {

std::string GroupName(uint32_t number) { return absl::StrCat("IOMMU group ", number); }

// "0000:00:05.0 (ahci), 0000:00:06.0 (no driver)"
std::string MembersText(const IommuGroup& group) {
  std::string text;
  for (const IommuGroupMember& member : group.members) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", member.address, " (",
                    member.driver.empty() ? "no driver" : member.driver, ")");
  }
  return text.empty() ? "none that sysfs lists" : text;
}

// Whether each of `inner` lies in one of `outer`.
bool Covers(const std::vector<Interval>& outer, const std::vector<Interval>& inner) {
  return std::all_of(inner.begin(), inner.end(), [&](const Interval& i) {
    return std::any_of(outer.begin(), outer.end(),
                       [&](const Interval& o) { return o.first <= i.first && i.last <= o.last; });
  });
}

std::string Span(const DomainFacts& facts) {
  return ToString(Interval{facts.apertures.front().first, facts.apertures.back().last});
}

absl::Status Unsafe(uint32_t number) {
  return VfioError(
      VfioProblem::kNoInterruptRemapping,
      absl::StrCat(GroupName(number),
                   ": the machine's IOMMU does not remap interrupts, so that a device could forge "
                   "them; enable interrupt remapping (firmware; intremap=on), or set "
                   "allow_unsafe_interrupts=1 of vfio_iommu_type1, if every device of the machine "
                   "is trusted"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<VfioContainer>> VfioContainer::Open(VfioKernel& kernel,
                                                                   Options options) {
  const std::string path = options.dev + "/vfio";
  VfioFd fd(kernel, kernel.Open(path));
  if (const int error = -fd.get(); error > 0) {
    if (error == EACCES || error == EPERM) {
      return VfioError(VfioProblem::kPermission,
                       absl::StrCat(path, ": ", ErrnoText(error), "; chmod 0666 ", path,
                                    " (it is harmless: the groups' files decide)"));
    }
    const bool absent = error == ENOENT || error == ENODEV || error == ENXIO;
    return VfioError(absent ? VfioProblem::kNoVfio : VfioProblem::kKernel,
                     absl::StrCat(path, ": ", ErrnoText(error),
                                  "; load VFIO: modprobe vfio-pci (and vfio_iommu_type1)"));
  }
  if (const int version = kernel.Ioctl(fd.get(), VFIO_GET_API_VERSION, nullptr);
      version != VFIO_API_VERSION) {
    return VfioError(
        VfioProblem::kUnsupported,
        absl::StrCat(path, ": ",
                     version < 0 ? ErrnoText(-version) : absl::StrCat("API version ", version),
                     ": must be version ", VFIO_API_VERSION, "; use another kernel"));
  }
  const int type1v2 = kernel.IoctlValue(fd.get(), VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU);
  if (type1v2 <= 0) {
    return VfioError(
        VfioProblem::kUnsupported,
        absl::StrCat(path, ": has no Type1 v2 IOMMU", type1v2 < 0 ? ": " + ErrnoText(-type1v2) : "",
                     "; modprobe vfio_iommu_type1, or use a kernel from 4.0 on"));
  }
  return std::unique_ptr<VfioContainer>(
      new VfioContainer(kernel, std::move(options), std::move(fd)));
}

VfioContainer::VfioContainer(VfioKernel& kernel, Options options, VfioFd fd)
    : kernel_(kernel), options_(std::move(options)), fd_(std::move(fd)) {}

VfioContainer::~VfioContainer() {
  domain_.reset();
  groups_.clear();
}

bool VfioContainer::has_group(uint32_t number) const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [&](const Group& group) { return group.number == number; });
}

absl::StatusOr<VfioFd> VfioContainer::OpenGroup(uint32_t number) const {
  const std::string path = absl::StrCat(options_.dev, "/", number);
  VfioFd fd(kernel_, kernel_.Open(path));
  const int error = -fd.get();
  if (error <= 0) return fd;
  switch (error) {
    case EACCES:
    case EPERM:
      return VfioError(VfioProblem::kPermission,
                       absl::StrCat(path, ": ", ErrnoText(error), "; chown USER ", path,
                                    ", or run as its owner"));
    case EBUSY:
      return VfioError(VfioProblem::kBusy,
                       absl::StrCat(path, ": ", ErrnoText(error),
                                    ": one process has a group at a time; end the one that has it "
                                    "(fuser ",
                                    path, ")"));
    case ENOENT: {
      const auto group = SysfsPci({.sysfs = options_.sysfs}).Group(number);
      if (!group.ok()) {
        return VfioError(VfioProblem::kNoIommu,
                         absl::StrCat(GroupName(number),
                                      ": the kernel has no such group; look for the device's own "
                                      "in ",
                                      options_.sysfs, "/bus/pci/devices/*/iommu_group"));
      }
      return VfioError(VfioProblem::kDriver,
                       absl::StrCat(path, ": ", ErrnoText(error), ": no device of ",
                                    GroupName(number), " is bound to VFIO; it has ",
                                    MembersText(*group), "; driverctl set-override ",
                                    group->members.empty() ? "ADDRESS" : group->members[0].address,
                                    " vfio-pci"));
    }
    default:
      return VfioError(VfioProblem::kKernel,
                       absl::StrCat(path, ": ", ErrnoText(error), "; see the kernel's log"));
  }
}

absl::Status VfioContainer::CheckViable(uint32_t number, int group) const {
  vfio_group_status status{};
  status.argsz = sizeof(status);
  if (const int result = kernel_.Ioctl(group, VFIO_GROUP_GET_STATUS, &status); result < 0) {
    return VfioError(VfioProblem::kKernel,
                     absl::StrCat(GroupName(number), ": VFIO_GROUP_GET_STATUS: ",
                                  ErrnoText(-result), "; see the kernel's log"));
  }
  if ((status.flags & VFIO_GROUP_FLAGS_VIABLE) != 0) return absl::OkStatus();
  const auto members = SysfsPci({.sysfs = options_.sysfs}).Group(number);
  std::string remedy;
  for (const IommuGroupMember& member :
       members.ok() ? members->members : std::vector<IommuGroupMember>{}) {
    if (!member.harmless()) {
      absl::StrAppend(&remedy, "; driverctl set-override ", member.address, " vfio-pci");
    }
  }
  return VfioError(
      VfioProblem::kGroupNotViable,
      absl::StrCat(GroupName(number), " is not viable: it has ",
                   members.ok() ? MembersText(*members) : "members that sysfs does not list",
                   ", and the IOMMU cannot tell them apart: all must be bound to VFIO or to no "
                   "driver",
                   remedy.empty() ? "; unbind the others, or use another slot" : remedy));
}

// Joins the container, which for the first group switches the IOMMU on.
absl::Status VfioContainer::Join(uint32_t number, int group) {
  int container = fd_.get();
  const char* what = "VFIO_GROUP_SET_CONTAINER";
  int result = kernel_.Ioctl(group, VFIO_GROUP_SET_CONTAINER, &container);
  if (result >= 0 && !iommu_set_) {
    what = "VFIO_SET_IOMMU";
    result = kernel_.IoctlValue(fd_.get(), VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU);
    if (result == -EPERM) return Unsafe(number);
    if (result >= 0) iommu_set_ = true;
  }
  if (result >= 0) return absl::OkStatus();
  // A later group meets the IOMMU when it joins.
  if (result == -EPERM && iommu_set_) return Unsafe(number);
  if (result == -EBUSY) {
    return VfioError(VfioProblem::kBusy,
                     absl::StrCat(GroupName(number), ": ", what, ": ", ErrnoText(EBUSY),
                                  ": another driver or process uses it; end that"));
  }
  if (result == -EINVAL && iommu_set_) {
    return VfioError(VfioProblem::kWidth,
                     absl::StrCat(GroupName(number), ": ", what, ": ", ErrnoText(EINVAL),
                                  ": its IOMMU does not translate what is mapped in the container; "
                                  "add all groups before the first map, or give it a container of "
                                  "its own"));
  }
  return VfioError(VfioProblem::kKernel,
                   absl::StrCat(GroupName(number), ": ", what, ": ", ErrnoText(-result),
                                "; see the kernel's log"));
}

// A domain's facts are promises; a group that joins late must not break them.
absl::Status VfioContainer::CheckFacts(uint32_t number) const {
  if (domain_ == nullptr) return absl::OkStatus();
  const absl::StatusOr<DomainFacts> now = VfioDomain::ReadFacts(kernel_, fd_.get());
  if (!now.ok()) return now.status();
  const DomainFacts& before = domain_->facts();
  if (Covers(now->apertures, before.apertures) && now->granule() <= before.granule()) {
    return absl::OkStatus();
  }
  return VfioError(
      VfioProblem::kWidth,
      absl::StrCat(GroupName(number), ": with it the container translates less of ", Span(*now),
                   " than the ", Span(before), " that domain '", options_.name,
                   "' has promised; open all devices before the domain is used, or give the group "
                   "a container of its own"));
}

absl::Status VfioContainer::AddGroup(uint32_t number) {
  if (has_group(number)) return absl::OkStatus();
  absl::StatusOr<VfioFd> fd = OpenGroup(number);
  if (!fd.ok()) return fd.status();
  if (absl::Status s = CheckViable(number, fd->get()); !s.ok()) return s;
  if (absl::Status s = Join(number, fd->get()); !s.ok()) return s;
  if (absl::Status s = CheckFacts(number); !s.ok()) return s;
  groups_.push_back({number, *std::move(fd)});
  return absl::OkStatus();
}

absl::StatusOr<VfioDomain*> VfioContainer::domain() {
  if (domain_ != nullptr) return domain_.get();
  if (groups_.empty()) {
    return VfioError(VfioProblem::kUnsupported,
                     absl::StrCat("container '", options_.name,
                                  "': has no group yet, and so no IOMMU; open a device first"));
  }
  VfioDomain::Options options{
      .name = options_.name, .report = options_.report, .faults = std::move(options_.faults)};
  absl::StatusOr<std::unique_ptr<VfioDomain>> made =
      VfioDomain::Create(kernel_, fd_.get(), std::move(options));
  if (!made.ok()) {
    options_.faults = std::move(options.faults);  // not taken
    return made.status();
  }
  domain_ = *std::move(made);
  for (const std::string& address : devices_) domain_->AddDevice(address);
  return domain_.get();
}

absl::StatusOr<VfioFd> VfioContainer::OpenDevice(uint32_t group, const std::string& address) const {
  const auto at = std::find_if(groups_.begin(), groups_.end(),
                               [&](const Group& g) { return g.number == group; });
  if (at == groups_.end()) {
    return VfioError(VfioProblem::kNoDevice,
                     absl::StrCat("device ", address, ": the container does not have ",
                                  GroupName(group), "; add it first"));
  }
  VfioFd fd(kernel_, kernel_.Ioctl(at->fd.get(), VFIO_GROUP_GET_DEVICE_FD,
                                   const_cast<char*>(address.c_str())));
  const int error = -fd.get();
  if (error <= 0) return fd;
  const std::string text = absl::StrCat("device ", address, " of ", GroupName(group),
                                        ": VFIO_GROUP_GET_DEVICE_FD: ", ErrnoText(error));
  if (error == EBUSY) {
    return VfioError(VfioProblem::kBusy, absl::StrCat(text,
                                                      ": somebody else has it open; end "
                                                      "that, or close the device there"));
  }
  if (error == ENODEV || error == EINVAL) {
    return VfioError(VfioProblem::kNoDevice,
                     absl::StrCat(text, ": not bound to VFIO any more; driverctl set-override ",
                                  address, " vfio-pci"));
  }
  return VfioError(VfioProblem::kKernel, absl::StrCat(text, "; see the kernel's log"));
}

bool VfioContainer::has_device(const std::string& address) const {
  return std::find(devices_.begin(), devices_.end(), address) != devices_.end();
}

void VfioContainer::Entered(const std::string& address) {
  devices_.push_back(address);
  if (domain_ != nullptr) domain_->AddDevice(address);
}

void VfioContainer::Left(const std::string& address) {
  std::erase(devices_, address);
  if (domain_ != nullptr) domain_->RemoveDevice(address);
}

}  // namespace dmakit::dma::host
