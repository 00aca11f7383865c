// SPDX-License-Identifier: Apache-2.0

#include "dma/host/vfio_domain.h"

#include <sys/mman.h>

#include <string>
#include <utility>

#include "dma/host/fakes.h"
#include "tests/catch.h"
#include "tests/dma/host/vfio_testing.h"

namespace dmakit::dma::host {
namespace {

using testing::At;
using testing::kPage;
using testing::Pages;
using testing::Says;
using testing::VfioRig;

constexpr Access kBoth = Access::kReadWrite;

// --- What the kernel tells ----------------------------------------------------------------------

TEST_CASE("facts are the kernel's: apertures, the gaps between, page sizes, mappings left") {
  for (const unsigned bits : {39u, 48u}) {
    VfioRig rig({.width = AddressBits(bits), .max_mappings = 1000});
    const DomainFacts& facts = rig.domain->facts();
    CHECK(facts.width == AddressBits(bits));
    CHECK(facts.apertures ==
          std::vector<Interval>{{Iova(0), Iova(0xfedfffff)},
                                {Iova(0xfef00000), Iova((uint64_t{1} << bits) - 1)}});
    CHECK(facts.reserved == std::vector<Interval>{{Iova(0xfee00000), Iova(0xfeefffff)}});
    CHECK(facts.page_sizes == ((1u << 12) | (1u << 21) | (1u << 30)));
    CHECK(facts.max_mappings == 1000);
    CHECK_FALSE(facts.splittable);
    CHECK(facts.unmap_invalidates);
  }
}

TEST_CASE("ranges that end inside a page lose that page") {
  VfioRig rig({.reserved = {{Iova(0x10800), Iova(0x117ff)}, {Iova(0x20000), Iova(0x20fff)}}});
  CHECK(rig.domain->facts().reserved ==
        std::vector<Interval>{{Iova(0x10000), Iova(0x11fff)}, {Iova(0x20000), Iova(0x20fff)}});
}

TEST_CASE("ranges of less than a page, and one that ends at 2^64") {
  VfioRig rig({.width = AddressBits(64), .reserved = {{Iova(0x800), Iova(0xfff)}}});
  const DomainFacts& facts = rig.domain->facts();
  CHECK(facts.apertures == std::vector<Interval>{{Iova(0x1000), Iova::Max()}});
  CHECK(facts.width == AddressBits(64));
  const Pages pages(1);
  CHECK(rig.domain->Map({Iova(~uint64_t{0} - kPage + 1), Bytes(kPage)}, pages.At(0), kBoth).ok());
  CHECK(*rig.domain->Unmap({Iova(kPage), Bytes(~uint64_t{0} - kPage + 1)}) == Bytes(kPage));
}

TEST_CASE("what an old kernel does not tell is assumed to be the least there is") {
  VfioRig rig({.tells_sizes = false, .tells_ranges = false, .tells_avail = false});
  const DomainFacts& facts = rig.domain->facts();
  CHECK(facts.apertures == std::vector<Interval>{{Iova(0), Iova((uint64_t{1} << 39) - 1)}});
  CHECK(facts.reserved == std::vector<Interval>{{Iova(0xfee00000), Iova(0xfeefffff)}});
  CHECK(facts.page_sizes == kPage);
  CHECK(facts.max_mappings == 65'535);
  const Pages pages(1);
  CHECK(Says(rig.domain->Map(At(0xfee00), pages.At(0), kBoth), VfioProblem::kWidth,
             {"[0xfee00000, 0xfeefffff]"}));
}

TEST_CASE("an IOMMU whose smallest page is beyond reason is refused") {
  FakeVfioKernel kernel({.page_sizes = uint64_t{1} << 40});
  const auto container = *VfioContainer::Open(kernel, kernel.ContainerOptions());
  REQUIRE(container->AddGroup(1).ok());
  CHECK(Says(container->domain().status(), VfioProblem::kUnsupported, {"page sizes"}));
}

// --- Map and unmap ------------------------------------------------------------------------------

TEST_CASE("a map is one ioctl however large, and so is an unmap of many") {
  VfioRig rig;
  const Pages pages(512);
  const VfioCallCounts before = rig.kernel.counts();
  REQUIRE(rig.domain->Map(At(512, 512), pages.At(0, 512), kBoth).ok());
  CHECK(rig.kernel.counts().dma_maps == before.dma_maps + 1);
  for (uint64_t i = 0; i < 8; ++i) {
    REQUIRE(rig.domain->Map(At(4096 + 2 * i), pages.At(i), kBoth).ok());
  }
  CHECK(*rig.domain->Unmap(At(16, 100'000)) == Bytes(520 * kPage));
  CHECK(rig.kernel.counts().dma_unmaps == before.dma_unmaps + 1);
  CHECK(rig.kernel.counts().ioctls == before.ioctls + 10);
  CHECK(rig.kernel.mappings().empty());
}

TEST_CASE("what needs no kernel makes no ioctl") {
  VfioRig rig;
  const Pages pages(2);
  REQUIRE(rig.domain->Map(At(16), pages.At(0), kBoth).ok());
  const VfioCallCounts before = rig.kernel.counts();
  CHECK(rig.domain->Invalidate(At(16)).ok());
  CHECK(rig.domain->InvalidateAll().ok());
  rig.domain->SyncForCpu(At(16));
  rig.domain->SyncForDevice(At(16));
  CHECK(*rig.domain->Unmap(At(100)) == Bytes(0));
  CHECK_FALSE(rig.domain->Map(At(16), pages.At(1), kBoth).ok());
  CHECK_FALSE(rig.domain->Invalidate({Iova(0), Bytes(0)}).ok());
  CHECK(rig.kernel.counts().ioctls == before.ioctls);
}

TEST_CASE("the device gets the rights that were granted, and the view that is its own") {
  VfioRig rig;
  const Pages pages(4);
  const MemoryView memory{pages.At(0).cpu, pages.At(1).cpu, kPage};
  for (const Access access : {Access::kRead, Access::kWrite, kBoth}) {
    REQUIRE(rig.domain->Map(At(16), memory, access | Access::kSnoop).ok());
    const auto mappings = rig.kernel.mappings();
    REQUIRE(mappings.size() == 1);
    CHECK(mappings[0].access == access);
    CHECK(mappings[0].memory == memory.device);
    CHECK(*rig.domain->Unmap(At(16)) == Bytes(kPage));
  }
}

TEST_CASE("an unmap that falls short says so, and the rest is still mapped") {
  FailPoint short_unmap;
  VfioRig rig({.short_unmap = &short_unmap});
  const Pages pages(8);
  REQUIRE(rig.domain->Map(At(16, 2), pages.At(0, 2), kBoth).ok());
  REQUIRE(rig.domain->Map(At(18, 4), pages.At(2, 4), kBoth).ok());
  short_unmap.FailAt(1);
  CHECK(*rig.domain->Unmap(At(16, 6)) == Bytes(5 * kPage));
  CHECK(rig.domain->stats().live_mappings == 1);
  CHECK(rig.domain->stats().mapped_bytes == kPage);
  CHECK(rig.domain->Map(At(21), pages.At(6), kBoth).code() == absl::StatusCode::kAlreadyExists);
  CHECK(rig.domain->Map(At(16, 2), pages.At(0, 2), kBoth).ok());
  CHECK(*rig.domain->Unmap(At(16, 6)) == Bytes(3 * kPage));
  CHECK(rig.domain->stats().live_mappings == 0);
  CHECK(rig.domain->stats().mapped_bytes == 0);
  CHECK(rig.kernel.mappings().empty());
}

TEST_CASE("an unmap that the kernel refuses changes nothing") {
  FailPoint fail;
  VfioRig rig({.fail = &fail});
  const Pages pages(1);
  REQUIRE(rig.domain->Map(At(16), pages.At(0), kBoth).ok());
  fail.FailAt(1);
  CHECK(Says(rig.domain->Unmap(At(16)).status(), VfioProblem::kKernel,
             {"[0x10000, 0x10fff]", "errno 5", "keep the memory"}));
  CHECK(rig.domain->stats().live_mappings == 1);
  CHECK(rig.domain->stats().unmaps == 0);
  CHECK(*rig.domain->Unmap(At(16)) == Bytes(kPage));
}

TEST_CASE("a domain that ends unmaps what is left, in one ioctl") {
  FakeVfioKernel kernel;
  auto container = *VfioContainer::Open(kernel, kernel.ContainerOptions());
  REQUIRE(container->AddGroup(1).ok());
  const Pages pages(4);
  REQUIRE((*container->domain())->Map(At(16, 2), pages.At(0, 2), kBoth).ok());
  REQUIRE((*container->domain())->Map(At(32), pages.At(2), kBoth).ok());
  CHECK(kernel.mappings().size() == 2);
  container.reset();
  CHECK(kernel.mappings().empty());
  CHECK(kernel.counts().dma_unmaps == 1);
}

TEST_CASE("a container without an IOMMU makes no domain, and no options are taken") {
  FakeVfioKernel kernel;
  const VfioFd fd(kernel, kernel.Open("/dev/vfio/vfio"));
  VfioDomain::Options options{.name = "kept"};
  CHECK(Says(VfioDomain::Create(kernel, fd.get(), std::move(options)).status(),
             VfioProblem::kKernel, {"VFIO_IOMMU_GET_INFO", "add a group"}));
  CHECK(options.name == "kept");
}

// --- What the kernel refuses --------------------------------------------------------------------

// The kernel says this to the next map.
absl::Status MapWith(int error) {
  FailPoint fail;
  VfioRig rig({.fail = &fail, .fail_errno = error});
  const Pages pages(1);
  fail.FailAt(1);
  const absl::Status status = rig.domain->Map(At(16), pages.At(0), kBoth);
  CHECK(rig.domain->stats().maps == 0);
  CHECK(rig.domain->stats().live_mappings == 0);
  CHECK(rig.domain->stats().mapped_bytes == 0);
  CHECK(rig.domain->Map(At(16), pages.At(0), kBoth).ok());  // nothing stuck
  return status;
}

TEST_CASE("each refusal of the kernel is translated") {
  const std::string range = "[0x10000, 0x10fff]";
  CHECK(Says(MapWith(EEXIST), VfioProblem::kOverlap, {range, "errno 17"}));
  CHECK(Says(MapWith(EINVAL), VfioProblem::kWidth, {range, "errno 22"}));
  CHECK(Says(MapWith(ENOSPC), VfioProblem::kBudget, {range, "65535", "dma_entry_limit"}));
  CHECK(Says(MapWith(ENOMEM), VfioProblem::kMemory, {range, "errno 12"}));
  CHECK(Says(MapWith(EFAULT), VfioProblem::kMemory, {range, "errno 14", "0x"}));
  CHECK(Says(MapWith(EIO), VfioProblem::kKernel, {range, "errno 5", "VFIO_IOMMU_MAP_DMA"}));
}

TEST_CASE("memory that is not there is no mapping") {
  VfioRig rig;
  void* const hole = mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(hole != MAP_FAILED);
  munmap(hole, kPage);
  auto* const memory = static_cast<std::byte*>(hole);
  CHECK(Says(rig.domain->Map(At(16), MemoryView::Of({memory, kPage}), kBoth), VfioProblem::kMemory,
             {"not all there"}));
  CHECK(rig.domain->stats().live_mappings == 0);
}

TEST_CASE("width and reserved ranges are refused before the kernel is asked, with the ranges") {
  VfioRig rig({.width = AddressBits(39)});
  const Pages pages(2);
  const uint64_t last = (uint64_t{1} << 39) / kPage - 1;
  const VfioCallCounts before = rig.kernel.counts();
  CHECK(Says(rig.domain->Map(At(last + 1), pages.At(0), kBoth), VfioProblem::kWidth,
             {"domain 'vfio'", "0x7fffffffff", "[0xfee00000, 0xfeefffff]"}));
  CHECK(Says(rig.domain->Map(At(0xfedff, 2), pages.At(0, 2), kBoth), VfioProblem::kWidth, {}));
  CHECK(rig.kernel.counts().ioctls == before.ioctls);
  CHECK(rig.domain->Map(At(last), pages.At(0), kBoth).ok());
}

TEST_CASE("shapes and overlaps are typed") {
  VfioRig rig;
  const Pages pages(2);
  CHECK(Says(rig.domain->Map({Iova(16), Bytes(kPage)}, pages.At(0), kBoth), VfioProblem::kShape,
             {"multiples of 4096", "0x10"}));
  CHECK(Says(rig.domain->Map(At(16), pages.At(0), Access::kNone), VfioProblem::kShape, {"none"}));
  CHECK(Says(rig.domain->Map(At(16), {nullptr, nullptr, kPage}, kBoth), VfioProblem::kShape, {}));
  REQUIRE(rig.domain->Map(At(16, 2), pages.At(0, 2), kBoth).ok());
  CHECK(Says(rig.domain->Map(At(17), pages.At(0), kBoth), VfioProblem::kOverlap,
             {"[0x10000, 0x11fff]", "unmap it first"}));
  CHECK(Says(rig.domain->Unmap(At(17)).status(), VfioProblem::kShape, {"cuts"}));
}

// --- Budget -------------------------------------------------------------------------------------

TEST_CASE("at 90 % of the mappings allowed there is one warning, at the limit an error") {
  VfioRig rig({.max_mappings = 100});
  const Pages pages(1);
  for (uint64_t i = 0; i < 89; ++i) REQUIRE(rig.domain->Map(At(16 + i), pages.At(0), kBoth).ok());
  CHECK(rig.reports.empty());
  REQUIRE(rig.domain->Map(At(105), pages.At(0), kBoth).ok());
  REQUIRE(rig.reports.size() == 1);
  CHECK(rig.reports[0].find("90 of the 100 mappings") != std::string::npos);
  for (uint64_t i = 106; i < 116; ++i) REQUIRE(rig.domain->Map(At(i), pages.At(0), kBoth).ok());
  CHECK(rig.reports.size() == 1);
  const VfioCallCounts before = rig.kernel.counts();
  CHECK(Says(rig.domain->Map(At(200), pages.At(0), kBoth), VfioProblem::kBudget,
             {"all 100 mappings", "larger"}));
  CHECK(rig.kernel.counts().ioctls == before.ioctls);
  CHECK(*rig.domain->Unmap(At(16, 50)) == Bytes(50 * kPage));
  CHECK(rig.domain->Map(At(200), pages.At(0), kBoth).ok());
  CHECK(rig.reports.size() == 1);  // once is enough
}

TEST_CASE("a small budget warns before it is full") {
  VfioRig rig({.max_mappings = 2});
  const Pages pages(1);
  REQUIRE(rig.domain->Map(At(16), pages.At(0), kBoth).ok());
  CHECK(rig.reports.empty());
  REQUIRE(rig.domain->Map(At(17), pages.At(0), kBoth).ok());
  CHECK(rig.reports.size() == 1);
}

TEST_CASE("the kernel's 65,535 mappings can all be used, and one more cannot") {
  VfioRig rig;
  const Pages pages(1);
  for (uint64_t i = 0; i < 65'535; ++i) {
    if (!rig.domain->Map(At(0x100000 + i), pages.At(0), kBoth).ok()) FAIL("map " << i);
  }
  CHECK(Says(rig.domain->Map(At(16), pages.At(0), kBoth), VfioProblem::kBudget, {"65535"}));
  CHECK(*rig.domain->Unmap(At(0x100000, 65'535)) == Bytes(65'535 * kPage));
}

// --- Locked memory ------------------------------------------------------------------------------

TEST_CASE("a user's locked memory: what is pinned here, elsewhere, and what is needed") {
  VfioRig rig({.root = false, .memlock_limit = KiB(64), .locked = KiB(16)});
  const Pages pages(16);
  REQUIRE(rig.domain->Map(At(16, 8), pages.At(0, 8), kBoth).ok());  // 16 + 32 KiB
  const VfioCallCounts before = rig.kernel.counts();
  const absl::Status status = rig.domain->Map(At(32, 5), pages.At(8, 5), kBoth);
  CHECK(Says(status, VfioProblem::kMemlock,
             {"pins 20480 bytes", "49152 are locked already", "this domain pins 32768",
              "RLIMIT_MEMLOCK is 65536", "ulimit -l 68", "CAP_IPC_LOCK"}));
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(rig.kernel.counts().ioctls == before.ioctls);
  CHECK(rig.domain->Map(At(32, 4), pages.At(8, 4), kBoth).ok());  // exactly full
  CHECK(*rig.domain->Unmap(At(16, 8)) == Bytes(8 * kPage));
  CHECK(rig.domain->Map(At(16, 8), pages.At(0, 8), kBoth).ok());
}

TEST_CASE("what others unlock meanwhile is noticed before a map is refused") {
  VfioRig rig({.root = false, .memlock_limit = KiB(32), .locked = KiB(32)});
  const Pages pages(1);
  CHECK(Says(rig.domain->Map(At(16), pages.At(0), kBoth), VfioProblem::kMemlock, {}));
  rig.kernel.SetLocked(Bytes(0));
  CHECK(rig.domain->Map(At(16), pages.At(0), kBoth).ok());
}

TEST_CASE("what others lock meanwhile is the kernel's to notice, and is named") {
  VfioRig rig({.root = false, .memlock_limit = KiB(32)});
  const Pages pages(2);
  rig.kernel.SetLocked(KiB(30));
  CHECK(Says(rig.domain->Map(At(16), pages.At(0), kBoth), VfioProblem::kMemlock,
             {"30720 are locked already", "ulimit -l 34"}));
  CHECK(rig.domain->stats().mapped_bytes == 0);
}

TEST_CASE("the limit is not root's, and none is none") {
  const Pages pages(8);
  VfioRig root({.root = true, .memlock_limit = KiB(4)});
  CHECK(root.domain->Map(At(16, 8), pages.At(0, 8), kBoth).ok());
  VfioRig unlimited({.root = false, .memlock_limit = std::nullopt});
  CHECK(unlimited.domain->Map(At(16, 8), pages.At(0, 8), kBoth).ok());
}

TEST_CASE("a failed map leaves the account of locked memory as it was") {
  FailPoint fail;
  VfioRig rig({.root = false, .memlock_limit = KiB(8), .fail = &fail});
  const Pages pages(2);
  for (int i = 0; i < 5; ++i) {
    fail.FailAt(1);
    CHECK_FALSE(rig.domain->Map(At(16, 2), pages.At(0, 2), kBoth).ok());
  }
  CHECK(rig.domain->Map(At(16, 2), pages.At(0, 2), kBoth).ok());
}

}  // namespace
}  // namespace dmakit::dma::host
