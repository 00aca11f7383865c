// SPDX-License-Identifier: Apache-2.0
//
// The fake kernel's descriptors, and what a test does to it and asks of it.
#include "dma/host/vfio_fakes.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dma/host/pci.h"
#include "dma/host/vfio_fakes_impl.h"

namespace dmakit::dma::host {
namespace {

using fake_vfio::Container, fake_vfio::FakeBar, fake_vfio::File, fake_vfio::Function,
    fake_vfio::OpenGroup;

std::filesystem::path NewDirectory() {
  const char* const base = std::getenv("TEST_TMPDIR");
  std::string path = absl::StrCat(base != nullptr ? base : "/tmp", "/fake_vfio.XXXXXX");
  if (mkdtemp(path.data()) == nullptr) std::abort();
  return path;
}

}  // namespace

FakeVfioKernel::Impl::Impl(Options o)
    : options(std::move(o)), directory(NewDirectory()), sysfs(directory / "root") {
  for (const FakeVfioFunction& shape : options.functions) AddFunction(shape);
}

void FakeVfioKernel::Impl::AddFunction(const FakeVfioFunction& shape) {
  Function& state = functions[shape.address];
  state.shape = shape;
  for (size_t i = 0; i < shape.bars.size(); ++i) {
    if (shape.bars[i] != 0) state.bars[i] = std::make_unique<FakeBar>(shape.bars[i]);
  }
  state.config.resize(shape.config_size);
  std::memcpy(&state.config[PCI_VENDOR_ID], &shape.vendor, sizeof(shape.vendor));
  std::memcpy(&state.config[PCI_DEVICE_ID], &shape.device, sizeof(shape.device));
  state.set_command(PCI_COMMAND_MASTER);  // as firmware or the last driver left it
  sysfs.AddDevice(shape.address, absl::StrFormat("0x%04x", shape.vendor),
                  absl::StrFormat("0x%04x", shape.device));
  if (shape.group) sysfs.AddToGroup(shape.address, static_cast<int>(*shape.group));
  if (!shape.driver.empty()) sysfs.Bind(shape.address, shape.driver);
}

FakeVfioKernel::FakeVfioKernel(Options options) : impl_(new Impl(std::move(options))) {}

FakeVfioKernel::~FakeVfioKernel() {
  if (!impl_->files.empty() || !impl_->regions.empty()) {
    std::fprintf(stderr, "dmakit: FakeVfioKernel: dies with %zu descriptors and %zu regions open\n",
                 impl_->files.size(), impl_->regions.size());
    std::abort();
  }
  std::error_code ignored;
  std::filesystem::remove_all(impl_->directory, ignored);
}

VfioContainer::Options FakeVfioKernel::ContainerOptions(VfioContainer::Options options) const {
  options.sysfs = sysfs();
  options.dev = "/dev/vfio";
  return options;
}

std::string FakeVfioKernel::sysfs() const { return impl_->sysfs.sys().string(); }

// --- Descriptors --------------------------------------------------------------------------------

int FakeVfioKernel::Impl::OpenContainer() {
  if (!options.loaded) return -ENOENT;
  auto container = std::make_shared<Container>();
  containers.push_back(container);
  return NewFile({.container = std::move(container)});
}

int FakeVfioKernel::Impl::OpenGroupFile(uint32_t number) {
  const bool bound = std::any_of(functions.begin(), functions.end(), [&](const auto& entry) {
    return entry.second.shape.group == number && IsVfioDriver(entry.second.shape.driver);
  });
  if (!bound || !options.loaded) return -ENOENT;
  if (denied.contains(number)) return -EACCES;
  if (taken.contains(number) || !open_groups[number].expired()) return -EBUSY;
  auto group = std::make_shared<OpenGroup>(number);
  open_groups[number] = group;
  return NewFile({.group = std::move(group)});
}

int FakeVfioKernel::Open(const std::string& path) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->Fails()) return -impl_->options.fail_errno;
  constexpr std::string_view kDev = "/dev/vfio/";
  if (!path.starts_with(kDev)) return -ENOENT;
  const std::string name = path.substr(kDev.size());
  const bool digits = !name.empty() && name.size() < 10 &&
                      name.find_first_not_of("0123456789") == std::string::npos;
  const int fd = name == "vfio" ? impl_->OpenContainer()
                 : digits       ? impl_->OpenGroupFile(static_cast<uint32_t>(std::stoul(name)))
                                : -ENOENT;
  if (fd >= 0) impl_->Log("open " + path);
  return fd;
}

void FakeVfioKernel::Close(int fd) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  const auto at = impl_->files.find(fd);
  if (at == impl_->files.end()) {
    std::fprintf(stderr, "dmakit: FakeVfioKernel: close of %d, which is not open\n", fd);
    std::abort();
  }
  const File file = std::move(at->second);
  impl_->files.erase(at);
  if (file.device != nullptr) {
    --file.group->devices;
    if (--file.device->opens == 0) {
      impl_->DisableVectors(*file.device);
      impl_->SetCommand(*file.device,
                        static_cast<uint16_t>(file.device->command() & ~PCI_COMMAND_MASTER));
    }
    impl_->Log("close device " + file.device->shape.address);
  } else if (file.group != nullptr) {
    impl_->Log(absl::StrCat("close group ", file.group->number));
  } else {
    impl_->Log("close container");
  }
}

int FakeVfioKernel::DoIoctl(int fd, unsigned long request, void* argument) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->Fails()) return -impl_->options.fail_errno;
  File* const file = impl_->Find(fd);
  if (file == nullptr) return -EBADF;
  if (file->device != nullptr) return impl_->DeviceIoctl(*file->device, request, argument);
  if (file->group != nullptr) return impl_->GroupIoctl(*file, request, argument);
  return impl_->ContainerIoctl(*file, request, argument);
}

// --- Locked memory ------------------------------------------------------------------------------

std::optional<Bytes> FakeVfioKernel::MemlockLimit() {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->options.memlock_limit;
}

Bytes FakeVfioKernel::LockedBytes() {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->options.locked + Bytes(impl_->Pinned());
}

bool FakeVfioKernel::MayLockAnything() {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->options.root;
}

// --- For tests ----------------------------------------------------------------------------------

void FakeVfioKernel::SetDenied(uint32_t group, bool denied) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->denied.erase(group);
  if (denied) impl_->denied.insert(group);
}

void FakeVfioKernel::SetTaken(uint32_t group, bool taken) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->taken.erase(group);
  if (taken) impl_->taken.insert(group);
}

void FakeVfioKernel::SetLocked(Bytes locked) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->options.locked = locked;
}

void FakeVfioKernel::SetReserved(std::vector<Interval> reserved) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->options.reserved = std::move(reserved);
}

std::vector<FakeVfioKernel::Mapping> FakeVfioKernel::mappings() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  std::vector<Mapping> all;
  for (const auto& weak : impl_->containers) {
    const auto container = weak.lock();
    if (container == nullptr) continue;
    for (const auto& [iova, mapping] : container->live) all.push_back(mapping);
  }
  return all;
}

std::byte* FakeVfioKernel::Translate(const std::string& address, Range range, Access access) const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  const Function& device = impl_->functions.at(address);
  const auto group = impl_->open_groups.find(device.shape.group.value_or(~0u));
  if ((device.command() & PCI_COMMAND_MASTER) == 0 || group == impl_->open_groups.end()) {
    return nullptr;
  }
  const auto open = group->second.lock();
  if (open == nullptr || open->container == nullptr) return nullptr;
  for (const auto& [iova, mapping] : open->container->live) {
    if (mapping.range.Contains(range) && Allows(mapping.access, access)) {
      return mapping.memory + (range.base - mapping.range.base).value();
    }
  }
  return nullptr;
}

std::span<std::byte> FakeVfioKernel::Bar(const std::string& address, size_t index) const {
  return impl_->functions.at(address).bars.at(index)->view();
}

uint16_t FakeVfioKernel::Command(const std::string& address) const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->functions.at(address).command();
}

uint32_t FakeVfioKernel::resets(const std::string& address) const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->functions.at(address).resets;
}

bool FakeVfioKernel::Interrupt(const std::string& address, uint32_t vector) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  const Function& device = impl_->functions.at(address);
  // A message is a write to memory.
  if ((device.command() & PCI_COMMAND_MASTER) == 0 || vector >= device.vectors.size() ||
      device.vectors[vector] < 0) {
    return false;
  }
  const uint64_t one = 1;
  return write(device.vectors[vector], &one, sizeof(one)) == sizeof(one);
}

uint32_t FakeVfioKernel::enabled_vectors(const std::string& address) const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return static_cast<uint32_t>(impl_->functions.at(address).vectors.size());
}

size_t FakeVfioKernel::open_descriptors() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->files.size();
}

size_t FakeVfioKernel::mapped_regions() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->regions.size();
}

std::vector<std::string> FakeVfioKernel::log() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return {impl_->log.begin(), impl_->log.end()};
}

}  // namespace dmakit::dma::host
