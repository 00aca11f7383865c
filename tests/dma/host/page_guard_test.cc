// SPDX-License-Identifier: Apache-2.0
//
// Pages taken from the CPU: an access is noticed and goes on; faults of others stay theirs.
#include "dma/host/page_guard.h"

#include <sys/mman.h>

#include <csignal>
#include <thread>

#include "tests/catch.h"
#include "tests/dma/host/child.h"

namespace dmakit::dma::host {
namespace {

struct Pages {
  Pages() {
    void* at = mmap(nullptr, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    base = static_cast<std::byte*>(at);
  }
  ~Pages() { munmap(base, 4 * 4096); }
  std::span<std::byte> part(size_t first, size_t count) const {
    return {base + first * 4096, count * 4096};
  }
  std::byte* base;
};

void Write(std::byte* at) { *static_cast<volatile std::byte*>(at) = std::byte{1}; }

TEST_CASE("The first access is named, the access itself goes on") {
  FaultGuard guard;
  Pages pages;
  REQUIRE(guard.Protect(pages.part(1, 2)).ok());
  Write(pages.base);  // beside it
  Write(pages.base + 3 * 4096);
  Write(pages.base + 4096 + 17);
  Write(pages.base + 4096 + 5);
  CHECK(guard.Restore(pages.part(1, 2)) == pages.base + 4096 + 17);
  CHECK(pages.base[4096 + 17] == std::byte{1});
  CHECK(guard.Restore(pages.part(1, 2)) == nullptr);  // not protected any more
}

TEST_CASE("Untouched pages say so, and can be protected again") {
  FaultGuard guard;
  Pages pages;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(guard.Protect(pages.part(0, 1)).ok());
    CHECK(guard.Restore(pages.part(0, 1)) == nullptr);
    Write(pages.base);
  }
}

TEST_CASE("An access on another thread, and several guards") {
  FaultGuard guard;
  Pages pages;
  {
    FaultGuard second;
    REQUIRE(second.Protect(pages.part(0, 1)).ok());
    REQUIRE(guard.Protect(pages.part(2, 1)).ok());
    std::thread([&] { Write(pages.base + 2 * 4096 + 1); }).join();
    CHECK(second.Restore(pages.part(0, 1)) == nullptr);
  }
  CHECK(guard.Restore(pages.part(2, 1)) == pages.base + 2 * 4096 + 1);
}

TEST_CASE("An access to pages that no guard has ends the process, as without one") {
  Pages pages;
  const int code = testing::InChild([&] {
    std::signal(SIGSEGV, SIG_DFL);
    FaultGuard guard;
    if (!guard.Protect(pages.part(0, 1)).ok()) return 0;
    mprotect(pages.base + 4096, 4096, PROT_NONE);
    Write(pages.base);  // this one goes on
    Write(pages.base + 4096);
    return 0;
  });
  CHECK(code == -SIGSEGV);
}

TEST_CASE("What is no whole page is refused") {
  FaultGuard guard;
  Pages pages;
  CHECK(absl::IsInvalidArgument(guard.Protect({pages.base + 1, 4096})));
  CHECK(absl::IsInvalidArgument(guard.Protect({pages.base, 100})));
  CHECK(absl::IsInvalidArgument(guard.Protect({})));
  Write(pages.base);
}

}  // namespace
}  // namespace dmakit::dma::host
