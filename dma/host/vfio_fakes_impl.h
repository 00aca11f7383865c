// SPDX-License-Identifier: Apache-2.0
//
// Inside FakeVfioKernel: the objects of the fake kernel, which live as long as in the real one (a
// device keeps its group, a group its container), and the calls by what descriptor they are for.
// For the sources of vfio_fakes_*.cc only; the caller holds `mutex`.
#ifndef DMAKIT_DMA_HOST_VFIO_FAKES_IMPL_H_
#define DMAKIT_DMA_HOST_VFIO_FAKES_IMPL_H_

#include <linux/pci_regs.h>
#include <linux/vfio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dma/host/vfio_fakes.h"
#include "dma/host/vfio_info.h"
#include "tests/dma/host/fake_sysfs.h"

namespace dmakit::dma::host {
namespace fake_vfio {

constexpr uint64_t kPage = 4096;
constexpr int kFirstFd = 1 << 20;      // no descriptor of the process has such a number
constexpr unsigned kRegionShift = 40;  // a region's offset is its index, this far up

// A BAR: registers that are plain memory, in a view of the test's and in those that are mapped.
class FakeBar {
 public:
  explicit FakeBar(size_t size);
  ~FakeBar();
  FakeBar(const FakeBar&) = delete;
  FakeBar& operator=(const FakeBar&) = delete;

  void* Map(size_t size, bool writable) const;
  std::span<std::byte> view() const { return {static_cast<std::byte*>(view_), size_}; }

 private:
  const size_t size_;
  const int fd_;
  void* view_ = nullptr;
};

struct Container {
  std::set<uint32_t> groups{};
  bool iommu = false;
  std::map<uint64_t, FakeVfioKernel::Mapping> live{};
};

// A group that is open, by its own descriptor or those of its devices.
struct OpenGroup {
  explicit OpenGroup(uint32_t n) : number(n) {}
  ~OpenGroup() { Leave(); }
  OpenGroup(const OpenGroup&) = delete;
  OpenGroup& operator=(const OpenGroup&) = delete;
  void Leave() {
    if (container == nullptr) return;
    container->groups.erase(number);
    if (container->groups.empty()) {
      container->iommu = false;
      container->live.clear();
    }
    container.reset();
  }

  const uint32_t number;
  std::shared_ptr<Container> container{};
  int devices = 0;
};

struct Function {
  FakeVfioFunction shape{};
  std::array<std::unique_ptr<FakeBar>, 6> bars{};
  std::vector<std::byte> config{};
  int opens = 0;
  uint32_t resets = 0;
  std::vector<int> vectors{};  // eventfds of ours, or -1; empty: MSI-X is off

  uint16_t command() const { return ReadAt<uint16_t>(config, PCI_COMMAND); }
  void set_command(uint16_t value) { std::memcpy(&config[PCI_COMMAND], &value, sizeof(value)); }
};

struct File {
  std::shared_ptr<Container> container{};  // of a container's descriptor
  std::shared_ptr<OpenGroup> group{};      // of a group's, and of a device's
  Function* device = nullptr;              // of a device's
};

// Copies the structure in; false when the caller says it has fewer bytes than that.
template <typename T>
bool CopyIn(const void* argument, T* value, size_t least = sizeof(T)) {
  uint32_t argsz = 0;
  std::memcpy(&argsz, argument, sizeof(argsz));
  if (argsz < least) return false;
  std::memcpy(value, argument, std::min<size_t>(argsz, sizeof(T)));
  return true;
}

}  // namespace fake_vfio

struct FakeVfioKernel::Impl {
  explicit Impl(Options o);

  Options options;
  const std::filesystem::path directory;
  testing::FakeSysfs sysfs;
  mutable std::mutex mutex;
  std::map<int, fake_vfio::File> files{};
  int next_fd = fake_vfio::kFirstFd;
  std::map<void*, std::pair<size_t, std::string>> regions{};  // mapped; the name is for the log
  std::map<std::string, fake_vfio::Function> functions{};
  std::map<uint32_t, std::weak_ptr<fake_vfio::OpenGroup>> open_groups{};
  std::vector<std::weak_ptr<fake_vfio::Container>> containers{};
  std::set<uint32_t> denied{}, taken{};
  std::deque<std::string> log{};

  void AddFunction(const FakeVfioFunction& shape);
  bool Fails() const { return options.fail != nullptr && options.fail->Hit(); }
  void Log(std::string line) { log.push_back(std::move(line)); }
  fake_vfio::File* Find(int fd) {
    const auto at = files.find(fd);
    return at == files.end() ? nullptr : &at->second;
  }
  int NewFile(fake_vfio::File file) {
    files.emplace(next_fd, std::move(file));
    return next_fd++;
  }

  int OpenContainer();
  int OpenGroupFile(uint32_t number);
  bool Viable(uint32_t number) const;
  std::vector<Interval> Usable() const;
  uint64_t Granule() const { return options.page_sizes & (~options.page_sizes + 1); }
  uint64_t Pinned() const;

  int ContainerIoctl(fake_vfio::File& file, unsigned long request, void* argument);
  int SetIommu(fake_vfio::Container& container, unsigned long type);
  int IommuInfo(const fake_vfio::Container& container, void* argument) const;
  int MapDma(fake_vfio::Container& container, const void* argument);
  int UnmapDma(fake_vfio::Container& container, void* argument);
  int GroupIoctl(fake_vfio::File& file, unsigned long request, void* argument);
  int JoinContainer(fake_vfio::OpenGroup& group, const void* argument);
  int OpenDeviceFile(const std::shared_ptr<fake_vfio::OpenGroup>& group, const char* name);
  int DeviceIoctl(fake_vfio::Function& device, unsigned long request, void* argument);
  int RegionInfo(const fake_vfio::Function& device, void* argument) const;
  int SetIrqs(fake_vfio::Function& device, const void* argument);
  int EnableVectors(fake_vfio::Function& device, uint32_t count);
  int ConnectVectors(fake_vfio::Function& device, uint32_t start, std::span<const int32_t> fds);
  void DisableVectors(fake_vfio::Function& device);
  int FindConfig(int fd, uint64_t offset, size_t size, fake_vfio::Function** device, size_t* at);
  void WriteConfig(fake_vfio::Function& device, size_t offset, std::span<const std::byte> from);
  void SetCommand(fake_vfio::Function& device, uint16_t value);
};

}  // namespace dmakit::dma::host

#endif  // DMAKIT_DMA_HOST_VFIO_FAKES_IMPL_H_
