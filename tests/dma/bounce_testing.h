// SPDX-License-Identifier: Apache-2.0
//
// What the tests of bounce buffering and of devices that are not coherent share: nic0 behind a
// SoftwareIommu, through whose port the test is the device, and a buffer in which every byte tells
// where it is. One per test.
#ifndef DMAKIT_TESTS_DMA_BOUNCE_TESTING_H_
#define DMAKIT_TESTS_DMA_BOUNCE_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dma/software_iommu.h"
#include "tests/dma/space_fixture.h"

namespace dmakit::dma::testing {

constexpr Direction kTo = Direction::kToDevice;
constexpr Direction kFrom = Direction::kFromDevice;
constexpr Direction kBoth = Direction::kBidirectional;

// Never 0, and different in neighbouring bytes and granules.
inline std::byte Original(size_t offset) {
  return std::byte(1 + (offset * 7 + offset / 4096) % 97);
}
// What the device writes: never an original.
inline std::byte Written(size_t offset) { return std::byte(128 + offset % 101); }

inline void FillOriginal(std::span<std::byte> all) {
  for (size_t i = 0; i < all.size(); ++i) all[i] = Original(i);
}

struct DeviceRigOptions {
  bool coherent = true;
  bool trusted = true;
  Policy policy = Policy::kStrict;
  Bytes bounce_limit{uint64_t{64} << 20};
  size_t cache_lines = 256;
  bool second_view = false;
};

class DeviceRig : public Fixture {
 public:
  explicit DeviceRig(DeviceRigOptions options = {})
      : views({.second_view = true}),
        iommu(*SoftwareIommu::Create({})),
        port(iommu->NewPort("nic0",
                            {.coherent = options.coherent, .cache_lines = options.cache_lines})) {
    AddressSpace::Options space_options = Options();
    space_options.policy = options.policy;
    space_options.deferred.max_age = Nanos{3'600'000'000'000};
    if (options.second_view) space_options.memory = &views;
    NewSpace(std::move(space_options));
    auto made = space->Attach({.name = "nic0",
                               .domain = iommu.get(),
                               .coherent = options.coherent,
                               .trusted = options.trusted,
                               .bounce_limit = options.bounce_limit});
    REQUIRE(made.ok());
    nic = *std::move(made);
    FillOriginal(buffer.all());
  }
  ~DeviceRig() {
    nic.reset();
    space.reset();
  }

  Mapping Map(std::span<std::byte> memory, Direction direction) {
    auto mapping = nic->Map(memory, direction, {.owner = "q0"});
    INFO(mapping.status());
    REQUIRE(mapping.ok());
    return *std::move(mapping);
  }
  FlushTicket Unmap(Mapping mapping, bool skip_sync = false) {
    auto ticket = nic->Unmap(std::move(mapping), {.skip_sync = skip_sync});
    INFO(ticket.status());
    REQUIRE(ticket.ok());
    return *ticket;
  }
  // The device writes what belongs at `offset` of the buffer.
  bool DeviceWrites(Iova to, size_t offset, size_t length) {
    std::vector<std::byte> bytes(length);
    for (size_t i = 0; i < length; ++i) bytes[i] = Written(offset + i);
    return port->Write(to, bytes);
  }
  std::vector<std::byte> DeviceReads(Iova from, size_t length) {
    std::vector<std::byte> bytes(length);
    REQUIRE(port->Read(from, bytes));
    return bytes;
  }
  // Whether exactly [offset, offset + length) of the buffer is what the device wrote.
  bool OnlyWritten(size_t offset, size_t length) const {
    for (size_t i = 0; i < buffer.all().size(); ++i) {
      const bool inside = i >= offset && i < offset + length;
      if (buffer.all()[i] != (inside ? Written(i) : Original(i))) {
        UNSCOPED_INFO("byte " << i << " is " << static_cast<int>(buffer.all()[i]));
        return false;
      }
    }
    return true;
  }

  host::FakeMemory views;
  std::unique_ptr<SoftwareIommu> iommu;
  std::unique_ptr<DevicePort> port;
  Buffer buffer{8 * 4096};
  std::unique_ptr<Device> nic;
};

}  // namespace dmakit::dma::testing

#endif  // DMAKIT_TESTS_DMA_BOUNCE_TESTING_H_
