// SPDX-License-Identifier: Apache-2.0
//
// Quarantine: counted, held until the reset of every device concerned, kept when a release fails.
#include "dma/quarantine.h"

#include "tests/dma/space_fixture.h"

namespace dmakit::dma {
namespace {

using testing::Has;

Quarantine::Item Item(std::string device, std::function<absl::Status()> release) {
  return {.device = std::move(device),
          .owner = "rx0",
          .reason = "short unmap",
          .range = {Iova(0x1000), Bytes(4096)},
          .bytes = Bytes(4096),
          .release = std::move(release)};
}

TEST_CASE("Only the device that was reset lets go") {
  Quarantine q;
  int a = 0, b = 0;
  q.Hold(Item("nic0", [&] { return ++a, absl::OkStatus(); }));
  q.Hold(Item("nic1", [&] { return ++b, absl::OkStatus(); }));
  CHECK(q.count() == 2);
  CHECK(q.bytes() == Bytes(8192));
  REQUIRE(q.ReleaseAfterReset("nic0").ok());
  REQUIRE(q.ReleaseAfterReset("nic").ok());
  CHECK(a == 1);
  CHECK(b == 0);
  CHECK(q.count() == 1);
  CHECK(q.total_held() == 2);
  REQUIRE(q.ReleaseAfterReset("").ok());
  CHECK(b == 1);
  CHECK(q.bytes() == Bytes(0));
}

TEST_CASE("What several devices may write waits for all of them") {
  Quarantine q;
  int released = 0;
  q.Hold(Item("nic0,nic1", [&] { return ++released, absl::OkStatus(); }));
  REQUIRE(q.ReleaseAfterReset("nic1").ok());
  REQUIRE(q.ReleaseAfterReset("nic1").ok());
  CHECK(released == 0);
  CHECK(q.count() == 1);
  REQUIRE(q.ReleaseAfterReset("nic0").ok());
  CHECK(released == 1);
}

TEST_CASE("What no device is named for waits for a release of all") {
  Quarantine q;
  q.Hold(Item("", nullptr));
  REQUIRE(q.ReleaseAfterReset("nic0").ok());
  CHECK(q.count() == 1);
  REQUIRE(q.ReleaseAfterReset("").ok());
  CHECK(q.count() == 0);
}

TEST_CASE("A release that fails keeps its item, and can be tried again") {
  Quarantine q;
  bool works = false;
  int others = 0;
  q.Hold(Item("nic0", [&]() -> absl::Status {
    if (works) return absl::OkStatus();
    return absl::InternalError("still stuck");
  }));
  q.Hold(Item("nic0", [&] { return ++others, absl::OkStatus(); }));
  const absl::Status status = q.ReleaseAfterReset("nic0");
  CHECK(absl::IsInternal(status));
  CHECK(Has(status, "rx0"));
  CHECK(Has(status, "still stuck"));
  CHECK(others == 1);
  CHECK(q.count() == 1);
  REQUIRE(q.Describe().size() == 1);
  CHECK(q.Describe()[0].find("short unmap") != std::string::npos);
  works = true;
  REQUIRE(q.ReleaseAfterReset("nic0").ok());
  CHECK(q.count() == 0);
}

TEST_CASE("An item is counted until its release is done") {
  Quarantine q;
  size_t during = 0;
  q.Hold(Item("nic0", [&] {
    during = q.count();  // also: no lock is held
    return absl::OkStatus();
  }));
  REQUIRE(q.ReleaseAfterReset("nic0").ok());
  CHECK(during == 1);
}

TEST_CASE("Destroyed with items: their releases do not run, what they hold goes") {
  auto token = std::make_shared<int>(0);
  bool ran = false;
  {
    Quarantine q;
    q.Hold(Item("nic0", [token, &ran] {
      ran = true;
      return absl::OkStatus();
    }));
    CHECK(token.use_count() == 2);
  }
  CHECK(token.use_count() == 1);
  CHECK_FALSE(ran);
}

}  // namespace
}  // namespace dmakit::dma
