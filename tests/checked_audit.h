// SPDX-License-Identifier: Apache-2.0
//
// CheckedAudit: in a build with --config=checked, an audit of every device of an address space, for
// the rigs of tests; a test that ends with an audit error has failed. In other builds it does
// nothing, so that the paths without an observer are tested too. Declare it before the space and
// behind the domains.
#ifndef DMAKIT_TESTS_CHECKED_AUDIT_H_
#define DMAKIT_TESTS_CHECKED_AUDIT_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "dma/audit.h"
#include "dma/device.h"
#include "tests/catch.h"

namespace dmakit::testing {

#if defined(DMAKIT_CHECKED)
inline constexpr bool kCheckedBuild = true;
#else
inline constexpr bool kCheckedBuild = false;
#endif

class CheckedAudit {
 public:
  CheckedAudit() = default;
  ~CheckedAudit() {
    uint64_t expected = 0;
    for (const dma::AuditCode code : expected_) expected += audit_.total(code);
    if (audit_.errors() != expected) UNSCOPED_INFO(audit_.Text());
    CHECK(audit_.errors() == expected);
  }
  CheckedAudit(const CheckedAudit&) = delete;
  CheckedAudit& operator=(const CheckedAudit&) = delete;

  // For AddressSpace::Options::on_attach.
  std::function<absl::Status(dma::Device&)> on_attach() {
    if (!kCheckedBuild) return {};
    return [this](dma::Device& device) { return audit_.Attach(device); };
  }

  // The test makes mistakes of this class, or its device does.
  void Expect(dma::AuditCode code) { expected_.push_back(code); }

 private:
  // Without samples: what a device holds stays as the test counts it.
  dma::Audit audit_{dma::Audit::Options{.sample_one_in = 0, .checked = true}};
  std::vector<dma::AuditCode> expected_;
};

}  // namespace dmakit::testing

#endif  // DMAKIT_TESTS_CHECKED_AUDIT_H_
