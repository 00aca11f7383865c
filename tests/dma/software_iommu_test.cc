// SPDX-License-Identifier: Apache-2.0
//
// What a device sees through its port: permissions, faults, accesses across pages, words, counts.
#include "dma/software_iommu.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/dma/iommu_testing.h"

namespace dmakit::dma {
namespace {

using namespace testing;
using Reason = SoftwareIommu::Fault::Reason;

SoftwareIommu::Fault LastFault(const SoftwareIommu& iommu) {
  const auto faults = iommu.faults();
  REQUIRE_FALSE(faults.empty());
  return faults.back();
}

TEST_CASE("iommu: options out of bounds are named with their value") {
  const auto check = [](SoftwareIommu::Options options, const std::string& word) {
    const auto iommu = SoftwareIommu::Create(std::move(options));
    INFO(word);
    CHECK(iommu.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(iommu.status().message()).find(word) != std::string::npos);
  };
  check({.width = AddressBits(12)}, "12 bits");
  check({.width = AddressBits(49)}, "49 bits");
  check({.page_sizes = k2M}, "0x200000");
  check({.page_sizes = k4K | 8192}, "0x3000");
  check({.iotlb_entries = 0}, "IOTLB of 0");
  check({.iotlb_entries = 48}, "IOTLB of 48");
  check({.iotlb_entries = 4, .iotlb_ways = 8}, "8 ways");
  check({.iotlb_ways = 0}, "0 ways");
  check({.walk_cache_entries = 3}, "walk cache of 3");
  check({.reserved = {{Iova(2), Iova(1)}}}, "reserved");
  CHECK(SoftwareIommu::Create({.width = AddressBits(13)}).ok());
  CHECK(SoftwareIommu::Create({.page_sizes = k4K, .iotlb_entries = 1, .iotlb_ways = 1}).ok());
}

TEST_CASE("iommu: permissions are the device's, per direction") {
  const Backing memory(3 * k4K);
  const auto iommu = NewIommu();
  const auto port = iommu->NewPort("nic0");
  REQUIRE(Map(*iommu, k4K, memory.View(0, k4K), Access::kRead));
  REQUIRE(Map(*iommu, 2 * k4K, memory.View(k4K, k4K), Access::kWrite));
  REQUIRE(Map(*iommu, 3 * k4K, memory.View(2 * k4K, k4K), Access::kReadWrite));
  // Twice: once by a walk, once out of the IOTLB.
  for (int round = 0; round < 2; ++round) {
    CHECK(Peek(*port, k4K).has_value());
    CHECK_FALSE(Poke(*port, k4K, 1));
    CHECK_FALSE(Peek(*port, 2 * k4K).has_value());
    CHECK(Poke(*port, 2 * k4K, 1));
    CHECK(Peek(*port, 3 * k4K).has_value());
    CHECK(Poke(*port, 3 * k4K, 1));
    CHECK_FALSE(port->Publish(Iova(k4K), 1, 4));
    CHECK_FALSE(port->LoadAcquire(Iova(2 * k4K), 4).has_value());
  }
  for (const auto& fault : iommu->faults()) CHECK(fault.reason == Reason::kNoPermission);
  CHECK(iommu->walk_stats().faults == 8);
  CHECK(iommu->walk_stats().walks == 3);
}

TEST_CASE("iommu: access none is refused at map") {
  const Backing memory(k4K);
  const auto iommu = NewIommu();
  CHECK(iommu->Map(At(k4K, k4K), memory.View(0, k4K), Access::kNone).code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("iommu: a fault names device, address, access and reason") {
  const Backing memory(k4K);
  const auto iommu =
      NewIommu({.width = AddressBits(39), .reserved = {{Iova(0xfee00000), Iova(0xfeefffff)}}});
  const auto port = iommu->NewPort("nic7");
  REQUIRE(Map(*iommu, k4K, memory.View(0, k4K), Access::kRead));

  const auto check = [&](uint64_t iova, Access access, Reason reason) {
    const auto fault = LastFault(*iommu);
    CHECK(fault.device == "nic7");
    CHECK(fault.iova == Iova(iova));
    CHECK(fault.access == access);
    CHECK(fault.reason == reason);
  };
  CHECK_FALSE(Peek(*port, 0x5008).has_value());
  check(0x5008, Access::kRead, Reason::kNotPresent);
  CHECK_FALSE(Poke(*port, 0x1010, 1));
  check(0x1010, Access::kWrite, Reason::kNoPermission);
  CHECK_FALSE(Peek(*port, 0xfee00000).has_value());
  check(0xfee00000, Access::kRead, Reason::kReserved);
  CHECK_FALSE(Poke(*port, 0xfeefffff - 7, 1));
  check(0xfeefffff - 7, Access::kWrite, Reason::kReserved);
  CHECK_FALSE(Peek(*port, 0xfef00000).has_value());
  check(0xfef00000, Access::kRead, Reason::kNotPresent);
  // Beyond the width, on its edge, and past 2^64.
  CHECK_FALSE(Peek(*port, uint64_t{1} << 39).has_value());
  check(uint64_t{1} << 39, Access::kRead, Reason::kBeyondWidth);
  CHECK_FALSE(Peek(*port, (uint64_t{1} << 39) - 4).has_value());
  check(uint64_t{1} << 39, Access::kRead, Reason::kBeyondWidth);
  CHECK_FALSE(Poke(*port, ~uint64_t{0} - 3, 1));
  check(~uint64_t{0} - 3, Access::kWrite, Reason::kBeyondWidth);
  CHECK(iommu->walk_stats().faults == 8);
  // The first byte that cannot be reached, not the first of the access.
  std::vector<std::byte> buffer(2 * k4K);
  CHECK_FALSE(port->Read(Iova(k4K + 100), buffer));
  check(2 * k4K, Access::kRead, Reason::kNotPresent);
}

TEST_CASE("iommu: the last byte of the width can be reached, the next cannot") {
  for (const unsigned bits : {39u, 48u}) {
    const uint64_t end = uint64_t{1} << bits;
    const Backing memory(k4K);
    const auto iommu = NewIommu({.width = AddressBits(bits)});
    const auto port = iommu->NewPort("nic0");
    REQUIRE(Map(*iommu, end - k4K, memory.View(0, k4K)));
    std::vector<std::byte> buffer(k4K + 1);
    CHECK(port->Read(Iova(end - k4K), std::span(buffer).first(k4K)));
    CHECK(port->Write(Iova(end - 1), std::span(buffer).first(1)));
    CHECK(port->Publish(Iova(end - 8), 1, 8));
    CHECK(iommu->walk_stats().faults == 0);
    CHECK_FALSE(port->Read(Iova(end - k4K), buffer));
    CHECK(LastFault(*iommu).iova == Iova(end));
    CHECK(LastFault(*iommu).reason == Reason::kBeyondWidth);
  }
}

TEST_CASE("iommu: the newest faults are kept, all are counted") {
  const auto iommu = NewIommu({.fault_records = 4});
  const auto port = iommu->NewPort("nic0");
  for (uint64_t i = 0; i < 10; ++i) CHECK_FALSE(Peek(*port, i * k4K).has_value());
  const auto faults = iommu->faults();
  REQUIRE(faults.size() == 4);
  for (uint64_t i = 0; i < 4; ++i) CHECK(faults[i].iova == Iova((6 + i) * k4K));
  CHECK(iommu->walk_stats().faults == 10);

  const auto silent = NewIommu({.fault_records = 0});
  const auto other = silent->NewPort("nic1");
  CHECK_FALSE(Peek(*other, 0).has_value());
  CHECK(silent->faults().empty());
  CHECK(silent->walk_stats().faults == 1);
}

// Neighbouring IOVAs on scattered memory, so that a wrong piece shows.
TEST_CASE("iommu: accesses of any size and offset cross pages whole") {
  constexpr uint64_t kCount = 20;
  const Backing memory(2 * kCount * k4K);
  const auto iommu = NewIommu({.iotlb_entries = 4, .iotlb_ways = 2});
  const auto port = iommu->NewPort("nic0");
  for (uint64_t i = 0; i < kCount; ++i) {
    REQUIRE(Map(*iommu, (1 + i) * k4K, memory.View((kCount - i) * 2 * k4K - k4K, k4K)));
  }
  std::vector<std::byte> image(kCount * k4K);
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<std::byte>(i * 7 + i / 251);
  REQUIRE(port->Write(Iova(k4K), image));  // 80 KiB: more than any one hardware transfer

  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, k4K - 1, k4K, 3 * k4K + 17}) {
    for (const uint64_t size : {uint64_t{1}, uint64_t{2}, k4K - 1, k4K, k4K + 1, uint64_t{9018},
                                uint64_t{65535}, uint64_t{65536}}) {
      INFO("offset " << offset << " size " << size);
      std::vector<std::byte> back(size);
      REQUIRE(port->Read(Iova(k4K + offset), back));
      CHECK(std::ranges::equal(back, std::span(image).subspan(offset, size)));
    }
  }
  CHECK(iommu->walk_stats().faults == 0);
}

TEST_CASE("iommu: an access that faults anywhere copies nothing") {
  const Backing memory(3 * k4K);
  const auto iommu = NewIommu();
  const auto port = iommu->NewPort("nic0");
  REQUIRE(Map(*iommu, 1 * k4K, memory.View(0, k4K)));
  REQUIRE(Map(*iommu, 2 * k4K, memory.View(k4K, k4K), Access::kRead));

  const std::vector<std::byte> ones(2 * k4K, std::byte{1});
  CHECK_FALSE(port->Write(Iova(k4K + 8), std::span(ones).first(k4K)));
  for (uint64_t i = 0; i < 2 * k4K; ++i) REQUIRE(*memory.at(i) == std::byte{0});

  std::vector<std::byte> buffer(3 * k4K, std::byte{9});
  CHECK_FALSE(port->Read(Iova(k4K), buffer));
  CHECK(std::ranges::all_of(buffer, [](std::byte b) { return b == std::byte{9}; }));
  CHECK(iommu->walk_stats().faults == 2);
}

TEST_CASE("iommu: an access of zero bytes does nothing anywhere") {
  const auto iommu = NewIommu();
  const auto port = iommu->NewPort("nic0");
  for (const uint64_t iova : {uint64_t{0}, uint64_t{12345}, uint64_t{1} << 48, ~uint64_t{0}}) {
    CHECK(port->Read(Iova(iova), {}));
    CHECK(port->Write(Iova(iova), {}));
  }
  CHECK(iommu->walk_stats().accesses == 0);
  CHECK(iommu->walk_stats().faults == 0);
}

TEST_CASE("iommu: words are little-endian, of the width given, and touch nothing else") {
  const Backing memory(k4K);
  const auto iommu = NewIommu();
  const auto port = iommu->NewPort("nic0");
  REQUIRE(Map(*iommu, k4K, memory.View(0, k4K)));
  constexpr uint64_t kWord = 0x8877665544332211;
  for (const size_t width : {1, 2, 4, 8}) {
    std::memset(memory.at(0), 0xee, 32);
    REQUIRE(port->Publish(Iova(k4K + 8), kWord, width));
    for (size_t i = 0; i < 24; ++i) {
      const bool inside = i >= 8 && i < 8 + width;
      const auto expected = inside ? static_cast<std::byte>(0x11 * (i - 7)) : std::byte{0xee};
      INFO("width " << width << " byte " << i);
      CHECK(*memory.at(i) == expected);
    }
    const uint64_t mask = width == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * width)) - 1;
    CHECK(port->LoadAcquire(Iova(k4K + 8), width) == (kWord & mask));
  }
  // The last word of a page stays in it.
  CHECK(port->Publish(Iova(2 * k4K - 8), 1, 8));
  CHECK(iommu->walk_stats().faults == 0);
}

TEST_CASE("iommu: a word that is not one is a fault") {
  const Backing memory(k4K);
  const auto iommu = NewIommu();
  const auto port = iommu->NewPort("nic0");
  REQUIRE(Map(*iommu, k4K, memory.View(0, k4K)));
  uint64_t faults = 0;
  for (size_t width = 0; width <= 17; ++width) {
    for (uint64_t offset = 0; offset < 8; ++offset) {
      const bool word =
          (width == 1 || width == 2 || width == 4 || width == 8) && offset % width == 0;
      INFO("width " << width << " offset " << offset);
      CHECK(port->Publish(Iova(k4K + offset), 1, width) == word);
      CHECK(port->LoadAcquire(Iova(k4K + offset), width).has_value() == word);
      faults += word ? 0 : 2;
      if (!word) CHECK(LastFault(*iommu).reason == Reason::kMisaligned);
    }
  }
  CHECK(iommu->walk_stats().faults == faults);
}

TEST_CASE("iommu: the device's view of the memory is used, not the program's") {
  const Backing program(k4K);
  const Backing device(k4K);
  device.Mark(0, 77);
  const auto iommu = NewIommu();
  const auto port = iommu->NewPort("nic0");
  REQUIRE(Map(*iommu, k4K, {program.at(0), device.at(0), k4K}));
  CHECK(Peek(*port, k4K) == 77);
  CHECK(Poke(*port, k4K, 78));
  CHECK(*program.at(0) == std::byte{0});
}

TEST_CASE("iommu: walks, hits and levels are counted exactly") {
  const Backing memory(4 * k4K);
  const auto iommu = NewIommu();
  const auto port = iommu->NewPort("nic0");
  REQUIRE(Map(*iommu, k1G, memory.View(0, 4 * k4K)));
  const auto stats = [&] { return iommu->walk_stats(); };
  CHECK(Peek(*port, k1G).has_value());  // four levels, nothing cached
  CHECK(stats().walks == 1);
  CHECK(stats().levels_read == 4);
  CHECK(stats().walk_cache_hits == 0);
  CHECK(Peek(*port, k1G).has_value());
  CHECK(stats().iotlb_hits == 1);
  CHECK(stats().levels_read == 4);
  CHECK(Peek(*port, k1G + k4K).has_value());  // the last table is known
  CHECK(stats().walks == 2);
  CHECK(stats().levels_read == 5);
  CHECK(stats().walk_cache_hits == 1);
  CHECK_FALSE(Peek(*port, k1G + k2M).has_value());  // the one above it is known, its entry empty
  CHECK(stats().levels_read == 6);
  CHECK(stats().walk_cache_hits == 2);
  std::vector<std::byte> buffer(3 * k4K);
  CHECK(port->Read(Iova(k1G + 100), buffer));  // four pages
  CHECK(stats().accesses == 8);
  CHECK(stats().iotlb_hits == 3);
  CHECK(stats().walks == 5);
  CHECK(stats().levels_read == 8);

  const auto bare = NewIommu({.walk_cache_entries = 0});
  const auto other = bare->NewPort("nic1");
  REQUIRE(Map(*bare, k1G, memory.View(0, 4 * k4K)));
  for (uint64_t i = 0; i < 4; ++i) CHECK(Peek(*other, k1G + i * k4K).has_value());
  CHECK(bare->walk_stats().levels_read == 16);
  CHECK(bare->walk_stats().walk_cache_hits == 0);
}

TEST_CASE("iommu: what a port counted stays when it is gone") {
  const auto iommu = NewIommu();
  for (int i = 0; i < 3; ++i) {
    const auto port = iommu->NewPort("nic0");
    CHECK_FALSE(Peek(*port, 0).has_value());
  }
  CHECK(iommu->walk_stats().faults == 3);
  CHECK(iommu->walk_stats().walks == 3);
}

TEST_CASE("iommu: the IOTLB has the geometry it states") {
  const Backing memory(64 * k4K);
  const auto iommu = NewIommu({.iotlb_entries = 16, .iotlb_ways = 4});
  const auto port = iommu->NewPort("nic0");
  REQUIRE(Map(*iommu, k1G, memory.View(0, 64 * k4K)));
  const auto walks_for = [&](uint64_t page) {
    const uint64_t before = iommu->walk_stats().walks;
    CHECK(Peek(*port, k1G + page * k4K).has_value());
    return iommu->walk_stats().walks - before;
  };
  for (uint64_t page = 0; page < 16; ++page) CHECK(walks_for(page) == 1);
  for (uint64_t page = 0; page < 16; ++page) CHECK(walks_for(page) == 0);
  // A fifth page of set 0 displaces its least recently used one, page 4; the other sets stay.
  CHECK(walks_for(0) == 0);
  CHECK(walks_for(16) == 1);
  CHECK(walks_for(0) == 0);
  for (uint64_t page = 1; page < 16; ++page) {
    if (page != 4) CHECK(walks_for(page) == 0);
  }
  CHECK(walks_for(4) == 1);
}

TEST_CASE("iommu: ports have caches of their own") {
  const Backing memory(k4K);
  const auto iommu = NewIommu();
  const auto a = iommu->NewPort("a");
  const auto b = iommu->NewPort("b");
  REQUIRE(Map(*iommu, k4K, memory.View(0, k4K)));
  CHECK(Peek(*a, k4K).has_value());
  CHECK(Peek(*b, k4K).has_value());
  CHECK(iommu->walk_stats().walks == 2);
  CHECK(a->name() == "a");
}

TEST_CASE("access: what is granted must hold all that is wanted") {
  CHECK(Allows(Access::kReadWrite, Access::kRead));
  CHECK(Allows(Access::kReadWrite, Access::kReadWrite));
  CHECK_FALSE(Allows(Access::kRead, Access::kReadWrite));
  CHECK_FALSE(Allows(Access::kWrite, Access::kRead));
  CHECK(Allows(Access::kNone, Access::kNone));
  CHECK((Access::kRead | Access::kWrite) == Access::kReadWrite);
  CHECK(AccessFor(Direction::kToDevice) == Access::kRead);
  CHECK(AccessFor(Direction::kFromDevice) == Access::kWrite);
  CHECK(AccessFor(Direction::kBidirectional) == Access::kReadWrite);
}

TEST_CASE("iommu: names") {
  CHECK(Name(Reason::kNotPresent) == "not present");
  CHECK(Name(Reason::kNoPermission) == "no permission");
  CHECK(Name(Reason::kBeyondWidth) == "beyond width");
  CHECK(Name(Reason::kReserved) == "reserved");
  CHECK(Name(Reason::kMisaligned) == "misaligned");
  CHECK(Name(Access::kReadWrite) == "read-write");
  CHECK(Name(Direction::kFromDevice) == "from-device");
  CHECK(Name(Policy::kDeferred) == "deferred");
}

}  // namespace
}  // namespace dmakit::dma
