// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the audit share: a device with an audit on it, on a fake domain or on a
// SoftwareIommu with a port, and the two questions every test asks: is it exactly this one report,
// or none at all. One per test.
#ifndef DMAKIT_TESTS_DMA_AUDIT_TESTING_H_
#define DMAKIT_TESTS_DMA_AUDIT_TESTING_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dma/audit.h"
#include "dma/raw.h"
#include "dma/software_iommu.h"
#include "tests/dma/space_fixture.h"

namespace dmakit::dma::testing {

// Nothing was reported.
inline bool Silent(const Audit& audit) {
  UNSCOPED_INFO(audit.Text());
  return audit.errors() == 0 && audit.warnings() == 0;
}

// The only report, of this class.
inline AuditReport Only(const Audit& audit, AuditCode code) {
  INFO(audit.Text());
  REQUIRE(audit.errors() + audit.warnings() == 1);
  REQUIRE(audit.total(code) == 1);
  const std::vector<AuditReport> reports = audit.reports();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].code == code);
  CHECK(reports[0].device == "nic0");
  CHECK_FALSE(reports[0].remedy().empty());
  return reports[0];
}

inline bool Says(const AuditReport& report, const std::string& text) {
  UNSCOPED_INFO(report.what);
  return report.what.find(text) != std::string::npos;
}

struct AuditRigOptions {
  Audit::Options audit{};
  Policy policy = Policy::kStrict;
  Bytes max_segment{uint64_t{1} << 32};
  Bytes segment_boundary{0};
  uint64_t max_mappings = 0;
  bool second_view = false;
  bool coherent = true;
  bool trusted = true;
};

// nic0 behind a SoftwareIommu, through which `port` is the device.
class AuditRig : public Fixture {
 public:
  explicit AuditRig(AuditRigOptions options = {})
      : views({.second_view = true}),
        iommu(*SoftwareIommu::Create({.max_mappings = options.max_mappings})),
        port(iommu->NewPort("nic0", {.coherent = options.coherent})),
        audit([&] {
          Audit::Options audit_options = std::move(options.audit);
          if (audit_options.memory == nullptr) audit_options.memory = &kinds;
          audit_options.clock = &clock;
          return audit_options;
        }()) {
    AddressSpace::Options space_options = Options();
    space_options.policy = options.policy;
    space_options.deferred.max_age = Nanos{3'600'000'000'000};
    if (options.second_view) space_options.memory = &views;
    NewSpace(std::move(space_options));
    auto made = space->Attach({.name = "nic0",
                               .domain = iommu.get(),
                               .max_segment = options.max_segment,
                               .segment_boundary = options.segment_boundary,
                               .coherent = options.coherent,
                               .trusted = options.trusted});
    REQUIRE(made.ok());
    nic = *std::move(made);
    REQUIRE(audit.Attach(*nic).ok());
  }
  ~AuditRig() {
    nic.reset();
    space.reset();
  }

  bool DeviceWrites(Iova to, size_t length, uint8_t value = 0x11) {
    return port->Write(to, std::vector<std::byte>(length, std::byte{value}));
  }
  bool DeviceReads(Iova from, size_t length) {
    std::vector<std::byte> bytes(length);
    return port->Read(from, bytes);
  }
  Mapping Map(std::span<std::byte> memory, Direction direction, std::string_view owner = "rx0",
              RedZones zones = {}) {
    auto mapping = nic->Map(memory, direction, {.owner = owner, .red_zones = zones});
    INFO(mapping.status());
    REQUIRE(mapping.ok());
    return *std::move(mapping);
  }
  void Unmap(Mapping mapping) { REQUIRE(nic->Unmap(std::move(mapping)).ok()); }

  host::FakeMemoryKinds kinds;
  host::FakeMemory views;
  std::unique_ptr<SoftwareIommu> iommu;
  std::unique_ptr<DevicePort> port;
  Audit audit;
  Buffer buffer{16 * 4096};
  std::unique_ptr<Device> nic;
};

}  // namespace dmakit::dma::testing

#endif  // DMAKIT_TESTS_DMA_AUDIT_TESTING_H_
